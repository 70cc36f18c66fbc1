// Data of the server, fetched and kept current: reloads are merged, and wait while the live refresh is paused.
import { effect } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, get, getExact, resync } from "./api";
import { paused } from "./live";

/** Minimum of milliseconds between two live reloads of the same data. */
const GAP = 500;

class Loader<T> {
  private began = 0;
  private timer: number | undefined;
  private flight: AbortController | null = null;
  private again = false;

  constructor(
    private readonly path: string,
    private readonly exact: boolean,
    private readonly done: (data: T | null, error: ApiError | null) => void,
  ) {}

  /** Reloads immediately and drops a running request: after the viewer's own actions. */
  async now(): Promise<void> {
    this.stop();
    const flight = new AbortController();
    this.flight = flight;
    this.began = Date.now();
    this.again = false;
    try {
      const data = await (this.exact ? getExact : get)<T>(this.path, flight.signal);
      if (this.flight === flight) this.done(data, null);
    } catch (error) {
      if (this.flight === flight && error instanceof ApiError) this.done(null, error);
    }
    if (this.flight !== flight) return;
    this.flight = null;
    if (this.again) this.soon();
  }

  /** Reloads when the live refresh allows it. Several calls cause one request. */
  soon(gap = GAP): void {
    if (paused.peek() || this.flight !== null) {
      this.again = true;
      return;
    }
    if (this.timer !== undefined) return;
    const wait = Math.max(0, this.began + gap - Date.now());
    this.timer = window.setTimeout(() => {
      this.timer = undefined;
      void this.now();
    }, wait);
  }

  resume(): void {
    if (this.again && this.flight === null) {
      this.again = false;
      this.soon();
    }
  }

  stop(): void {
    window.clearTimeout(this.timer);
    this.timer = undefined;
    this.flight?.abort();
    this.flight = null;
  }
}

export type Resource<T> = {
  /** The last answer, possibly of the previous path: see `stale`. */
  data: T | null;
  error: ApiError | null;
  /** True while `data` belongs to another path. */
  stale: boolean;
  reload: () => void;
  reloadSoon: (gap?: number) => void;
};

/** Fetches `path` unless it is null, again after outages, and every `every` milliseconds if that is not 0. */
export function useResource<T>(path: string | null, every = 0, exact = false): Resource<T> {
  const [held, setHeld] = useState<{ path: string | null; data: T | null; error: ApiError | null }>({
    path: null,
    data: null,
    error: null,
  });
  const loader = useMemo(
    () =>
      path === null
        ? null
        : new Loader<T>(path, exact, (data, error) =>
            setHeld((before) => {
              // An outage keeps the last answer on the page; a refusal removes it.
              const keep = error !== null && (error.status === 0 || error.status >= 500) && before.path === path;
              return { path, data: keep ? before.data : data, error };
            }),
          ),
    [path, exact],
  );
  useEffect(() => {
    if (loader === null) return;
    void loader.now();
    let known = resync.peek();
    const stopResync = effect(() => {
      if (resync.value !== known) {
        known = resync.value;
        loader.soon();
      }
    });
    const stopPause = effect(() => {
      if (!paused.value) loader.resume();
    });
    const timer = every > 0 ? window.setInterval(() => loader.soon(), every) : undefined;
    return () => {
      stopResync();
      stopPause();
      window.clearInterval(timer);
      loader.stop();
    };
  }, [loader, every]);
  return {
    data: held.data,
    error: held.path === path ? held.error : null,
    stale: held.path !== path,
    reload: () => void loader?.now(),
    reloadSoon: (gap) => loader?.soon(gap),
  };
}
