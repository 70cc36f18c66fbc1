// The states, the events and the transitions between states.

import type { JournalEvent, State } from "./types";

export const STATES = ["scheduled", "ready", "leased", "retrying", "dead", "done"] as const satisfies readonly State[];
export type { State };

export const EVENTS = [
  "sent", "received", "acked", "nacked", "buried", "released", "extended", "promoted",
  "expired", "replayed", "deleted", "purged", "revoked", "cancelled", "edited", "configured", "paused", "resumed",
] as const satisfies readonly JournalEvent[];

/** A state, or "gone" before a message is sent and after it is settled or removed. */
export type Place = State | "gone";

export type Transition = { from: Place; event: JournalEvent; to: Place };

/** The transitions that the diagram shows. Deletes, purges and cancels, which are possible in most states, would clutter it. */
export const TRANSITIONS: readonly Transition[] = [
  { from: "scheduled", event: "promoted", to: "ready" },
  { from: "ready", event: "received", to: "leased" },
  { from: "leased", event: "acked", to: "done" },
  { from: "leased", event: "nacked", to: "retrying" },
  { from: "leased", event: "expired", to: "ready" },
  { from: "leased", event: "buried", to: "dead" },
  { from: "retrying", event: "promoted", to: "ready" },
  { from: "dead", event: "replayed", to: "ready" },
];

export const isState = (text: string): text is State => (STATES as readonly string[]).includes(text);

/** Whether a message in this state may be edited. A dead message can be corrected before it is replayed. */
export const isEditable = (state: State): boolean => state !== "leased" && state !== "done";

/** Whether a message in this state may be cancelled: it waits, or a handler runs it. */
export const isCancellable = (state: State): boolean => state !== "dead" && state !== "done";

/** "Ready" for headings and tabs. */
export const title = (word: string): string => word.charAt(0).toUpperCase() + word.slice(1);
