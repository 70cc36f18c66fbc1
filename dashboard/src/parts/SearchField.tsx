// A field whose text goes into the address: typed text is its own until the typing rests, then it is told.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { fillAwaited } from "../keys";

/** How long typing must rest before the text is told, in milliseconds. */
const RESTS = 250;

type Props = { label: string; value: string; testid: string; list?: string; onText: (text: string) => void };

export function SearchField({ label, value, testid, list, onText }: Props) {
  const [text, setText] = useState(value);
  const field = useRef<HTMLInputElement>(null);
  const timer = useRef<number | undefined>(undefined);
  /** The address's text as this field last told or took it. */
  const known = useRef(value);
  const typed = (next: string): void => {
    setText(next);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => {
      known.current = next.trim();
      onText(known.current);
    }, RESTS);
  };
  // Before the browser handles the next key, and only for text that came from elsewhere: an effect after painting, or
  // one for the text told by this field, would undo what was typed meanwhile.
  useLayoutEffect(() => {
    if (value === known.current) return;
    known.current = value;
    window.clearTimeout(timer.current);
    setText(value);
  }, [value]);
  useLayoutEffect(() => {
    if (field.current) fillAwaited(field.current);
  }, []);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  return (
    <input
      ref={field}
      type="search"
      aria-label={label}
      placeholder={label}
      value={text}
      list={list}
      autocomplete="off"
      data-testid={testid}
      onInput={(event) => typed(event.currentTarget.value)}
    />
  );
}
