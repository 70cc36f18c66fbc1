// The lifecycle as a diagram in which the transitions of one message are bold.
import { title, TRANSITIONS, type Place, type State } from "../lifecycle";
import type { JournalLine } from "../types";

const WIDTH = 96;
const HEIGHT = 32;

const SPOTS: Record<State, { x: number; y: number }> = {
  scheduled: { x: 56, y: 30 },
  ready: { x: 56, y: 134 },
  leased: { x: 248, y: 134 },
  retrying: { x: 152, y: 222 },
  done: { x: 384, y: 58 },
  dead: { x: 384, y: 212 },
};

/** The path of each transition, and the place of its name. */
const DRAWN: Record<string, { d: string; x: number; y: number }> = {
  "scheduled>ready": { d: "M56 46V116", x: 90, y: 84 },
  "ready>leased": { d: "M104 126Q152 96 199 125", x: 152, y: 102 },
  "leased>ready": { d: "M200 143Q152 168 106 144", x: 152, y: 172 },
  "leased>done": { d: "M276 118L343 76", x: 290, y: 90 },
  "leased>dead": { d: "M276 150L345 194", x: 348, y: 172 },
  "leased>retrying": { d: "M240 150Q232 192 202 213", x: 248, y: 200 },
  "retrying>ready": { d: "M104 214Q74 196 64 152", x: 114, y: 196 },
  "dead>ready": { d: "M380 228Q350 276 180 276Q8 276 26 152", x: 200, y: 270 },
};

/** How often each transition happened, and by which events. Acked messages end in "done", whether they are kept or not. */
function taken(journal: JournalLine[]): { ways: Map<string, number>; names: Map<string, Set<string>>; seen: Set<Place> } {
  const ways = new Map<string, number>();
  const names = new Map<string, Set<string>>();
  const seen = new Set<Place>();
  let before: Place | null = null;
  for (const entry of [...journal].sort((a, b) => a.position - b.position)) {
    const to: Place = entry.event === "acked" ? "done" : entry.state;
    const way: string = `${before}>${to}`;
    if (before !== null && before !== to) {
      ways.set(way, (ways.get(way) ?? 0) + 1);
      names.set(way, (names.get(way) ?? new Set()).add(entry.event));
    }
    seen.add(to);
    before = to;
  }
  return { ways, names, seen };
}

export function StateDiagram({ journal, state }: { journal: JournalLine[]; state: Place }) {
  const { ways, names, seen } = taken(journal);
  const story = [...ways].map(([way, times]) => `${way.replace(">", " to ")}${times > 1 ? ` ${times} times` : ""}`).join(", ");
  return (
    <svg class="diagram" viewBox="0 0 440 288" role="img" aria-label={`States of this message: ${story || state}`}>
      <defs>
        {["plain", "bold"].map((kind) => (
          <marker key={kind} id={`arrow-${kind}`} class={`arrow-${kind}`} viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">
            <path d="M0 0 8 4 0 8z" />
          </marker>
        ))}
      </defs>
      {TRANSITIONS.map(({ from, event, to }) => {
        const key = `${from}>${to}`;
        const drawn = DRAWN[key];
        const times = ways.get(key) ?? 0;
        if (drawn === undefined) return null;
        return (
          <g key={key} class={times > 0 ? "way way-taken" : "way"}>
            <path d={drawn.d} marker-end={`url(#arrow-${times > 0 ? "bold" : "plain"})`} />
            <text x={drawn.x} y={drawn.y}>
              {[...(names.get(key) ?? [event])].join(", ")}
              {times > 1 ? ` ×${times}` : ""}
            </text>
          </g>
        );
      })}
      {(Object.keys(SPOTS) as State[]).map((name) => {
        const { x, y } = SPOTS[name];
        const here = name === state || (state === "gone" && name === "done" && seen.has("done"));
        return (
          <g key={name} class={`node state-${name} ${seen.has(name) || here ? "node-seen" : ""} ${here ? "node-here" : ""}`}>
            <rect x={x - WIDTH / 2} y={y - HEIGHT / 2} width={WIDTH} height={HEIGHT} rx="8" />
            <circle cx={x - WIDTH / 2 + 14} cy={y} r="4" />
            <text x={x - WIDTH / 2 + 25} y={y + 4}>
              {title(name)}
            </text>
          </g>
        );
      })}
    </svg>
  );
}
