// The actions of operators: who did what to how many messages, and when.
import { count } from "../format";
import { useFeed } from "../live";
import { Dash, Empty, Link } from "../parts/Marks";
import { cursorShown, Pager } from "../parts/Pager";
import { Table, type Column } from "../parts/Table";
import { Ago } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { queueHref, rsmqHref, search } from "../router";
import type { Audit, AuditOut } from "../types";

const PAGE = 100;

/** The names of RSMQ queues have a prefix here. */
const hrefOf = (queue: string): string => (queue.startsWith("rsmq:") ? rsmqHref(queue.slice(5)) : queueHref(queue));

export function AuditPage() {
  useFeed({ journal: "none" });
  const before = cursorShown();
  const found = useResource<Audit>(
    `/api/audit${search({ limit: PAGE, before })}`,
    before === "" ? 5_000 : 0,
  );
  if (found.data === null) return found.error ? <Failed error={found.error} what="the audit log" /> : <Loading />;
  return (
    <>
      <header class="page-head">
        <h1>Audit</h1>
        <p class="muted">The actions of operators, newest first.</p>
      </header>
      {found.data.entries.length === 0 ? (
        <Empty title="No actions yet">Replays, deletions, purges, pauses and changes of settings are recorded here.</Empty>
      ) : (
        <Table label="Actions" columns={COLUMNS} rows={found.data.entries} keyOf={({ id }) => id} part="audit-row" />
      )}
      <Pager next={found.data.next} words={["Newer", "Older"]} />
    </>
  );
}

const COLUMNS: Column<AuditOut>[] = [
  { id: "at", title: "When", class: "num", cell: ({ at }) => <Ago at={at} /> },
  { id: "who", title: "Operator", class: "clip", cell: ({ who }) => who, cellHint: ({ who }) => who },
  { id: "verb", title: "Action", cell: ({ verb }) => <b>{verb}</b> },
  { id: "queue", title: "Queue", class: "clip", cell: ({ queue }) => queue && <Link href={hrefOf(queue)}>{queue}</Link> },
  { id: "count", title: "Messages", class: "right num", cell: (entry) => (entry.count > 0 ? count(entry.count) : <Dash />) },
  { id: "detail", title: "Details", class: "clip mid-only", cell: ({ detail }) => detail, cellHint: ({ detail }) => detail },
];
