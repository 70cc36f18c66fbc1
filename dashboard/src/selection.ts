// The rows that an operator has selected, and the row under the keyboard's cursor.
import { useEffect, useState } from "preact/hooks";
import { useKeys, type Keys } from "./keys";
import { hold } from "./live";
import { mayOperate } from "./session";

export type Cursor = { cursor: string | null; setCursor: (id: string | null) => void; moveCursor: (step: number) => void };

/** A cursor over the rows with these keys. */
export function useCursor(ids: string[]): Cursor {
  const [cursor, setCursor] = useState<string | null>(null);
  return {
    cursor,
    setCursor,
    moveCursor(step) {
      const at = cursor === null ? -1 : ids.indexOf(cursor);
      const next = at < 0 ? (step > 0 ? 0 : ids.length - 1) : Math.min(ids.length - 1, Math.max(0, at + step));
      setCursor(ids[next] ?? null);
    },
  };
}

/** The keys of a list: move the cursor, open its row. */
export const cursorKeys = ({ cursor, moveCursor }: Cursor, open: (id: string) => void): Keys => ({
  j: () => moveCursor(1),
  k: () => moveCursor(-1),
  Enter: () => cursor !== null && open(cursor),
});

export type Selection = Cursor & {
  chosen: ReadonlySet<string>;
  /** Selects or deselects one row; with `range` selects every row from the last one touched. */
  toggle: (id: string, range: boolean) => void;
  togglePage: () => void;
  clear: () => void;
  /** The selected rows, or the row under the cursor if none is selected. */
  targets: () => string[];
};

/** `listing` identifies the list: another list starts without a selection. While rows are selected, live refresh waits. */
export function useSelection(listing: string, ids: string[]): Selection {
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const [anchor, setAnchor] = useState<string | null>(null);
  const over = useCursor(ids);
  const { cursor, setCursor } = over;

  useEffect(() => {
    setChosen(new Set());
    setAnchor(null);
    setCursor(null);
  }, [listing]);

  useEffect(() => {
    hold.value = chosen.size > 0 ? `paused: ${chosen.size} selected` : "";
    return () => {
      hold.value = "";
    };
  }, [chosen]);

  return {
    ...over,
    chosen,
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
    targets: () => (chosen.size > 0 ? [...chosen] : cursor !== null && ids.includes(cursor) ? [cursor] : []),
  };
}

type Actions = { open: (id: string) => void; erase: () => void; more?: Keys };

/** The keys of a list whose rows can be selected. */
export function useListKeys(selection: Selection, { open, erase, more = {} }: Actions): void {
  const select = (range: boolean): void => {
    if (selection.cursor !== null && mayOperate.value) selection.toggle(selection.cursor, range);
  };
  useKeys({
    ...cursorKeys(selection, open),
    x: () => select(false),
    X: () => select(true),
    "#": erase,
    Delete: erase,
    Escape: () => selection.clear(),
    ...more,
  });
}
