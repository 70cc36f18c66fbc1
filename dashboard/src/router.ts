// Routing by the history API: the path selects the page, the query string holds everything that a shared link must show.
import { computed, signal } from "@preact/signals";

const here = signal(window.location.pathname + window.location.search);

window.addEventListener("popstate", () => {
  here.value = window.location.pathname + window.location.search;
});

const decode = (part: string): string => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

/** The decoded parts of the path; an empty list is the overview. */
export const parts = computed(() => {
  const path = here.value.split("?")[0] ?? "/";
  return path.split("/").filter(Boolean).map(decode);
});

/** The values of the query string. */
export const query = computed(() => new URLSearchParams(here.value.split("?")[1] ?? ""));

/** The path without its query. */
export const path = computed(() => here.value.split("?")[0] ?? "/");

export function go(href: string, replace = false, state: unknown = null): void {
  if (replace) window.history.replaceState(window.history.state, "", href);
  else window.history.pushState(state, "", href);
  const changedPage = href.split("?")[0] !== path.peek();
  here.value = window.location.pathname + window.location.search;
  if (changedPage) window.scrollTo(0, 0);
}

/** Changes values of the query string; null or "" removes a value. */
export function setQuery(change: Record<string, string | null>, replace = false, state: unknown = null): void {
  const next = new URLSearchParams(query.peek());
  for (const [name, value] of Object.entries(change)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString();
  go(path.peek() + (text ? `?${text}` : ""), replace, state);
}

/** The cursors of the pages before this one, newest page first. The browser keeps them in the history entry. */
export function trail(): string[] {
  const state = window.history.state as { trail?: unknown } | null;
  return Array.isArray(state?.trail) ? state.trail.map(String) : [];
}

/** Builds "?a=1&b=2" from the values that are not empty. */
export function search(values: Record<string, string | number | null | undefined>): string {
  const text = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== null && value !== undefined && value !== "") text.set(name, String(value));
  }
  const joined = text.toString();
  return joined ? `?${joined}` : "";
}

export const queueHref = (queue: string, values: Record<string, string> = {}): string =>
  `/queues/${encodeURIComponent(queue)}${search(values)}`;

export const messageHref = (queue: string, id: string): string =>
  `/queues/${encodeURIComponent(queue)}/messages/${encodeURIComponent(id)}`;

/** The page of an RSMQ queue or message. */
export const rsmqHref = (rest: string, values: Record<string, string> = {}): string => `/rsmq${rest && `/${rest}`}${search(values)}`;

/** The API path of an RSMQ queue or message. */
export const rsmqApi = (rest: string, values: Record<string, string | number> = {}): string => `/api${rsmqHref(rest)}${search(values)}`;

/** The API path of a batch. */
export const batchApi = (id: string, rest = ""): string => `/api/batches/${encodeURIComponent(id)}${rest}`;

/** The API path of a queue. */
export const queueApi = (queue: string, rest = ""): string => `/api/queues/${encodeURIComponent(queue)}${rest}`;
