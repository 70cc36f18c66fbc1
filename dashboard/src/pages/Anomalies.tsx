// What looks wrong without having failed: counts by kind and the newest first.
import { useMemo } from "preact/hooks";
import { count, shortId } from "../format";
import { useFeed } from "../live";
import { anomalyText, Empty, Link } from "../parts/Marks";
import { Ago } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { messageHref, query, queueHref, search } from "../router";
import type { Anomaly } from "../types";

const READ_EVERY = 5_000;

export function AnomaliesPage() {
  useFeed({ journal: "none" });
  const found = useResource<{ anomalies: Anomaly[] }>("/api/anomalies", READ_EVERY);
  const wanted = query.value.get("kind") ?? "";
  const all = found.data?.anomalies ?? [];
  const kinds = useMemo(() => {
    const counts = new Map<string, number>();
    for (const { kind } of all) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]);
  }, [found.data]);
  if (found.data === null) return found.error ? <Failed error={found.error} what="the anomalies" /> : <Loading />;
  const shown = all.filter(({ kind }) => !wanted || kind === wanted);
  return (
    <>
      <header class="page-head">
        <h1>Anomalies</h1>
        <p class="muted">Signs of trouble that no error tells of.</p>
      </header>
      {all.length === 0 && <Empty title="No anomalies.">Zombies, bursts, long held or very large messages would appear here.</Empty>}
      {all.length > 0 && (
        <nav class="tabs" aria-label="Kinds of anomaly">
          <Link href="/anomalies" class="tab" current={wanted === ""}>
            All <b class="num">{count(all.length)}</b>
          </Link>
          {kinds.map(([kind, n]) => (
            <Link key={kind} href={`/anomalies${search({ kind })}`} class="tab" current={kind === wanted} title={anomalyText(kind)}>
              {kind.replaceAll("_", " ")} <b class="num">{count(n)}</b>
            </Link>
          ))}
        </nav>
      )}
      {shown.length > 0 && (
        <div class="table-box">
          <table>
            <thead>
              <tr>
                <th scope="col">When</th>
                <th scope="col">Kind</th>
                <th scope="col">Queue</th>
                <th scope="col">What</th>
                <th scope="col" class="mid-only">Message</th>
                <th scope="col" class="mid-only">Who</th>
              </tr>
            </thead>
            <tbody>
              {shown.map((one, i) => (
                <tr key={`${one.at} ${one.kind} ${one.message_id} ${i}`}>
                  <td class="num">
                    <Ago at={one.at} />
                  </td>
                  <td>
                    <span class="badge badge-bad" title={anomalyText(one.kind)}>
                      {one.kind.replaceAll("_", " ")}
                    </span>
                  </td>
                  <td class="clip">{one.queue && <Link href={queueHref(one.queue)}>{one.queue}</Link>}</td>
                  <td>{one.text}</td>
                  <td class="mono mid-only">
                    {one.message_id && (
                      <Link href={messageHref(one.queue, one.message_id)} title={one.message_id}>
                        {shortId(one.message_id)}
                      </Link>
                    )}
                  </td>
                  <td class="clip mid-only">{one.who}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
