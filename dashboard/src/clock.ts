// The server's clock as seen from here, and the one shared tick that everything counting by the second hangs on.

/** Milliseconds between two ticks: tenths of a second stay true without redrawing for nothing. */
const TICK = 100;
/** Uncertainty a sample gains per second of age, so that a drifting clock is followed by newer samples. */
const AGEING = 0.05;
/** Uncertainty given to one-way samples, whose travel time is unknown; any request beats them. */
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
  // Two honest samples overlap; if they do not, one of the clocks was set and the old sample is worthless.
  const disagrees = Math.abs(best.offset - sample.offset) > held + sample.uncertainty;
  if (disagrees || sample.uncertainty <= held) best = sample;
}

/** Takes a server instant that came back by a request begun at `began` and answered at `ended`. */
export function sampleRoundTrip(began: number, ended: number, serverNow: number): void {
  offer({ offset: serverNow - (began + ended) / 2, uncertainty: (ended - began) / 2 + 1, taken: ended });
}

/** Takes a server instant that was pushed to us. */
export function sampleOneWay(serverNow: number): void {
  const now = Date.now();
  offer({ offset: serverNow - now, uncertainty: ONE_WAY, taken: now });
}

/** The server's now, in milliseconds. */
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

/** Calls back on every shared tick while the tab is visible; returns how to stop. */
export function onTick(listener: Listener): () => void {
  listeners.add(listener);
  listener(serverNow());
  adjust();
  return () => {
    listeners.delete(listener);
    adjust();
  };
}
