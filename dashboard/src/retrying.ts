// A retry policy as text: the waits between the attempts, and their number.
import { duration } from "./format";

/** Waits that are listed before the rest is abbreviated. */
const LISTED = 3;

/** "200 ms", "1.5 s", "2 min", "1 h 5 min". */
function span(seconds: number): string {
  if (seconds < 1) return `${Number((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 60) return `${Number(seconds.toFixed(1))} s`;
  return duration(seconds * 1000).replace(/ 0 (s|min|h)$/, "");
}

/** The seconds between the attempts; null if the policy is unknown. */
function delays(retry: string, attempts: number): number[] | null {
  const [name, ...rest] = retry.split(":");
  const most = Math.max(0, attempts - 1);
  if (name === "fixed") return (rest[0] ?? "").split(",").filter(Boolean).map(Number).slice(0, most);
  const [base = NaN, factor = NaN, cap = NaN] = rest.map(Number);
  if (name !== "exponential" || Number.isNaN(base + factor + cap)) return null;
  return Array.from({ length: Math.min(most, 1000) }, (_, n) => Math.min(cap, base * factor ** n));
}

/** "1 s, 2 s, 4 s … 10 min" and "11 attempts". */
export function retryWords(retry: string, attempts: number): { waits: string; attempts: string } {
  const found = delays(retry, attempts);
  if (found === null) return { waits: retry, attempts: `${attempts} attempts` };
  const last = found.at(-1);
  const first = found[0];
  if (last === undefined || first === undefined) return { waits: "no retry", attempts: "1 attempt" };
  const all = found.map(span);
  const same = found.length > 1 && found.every((one) => one === first);
  const shown = same ? `every ${all[0]}` : all.length > LISTED + 1 ? `${all.slice(0, LISTED).join(", ")} … ${span(last)}` : all.join(", ");
  return { waits: shown, attempts: `${found.length + 1} attempts` };
}
