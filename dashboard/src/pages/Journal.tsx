// The journal as it is written: a live tail, bounded, that can be stopped to read.
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
import type { JournalEntry, Queues } from "../types";

/** Lines kept on screen. */
const KEPT = 1_000;
/** How often new lines are drawn, in milliseconds: a reader cannot use more. */
const DRAW_EVERY = 200;
/** With more new lines than this the picture changes whole, which nobody reads: it is drawn less often. */
const FLOOD = 100;
const DRAW_FLOOD_EVERY = 1_000;

const keyOf = (entry: JournalEntry): string => `${entry.queue}\n${entry.position}`;

/** Newest first, without repeats, bounded. */
function merge(shown: JournalEntry[], news: JournalEntry[]): JournalEntry[] {
  const known = new Set(shown.map(keyOf));
  // The feed and a refetch overlap on purpose, so the news may repeat itself too.
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
  const queues = useResource<Queues>("/api/queues");
  // A name that is still being typed names no queue: the server would refuse the journal and the feed of each letter.
  const exists = queue === "" || queues.error !== null || queues.data?.queues.some((one) => one.queue === queue);
  useFeed(!exists ? { journal: "none" } : queue ? { journal: "one", queue } : { journal: "all" });
  useCounts(() => {
    if (!exists) queues.reloadSoon();
  }, [exists]);
  const recent = useResource<{ entries: JournalEntry[] }>(exists ? `/api/journal${search({ queue, event, limit: 500 })}` : null);
  const [shown, setShown] = useState<JournalEntry[]>([]);
  const [stopped, setStopped] = useState(false);
  const [waiting, setWaiting] = useState(0);
  const buffer = useRef<JournalEntry[]>([]);

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
    hold.value = stopped ? "paused by you" : "";
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
        <p class="muted">Every move of every message, newest first; the last {count(KEPT)} lines stay here.</p>
      </header>
      <div class="filters" role="search">
        <SearchField label="Queue" list="journal-queues" value={queue} testid="filter" onText={(text) => setQuery({ queue: text }, true)} />
        <datalist id="journal-queues">
          {queues.data?.queues.map((one) => (
            <option key={one.queue} value={one.queue} />
          ))}
        </datalist>
        <select aria-label="Event" value={event} onChange={(e) => setQuery({ event: e.currentTarget.value })}>
          <option value="">every event</option>
          {EVENTS.map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
        <button type="button" aria-pressed={stopped} onClick={toggle}>
          {stopped ? `Continue (${count(waiting)} new)` : "Pause"} <kbd>p</kbd>
        </button>
      </div>
      {shown.length > 0 ? (
        <JournalTable entries={shown} />
      ) : recent.error ? (
        <Failed error={recent.error} what="the journal" />
      ) : exists === false ? (
        <Empty title={`There is no queue ${queue}.`}>Choose one from the list, or clear the field to see all.</Empty>
      ) : recent.stale || exists === undefined ? (
        <Loading />
      ) : (
        <Empty title="Nothing yet.">Lines appear here as messages move.</Empty>
      )}
    </>
  );
}
