// The states, the events and the ways between them: the one table every page and the diagram follow.

export const STATES = ["scheduled", "ready", "leased", "retrying", "dead", "done"] as const;
export type State = (typeof STATES)[number];

export const EVENTS = [
  "sent", "received", "acked", "nacked", "buried", "released", "extended", "promoted",
  "expired", "replayed", "deleted", "purged", "edited", "configured", "paused", "resumed",
] as const;
export type EventName = (typeof EVENTS)[number];

/** Where a message can be: a state, or "gone" before it was sent and after it was settled or removed. */
export type Place = State | "gone";

export type Way = { from: Place; event: EventName; to: Place };

/** The ways worth drawing; deletes and purges lead to "gone" from anywhere and would only clutter the picture. */
export const WAYS: readonly Way[] = [
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

/** States in which a message may be edited: nobody holds it, and it is not over. A dead one is mended, then replayed. */
export const isEditable = (state: State): boolean => state !== "leased" && state !== "done";

/** "Ready" for headings and tabs. */
export const title = (word: string): string => word.charAt(0).toUpperCase() + word.slice(1);
