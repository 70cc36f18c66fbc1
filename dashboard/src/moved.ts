// Rows on screen follow the journal at once: what a line says of a shown message is laid over it until the next fetch.
import { useEffect, useState } from "preact/hooks";
import type { EventName, Place } from "./lifecycle";
import { useJournal } from "./live";
import type { JournalEntry, Message } from "./types";

export type Moved = { state: Place; event: EventName; at: number; due_at: number | null };

/** `fetchedAt` is the server's instant of the last fetch: older news is already in it. */
export function useMoved(queue: string, shown: Message[], fetchedAt: number): ReadonlyMap<string, Moved> {
  const [moved, setMoved] = useState<ReadonlyMap<string, Moved>>(new Map());

  useJournal(
    (entries: JournalEntry[]) => {
      const ids = new Set(shown.map((message) => message.id));
      const news = entries.filter((entry) => entry.queue === queue && ids.has(entry.message_id));
      if (news.length === 0) return;
      setMoved((before) => {
        const next = new Map(before);
        for (const { message_id, state, event, at, due_at } of news) next.set(message_id, { state, event, at, due_at });
        return next;
      });
    },
    [queue, shown],
  );

  useEffect(() => {
    setMoved((before) => {
      const kept = [...before].filter(([, news]) => news.at > fetchedAt);
      return kept.length === before.size ? before : new Map(kept);
    });
  }, [fetchedAt]);

  return moved;
}

/** The message as it is after the news; a lease that was extended gets its new end. */
export function apply(message: Message, news: Moved | undefined): Message {
  if (news === undefined || news.state === "gone") return message;
  return {
    ...message,
    state: news.state,
    lease_expires_at: news.state === "leased" ? (news.due_at ?? message.lease_expires_at) : message.lease_expires_at,
  };
}
