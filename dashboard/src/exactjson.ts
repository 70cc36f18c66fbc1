// JSON that keeps its numbers: a number the browser cannot hold exactly stays the text it was, so that an edit never rounds it.

type Reviver = (key: string, value: unknown, context?: { source?: string }) => unknown;

/** What newer engines add to JSON. */
type ExactJson = { rawJSON?: (text: string) => unknown; parse: (text: string, reviver: Reviver) => unknown };

const json = JSON as ExactJson;

/** Like JSON.parse; throws the same errors. Browsers without raw JSON round as they always did. */
export function parseExact(text: string): unknown {
  const raw = json.rawJSON;
  if (raw === undefined) return JSON.parse(text);
  return json.parse(text, (_key, value, context) => {
    const source = context?.source;
    return typeof value === "number" && source !== undefined && String(value) !== source ? raw(source) : value;
  });
}

/** Characters nobody sees, some of which turn round the direction of what follows: a text could look like another. */
const UNSEEN = /[\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

const escaped = (one: string): string => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** JSON for people: indented, with unseen characters written out. It is the same value to any parser. */
export const pretty = (value: unknown): string => (JSON.stringify(value, null, 2) ?? "").replace(UNSEEN, escaped);
