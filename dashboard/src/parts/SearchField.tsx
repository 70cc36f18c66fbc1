// A search field whose text becomes part of the address after a short pause in typing.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { fillAwaited } from "../keys";

/** Milliseconds without a key before the text is reported. */
const PAUSE = 250;

type Props = { label: string; value: string; part: string; list?: string; onText: (text: string) => void };

export function SearchField({ label, value, part, list, onText }: Props) {
  const [text, setText] = useState(value);
  const field = useRef<HTMLInputElement>(null);
  const timer = useRef<number | undefined>(undefined);
  /** The text of the address that this field has last reported or taken over. */
  const known = useRef(value);
  const typed = (next: string): void => {
    setText(next);
    window.clearTimeout(timer.current);
    timer.current = window.setTimeout(() => {
      known.current = next.trim();
      onText(known.current);
    }, PAUSE);
  };
  // A layout effect, and only for text from elsewhere: an effect after painting, or one for the text that this field
  // reported, would undo what was typed in the meantime.
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
      data-part={part}
      onInput={(event) => typed(event.currentTarget.value)}
    />
  );
}
