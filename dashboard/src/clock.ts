// The server's clock as estimated by the browser, and the shared tick of all countdowns and ages.

/** Milliseconds between two ticks: short enough for tenths of a second. */
const TICK = 100;
/** Milliseconds of uncertainty that a sample gains per second of age, so that newer samples correct a drifting clock. */
const AGEING = 0.05;
/** Milliseconds of uncertainty of one-way samples, whose travel time is unknown. Any request is more certain. */
const ONE_WAY = 1_000;

type Sample = { offset: number; uncertainty: number; taken: number };

let best: Sample | null = null;

const uncertainty = (sample: Sample, now: number): number =>
  sample.uncertainty + (Math.abs(now - sample.taken) / 1000) * AGEING;

function offer(sample: Sample): void {
  if (best === null) {
    best = sample;
    return;
  }
  const held = uncertainty(best, sample.taken);
  // Samples that do not overlap mean that one of the clocks was set: the old sample is then useless.
  const disagrees = Math.abs(best.offset - sample.offset) > held + sample.uncertainty;
  if (disagrees || sample.uncertainty <= held) best = sample;
}

/** Adds the server's time from a request that was sent at `began` and answered at `ended`. */
export function sampleRoundTrip(began: number, ended: number, serverNow: number): void {
  offer({ offset: serverNow - (began + ended) / 2, uncertainty: (ended - began) / 2 + 1, taken: ended });
}

/** Adds the server's time from an event of the live feed. */
export function sampleOneWay(serverNow: number): void {
  const now = Date.now();
  offer({ offset: serverNow - now, uncertainty: ONE_WAY, taken: now });
}

/** The server's current time in milliseconds. */
export const serverNow = (): number => Date.now() + (best?.offset ?? 0);

type Listener = (now: number) => void;
const listeners = new Set<Listener>();
let timer: number | undefined;

function run(): void {
  const now = serverNow();
  for (const listener of listeners) listener(now);
}

function adjust(): void {
  const needed = listeners.size > 0 && !document.hidden;
  if (needed && timer === undefined) {
    run();
    timer = window.setInterval(run, TICK);
  } else if (!needed && timer !== undefined) {
    window.clearInterval(timer);
    timer = undefined;
  }
}

document.addEventListener("visibilitychange", adjust);

/** Calls `listener` on every tick while the tab is visible. Returns a function that stops it. */
export function onTick(listener: Listener): () => void {
  listeners.add(listener);
  listener(serverNow());
  adjust();
  return () => {
    listeners.delete(listener);
    adjust();
  };
}
