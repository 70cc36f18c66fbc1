// The journal as it is written: a live, bounded list that can be paused.
import { useEffect, useRef, useState } from "preact/hooks";
import { count } from "../format";
import { focusFilter, useKeys } from "../keys";
import { EVENTS } from "../lifecycle";
import { hold, useCounts, useFeed, useJournal } from "../live";
import { JournalTable } from "../parts/JournalTable";
import { Empty } from "../parts/Marks";
import { SearchField } from "../parts/SearchField";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { query, search, setQuery } from "../router";
import type { Journal, JournalLine, Overview } from "../types";

/** Lines that the page keeps. */
const KEPT = 1_000;
/** Milliseconds between two updates of the list. */
const DRAW_EVERY = 200;
/** More new lines per update than anyone can read: the list is then updated less often. */
const FLOOD = 100;
const DRAW_FLOOD_EVERY = 1_000;

const keyOf = (entry: JournalLine): string => `${entry.queue}\n${entry.position}`;

/** The lines, newest first, without duplicates, at most `KEPT`. */
function merge(shown: JournalLine[], news: JournalLine[]): JournalLine[] {
  const known = new Set(shown.map(keyOf));
  // The feed and a new request overlap on purpose, so `news` may contain a line twice.
  const added = news.filter((entry) => {
    const key = keyOf(entry);
    return !known.has(key) && known.add(key);
  });
  if (added.length === 0) return shown;
  return [...shown, ...added].sort((a, b) => b.at - a.at || b.position - a.position).slice(0, KEPT);
}

export function JournalPage() {
  const queue = query.value.get("queue") ?? "";
  const event = query.value.get("event") ?? "";
  const queues = useResource<Overview>("/api/queues");
  // The server would reject the requests for each part of a name that is still being typed.
  const exists = queue === "" || queues.error !== null || queues.data?.queues.some((one) => one.queue === queue);
  useFeed(!exists ? { journal: "none" } : queue ? { journal: "one", queue } : { journal: "all" });
  useCounts(() => {
    if (!exists) queues.reloadSoon();
  }, [exists]);
  const recent = useResource<Journal>(exists ? `/api/journal${search({ queue, event, limit: 500 })}` : null);
  const [shown, setShown] = useState<JournalLine[]>([]);
  const [stopped, setStopped] = useState(false);
  const [waiting, setWaiting] = useState(0);
  const buffer = useRef<JournalLine[]>([]);

  useEffect(() => {
    buffer.current = [];
    setShown([]);
  }, [queue, event]);
  useEffect(() => {
    if (recent.data !== null && !recent.stale) buffer.current.push(...recent.data.entries);
  }, [recent.data, recent.stale]);
  useJournal(
    (entries) => {
      const wanted = entries.filter((one) => (!queue || one.queue === queue) && (!event || one.event === event));
      buffer.current = [...buffer.current, ...wanted].slice(-2 * KEPT);
    },
    [queue, event],
  );
  useEffect(() => {
    let drawn = 0;
    const timer = window.setInterval(() => {
      const lines = buffer.current.length;
      if (stopped) setWaiting(lines);
      else if (lines > 0 && (lines <= FLOOD || Date.now() - drawn >= DRAW_FLOOD_EVERY)) {
        const news = buffer.current;
        buffer.current = [];
        drawn = Date.now();
        setShown((before) => merge(before, news));
      }
    }, DRAW_EVERY);
    return () => window.clearInterval(timer);
  }, [stopped]);
  useEffect(() => {
    hold.value = stopped ? "paused" : "";
    return () => {
      hold.value = "";
    };
  }, [stopped]);
  const toggle = (): void => {
    setStopped(!stopped);
    setWaiting(0);
  };
  useKeys({ "/": focusFilter, p: toggle, Escape: () => setStopped(false) });

  return (
    <>
      <header class="page-head">
        <h1>Journal</h1>
        <p class="muted">Every state change of every message, newest first. This page keeps the last {count(KEPT)} lines.</p>
      </header>
      <div class="filters" role="search">
        <SearchField label="Queue" list="journal-queues" value={queue} part="filter" onText={(text) => setQuery({ queue: text }, true)} />
        <datalist id="journal-queues">
          {queues.data?.queues.map((one) => (
            <option key={one.queue} value={one.queue} />
          ))}
        </datalist>
        <select aria-label="Event" value={event} onChange={(e) => setQuery({ event: e.currentTarget.value })}>
          <option value="">All events</option>
          {EVENTS.map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
        <button type="button" aria-pressed={stopped} onClick={toggle}>
          {stopped ? `Resume (${count(waiting)} new)` : "Pause"} <kbd>p</kbd>
        </button>
      </div>
      {shown.length > 0 ? (
        <JournalTable entries={shown} />
      ) : recent.error ? (
        <Failed error={recent.error} what="the journal" />
      ) : exists === false ? (
        <Empty title={`There is no queue ${queue}.`}>Select a queue from the list, or clear the field to see all queues.</Empty>
      ) : recent.stale || exists === undefined ? (
        <Loading />
      ) : (
        <Empty title="No journal lines">A line appears here for every change of a message.</Empty>
      )}
    </>
  );
}
