// The rows an operator has chosen, and the row under the keyboard's cursor.
import { useEffect, useState } from "preact/hooks";
import { hold } from "./live";

export type Selection = {
  chosen: ReadonlySet<string>;
  cursor: string | null;
  /** Chooses or drops one row; with `range` every row from the last one touched. */
  toggle: (id: string, range: boolean) => void;
  togglePage: () => void;
  clear: () => void;
  moveCursor: (step: number) => void;
  /** The chosen rows, or the row under the cursor if none is. */
  targets: () => string[];
};

/** `listing` names the list: another list begins with nothing chosen. While rows are chosen live refresh holds. */
export function useSelection(listing: string, ids: string[]): Selection {
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [anchor, setAnchor] = useState<string | null>(null);
  const [cursor, setCursor] = useState<string | null>(null);

  useEffect(() => {
    setChosen(new Set());
    setAnchor(null);
    setCursor(null);
  }, [listing]);

  useEffect(() => {
    hold.value = chosen.size > 0 ? `paused while ${chosen.size} ${chosen.size === 1 ? "is" : "are"} selected` : "";
    return () => {
      hold.value = "";
    };
  }, [chosen]);

  return {
    chosen,
    cursor,
    toggle(id, range) {
      const next = new Set(chosen);
      const from = anchor === null ? -1 : ids.indexOf(anchor);
      const to = ids.indexOf(id);
      if (range && from >= 0 && to >= 0) {
        for (const one of ids.slice(Math.min(from, to), Math.max(from, to) + 1)) next.add(one);
      } else if (!next.delete(id)) next.add(id);
      setChosen(next);
      setAnchor(id);
      setCursor(id);
    },
    togglePage() {
      setChosen(ids.every((id) => chosen.has(id)) ? new Set() : new Set([...chosen, ...ids]));
    },
    clear() {
      setChosen(new Set());
      setAnchor(null);
    },
    moveCursor(step) {
      const at = cursor === null ? -1 : ids.indexOf(cursor);
      const next = at < 0 ? (step > 0 ? 0 : ids.length - 1) : Math.min(ids.length - 1, Math.max(0, at + step));
      setCursor(ids[next] ?? null);
    },
    targets: () => (chosen.size > 0 ? [...chosen] : cursor !== null && ids.includes(cursor) ? [cursor] : []),
  };
}
