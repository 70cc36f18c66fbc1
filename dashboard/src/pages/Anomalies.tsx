// Unusual conditions: counts by kind, and a list with the newest first.
import { useMemo } from "preact/hooks";
import { count, shortId } from "../format";
import { useFeed } from "../live";
import { anomalyText, Empty, Link } from "../parts/Marks";
import { Table, type Column } from "../parts/Table";
import { Ago } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { messageHref, query, queueHref, search } from "../router";
import type { Anomalies, AnomalyOut } from "../types";

const READ_EVERY = 5_000;

const kindText = (kind: string): string => kind.replaceAll("_", " ");

export function AnomaliesPage() {
  useFeed({ journal: "none" });
  const found = useResource<Anomalies>("/api/anomalies", READ_EVERY);
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
        <p class="muted">Unusual conditions that need attention, newest first.</p>
      </header>
      {all.length === 0 && <Empty title="No anomalies">This page lists messages without a consumer, bursts, long leases and very large payloads.</Empty>}
      {all.length > 0 && (
        <nav class="tabs" aria-label="Kinds of anomaly">
          <Link href="/anomalies" class="tab" current={wanted === ""}>
            All <b class="num">{count(all.length)}</b>
          </Link>
          {kinds.map(([kind, n]) => (
            <Link key={kind} href={`/anomalies${search({ kind })}`} class="tab" current={kind === wanted} title={anomalyText(kind)}>
              {kindText(kind)} <b class="num">{count(n)}</b>
            </Link>
          ))}
        </nav>
      )}
      {shown.length > 0 && (
        <Table label="Anomalies" columns={COLUMNS} rows={shown} keyOf={(one, i) => `${one.at} ${one.kind} ${one.message_id} ${i}`} part="anomaly" />
      )}
    </>
  );
}

const COLUMNS: Column<AnomalyOut>[] = [
  { id: "at", title: "When", class: "num", cell: ({ at }) => <Ago at={at} /> },
  {
    id: "kind",
    title: "Kind",
    class: "mid-only",
    cell: ({ kind }) => (
      <span class="badge badge-bad" title={anomalyText(kind)}>
        {kindText(kind)}
      </span>
    ),
  },
  { id: "queue", title: "Queue", class: "clip", cell: ({ queue }) => queue && <Link href={queueHref(queue)}>{queue}</Link> },
  { id: "text", title: "Description", class: "prose", cell: ({ text }) => text },
  {
    id: "message",
    title: "Message",
    class: "mono mid-only",
    cell: ({ queue, message_id }) =>
      message_id && (
        <Link href={messageHref(queue, message_id)} title={message_id}>
          {shortId(message_id)}
        </Link>
      ),
  },
  { id: "who", title: "Consumer or operator", class: "clip mid-only", cell: ({ who }) => who, cellHint: ({ who }) => who },
];
