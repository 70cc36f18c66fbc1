// The one pager: what the page shows, and the way to the next and the previous one.
import type { ComponentChildren } from "preact";
import { query, search, setQuery, trail } from "../router";
import { Link } from "./Marks";

type Props = {
  /** The cursor of the next page, null on the last one. */
  next: string | null;
  /** What the buttons say. */
  words?: [previous: string, next: string];
  /** How much the page shows. */
  children?: ComponentChildren;
};

/** The cursor of the page shown, from the address; the first page has none. */
export const cursorShown = (): string => query.value.get("before") ?? "";

export function Pager({ next, words: [previous, following] = ["Previous", "Next"], children }: Props) {
  const before = cursorShown();
  const past = trail();
  const back = (): void => setQuery({ before: past.at(-1) ?? null }, false, { trail: past.slice(0, -1) });
  const forth = (): void => setQuery({ before: next }, false, { trail: [...past, before] });
  if (before === "" && next === null && !children) return null;
  return (
    <nav class="pager" aria-label="Pages">
      <span class="muted">{children}</span>
      <span class="actions">
        {before !== "" && (
          <Link href={window.location.pathname + search({ ...Object.fromEntries(query.value), before: null })}>First page</Link>
        )}
        <button type="button" data-part="prev-page" disabled={before === ""} onClick={back}>
          {previous}
        </button>
        <button type="button" data-part="next-page" disabled={next === null} onClick={forth}>
          {following}
        </button>
      </span>
    </nav>
  );
}
