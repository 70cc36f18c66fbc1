// A field whose text goes into the address: typed text is its own until the typing rests, then it is told.
import { useEffect, useRef, useState } from "preact/hooks";

/** How long typing must rest before the text is told, in milliseconds. */
const RESTS = 250;

type Props = { label: string; value: string; testid: string; list?: string; onText: (text: string) => void };

export function SearchField({ label, value, testid, list, onText }: Props) {
  const [text, setText] = useState(value);
  const timer = useRef<number | undefined>(undefined);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => window.clearTimeout(timer.current), []);
  const typed = (next: string): void => {
    setText(next);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => onText(next.trim()), RESTS);
  };
  return (
    <input
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
