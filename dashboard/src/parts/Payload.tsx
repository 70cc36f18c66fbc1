// A payload as coloured text, built from text nodes only. Long payloads are folded, very long ones are not coloured.
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { pretty } from "../exactjson";
import { bytes, plural } from "../format";
import type { WholeMessage } from "../types";
import { Copy } from "./Marks";

/** Lines that a folded text shows. */
const FOLDED_LINES = 40;
/** Characters that a folded text shows: a payload may be one very long line. */
const FOLDED_CHARACTERS = 20_000;
/** Longest text that is coloured: colouring longer texts blocks the page. */
const COLOURED = 200_000;

const TOKEN = /("(?:\\.|[^"\\])*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

function colour(text: string): ComponentChildren[] {
  const out: ComponentChildren[] = [];
  let end = 0;
  for (const token of text.matchAll(TOKEN)) {
    if (token.index > end) out.push(text.slice(end, token.index));
    const [all, string, colon] = token;
    const kind = colon ? "json-key" : string ? "json-string" : /^[tfn]/.test(all) ? "json-word" : "json-number";
    out.push(<span class={kind}>{string ?? all}</span>);
    if (colon) out.push(colon);
    end = token.index + all.length;
  }
  out.push(text.slice(end));
  return out;
}

export function Json({ value, what }: { value: unknown; what: string }) {
  const text = useMemo(() => pretty(value), [value]);
  return <Source text={text} what={what} json />;
}

/** Text with a copy button, coloured if it is JSON. */
export function Source({ text, what, json = false }: { text: string; what: string; json?: boolean }) {
  const [open, setOpen] = useState(false);
  const lines = useMemo(() => text.split("\n"), [text]);
  const folds = lines.length > FOLDED_LINES + 5 || text.length > FOLDED_CHARACTERS;
  const shown = folds && !open ? lines.slice(0, FOLDED_LINES).join("\n").slice(0, FOLDED_CHARACTERS) : text;
  const content = useMemo(() => (json && shown.length <= COLOURED ? colour(shown) : shown), [json, shown]);
  return (
    <div class="source">
      <Copy text={text} what={what} />
      <pre data-part={what === "payload" ? "payload" : undefined} tabIndex={0} aria-label={what}>
        {content}
      </pre>
      {folds && (
        <button type="button" class="fold" aria-expanded={open} onClick={() => setOpen(!open)}>
          {open ? "Show less" : `Show all: ${plural(lines.length, "line")}, ${bytes(text.length)}`}
        </button>
      )}
    </div>
  );
}

export function Payload({ message }: { message: WholeMessage }) {
  if (typeof message.payload_base64 === "string") {
    return (
      <>
        <p class="muted">
          This payload is not JSON ({message.content_type || "no content type"}, {bytes(message.size)}). It is shown as base64.
        </p>
        <Source text={message.payload_base64} what="payload" />
      </>
    );
  }
  if (message.payload === undefined) return <Source text={message.preview} what="payload" />;
  return <Json value={message.payload} what="payload" />;
}
