// The details of a message as a list of names and values.
import type { ComponentChildren } from "preact";

/** Leaves out what is empty. */
export const FactList = ({ facts }: { facts: [name: string, value: ComponentChildren][] }) => (
  <section class="panel" aria-label="Details">
    <h2>Details</h2>
    <dl class="facts">
      {facts
        .filter(([, value]) => value !== "")
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class="num">{value}</dd>
          </div>
        ))}
    </dl>
  </section>
);
