// JSON with exact numbers: a number that the browser cannot represent keeps its text, so that an edit never rounds it.

type Reviver = (key: string, value: unknown, context?: { source?: string }) => unknown;

/** Functions of JSON that only newer browsers have. */
type ExactJson = { rawJSON?: (text: string) => unknown; parse: (text: string, reviver: Reviver) => unknown };

const json = JSON as ExactJson;

/** Like JSON.parse, with the same errors. Browsers without raw JSON round large numbers. */
export function parseExact(text: string): unknown {
  const raw = json.rawJSON;
  if (raw === undefined) return JSON.parse(text);
  return json.parse(text, (_key, value, context) => {
    const source = context?.source;
    return typeof value === "number" && source !== undefined && String(value) !== source ? raw(source) : value;
  });
}

/** The number in a fact, which `parseExact` has kept as text where the server writes 90 as "90.0". */
export const plain = (value: number): number => Number(JSON.stringify(value));

/** Invisible characters. Some of them reverse the direction of the text after them, which could make it look like another text. */
const UNSEEN = /[\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

const escaped = (one: string): string => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`;

/** Indented JSON in which invisible characters are escaped. Any parser reads the same value. */
export const pretty = (value: unknown): string => (JSON.stringify(value, null, 2) ?? "").replace(UNSEEN, escaped);
