// Formats of numbers, sizes, durations and instants.

const whole = new Intl.NumberFormat("en-US");
const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n: number): string => whole.format(n);

/** The exact number, or "1.2M" if that would not fit into a tile. */
export const short = (n: number): string => (Math.abs(n) < 100_000 ? whole.format(n) : compact.format(n));

export const plural = (n: number, one: string, many = `${one}s`): string => `${whole.format(n)} ${n === 1 ? one : many}`;

export function rate(perSecond: number): string {
  if (perSecond === 0) return "0";
  if (perSecond < 10) return perSecond.toFixed(1);
  return short(Math.round(perSecond));
}

export function bytes(n: number): string {
  if (n < 1024) return `${n} B`;
  if (n < 1024 * 1024) return `${(n / 1024).toFixed(n < 10_240 ? 1 : 0)} KB`;
  return `${(n / 1024 / 1024).toFixed(1)} MB`;
}

/** A duration in its one or two largest units: "3 s", "2 min 5 s", "4 h 10 min", "3 d 2 h". */
export function duration(milliseconds: number): string {
  const seconds = Math.max(0, Math.floor(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return minutes < 10 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  const days = Math.floor(hours / 24);
  return days < 30 ? `${days} d ${hours % 24} h` : `${days} d`;
}

/** The format of countdowns: tenths of a second below ten seconds, whole seconds above. */
export function precise(milliseconds: number): string {
  return milliseconds < 10_000 ? `${(milliseconds / 1000).toFixed(1)} s` : duration(milliseconds);
}

/** An elapsed time, from a tenth of a millisecond up to days. */
export function taken(milliseconds: number): string {
  if (milliseconds >= 1000) return precise(milliseconds);
  return `${milliseconds < 10 ? Number(milliseconds.toFixed(1)) : Math.round(milliseconds)} ms`;
}

const two = (n: number): string => String(n).padStart(2, "0");

/** "14:03:09.120" in the viewer's time zone. */
export function clockTime(at: number): string {
  const d = new Date(at);
  return `${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}.${String(d.getMilliseconds()).padStart(3, "0")}`;
}

/** "2026-11-15 14:03:09" in the viewer's time zone. */
export function instant(at: number): string {
  const d = new Date(at);
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
}

/** A long ID in short form. It keeps the end, because IDs of the same time start alike. */
export const shortId = (id: string): string => (id.length <= 14 ? id : `${id.slice(0, 4)}…${id.slice(-8)}`);
