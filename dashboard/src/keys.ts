// Keyboard shortcuts: those of a page come before the global ones. Fields and open dialogs get their keys first.
import { useLayoutEffect, useRef } from "preact/hooks";

export type Keys = Record<string, (event: KeyboardEvent) => void>;

/** Milliseconds that a first key such as "g" waits for the second. */
const SEQUENCE = 1_200;

const layers: { keys: Keys }[] = [];
let begun = "";
let begunTimer: number | undefined;

/** Milliseconds that keys are kept for a filter field that is not shown yet. A longer time would swallow shortcuts. */
const AWAITED = 3_000;
const FILTER = "[data-part=filter]";

/** The text typed after "/" for a filter field that is not shown yet; null if none is awaited. */
let awaited: string | null = null;
let awaitedTimer: number | undefined;

const isTyping = (target: EventTarget | null): target is HTMLElement =>
  target instanceof HTMLTextAreaElement ||
  target instanceof HTMLSelectElement ||
  (target instanceof HTMLInputElement && target.type !== "checkbox");

const pressesItself = (target: EventTarget | null): boolean =>
  target instanceof HTMLAnchorElement || target instanceof HTMLButtonElement || (target instanceof HTMLElement && target.tagName === "SUMMARY");

function find(name: string): ((event: KeyboardEvent) => void) | undefined {
  for (let i = layers.length - 1; i >= 0; i -= 1) {
    const found = layers[i]?.keys[name];
    if (found) return found;
  }
  return undefined;
}

const begins = (name: string): boolean => layers.some(({ keys }) => Object.keys(keys).some((key) => key.startsWith(`${name} `)));

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (document.querySelector("dialog[open]")) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (awaited !== null) {
    event.preventDefault();
    if (event.key === "Escape" || event.key === "Enter") awaited = null;
    else if (event.key === "Backspace") awaited = awaited.slice(0, -1);
    else if (event.key.length === 1) awaited += event.key;
    return;
  }
  if (event.key === "Enter" && pressesItself(event.target)) return;
  const sequence = begun ? `${begun} ${event.key}` : "";
  begun = "";
  window.clearTimeout(begunTimer);
  const action = (sequence && find(sequence)) || find(event.key);
  if (action) {
    event.preventDefault();
    action(event);
  } else if (begins(event.key)) {
    begun = event.key;
    begunTimer = window.setTimeout(() => (begun = ""), SEQUENCE);
  }
});

/** Adds shortcuts while the component is shown. They come before those that exist already. */
export function useKeys(keys: Keys): void {
  const layer = useRef({ keys });
  layer.current.keys = keys;
  useLayoutEffect(() => {
    const mine = layer.current;
    layers.push(mine);
    return () => void layers.splice(layers.indexOf(mine), 1);
  }, []);
}

/** Focuses the page's filter field. Until it is shown, typed keys are kept for it. */
export function focusFilter(): void {
  const field = document.querySelector<HTMLInputElement>(FILTER);
  if (field) {
    field.focus();
    field.select();
    return;
  }
  awaited = "";
  window.clearTimeout(awaitedTimer);
  awaitedTimer = window.setTimeout(() => (awaited = null), AWAITED);
}

/** Enters the kept keys into the field that they were typed for. */
export function fillAwaited(field: HTMLInputElement): void {
  if (awaited === null || !field.matches(FILTER)) return;
  const text = awaited;
  awaited = null;
  field.focus();
  if (text === "") return;
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}
