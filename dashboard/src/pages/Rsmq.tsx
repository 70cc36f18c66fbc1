// The queues of RSMQ clients: how many messages each holds, and how many of them are hidden.
import { bytes, count } from "../format";
import { useKeys } from "../keys";
import { useFeed } from "../live";
import { Count, Dash, Empty, Link } from "../parts/Marks";
import { Table, type Column } from "../parts/Table";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { go, query, rsmqApi, rsmqHref } from "../router";
import { cursorKeys, useCursor } from "../selection";
import type { RsmqQueue, RsmqQueues } from "../types";

/** Milliseconds between two reads: these queues have no journal to follow. */
const READ_EVERY = 2_000;

const columns = (hrefOf: (queue: string) => string): Column<RsmqQueue>[] => [
  { id: "queue", title: "Queue", names: true, cell: (q) => <Link href={hrefOf(q.queue)}>{q.queue}</Link> },
  { id: "messages", title: "Messages", class: "right num", cell: (q) => <Count n={q.messages} part="messages" /> },
  {
    id: "hidden",
    title: "Hidden",
    hint: "Scheduled and leased messages, which cannot be received now",
    class: "right num",
    cell: (q) => <Count n={q.hidden} />,
  },
  { id: "sent", title: "Sent", class: "right num mid-only", cell: (q) => count(q.sent) },
  { id: "received", title: "Received", class: "right num mid-only", cell: (q) => count(q.received) },
  {
    id: "lease",
    title: "Lease",
    hint: "How long a received message stays hidden",
    class: "right num mid-only",
    cell: (q) => `${count(q.lease_seconds)} s`,
  },
  { id: "delay", title: "Delay", class: "right num wide-only", cell: (q) => (q.delay_seconds === 0 ? <Dash /> : `${count(q.delay_seconds)} s`) },
  {
    id: "largest",
    title: "Maximum payload",
    class: "right num wide-only",
    cell: (q) => (q.max_payload_bytes === null ? "unlimited" : bytes(q.max_payload_bytes)),
  },
];

export function RsmqPage() {
  useFeed({ journal: "none" });
  const namespace = query.value.get("namespace") ?? "";
  const found = useResource<RsmqQueues>(rsmqApi("", { namespace }), READ_EVERY);
  const queues = found.data?.queues ?? [];
  const hrefOf = (queue: string): string => rsmqHref(queue, { namespace });
  const cursor = useCursor(queues.map(({ queue }) => queue));
  useKeys(cursorKeys(cursor, (queue) => go(hrefOf(queue))));
  if (found.data === null) return found.error ? <Failed error={found.error} what="the RSMQ queues" /> : <Loading />;
  return (
    <>
      <header class="page-head">
        <h1>RSMQ</h1>
        <p class="muted">
          Queues in the key schema of RSMQ{namespace && `, in the namespace ${namespace}`}. RSMQ clients and Restante share the same messages.
        </p>
      </header>
      {queues.length === 0 ? (
        <Empty title="No RSMQ queues">
          <p>
            Create one with an RSMQ client or with <code>restante rsmq queue create -n orders</code>.
          </p>
        </Empty>
      ) : (
        <Table
          label="RSMQ queues"
          class="queues"
          columns={columns(hrefOf)}
          rows={queues}
          keyOf={({ queue }) => queue}
          part="rsmq-row"
          attributes={({ queue }) => ({ "data-queue": queue })}
          cursor={cursor.cursor}
        />
      )}
    </>
  );
}
