// Times that move: countdowns of leases and ages, written straight into the page on the shared tick.
import { useLayoutEffect, useRef } from "preact/hooks";
import { onTick } from "../clock";
import { clockTime, duration, instant, precise } from "../format";
import type { State } from "../lifecycle";
import type { Message } from "../types";

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

/** The time left of a lease; past its end it counts up until the journal says what became of it. */
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
      title={`lease ends ${instant(at)}`}
      data-testid="countdown"
      data-lease-expires-at={at}
    />
  );
}

/** How long ago something was. */
export function Ago({ at, before = "", after = " ago" }: { at: number; before?: string; after?: string }) {
  const element = useTicking((now) => `${before}${duration(now - at)}${after}`, null, [at, before, after]);
  return <span ref={element} title={instant(at)} />;
}

function DueIn({ at }: { at: number }) {
  const element = useTicking((now) => (now < at ? `due in ${precise(at - now)}` : "due now"), null, [at]);
  return <span ref={element} title={`due ${instant(at)}`} />;
}

/** When an RSMQ message can be received: counted down to, then how long it has been so. */
export function Receivable({ at }: { at: number }) {
  const element = useTicking((now) => (now < at ? `in ${precise(at - now)}` : `waited ${duration(now - at)}`), null, [at]);
  return <span ref={element} class="countdown" title={`receivable from ${instant(at)}`} data-testid="countdown" data-due-at={at} />;
}

/** The time of a message that matters in its state. */
export function MessageTime({ message, state }: { message: Message; state: State }) {
  const { due_at, lease_expires_at, settled_at, sent_at } = message;
  if (state === "leased") return lease_expires_at === null ? <>held</> : <Countdown at={lease_expires_at} />;
  if (state === "scheduled" || state === "retrying") return due_at === null ? <>due now</> : <DueIn at={due_at} />;
  if (state === "ready") return <Ago at={due_at ?? sent_at} before="waited " after="" />;
  return <Ago at={settled_at ?? sent_at} />;
}

/** The instant that column sorts by. */
export function timeOf(message: Message): number {
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
  dead: "Dead since",
  done: "Done since",
};

/** A fixed instant: the time of day, the full date on hover. */
export const At = ({ at }: { at: number }) => (
  <time dateTime={new Date(at).toISOString()} title={instant(at)}>
    {clockTime(at)}
  </time>
);
