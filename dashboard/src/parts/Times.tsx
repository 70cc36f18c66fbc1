// Times that move: countdowns of leases and ages, written directly into the page on the shared tick.
import { useLayoutEffect, useRef } from "preact/hooks";
import { onTick } from "../clock";
import { clockTime, duration, instant, precise } from "../format";
import type { State } from "../lifecycle";
import type { MessageOut } from "../types";

/** Writes `text(now)` into an element on every tick, without rendering anything else. */
function useTicking(text: (now: number) => string, late: ((now: number) => boolean) | null, deps: unknown[]) {
  const element = useRef<HTMLSpanElement>(null);
  useLayoutEffect(
    () =>
      onTick((now) => {
        const shown = element.current;
        if (shown === null) return;
        const next = text(now);
        if (shown.textContent !== next) shown.textContent = next;
        if (late !== null) shown.classList.toggle("overdue", late(now));
      }),
    deps,
  );
  return element;
}

/** The rest of a lease. After its end it counts up, until the journal reports what happened to the message. */
export function Countdown({ at }: { at: number }) {
  const element = useTicking(
    (now) => (now < at ? precise(at - now) : `overdue +${precise(now - at)}`),
    (now) => now >= at,
    [at],
  );
  return (
    <span
      ref={element}
      class="countdown"
      title={`lease ends at ${instant(at)}`}
      data-part="countdown"
    />
  );
}

/** The time since an instant. */
export function Ago({ at, before = "", after = " ago" }: { at: number; before?: string; after?: string }) {
  const element = useTicking((now) => `${before}${duration(now - at)}${after}`, null, [at, before, after]);
  return <span ref={element} title={instant(at)} />;
}

function DueIn({ at }: { at: number }) {
  const element = useTicking((now) => (now < at ? `due in ${precise(at - now)}` : "due now"), null, [at]);
  return <span ref={element} title={`due at ${instant(at)}`} />;
}

/** The time until a schedule ticks. */
export function UntilTick({ at }: { at: number }) {
  const element = useTicking((now) => (now < at ? `in ${precise(at - now)}` : "now"), null, [at]);
  return <span ref={element} class="countdown" title={`fires at ${instant(at)}`} data-part="countdown" />;
}

/** When an RSMQ message becomes available; after that, how long it has waited. */
export function Available({ at }: { at: number }) {
  const element = useTicking((now) => (now < at ? `in ${precise(at - now)}` : `waited ${duration(now - at)}`), null, [at]);
  return <span ref={element} class="countdown" title={`available from ${instant(at)}`} data-part="countdown" />;
}

/** The time that matters most in the message's state. */
export function MessageTime({ message, state }: { message: MessageOut; state: State }) {
  const { due_at, lease_expires_at, settled_at, sent_at } = message;
  if (state === "leased") return lease_expires_at === null ? <>leased</> : <Countdown at={lease_expires_at} />;
  if (state === "scheduled" || state === "retrying") return due_at === null ? <>due now</> : <DueIn at={due_at} />;
  if (state === "ready") return <Ago at={due_at ?? sent_at} before="waited " after="" />;
  return <Ago at={settled_at ?? sent_at} />;
}

/** The instant by which the column of `MessageTime` sorts. */
export function timeOf(message: MessageOut): number {
  if (message.state === "leased") return message.lease_expires_at ?? 0;
  if (message.state === "scheduled" || message.state === "retrying") return message.due_at ?? 0;
  if (message.state === "ready") return message.due_at ?? message.sent_at;
  return message.settled_at ?? message.sent_at;
}

export const TIME_TITLES: Record<State, string> = {
  scheduled: "Due in",
  ready: "Waited",
  leased: "Lease ends in",
  retrying: "Due in",
  dead: "Died",
  done: "Done",
};

/** The time of day; the tooltip has the date. */
export const At = ({ at }: { at: number }) => (
  <time dateTime={new Date(at).toISOString()} title={instant(at)}>
    {clockTime(at)}
  </time>
);
