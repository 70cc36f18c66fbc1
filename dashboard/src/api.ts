// Requests to the server: typed answers, one error class, and whether the server can be reached.
import { signal } from "@preact/signals";
import { sampleRoundTrip } from "./clock";
import { parseExact } from "./exactjson";
import type { Problem } from "./types";

/** Errors of another broker, which say nothing about this server. */
const ELSEWHERE = new Set(["NoBroker", "ArchiveBusy"]);
/** Milliseconds between attempts to reach a lost server again; the last value repeats. */
const PROBE_AFTER = [1_000, 2_000, 4_000, 8_000];

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly word: string,
    message: string,
    readonly hint: string,
  ) {
    super(message);
  }
}

/** False while the server does not answer, or answers with a server error. */
export const reachable = signal(true);
/** True after the server has asked for a token. */
export const signInNeeded = signal(false);
/** Grows whenever the page may be outdated: after an outage, a gap in the live feed, a sign-in. */
export const resync = signal(0);

export const refetchAll = (): void => {
  resync.value += 1;
};

let probing = false;

/** Requests the path that failed, because another route may work while this one does not. */
async function probe(path: string): Promise<void> {
  if (probing) return;
  probing = true;
  reachable.value = false;
  for (let attempt = 0; ; attempt += 1) {
    await new Promise((resolve) => setTimeout(resolve, PROBE_AFTER[Math.min(attempt, PROBE_AFTER.length - 1)]));
    try {
      const response = await fetch(path, { headers: { Accept: "application/json" } });
      if (response.status < 500) break;
    } catch {
      continue;
    }
  }
  probing = false;
  reachable.value = true;
  refetchAll();
}

async function failure(response: Response): Promise<ApiError> {
  let body: Partial<Problem> = {};
  try {
    body = (await response.json()) as Partial<Problem>;
  } catch {
    // The error page of a proxy is not shown.
  }
  const word = body.error ?? `HTTP ${response.status}`;
  return new ApiError(response.status, word, body.message ?? `The server returned status ${response.status}.`, body.hint ?? "");
}

async function request<T>(path: string, init: RequestInit, exact = false): Promise<T> {
  const reading = init.method === "GET";
  const began = Date.now();
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    void probe(reading ? path : "/api/session");
    const hint = reading ? "The page reloads when it is back." : "The action may or may not have taken effect: check before you repeat it.";
    throw new ApiError(0, "Unreachable", "The server cannot be reached.", hint);
  }
  const ended = Date.now();
  if (!response.ok) {
    if (response.status === 401) signInNeeded.value = true;
    const failed = await failure(response);
    if (response.status >= 500 && reading && !ELSEWHERE.has(failed.word)) void probe(path);
    throw failed;
  }
  const body = (exact ? parseExact(await response.text()) : await response.json()) as T & { now?: unknown };
  if (typeof body.now === "number") sampleRoundTrip(began, ended, body.now);
  return body;
}

export const get = <T>(path: string, signal?: AbortSignal): Promise<T> =>
  request<T>(path, { method: "GET", headers: { Accept: "application/json" }, ...(signal ? { signal } : {}) });

/** Checks whether the server answers; `reachable` has the result. */
export const checkServer = (): Promise<void> =>
  get("/api/session").then(
    () => undefined,
    () => undefined,
  );

/** For values that can be edited: numbers too large for the browser keep their digits. */
export const getExact = <T>(path: string, signal?: AbortSignal): Promise<T> =>
  request<T>(path, { method: "GET", headers: { Accept: "application/json" }, ...(signal ? { signal } : {}) }, true);

const sending = (method: string) =>
  <T>(path: string, body: unknown = {}): Promise<T> =>
    request<T>(path, {
      method,
      headers: { Accept: "application/json", "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });

export const post = sending("POST");
export const put = sending("PUT");
export const patch = sending("PATCH");
export const remove = sending("DELETE");

/** Sends lines of JSON unchanged. */
export const postLines = <T>(path: string, lines: string): Promise<T> =>
  request<T>(path, {
    method: "POST",
    headers: { Accept: "application/json", "Content-Type": "application/x-ndjson" },
    body: lines,
  });

/** The text of an error: its message and its hint, if it has one. */
export function explain(error: unknown): string {
  if (error instanceof ApiError) return error.hint ? `${error.message} ${error.hint}` : error.message;
  return error instanceof Error ? error.message : String(error);
}
