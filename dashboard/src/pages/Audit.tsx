// What operators did: who, what, to how many messages, and when.
import { count, instant } from "../format";
import { useFeed } from "../live";
import { Empty, Link } from "../parts/Marks";
import { Ago } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { query, queueHref, rsmqHref, search, setQuery, trail } from "../router";
import type { AuditEntry } from "../types";

const PAGE = 100;

/** What was done to an RSMQ queue is told with a prefix. */
const hrefOf = (queue: string): string => (queue.startsWith("rsmq:") ? rsmqHref(queue.slice(5)) : queueHref(queue));

export function AuditPage() {
  useFeed({ journal: "none" });
  const before = query.value.get("before") ?? "";
  const found = useResource<{ entries: AuditEntry[]; next: string | null }>(
    `/api/audit${search({ limit: PAGE, before })}`,
    before === "" ? 5_000 : 0,
  );
  const past = trail();
  const next = found.data?.next ?? null;
  if (found.data === null) return found.error ? <Failed error={found.error} what="the audit" /> : <Loading />;
  return (
    <>
      <header class="page-head">
        <h1>Audit</h1>
        <p class="muted">Every action of an operator, newest first.</p>
      </header>
      {found.data.entries.length === 0 ? (
        <Empty title="Nobody has done anything yet.">Replays, deletes, purges, pauses and settings are written down here.</Empty>
      ) : (
        <div class="table-box">
          <table>
            <thead>
              <tr>
                <th scope="col">When</th>
                <th scope="col">Who</th>
                <th scope="col">What</th>
                <th scope="col">Queue</th>
                <th scope="col" class="right">Messages</th>
                <th scope="col" class="mid-only">Detail</th>
              </tr>
            </thead>
            <tbody>
              {found.data.entries.map((entry) => (
                <tr key={entry.id}>
                  <td class="num" title={instant(entry.at)}>
                    <Ago at={entry.at} />
                  </td>
                  <td class="clip">{entry.who}</td>
                  <td>
                    <b>{entry.verb}</b>
                  </td>
                  <td class="clip">{entry.queue && <Link href={hrefOf(entry.queue)}>{entry.queue}</Link>}</td>
                  <td class="right num">{entry.count > 0 ? count(entry.count) : "–"}</td>
                  <td class="clip mid-only" title={entry.detail}>
                    {entry.detail}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <nav class="pager" aria-label="Pages">
        <span />
        <span class="actions">
          <button
            type="button"
            data-testid="prev-page"
            disabled={before === ""}
            onClick={() => setQuery({ before: past.at(-1) ?? null }, false, { trail: past.slice(0, -1) })}
          >
            Newer
          </button>
          <button
            type="button"
            data-testid="next-page"
            disabled={next === null}
            onClick={() => setQuery({ before: next }, false, { trail: [...past, before] })}
          >
            Older
          </button>
        </span>
      </nav>
    </>
  );
}
