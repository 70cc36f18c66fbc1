// A queue: its states as tabs and one live table of the messages in the state chosen.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { deleteIds, replayIds } from "../actions";
import type { ApiError } from "../api";
import { count, plural } from "../format";
import { focusFilter, useKeys } from "../keys";
import { title } from "../lifecycle";
import { useCounts, useFeed, useJournal } from "../live";
import { useMoved } from "../moved";
import { BulkBar } from "../parts/BulkBar";
import { Empty, Link } from "../parts/Marks";
import { MessageTable, sorted } from "../parts/MessageTable";
import { MoveDialog } from "../parts/QueueDialogs";
import { QueueHeader, stateShown } from "../parts/QueueHeader";
import { SearchField } from "../parts/SearchField";
import { Failed, Loading } from "../parts/Waiting";
import { proposeReplay } from "../replays";
import { useResource } from "../resource";
import { go, messageHref, query, queueApi, search, setQuery, trail } from "../router";
import { useSelection } from "../selection";
import { mayOperate } from "../session";
import type { Message, MessagePage, Queue } from "../types";

const PAGE = 50;
/** How often the facts around the table are read again, in milliseconds; counts come live. */
const FACTS_EVERY = 5_000;
/** A filtered page costs the server a scan, so it is refreshed less often, in milliseconds. */
const FILTERED_GAP = 3_000;
const NONE: Message[] = [];

export function QueuePage({ name }: { name: string }) {
  useFeed({ journal: "one", queue: name });
  const facts = useResource<Queue>(queueApi(name), FACTS_EVERY);
  const [counted, setCounted] = useState<Partial<Queue>>({});
  const queue = facts.data?.queue === name ? { ...facts.data, ...counted } : null;
  const asked = query.value.get("state") ?? "";
  // Without a state in the link the choice is made once, so that the tab does not jump while messages move.
  useEffect(() => {
    if (asked === "" && queue !== null) setQuery({ state: stateShown("", queue) }, true);
  }, [asked, queue === null]);
  const state = stateShown(asked, queue);

  const value = (key: string): string => query.value.get(key) ?? "";
  const filters = { kind: value("kind"), q: value("q"), error_class: value("error_class") };
  const filtered = Object.values(filters).some(Boolean);
  const order = value("order") === "newest" ? "newest" : "oldest";
  const before = value("before");
  const listing = queueApi(name, `/messages${search({ state, ...filters, order, limit: PAGE, before })}`);
  const page = useResource<MessagePage>(asked === "" ? null : listing);
  const shown = page.data?.state === state ? page.data : null;
  const messages = shown?.messages ?? NONE;
  const rows = sorted(messages, value("sort"));
  const selection = useSelection(listing, rows.map((message) => message.id));
  const moved = useMoved(name, messages, shown?.now ?? 0);
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
  const select = (range: boolean): void => {
    if (selection.cursor !== null && mayOperate.value) selection.toggle(selection.cursor, range);
  };
  useKeys({
    j: () => selection.moveCursor(1),
    k: () => selection.moveCursor(-1),
    x: () => select(false),
    X: () => select(true),
    R: replay,
    "#": erase,
    Delete: erase,
    Enter: () => selection.cursor !== null && go(messageHref(name, selection.cursor)),
    Escape: () => selection.clear(),
    "/": focusFilter,
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
        <BulkBar
          chosen={selection.chosen.size}
          state={state}
          onReplay={replay}
          onDelete={erase}
          onMove={() => setMoving(selection.targets())}
          onClear={selection.clear}
        />
        {page.error && shown === null && <Failed error={page.error} what="the messages" />}
        {rows.length > 0 && (
          <MessageTable
            state={state}
            messages={rows}
            moved={moved}
            sort={value("sort")}
            onSort={(sort) => setQuery({ sort }, true)}
            selection={selection}
            selectable={mayOperate.value}
          />
        )}
        {shown !== null && rows.length === 0 && (
          <Empty title={filtered ? "Nothing matches here." : `No ${state} messages.`}>
            {filtered ? `Looked at ${plural(shown.scanned, "message")}.` : state === "dead" ? "Nothing has failed for good." : ""}
          </Empty>
        )}
        {shown === null && !page.error && <Loading />}
        {shown !== null && <Pager page={shown} shown={rows.length} before={before} filtered={filtered} />}
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

function Pager({ page, shown, before, filtered }: { page: MessagePage; shown: number; before: string; filtered: boolean }) {
  const past = trail();
  const older = (): void => setQuery({ before: page.next }, false, { trail: [...past, before] });
  const newer = (): void => setQuery({ before: past.at(-1) ?? null }, false, { trail: past.slice(0, -1) });
  return (
    <nav class="pager" aria-label="Pages">
      <span class="muted">
        {filtered
          ? `${plural(shown, "match", "matches")} among ${plural(page.scanned, "message")} looked at, ${count(page.total)} in all`
          : `${count(shown)} of ${plural(page.total, "message")}`}
      </span>
      <span class="actions">
        {before !== "" && (
          <Link href={window.location.pathname + search({ ...Object.fromEntries(query.value), before: null })}>First page</Link>
        )}
        <button type="button" data-testid="prev-page" disabled={before === ""} onClick={newer}>
          Previous
        </button>
        <button type="button" data-testid="next-page" disabled={page.next === null} onClick={older}>
          {filtered && shown < PAGE && page.next !== null ? "Search on" : "Next"}
        </button>
      </span>
    </nav>
  );
}

type FilterValues = { kind: string; q: string; error_class: string };

function Filters({ filters, order, children }: { filters: FilterValues; order: string; children?: ComponentChildren }) {
  const field = (name: keyof FilterValues, label: string, testid: string) => (
    <SearchField
      label={label}
      value={filters[name]}
      testid={testid}
      onText={(text) => setQuery({ [name]: text, before: null }, true)}
    />
  );
  return (
    <div class="filters" role="search">
      {field("q", "Text in id or payload", "filter")}
      {field("kind", "Kind", "filter-kind")}
      {field("error_class", "Error class", "filter-error-class")}
      <button type="button" aria-label={`Order: ${order} first`} onClick={() => setQuery({ order: order === "oldest" ? "newest" : null, before: null })}>
        {order === "oldest" ? "Oldest first" : "Newest first"}
      </button>
      {children}
    </div>
  );
}
