// What services could not handle: a card each, one of them open with its dead events to be chosen and replayed.
import { useEffect, useRef } from "preact/hooks";
import { proposeEvents, replayChosen } from "../actions";
import { count, plural } from "../format";
import { useKeys } from "../keys";
import { useResource } from "../resource";
import { messageHref, query, search, setQuery } from "../router";
import { useSelection } from "../selection";
import { mayOperate } from "../session";
import type { Archive, DeadEvent, DeadEvents } from "../types";
import { Empty, Link } from "./Marks";
import { Ago } from "./Times";
import { BrokerTag } from "./TopicTables";
import { Failed, Loading } from "./Waiting";

/** Dead events that an open card shows. */
const SHOWN = 100;
/** How often an open card is read again, in milliseconds. */
const READ_EVERY = 5_000;

/** The row or card that has the keyboard. */
export const focusedRow = (): HTMLElement | null => document.activeElement?.closest<HTMLElement>("[data-row]") ?? null;

/** Presses something in the archive that has the keyboard. */
export const pressIn = (hook: string): void => focusedRow()?.closest("[data-testid=archive]")?.querySelector<HTMLElement>(hook)?.click();

const filters = () => ({ subscription: query.value.get("subscription"), error_class: query.value.get("error_class") });
const NO_FILTERS = { subscription: null, error_class: null };

export function ArchiveCard({ archive, dead }: { archive: Archive; dead: number }) {
  const { service, broker } = archive;
  const open = query.value.get("open") === service;
  const chosen = open ? filters() : NO_FILTERS;
  const filtered = chosen.subscription !== null || chosen.error_class !== null;
  const card = useRef<HTMLElement>(null);
  useEffect(() => {
    // A link further up has opened it.
    if (open && chosen.subscription !== null) card.current?.focus();
  }, [open, chosen.subscription]);
  return (
    <article ref={card} class="panel archive" tabIndex={-1} data-row data-testid="archive" data-service={service} aria-label={`Archive of ${service}`}>
      <div class="archive-head">
        <h3>
          {service} <BrokerTag broker={broker} />
        </h3>
        <span class="mark state-dead">
          <span class="dot" aria-hidden="true" />
          <span class="num" data-testid="archive-count">
            {plural(dead, "dead event")}
          </span>
        </span>
        <Fill archive={archive} />
        <div class="dead-do">
          <button
            type="button"
            aria-expanded={open}
            data-testid="archive-open"
            onClick={() => setQuery({ open: open ? null : service, ...NO_FILTERS }, true)}
          >
            {open ? "Fold" : "Show"}
          </button>
          {mayOperate.value && (
            <button type="button" class="primary" data-testid="archive-replay" onClick={() => void proposeEvents(service, chosen)}>
              {filtered ? "Replay matching…" : `Replay all ${count(dead)}…`}
            </button>
          )}
        </div>
      </div>
      {open && <DeadList key={service} archive={archive} dead={dead} />}
    </article>
  );
}

/** How much of an archive's limit is taken; only RabbitMQ's have one. */
function Fill({ archive: { service, limit, fill, nearly_full } }: { archive: Archive }) {
  if (limit === null || fill === null) return null;
  return (
    <span class={nearly_full ? "fill fill-high" : "fill"} data-testid="archive-fill" title="A full archive refuses, and what it refuses is tried again and again">
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
  // Whoever reads an archive on RabbitMQ holds it for a moment, so that is done only when its count has changed.
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
    if (picked.length === 0) pressIn("[data-testid=archive-replay]");
    else if (mayOperate.value) void replayChosen(service, picked).then((done) => done && selection.clear());
  };
  useKeys({
    x: () => focusedRow()?.querySelector<HTMLElement>("[data-testid=dead-select]")?.click(),
    R: replay,
    Escape: () => selection.clear(),
  });
  if (found.data === null) return found.error ? <Failed error={found.error} what={`the archive of ${service}`} /> : <Loading />;
  const matching = chosen.subscription === null && chosen.error_class === null ? dead : rows.length;
  return (
    <>
      <div class="filters archive-filters" role="search" aria-label={`Dead events of ${service}`}>
        <Choice name="subscription" all="Every subscription" rows={rows} />
        <Choice name="error_class" all="Every error" rows={rows} />
        {rows.length < matching && <span class="muted">the latest {count(rows.length)} of {count(matching)}</span>}
      </div>
      {picked.length > 0 && (
        <div class="bulk-bar" role="toolbar" aria-label="Selected events" data-testid="bulk-bar">
          <b class="num">{count(picked.length)} selected</b>
          <button type="button" class="primary" data-testid="bulk-replay" onClick={replay}>
            Replay <kbd>R</kbd>
          </button>
          <button type="button" class="ghost" onClick={selection.clear}>
            Clear <kbd>Esc</kbd>
          </button>
        </div>
      )}
      {rows.length === 0 ? (
        <Empty title="Nothing matches here." />
      ) : (
        <div class="table-box">
          <table class="dead-events" aria-label={`Dead events of ${service}`}>
            <thead>
              <tr>
                {mayOperate.value && (
                  <th scope="col" class="select">
                    <input type="checkbox" aria-label="Select every event shown" checked={picked.length === rows.length} onChange={selection.togglePage} />
                  </th>
                )}
                <th scope="col">Topic</th>
                <th scope="col" class="mid-only">Subscription</th>
                <th scope="col" class="right mid-only">Attempts</th>
                <th scope="col">Died</th>
                <th scope="col">Error</th>
                <th scope="col" class="wide-only">Data</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <DeadRow key={keyOf(row)} row={row} linked={broker === "redis"} chosen={selection.chosen.has(keyOf(row))} onToggle={(range) => selection.toggle(keyOf(row), range)} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

/** The values seen so far stay to be chosen while one of them is. */
function Choice({ name, all, rows }: { name: "subscription" | "error_class"; all: string; rows: DeadEvent[] }) {
  const seen = useRef(new Set<string>());
  const now = query.value.get(name) ?? "";
  for (const value of [now, ...rows.map((row) => row[name])]) if (value) seen.current.add(value);
  return (
    <select aria-label={all} value={now} data-testid={`filter-${name}`} onChange={(event) => setQuery({ [name]: event.currentTarget.value }, true)}>
      <option value="">{all}</option>
      {[...seen.current].sort().map((value) => (
        <option key={value} value={value}>
          {value}
        </option>
      ))}
    </select>
  );
}

/** What is worth a line: a traceback says it in its last, anything else in its first. */
function said({ error, error_class }: DeadEvent): string {
  const lines = error.trim().split("\n");
  const line = (error.startsWith("Traceback") ? lines.at(-1) : lines[0]) ?? "";
  return line.startsWith(`${error_class}: `) ? line.slice(error_class.length + 2) : line;
}

type RowProps = { row: DeadEvent; linked: boolean; chosen: boolean; onToggle: (range: boolean) => void };

function DeadRow({ row, linked, chosen, onToggle }: RowProps) {
  const operates = mayOperate.value;
  return (
    <tr tabIndex={-1} data-row data-testid="dead-row" data-id={row.id} aria-selected={operates ? chosen : undefined}>
      {operates && (
        <td class="select">
          <input type="checkbox" checked={chosen} aria-label={`Select event ${row.id} of ${row.subscription}`} data-testid="dead-select" onClick={(event) => onToggle(event.shiftKey)} />
        </td>
      )}
      <td class="clip">
        {linked ? (
          <Link href={messageHref(row.subscription, row.id)} title={row.id}>
            {row.topic}
          </Link>
        ) : (
          <span title={row.id}>{row.topic}</span>
        )}
      </td>
      <td class="clip mid-only">{row.subscription}</td>
      <td class="right num mid-only" title={row.replays > 0 ? `replayed ${plural(row.replays, "time")} before` : undefined}>
        {count(row.attempts)}
        {row.replays > 0 && <span class="muted"> ↻{count(row.replays)}</span>}
      </td>
      <td class="num">{row.died_at === null ? <span class="muted">–</span> : <Ago at={row.died_at} />}</td>
      <td class="error-cell clip" title={row.error}>
        <b>{row.error_class}</b> {said(row)}
      </td>
      <td class="clip mono wide-only" title={row.data}>
        {row.data}
      </td>
    </tr>
  );
}
