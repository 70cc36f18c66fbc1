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

export const pretty = (value: unknown): string => JSON.stringify(value, null, 2) ?? "";
