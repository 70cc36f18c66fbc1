// The live feed that all parts of a page share: it follows what the page shows and reconnects after a failure.
import { computed, effect, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { checkServer, refetchAll, signInNeeded } from "./api";
import { sampleOneWay } from "./clock";
import { search } from "./router";
import type { CountsEvent, HelloEvent, JournalLine, Totals } from "./types";

/** Milliseconds without an event after which the connection counts as dead. The server sends `hello` more often. */
const SILENCE = 40_000;
/** Milliseconds before a feed is opened again that the browser has given up. */
const REOPEN_AFTER = 2_000;
/** Milliseconds between the two checks of the server after the feed has failed. */
const DOUBT = 1_000;
/** Milliseconds after which a hidden tab closes its connection: browsers allow only a few per server. */
const HIDDEN_FOR = 30_000;
/** What the feed follows: only counts, the journal of every queue, or the journal of one. */
export type Feed = { journal: "none" } | { journal: "all" } | { journal: "one"; queue: string };

const connection = signal<"connecting" | "live" | "offline">("connecting");
const hidden = signal(document.hidden);
/** Why the live refresh waits, as a text; empty while it does not. */
export const hold = signal("");

export const paused = computed(() => hold.value !== "" || hidden.value);
export const status = computed(() => (connection.value === "live" && paused.value ? "paused" : connection.value));
export const statusText = computed(() => {
  if (status.value !== "paused") return status.value;
  return hold.value || "paused: tab hidden";
});

/** The newest totals of all queues; null before the first have arrived. */
export const totals = signal<Totals | null>(null);

const journalListeners = new Set<(entries: JournalLine[]) => void>();
const countsListeners = new Set<(counts: CountsEvent) => void>();

let source: EventSource | null = null;
let address: string | null = null;
/** The position of the last event. A new connection resumes after it, as the browser's own reconnects do. */
let position = "";
let reopenTimer: number | undefined;
let doubtTimer: number | undefined;
let silenceTimer: number | undefined;
let hiddenTimer: number | undefined;

function heard(): void {
  window.clearTimeout(silenceTimer);
  silenceTimer = window.setTimeout(open, SILENCE);
}

function close(): void {
  window.clearTimeout(reopenTimer);
  window.clearTimeout(silenceTimer);
  source?.close();
  source = null;
}

function open(): void {
  close();
  if (address === null || signInNeeded.peek()) return;
  if (connection.peek() !== "offline") connection.value = "connecting";
  const feed = new EventSource(position ? `${address}&after=${encodeURIComponent(position)}` : address);
  source = feed;
  feed.onopen = () => {
    connection.value = "live";
    heard();
    // No event reports what changed between the page's request and this moment.
    refetchAll();
  };
  feed.onerror = () => {
    connection.value = "offline";
    // Checked twice: a server that shuts down closes its feeds first and still answers for a moment.
    void checkServer();
    window.clearTimeout(doubtTimer);
    doubtTimer = window.setTimeout(() => {
      if (connection.peek() === "offline") void checkServer();
    }, DOUBT);
    if (feed.readyState === EventSource.CLOSED) reopenTimer = window.setTimeout(open, REOPEN_AFTER);
  };
  const on = <T>(name: string, take: (data: T) => void): void => {
    feed.addEventListener(name, (event) => {
      heard();
      const { data, lastEventId } = event as MessageEvent<string>;
      if (lastEventId) position = lastEventId;
      take(JSON.parse(data) as T);
    });
  };
  on<JournalLine[]>("journal", (entries) => {
    for (const listener of journalListeners) listener(entries);
  });
  on<CountsEvent>("counts", (counts) => {
    totals.value = counts.totals;
    for (const listener of countsListeners) listener(counts);
  });
  on<HelloEvent>("hello", ({ now }) => sampleOneWay(now));
  on("position", () => undefined);
  on("resync", refetchAll);
}

function listenTo(feed: Feed): void {
  const next =
    "/api/journal" +
    search({
      counts: 1,
      journal: feed.journal === "none" ? 0 : null,
      queue: feed.journal === "one" ? feed.queue : null,
    });
  if (next === address && source !== null) return;
  if (next !== address) position = "";
  address = next;
  open();
}

document.addEventListener("visibilitychange", () => {
  hidden.value = document.hidden;
  window.clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = window.setTimeout(close, HIDDEN_FOR);
  else if (source === null) open();
});

effect(() => {
  if (signInNeeded.value) close();
  else if (source === null) open();
});

/** Makes the feed follow what the page shows. */
export function useFeed(feed: Feed): void {
  const queue = feed.journal === "one" ? feed.queue : "";
  useEffect(() => listenTo(feed), [feed.journal, queue]);
}

/** Calls `listener` with new journal lines, oldest first. `deps` lists what the listener depends on. */
export function useJournal(listener: (entries: JournalLine[]) => void, deps: unknown[]): void {
  useEffect(() => {
    journalListeners.add(listener);
    return () => void journalListeners.delete(listener);
  }, deps);
}

/** Calls `listener` with the counts of queues that changed. */
export function useCounts(listener: (counts: CountsEvent) => void, deps: unknown[]): void {
  useEffect(() => {
    countsListeners.add(listener);
    return () => void countsListeners.delete(listener);
  }, deps);
}
