// An RSMQ queue: its messages in the order in which they become available, to be inspected, deleted and moved.
import { useState } from "preact/hooks";
import { deleteRsmq } from "../actions";
import { bytes, count, plural } from "../format";
import { useFeed } from "../live";
import { BulkBar, BulkMoveDelete } from "../parts/BulkBar";
import { Crumbs, Empty } from "../parts/Marks";
import { rsmqMessageColumns } from "../parts/messageColumns";
import { cursorShown, Pager } from "../parts/Pager";
import { RsmqMoveDialog } from "../parts/RsmqMove";
import { Table } from "../parts/Table";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { go, query, rsmqApi, rsmqHref } from "../router";
import { useListKeys, useSelection } from "../selection";
import { mayOperate } from "../session";
import type { OneRsmqQueue, RsmqMessageOut, RsmqPageOut, RsmqQueue } from "../types";

const PAGE = 50;
/** Milliseconds between two reads: these queues have no journal to follow. */
const READ_EVERY = 2_000;
const NONE: RsmqMessageOut[] = [];

export function RsmqQueuePage({ name }: { name: string }) {
  useFeed({ journal: "none" });
  const namespace = query.value.get("namespace") ?? "";
  const facts = useResource<OneRsmqQueue>(rsmqApi(name, { namespace }), READ_EVERY);
  const listing = rsmqApi(`${name}/messages`, { namespace, limit: PAGE, before: cursorShown() });
  const page = useResource<RsmqPageOut>(listing, READ_EVERY);
  const shown = page.stale ? null : page.data;
  const rows = shown?.messages ?? NONE;
  const selection = useSelection(listing, rows.map(({ id }) => id));
  const [moving, setMoving] = useState<string[] | null>(null);
  const after = (done: boolean): void => {
    if (!done) return;
    selection.clear();
    facts.reload();
    page.reload();
  };
  const erase = (): void => {
    const ids = selection.targets();
    if (mayOperate.value && ids.length > 0) void deleteRsmq(name, namespace, ids).then(after);
  };
  useListKeys(selection, {
    open: (id) => go(rsmqHref(`${name}/messages/${id}`, { namespace })),
    erase,
    more: { Escape: () => (selection.chosen.size > 0 ? selection.clear() : go(rsmqHref("", { namespace }))) },
  });
  const queue = facts.data?.queue ?? null;
  return (
    <>
      <header class="page-head">
        <Crumbs links={[["RSMQ", rsmqHref("", { namespace })]]} />
        <h1>{name}</h1>
        {queue !== null && <Facts queue={queue} />}
      </header>
      {facts.error !== null && queue === null && <Failed error={facts.error} what={`the RSMQ queue ${name}`} />}
      <BulkBar chosen={selection.chosen.size} label="Selected messages" onClear={selection.clear}>
        <BulkMoveDelete onMove={() => setMoving(selection.targets())} onDelete={erase} />
      </BulkBar>
      {rows.length > 0 && (
        <Table
          label="Messages, the next available first"
          class="messages"
          columns={rsmqMessageColumns(namespace)}
          rows={rows}
          keyOf={({ id }) => id}
          part="message-row"
          attributes={({ id, state }) => ({ "data-id": id, "data-state": state })}
          cursor={selection.cursor}
          selection={mayOperate.value ? selection : null}
          nameOf={({ id }) => `message ${id}`}
        />
      )}
      {page.data === null && page.error === null && <Loading />}
      {shown !== null && rows.length === 0 && <Empty title="No messages." />}
      {shown !== null && (
        <Pager next={shown.next}>{rows.length > 0 && `${count(rows.length)} of ${plural(shown.total, "message")}`}</Pager>
      )}
      {moving !== null && (
        <RsmqMoveDialog queue={name} namespace={namespace} ids={moving} onClose={() => setMoving(null)} onDone={() => after(true)} />
      )}
    </>
  );
}

const Facts = ({ queue }: { queue: RsmqQueue }) => (
  <p class="facts-line" data-part="rsmq-facts">
    <span>
      <b class="num">{count(queue.messages)}</b> {queue.messages === 1 ? "message" : "messages"}, <b class="num">{count(queue.hidden)}</b> hidden
    </span>
    <span>
      <b class="num">{count(queue.sent)}</b> sent
    </span>
    <span>
      <b class="num">{count(queue.received)}</b> received
    </span>
    <span>
      lease <b class="num">{count(queue.lease_seconds)}</b> s
    </span>
    {queue.delay_seconds > 0 && (
      <span>
        delay <b class="num">{count(queue.delay_seconds)}</b> s
      </span>
    )}
    <span>
      maximum payload <b class="num">{queue.max_payload_bytes === null ? "unlimited" : bytes(queue.max_payload_bytes)}</b>
    </span>
  </p>
);
