// The archives of dead events: one card per service. An open card lists its events, which can be selected and replayed.
import { useEffect, useRef } from "preact/hooks";
import { proposeEvents, replayChosen } from "../actions";
import { count, plural } from "../format";
import { useKeys } from "../keys";
import { useResource } from "../resource";
import { messageHref, query, search, setQuery } from "../router";
import { useSelection } from "../selection";
import { mayOperate } from "../session";
import type { Archive, DeadEvent, DeadEvents } from "../types";
import { BulkBar, BulkReplay } from "./BulkBar";
import { Dash, Empty, Link } from "./Marks";
import { Table, type Column } from "./Table";
import { Ago } from "./Times";
import { BrokerTag } from "./TopicTables";
import { Failed, Loading } from "./Waiting";

/** Dead events that an open card shows. */
const SHOWN = 100;
/** Milliseconds between two reads of an open card. */
const READ_EVERY = 5_000;

/** The focused row or card. */
export const focusedRow = (): HTMLElement | null => document.activeElement?.closest<HTMLElement>("[data-row]") ?? null;

/** Clicks an element of the focused archive. */
export const clickIn = (selector: string): void => focusedRow()?.closest("[data-part=archive]")?.querySelector<HTMLElement>(selector)?.click();

const filters = () => ({ subscription: query.value.get("subscription"), error_class: query.value.get("error_class") });
const NO_FILTERS = { subscription: null, error_class: null };

export function ArchiveCard({ archive, dead }: { archive: Archive; dead: number }) {
  const { service, broker } = archive;
  const open = query.value.get("open") === service;
  const chosen = open ? filters() : NO_FILTERS;
  const filtered = chosen.subscription !== null || chosen.error_class !== null;
  const card = useRef<HTMLElement>(null);
  useEffect(() => {
    // The card was opened by a link of the table above.
    if (open && chosen.subscription !== null) card.current?.focus();
  }, [open, chosen.subscription]);
  return (
    <article ref={card} class="panel archive" tabIndex={-1} data-row data-part="archive" data-service={service} aria-label={`Archive of ${service}`}>
      <div class="archive-head">
        <h3>
          {service} <BrokerTag broker={broker} />
        </h3>
        <span class="mark state-dead">
          <span class="dot" aria-hidden="true" />
          <span class="num" data-part="archive-count">
            {plural(dead, "dead event")}
          </span>
        </span>
        <Fill archive={archive} />
        <div class="dead-do">
          <button
            type="button"
            aria-expanded={open}
            data-part="archive-open"
            onClick={() => setQuery({ open: open ? null : service, ...NO_FILTERS }, true)}
          >
            {open ? "Hide" : "Show"}
          </button>
          {mayOperate.value && (
            <button type="button" class="primary" data-part="archive-replay" onClick={() => void proposeEvents(service, chosen)}>
              {filtered ? "Replay matching…" : `Replay all ${count(dead)}…`}
            </button>
          )}
        </div>
      </div>
      {open && <DeadList key={service} archive={archive} dead={dead} />}
    </article>
  );
}

/** How full an archive is. Only archives on RabbitMQ have a limit. */
function Fill({ archive: { service, limit, fill, nearly_full } }: { archive: Archive }) {
  if (limit === null || fill === null) return null;
  return (
    <span class={nearly_full ? "fill fill-high" : "fill"} data-part="archive-fill" title="A full archive rejects further events, which are then retried without end">
      <svg viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label={`The archive of ${service} is ${percent(fill)} full`}>
        <rect class="shaft" width="100" height="6" />
        <rect width={Math.min(100, fill * 100)} height="6" />
      </svg>
      <small class="num">
        {percent(fill)} of {count(limit)}
        {nearly_full && <b> · nearly full: replay or purge</b>}
      </small>
    </span>
  );
}

const percent = (share: number): string => `${Math.floor(share * 100)} %`;

const keyOf = ({ subscription, id }: DeadEvent): string => `${subscription}\n${id}`;

function DeadList({ archive: { service, broker }, dead }: { archive: Archive; dead: number }) {
  const chosen = filters();
  const listing = `/api/topics/${encodeURIComponent(service)}/dead${search({ ...chosen, limit: SHOWN })}`;
  // Reading an archive on RabbitMQ locks it for a moment, so it is read only when its count has changed.
  const found = useResource<DeadEvents>(listing, broker === "redis" ? READ_EVERY : 0);
  const known = useRef(dead);
  if (known.current !== dead) {
    known.current = dead;
    found.reloadSoon();
  }
  const rows = [...(found.data?.dead ?? [])].sort((a, b) => (b.died_at ?? 0) - (a.died_at ?? 0));
  const selection = useSelection(listing, rows.map(keyOf));
  const picked = rows.filter((row) => selection.chosen.has(keyOf(row)));
  const replay = (): void => {
    if (picked.length === 0) clickIn("[data-part=archive-replay]");
    else if (mayOperate.value) void replayChosen(service, picked).then((done) => done && selection.clear());
  };
  useKeys({
    x: () => focusedRow()?.querySelector<HTMLElement>("[data-part=row-select]")?.click(),
    R: replay,
    Escape: () => selection.clear(),
  });
  if (found.data === null) return found.error ? <Failed error={found.error} what={`the archive of ${service}`} /> : <Loading />;
  const matching = chosen.subscription === null && chosen.error_class === null ? dead : rows.length;
  return (
    <>
      <div class="filters archive-filters" role="search" aria-label={`Dead events of ${service}`}>
        <Choice name="subscription" all="All subscriptions" rows={rows} />
        <Choice name="error_class" all="All errors" rows={rows} />
        {rows.length < matching && <span class="muted">latest {count(rows.length)} of {count(matching)}</span>}
      </div>
      <BulkBar chosen={picked.length} label="Selected events" onClear={selection.clear}>
        <BulkReplay onClick={replay} />
      </BulkBar>
      {rows.length === 0 ? (
        <Empty title="No dead event matches the filter." />
      ) : (
        <Table
          label={`Dead events of ${service}`}
          class="dead-events"
          columns={columns(broker === "redis")}
          rows={rows}
          keyOf={keyOf}
          part="dead-row"
          attributes={({ id }) => ({ "data-row": "", "data-id": id })}
          selection={mayOperate.value ? selection : null}
          nameOf={({ id, subscription }) => `event ${id} of ${subscription}`}
        />
      )}
    </>
  );
}

/** Offers all values seen so far, because a filtered list contains only one of them. */
function Choice({ name, all, rows }: { name: "subscription" | "error_class"; all: string; rows: DeadEvent[] }) {
  const seen = useRef(new Set<string>());
  const now = query.value.get(name) ?? "";
  for (const value of [now, ...rows.map((row) => row[name])]) if (value) seen.current.add(value);
  return (
    <select aria-label={all} value={now} data-part={`filter-${name}`} onChange={(event) => setQuery({ [name]: event.currentTarget.value }, true)}>
      <option value="">{all}</option>
      {[...seen.current].sort().map((value) => (
        <option key={value} value={value}>
          {value}
        </option>
      ))}
    </select>
  );
}

/** One line of an error: the last of a traceback, else the first. */
function summary({ error, error_class }: DeadEvent): string {
  const lines = error.trim().split("\n");
  const line = (error.startsWith("Traceback") ? lines.at(-1) : lines[0]) ?? "";
  return line.startsWith(`${error_class}: `) ? line.slice(error_class.length + 2) : line;
}

/** Only events on Redis have a page, to which their topic links. */
const columns = (linked: boolean): Column<DeadEvent>[] => [
  {
    id: "topic",
    title: "Topic",
    class: "clip",
    cell: ({ topic, subscription, id }) => (linked ? <Link href={messageHref(subscription, id)}>{topic}</Link> : topic),
    cellHint: ({ id }) => id,
  },
  { id: "subscription", title: "Subscription", class: "clip mid-only", cell: ({ subscription }) => subscription },
  {
    id: "attempts",
    title: "Attempts",
    class: "right num mid-only",
    cell: ({ attempts, replays }) => (
      <>
        {count(attempts)}
        {replays > 0 && <span class="muted"> ↻{count(replays)}</span>}
      </>
    ),
    cellHint: ({ replays }) => (replays > 0 ? `replayed ${plural(replays, "time")}` : undefined),
  },
  { id: "died", title: "Died", class: "num", cell: ({ died_at }) => (died_at === null ? <Dash /> : <Ago at={died_at} />) },
  {
    id: "error",
    title: "Error",
    class: "error-cell clip",
    cell: (event) => (
      <>
        <b>{event.error_class}</b> {summary(event)}
      </>
    ),
    cellHint: ({ error }) => error,
  },
  { id: "data", title: "Data", class: "clip mono wide-only", cell: ({ data }) => data, cellHint: ({ data }) => data },
];
