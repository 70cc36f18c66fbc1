// The one shared live feed: opens it for what the page shows, reopens it when it breaks, and says how it stands.
import { computed, effect, signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { checkServer, refetchAll, signInNeeded } from "./api";
import { sampleOneWay, serverNow } from "./clock";
import { search } from "./router";
import type { Counts, JournalEntry, Totals } from "./types";

/** The server speaks at least every 15 s; silence for longer than this means a connection that died unnoticed. */
const SILENCE = 40_000;
/** Pause before opening a feed again that the browser gave up on. */
const REOPEN_AFTER = 2_000;
/** Pause before asking a second time whether the server is there, once the feed broke. */
const DOUBT = 1_000;
/** A hidden tab gives its connection back after this long: browsers allow only a handful per server. */
const HIDDEN_FOR = 30_000;
/** How many journal lines `window.__restanteSeen` remembers. */
const SEEN_KEPT = 2_000;

type Seen = { event: string; message_id: string; at: number; seen_at: number };
declare global {
  interface Window {
    __restanteSeen: Seen[];
  }
}
window.__restanteSeen = [];

/** What to listen to: only counts, the journal of every queue, or the journal of one. */
export type Feed = { journal: "none" } | { journal: "all" } | { journal: "one"; queue: string };

const connection = signal<"connecting" | "live" | "offline">("connecting");
const hidden = signal(document.hidden);
/** Why the page holds its live refresh, in words; empty when it does not. */
export const hold = signal("");

export const paused = computed(() => hold.value !== "" || hidden.value);
export const status = computed(() => (connection.value === "live" && paused.value ? "paused" : connection.value));
export const statusText = computed(() => {
  if (status.value !== "paused") return status.value;
  return hold.value || "paused while the tab is hidden";
});

/** The newest totals over all queues, once any have come. */
export const totals = signal<Totals | null>(null);

const journalListeners = new Set<(entries: JournalEntry[]) => void>();
const countsListeners = new Set<(counts: Counts) => void>();

let source: EventSource | null = null;
let address: string | null = null;
/** How far the feed was heard: a feed that is opened anew goes on from there, as the browser does by itself. */
let position = "";
let reopenTimer: number | undefined;
let doubtTimer: number | undefined;
let silenceTimer: number | undefined;
let hiddenTimer: number | undefined;

function remember(entries: JournalEntry[]): void {
  const seen_at = serverNow();
  const kept = window.__restanteSeen;
  for (const { event, message_id, at } of entries) kept.push({ event, message_id, at, seen_at });
  if (kept.length > SEEN_KEPT) kept.splice(0, kept.length - SEEN_KEPT);
}

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
    // Whatever changed between the page's own request and this moment was told to nobody.
    refetchAll();
  };
  feed.onerror = () => {
    connection.value = "offline";
    // Asked twice: a server that is shutting down drops its feeds first and still answers for a moment.
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
  on<JournalEntry[]>("journal", (entries) => {
    remember(entries);
    for (const listener of journalListeners) listener(entries);
  });
  on<Counts>("counts", (counts) => {
    totals.value = counts.totals;
    for (const listener of countsListeners) listener(counts);
  });
  on<{ now: number }>("hello", ({ now }) => sampleOneWay(now));
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

/** Points the feed at what the page shows. */
export function useFeed(feed: Feed): void {
  const queue = feed.journal === "one" ? feed.queue : "";
  useEffect(() => listenTo(feed), [feed.journal, queue]);
}

/** Calls back with journal lines, oldest first; `listener` must be stable or `deps` name what it depends on. */
export function useJournal(listener: (entries: JournalEntry[]) => void, deps: unknown[]): void {
  useEffect(() => {
    journalListeners.add(listener);
    return () => void journalListeners.delete(listener);
  }, deps);
}

/** Calls back with the counts of the queues that changed. */
export function useCounts(listener: (counts: Counts) => void, deps: unknown[]): void {
  useEffect(() => {
    countsListeners.add(listener);
    return () => void countsListeners.delete(listener);
  }, deps);
}
