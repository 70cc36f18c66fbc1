// Batches: how far each is, what of it did not succeed, and the actions of an operator on it.
import { cancelBatch, resumeBatch } from "../actions";
import { count, duration } from "../format";
import { useFeed } from "../live";
import { Dash, Empty, Link } from "../parts/Marks";
import { Table, type Column } from "../parts/Table";
import { Ago } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { messageHref, query, queueHref, search, setQuery } from "../router";
import { mayOperate } from "../session";
import type { BatchOut, Batches } from "../types";

/** Milliseconds between two looks: the journal has no line about the counts of a batch. */
const LOOK_EVERY = 2_000;
const PAGE = 200;

export function BatchesPage() {
  useFeed({ journal: "none" });
  const ended = query.value.get("show") === "ended";
  const found = useResource<Batches>(`/api/batches${search({ limit: PAGE, ended: ended ? "true" : "" })}`, LOOK_EVERY);
  return (
    <>
      <header class="page-head">
        <h1>Batches</h1>
        <p class="muted">Messages of any queues, and one message when the last of them has ended.</p>
        <button type="button" class="ghost small" onClick={() => setQuery({ show: ended ? null : "ended" })}>
          {ended ? "Show running" : "Show ended"}
        </button>
      </header>
      {found.data === null ? (
        found.error ? <Failed error={found.error} what="the batches" /> : <Loading />
      ) : found.data.batches.length === 0 ? (
        <Empty title={ended ? "No batch has ended lately" : "No batch runs"}>
          Programs send batches with client.batch(). Their records are kept for a day after their end.
        </Empty>
      ) : (
        <Table label="Batches" columns={COLUMNS} rows={found.data.batches} keyOf={({ id }) => id} part="batch-row" />
      )}
    </>
  );
}

const home = (id: string): string => id.slice(0, id.lastIndexOf("/"));

const Share = ({ batch }: { batch: BatchOut }) => (
  <span class="progress-bar" data-part="batch-progress">
    <progress value={batch.fraction} aria-label={`${batch.total - batch.pending} of ${batch.total} have ended`} />
    <span class="num">{Math.floor(batch.fraction * 100)} %</span>
  </span>
);

/** The first messages that did not succeed; an inner batch among them has no page of its own. */
const Failures = ({ batch }: { batch: BatchOut }) => (
  <>
    {batch.failed.slice(0, 3).map(({ id, queue, ended, error }) => (
      <span key={id} class="clip" title={`${ended} ${error}`}>
        {id.includes("/") ? id : <Link href={messageHref(queue, id)}>{error || ended}</Link>}{" "}
      </span>
    ))}
    {batch.failed.length > 3 && `and ${count(batch.failed.length - 3)} more`}
  </>
);

const Actions = ({ batch }: { batch: BatchOut }) =>
  batch.ended_at !== null || !mayOperate.value ? (
    <Dash />
  ) : (
    <>
      {batch.state === "open" && (
        <button type="button" class="ghost small" onClick={() => resumeBatch(batch.id)}>
          Resume
        </button>
      )}
      <button type="button" class="ghost small" onClick={() => cancelBatch(batch.id, batch.pending)}>
        Cancel
      </button>
    </>
  );

const COLUMNS: Column<BatchOut>[] = [
  { id: "id", title: "Batch", class: "clip", cell: ({ id, title }) => title || id, cellHint: ({ id }) => id },
  { id: "home", title: "Home", class: "clip", cell: ({ id }) => <Link href={queueHref(home(id))}>{home(id)}</Link> },
  { id: "state", title: "State", cell: ({ state }) => <b>{state}</b> },
  { id: "progress", title: "Progress", cell: (batch) => <Share batch={batch} /> },
  { id: "pending", title: "Pending", class: "right num", cell: ({ pending }) => count(pending) },
  { id: "done", title: "Done", class: "right num mid-only", cell: ({ done }) => count(done) },
  { id: "dead", title: "Dead", class: "right num", cell: ({ dead }) => (dead > 0 ? count(dead) : <Dash />) },
  { id: "failed", title: "Did not succeed", class: "clip mid-only", cell: (batch) => <Failures batch={batch} /> },
  { id: "created", title: "Created", class: "num", cell: ({ created_at }) => <Ago at={created_at} /> },
  { id: "age", title: "Took", class: "num mid-only", cell: ({ age, ended_at }) => (ended_at === null ? <Dash /> : duration(age * 1000)) },
  { id: "actions", title: "Actions", cell: (batch) => <Actions batch={batch} /> },
];
