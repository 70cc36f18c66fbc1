// The ladder on RabbitMQ: one column per rung, with the messages that wait there for a retry or for their delay.
import { count, duration, plural, short } from "../format";
import type { Rung } from "../types";

/** The height of a full column, in units of its drawing. */
const HEIGHT = 40;

const total = (rungs: Rung[]): number => rungs.reduce((all, { messages }) => all + messages, 0);

/** One ladder per type of queue. A virtual host has two only while its services use different types. */
export function Ladder({ rungs }: { rungs: Rung[] }) {
  const types = [...new Set(rungs.map(({ type }) => type))];
  return (
    <>
      {types.map((type) => (
        <Rungs key={type} rungs={rungs.filter((one) => one.type === type)} name={types.length > 1 ? `, ${type} rungs` : ""} />
      ))}
    </>
  );
}

function Rungs({ rungs, name }: { rungs: Rung[]; name: string }) {
  const most = Math.max(1, ...rungs.map(({ messages }) => messages));
  const all = total(rungs);
  return (
    <div class="panel ladder" data-part="ladder">
      <p>
        <b class="num">{plural(all, "message")}</b> {all === 1 ? "waits" : "wait"} on RabbitMQ for a retry or the end of a delay
        <span class="muted">{name}</span>
      </p>
      <ol class="rungs" aria-label={`Rungs of the ladder${name}`}>
        {rungs.map(({ queue, seconds, messages }) => (
          <li key={queue} data-part="rung" data-queue={queue} title={`${queue}: ${plural(messages, "message")}, delay ${duration(seconds * 1000)}`}>
            <span class={messages === 0 ? "num zero" : "num"}>{short(messages)}</span>
            <svg viewBox={`0 0 10 ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
              <rect class="shaft" width="10" height={HEIGHT} />
              <rect y={HEIGHT - share(messages, most)} width="10" height={share(messages, most)} />
            </svg>
            <small class="muted">{span(seconds)}</small>
          </li>
        ))}
      </ol>
    </div>
  );
}

/** The height of a column; one message is visible. */
const share = (messages: number, most: number): number => (messages === 0 ? 0 : Math.max(2, (messages / most) * HEIGHT));

const UNITS: [number, string][] = [
  [86_400, "d"],
  [3_600, "h"],
  [60, "min"],
  [1, "s"],
];

/** A rung's delay in short form; its name contains the exact number of seconds. */
function span(seconds: number): string {
  const [size, unit] = UNITS.find(([one]) => seconds >= one) ?? [0.001, "ms"];
  const value = seconds / size;
  return `${count(value < 10 && !Number.isInteger(value) ? Math.round(value * 10) / 10 : Math.round(value))} ${unit}`;
}
