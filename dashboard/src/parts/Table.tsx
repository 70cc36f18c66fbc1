// The one table of the dashboard: columns are data, and rows can be sorted, selected and reached by keyboard.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Selection } from "../selection";

export type Column<Row> = {
  id: string;
  title: string;
  /** The heading's tooltip. */
  hint?: string;
  /** Medium screens hide "wide-only" columns, small ones also "mid-only". */
  class?: string;
  /** What the table sorts by; a column without it cannot be sorted. */
  value?: (row: Row) => string | number;
  cell: (row: Row) => ComponentChildren;
  /** The cell's class, if it depends on the row. */
  cellClass?: (row: Row) => string;
  /** The cell's tooltip, for text that may be cut off. */
  cellHint?: (row: Row) => string | undefined;
  /** Whether the cell names its row. */
  names?: boolean;
};

type Props<Row> = {
  label: string;
  class?: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  keyOf: (row: Row, index: number) => string;
  /** The rows' `data-part` and further attributes. */
  part?: string;
  attributes?: (row: Row) => Record<string, string | undefined>;
  rowClass?: (row: Row) => string;
  /** The key of the row under the keyboard's cursor. */
  cursor?: string | null;
  /** With a selection rows have checkboxes, which `nameOf` labels. */
  selection?: Selection | null;
  nameOf?: (row: Row) => string;
  sort?: string;
  onSort?: (sort: string) => void;
};

/** Sorts rows as `sort` says: "attempts" is ascending, "-attempts" descending, "" keeps the order. */
export function sorted<Row>(rows: Row[], columns: readonly Column<Row>[], sort: string): Row[] {
  const value = columns.find(({ id }) => id === sort.replace(/^-/, ""))?.value;
  if (value === undefined) return rows;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...rows].sort((a, b) => {
    const x = value(a);
    const y = value(b);
    return x < y ? -sign : x > y ? sign : 0;
  });
}

const nextSort = (id: string, sort: string): string => (sort === id ? `-${id}` : sort === `-${id}` ? "" : id);

export function Table<Row>(props: Props<Row>) {
  const { label, columns, rows, keyOf, cursor, selection, sort = "", onSort } = props;
  const whole = selection && rows.length > 0 && rows.every((row, i) => selection.chosen.has(keyOf(row, i)));
  return (
    <div class="table-box">
      <table class={props.class} aria-label={label}>
        <thead>
          <tr>
            {selection && (
              <th scope="col" class="select">
                <input type="checkbox" aria-label="Select all rows of this page" checked={whole ?? false} onChange={selection.togglePage} />
              </th>
            )}
            {columns.map((column) => (
              <Heading key={column.id} column={column} sort={sort} onSort={onSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => {
            const key = keyOf(row, i);
            const chosen = selection?.chosen.has(key) ?? false;
            return <Line key={key} {...props} row={row} id={key} current={cursor === key} chosen={chosen} />;
          })}
        </tbody>
      </table>
    </div>
  );
}

type HeadingProps<Row> = { column: Column<Row>; sort: string; onSort: ((sort: string) => void) | undefined };

function Heading<Row>({ column: { id, title, hint, class: name, value }, sort, onSort }: HeadingProps<Row>) {
  if (onSort === undefined || value === undefined) {
    return (
      <th scope="col" class={name} title={hint}>
        {title}
      </th>
    );
  }
  const order = sort === id ? "ascending" : sort === `-${id}` ? "descending" : "none";
  return (
    <th scope="col" class={name} title={hint} aria-sort={order}>
      <button type="button" class="sort" onClick={() => onSort(nextSort(id, sort))}>
        {title}
        <span aria-hidden="true">{{ ascending: " ↑", descending: " ↓", none: "" }[order]}</span>
      </button>
    </th>
  );
}

type LineProps<Row> = Props<Row> & { row: Row; id: string; current: boolean; chosen: boolean };

function Line<Row>({ row, id, current, chosen, columns, part, attributes, rowClass, selection, nameOf }: LineProps<Row>) {
  const line = useRef<HTMLTableRowElement>(null);
  useEffect(() => {
    if (current && document.activeElement?.closest("tr") !== line.current) line.current?.focus();
  }, [current]);
  return (
    <tr
      ref={line}
      tabIndex={-1}
      class={`${rowClass?.(row) ?? ""} ${current ? "cursor" : ""}`}
      aria-selected={selection ? chosen : undefined}
      data-part={part}
      {...attributes?.(row)}
    >
      {selection && (
        <td class="select">
          <input
            type="checkbox"
            checked={chosen}
            aria-label={`Select ${nameOf?.(row) ?? id}`}
            data-part="row-select"
            onClick={(event) => selection.toggle(id, event.shiftKey)}
          />
        </td>
      )}
      {columns.map((column) => {
        const Cell = column.names ? "th" : "td";
        const name = `${column.class ?? ""} ${column.cellClass?.(row) ?? ""}`;
        return (
          <Cell key={column.id} scope={column.names ? "row" : undefined} class={name} title={column.cellHint?.(row)}>
            {column.cell(row)}
          </Cell>
        );
      })}
    </tr>
  );
}
