// A queue: its states as tabs, and one live table of the messages in the selected state.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { cancelIds, deleteIds, replayIds, revokeIds } from "../actions";
import type { ApiError } from "../api";
import { count, plural } from "../format";
import { focusFilter } from "../keys";
import { isCancellable, title } from "../lifecycle";
import { useCounts, useFeed, useJournal } from "../live";
import { apply, useMoved } from "../moved";
import { BulkBar, BulkCancel, BulkMoveDelete, BulkReplay, BulkRevoke } from "../parts/BulkBar";
import { Empty } from "../parts/Marks";
import { messageColumns } from "../parts/messageColumns";
import { cursorShown, Pager } from "../parts/Pager";
import { MoveDialog } from "../parts/QueueDialogs";
import { QueueHeader, stateShown } from "../parts/QueueHeader";
import { SearchField } from "../parts/SearchField";
import { sorted, Table } from "../parts/Table";
import { Failed, Loading } from "../parts/Waiting";
import { proposeReplay } from "../replays";
import { useResource } from "../resource";
import { go, messageHref, query, queueApi, search, setQuery } from "../router";
import { useListKeys, useSelection } from "../selection";
import { mayOperate } from "../session";
import type { MessageOut, MessagePage, QueueOut } from "../types";

const PAGE = 50;
/** Milliseconds between two reads of the details around the table; counts arrive live. */
const FACTS_EVERY = 5_000;
/** Milliseconds between two reads of a filtered page: each costs the server a scan. */
const FILTERED_GAP = 3_000;
/** Milliseconds between two reads of a list with progress: the journal has no line about it. */
const PROGRESS_EVERY = 2_000;
const NONE: MessageOut[] = [];

export function QueuePage({ name }: { name: string }) {
  useFeed({ journal: "one", queue: name });
  const facts = useResource<QueueOut>(queueApi(name), FACTS_EVERY);
  const [counted, setCounted] = useState<Partial<QueueOut>>({});
  const queue = facts.data?.queue === name ? { ...facts.data, ...counted } : null;
  const asked = query.value.get("state") ?? "";
  // Without a state in the link the state is chosen once, so that the tab does not jump while messages move.
  useEffect(() => {
    if (asked === "" && queue !== null) setQuery({ state: stateShown("", queue) }, true);
  }, [asked, queue === null]);
  const state = stateShown(asked, queue);

  const value = (key: string): string => query.value.get(key) ?? "";
  const filters = { kind: value("kind"), q: value("q"), error_class: value("error_class") };
  const filtered = Object.values(filters).some(Boolean);
  const order = value("order") === "newest" ? "newest" : "oldest";
  const listing = queueApi(name, `/messages${search({ state, ...filters, order, limit: PAGE, before: cursorShown() })}`);
  const page = useResource<MessagePage>(asked === "" ? null : listing);
  const shown = page.data?.state === state ? page.data : null;
  const messages = shown?.messages ?? NONE;
  // The server counts before it reads the page, and messages may have arrived in between.
  const total = Math.max(shown?.total ?? 0, messages.length);
  const moved = useMoved(name, messages, shown?.now ?? 0);
  const noted = state === "leased" && messages.some(({ progress }) => progress !== null);
  const columns = messageColumns(state, moved, noted);
  const rows = sorted(messages, columns, value("sort"));
  const selection = useSelection(listing, rows.map((message) => message.id));
  const [moving, setMoving] = useState<string[] | null>(null);

  const refresh = (): void => page.reloadSoon(filtered ? FILTERED_GAP : undefined);
  useJournal(
    (entries) => {
      const ids = new Set(messages.map((message) => message.id));
      if (entries.some((entry) => entry.state === state || ids.has(entry.message_id))) refresh();
      if (entries.some(({ event }) => event === "configured" || event === "paused" || event === "resumed")) facts.reloadSoon();
    },
    [listing, messages],
  );
  useCounts(
    (counts) => {
      const mine = counts.queues.find((one) => one.queue === name);
      if (mine === undefined) return;
      if (mine.states[state] !== queue?.states[state]) refresh();
      setCounted(mine);
    },
    [listing, queue?.states[state]],
  );
  useEffect(() => setCounted({}), [name, facts.data]);
  useEffect(() => {
    if (!noted) return;
    const timer = window.setInterval(refresh, PROGRESS_EVERY);
    return () => window.clearInterval(timer);
  }, [noted, listing]);

  const reload = (): void => {
    facts.reload();
    page.reload();
  };
  const after = (done: boolean): void => {
    if (!done) return;
    selection.clear();
    reload();
  };
  const replay = (): void => {
    const ids = selection.targets();
    if (state === "dead" && mayOperate.value && ids.length > 0) void replayIds(name, ids).then(after);
  };
  const erase = (): void => {
    const ids = selection.targets();
    if (state !== "leased" && mayOperate.value && ids.length > 0) void deleteIds(name, ids).then(after);
  };
  useListKeys(selection, {
    open: (id) => go(messageHref(name, id)),
    erase,
    more: { R: replay, "/": focusFilter },
  });

  if (queue === null) return facts.error ? <Missing name={name} error={facts.error} /> : <Loading />;
  return (
    <>
      <QueueHeader queue={queue} state={state} reload={reload} />
      <section aria-label={`${title(state)} messages`}>
        <Filters filters={filters} order={order}>
          {state === "dead" && mayOperate.value && filters.q === "" && queue.states.dead > 0 && (
            <button
              type="button"
              onClick={() => void proposeReplay({ queue: name, kind: filters.kind || null, errorClass: filters.error_class || null })}
            >
              Replay {filtered ? "all matching" : "all"}…
            </button>
          )}
        </Filters>
        <BulkBar chosen={selection.chosen.size} label="Selected messages" onClear={selection.clear}>
          {state === "dead" && <BulkReplay onClick={replay} />}
          {state === "leased" && <BulkRevoke onClick={() => void revokeIds(name, selection.targets()).then(after)} />}
          {isCancellable(state) && <BulkCancel onClick={() => void cancelIds(name, selection.targets()).then(after)} />}
          {state !== "leased" && <BulkMoveDelete onMove={() => setMoving(selection.targets())} onDelete={erase} />}
        </BulkBar>
        {page.error && shown === null && <Failed error={page.error} what="the messages" />}
        {rows.length > 0 && (
          <Table
            label={`${title(state)} messages`}
            class={`messages of-${state}`}
            columns={columns}
            rows={rows.map((message) => apply(message, moved.get(message.id)))}
            keyOf={({ id }) => id}
            part="message-row"
            attributes={({ id, state: now }) => ({ "data-id": id, "data-state": moved.get(id)?.state ?? now })}
            rowClass={({ id }) => ((moved.get(id)?.state ?? state) === state ? "" : "left")}
            cursor={selection.cursor}
            selection={mayOperate.value ? selection : null}
            nameOf={({ id }) => `message ${id}`}
            sort={value("sort")}
            onSort={(sort) => setQuery({ sort }, true)}
          />
        )}
        {shown !== null && rows.length === 0 && (
          <Empty title={filtered ? "No message matches the filter." : `No ${state} messages.`} />
        )}
        {shown === null && !page.error && <Loading />}
        {shown !== null && (
          <Pager next={shown.next} words={["Previous", filtered && rows.length < PAGE && shown.next !== null ? "Continue search" : "Next"]}>
            {filtered
              ? `${plural(rows.length, "match", "matches")} (searched ${count(shown.scanned)} of ${plural(total, "message")})`
              : rows.length > 0 && `${count(rows.length)} of ${plural(total, "message")}`}
          </Pager>
        )}
      </section>
      {moving !== null && <MoveDialog queue={name} ids={moving} onClose={() => setMoving(null)} onDone={() => after(true)} />}
    </>
  );
}

const Missing = ({ name, error }: { name: string; error: ApiError }) => (
  <>
    <h1>{name}</h1>
    <Failed error={error} what={`the queue ${name}`} />
  </>
);

type FilterValues = { kind: string; q: string; error_class: string };

function Filters({ filters, order, children }: { filters: FilterValues; order: string; children?: ComponentChildren }) {
  const field = (name: keyof FilterValues, label: string, part: string) => (
    <SearchField
      label={label}
      value={filters[name]}
      part={part}
      onText={(text) => setQuery({ [name]: text, before: null }, true)}
    />
  );
  return (
    <div class="filters" role="search">
      {field("q", "ID or payload text", "filter")}
      {field("kind", "Kind", "filter-kind")}
      {field("error_class", "Error class", "filter-error-class")}
      <button type="button" aria-label={`Order: ${order} first`} onClick={() => setQuery({ order: order === "oldest" ? "newest" : null, before: null })}>
        {order === "oldest" ? "Oldest first" : "Newest first"}
      </button>
      {children}
    </div>
  );
}
