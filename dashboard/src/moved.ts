// Rows follow the journal immediately: a line about a shown message changes its row until the next fetch.
import { useEffect, useState } from "preact/hooks";
import type { Place } from "./lifecycle";
import { useJournal } from "./live";
import type { JournalEvent, JournalLine, MessageOut } from "./types";

export type Moved = { state: Place; event: JournalEvent; at: number; due_at: number | null };

/** `fetchedAt` is the server's time of the last fetch, which includes all older lines. */
export function useMoved(queue: string, shown: MessageOut[], fetchedAt: number): ReadonlyMap<string, Moved> {
  const [moved, setMoved] = useState<ReadonlyMap<string, Moved>>(new Map());

  useJournal(
    (entries: JournalLine[]) => {
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

/** The message after the news. An extended lease gets its new end. */
export function apply(message: MessageOut, news: Moved | undefined): MessageOut {
  if (news === undefined || news.state === "gone") return message;
  return {
    ...message,
    state: news.state,
    lease_expires_at: news.state === "leased" ? (news.due_at ?? message.lease_expires_at) : message.lease_expires_at,
  };
}
