// An RSMQ queue: its messages by when they can be received next, to be looked at, deleted and moved.
import { useEffect, useRef, useState } from "preact/hooks";
import { deleteRsmq } from "../actions";
import { bytes, count, plural, shortId } from "../format";
import { useKeys } from "../keys";
import { useFeed } from "../live";
import { Copy, Empty, Link, StateMark } from "../parts/Marks";
import { RsmqMoveDialog } from "../parts/RsmqMove";
import { Ago, Receivable } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { go, query, rsmqApi, rsmqHref, setQuery, trail } from "../router";
import { useSelection, type Selection } from "../selection";
import { mayOperate } from "../session";
import type { RsmqMessage, RsmqQueue, RsmqQueuePage as Page } from "../types";

const PAGE = 50;
/** These queues have no journal to follow: they are read again this often, in milliseconds. */
const READ_EVERY = 2_000;
const NONE: RsmqMessage[] = [];

export function RsmqQueuePage({ name }: { name: string }) {
  useFeed({ journal: "none" });
  const namespace = query.value.get("namespace") ?? "";
  const before = query.value.get("before") ?? "";
  const facts = useResource<{ queue: RsmqQueue }>(rsmqApi(name, { namespace }), READ_EVERY);
  const listing = rsmqApi(`${name}/messages`, { namespace, limit: PAGE, before });
  const page = useResource<Page>(listing, READ_EVERY);
  const rows = page.stale ? NONE : (page.data?.messages ?? NONE);
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
  const select = (range: boolean): void => {
    if (selection.cursor !== null && mayOperate.value) selection.toggle(selection.cursor, range);
  };
  useKeys({
    j: () => selection.moveCursor(1),
    k: () => selection.moveCursor(-1),
    x: () => select(false),
    X: () => select(true),
    "#": erase,
    Delete: erase,
    Enter: () => selection.cursor !== null && go(rsmqHref(`${name}/messages/${selection.cursor}`, { namespace })),
    Escape: () => (selection.chosen.size > 0 ? selection.clear() : go(rsmqHref("", { namespace }))),
  });
  const queue = facts.data?.queue ?? null;
  return (
    <>
      <header class="page-head">
        <nav class="crumbs" aria-label="Where this is">
          <Link href={rsmqHref("", { namespace })}>RSMQ</Link>
        </nav>
        <h1>{name}</h1>
        {queue !== null && <Facts queue={queue} />}
      </header>
      {facts.error !== null && queue === null && <Failed error={facts.error} what={`the RSMQ queue ${name}`} />}
      {selection.chosen.size > 0 && (
        <div class="bulk-bar" role="toolbar" aria-label="Selected messages" data-testid="bulk-bar">
          <b class="num">{count(selection.chosen.size)} selected</b>
          <button type="button" data-testid="bulk-move" onClick={() => setMoving(selection.targets())}>
            Move…
          </button>
          <button type="button" class="danger-quiet" data-testid="bulk-delete" onClick={erase}>
            Delete <kbd>#</kbd>
          </button>
          <button type="button" class="ghost" onClick={selection.clear}>
            Clear <kbd>Esc</kbd>
          </button>
        </div>
      )}
      {rows.length > 0 && <Table rows={rows} namespace={namespace} selection={selection} />}
      {page.data === null && page.error === null && <Loading />}
      {!page.stale && page.data !== null && rows.length === 0 && <Empty title="No messages." />}
      {!page.stale && page.data !== null && <Pager page={page.data} before={before} />}
      {moving !== null && (
        <RsmqMoveDialog queue={name} namespace={namespace} ids={moving} onClose={() => setMoving(null)} onDone={() => after(true)} />
      )}
    </>
  );
}

const Facts = ({ queue }: { queue: RsmqQueue }) => (
  <p class="facts-line" data-testid="rsmq-facts">
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
      payloads up to <b class="num">{queue.max_payload_bytes === null ? "any size" : bytes(queue.max_payload_bytes)}</b>
    </span>
  </p>
);

function Table({ rows, namespace, selection }: { rows: RsmqMessage[]; namespace: string; selection: Selection }) {
  const whole = rows.every(({ id }) => selection.chosen.has(id));
  return (
    <div class="table-box">
      <table class="messages" aria-label="Messages by when they can be received">
        <thead>
          <tr>
            {mayOperate.value && (
              <th scope="col" class="select">
                <input type="checkbox" aria-label="Select every message of this page" checked={whole} onChange={selection.togglePage} />
              </th>
            )}
            <th scope="col">Id</th>
            <th scope="col" class="mid-only">State</th>
            <th scope="col">Receivable</th>
            <th scope="col" class="right">Attempts</th>
            <th scope="col" class="mid-only">First received</th>
            <th scope="col" class="right wide-only">Size</th>
            <th scope="col">Payload</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((message) => (
            <Row key={message.id} message={message} namespace={namespace} selection={selection} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Row({ message, namespace, selection }: { message: RsmqMessage; namespace: string; selection: Selection }) {
  const row = useRef<HTMLTableRowElement>(null);
  const { id, state } = message;
  const current = selection.cursor === id;
  const chosen = selection.chosen.has(id);
  useEffect(() => {
    if (current && document.activeElement?.closest("tr") !== row.current) row.current?.focus();
  }, [current]);
  return (
    <tr ref={row} tabIndex={-1} class={current ? "cursor" : ""} aria-selected={mayOperate.value ? chosen : undefined} data-testid="message-row" data-id={id} data-state={state}>
      {mayOperate.value && (
        <td class="select">
          <input type="checkbox" checked={chosen} aria-label={`Select message ${id}`} data-testid="row-select" onClick={(event) => selection.toggle(id, event.shiftKey)} />
        </td>
      )}
      <td class="mono">
        <span class="id-cell">
          <Link href={rsmqHref(`${message.queue}/messages/${id}`, { namespace })} title={id}>
            {shortId(id)}
          </Link>
          <Copy text={id} what="id" />
        </span>
      </td>
      <td class="mid-only">
        <StateMark state={state} />
      </td>
      <td class="time num">
        <Receivable at={message.due_at} />
      </td>
      <td class="right num">{count(message.attempts)}</td>
      <td class="num mid-only">{message.first_received_at === null ? <span class="muted">–</span> : <Ago at={message.first_received_at} />}</td>
      <td class="right num wide-only">{bytes(message.size)}</td>
      <td class="preview-cell mono" title={message.preview}>
        {message.preview || <i>empty</i>}
      </td>
    </tr>
  );
}

function Pager({ page, before }: { page: Page; before: string }) {
  const past = trail();
  return (
    <nav class="pager" aria-label="Pages">
      <span class="muted">
        {count(page.messages.length)} of {plural(page.total, "message")}
      </span>
      <span class="actions">
        <button
          type="button"
          data-testid="prev-page"
          disabled={before === ""}
          onClick={() => setQuery({ before: past.at(-1) ?? null }, false, { trail: past.slice(0, -1) })}
        >
          Previous
        </button>
        <button
          type="button"
          data-testid="next-page"
          disabled={page.next === null}
          onClick={() => setQuery({ before: page.next }, false, { trail: [...past, before] })}
        >
          Next
        </button>
      </span>
    </nav>
  );
}
