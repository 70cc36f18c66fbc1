// The one table of messages for every state: only the meaning of the time column changes.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { bytes, shortId } from "../format";
import type { State } from "../lifecycle";
import { apply, type Moved } from "../moved";
import { messageHref } from "../router";
import type { Selection } from "../selection";
import type { Message } from "../types";
import { AnomalyMarks, Copy, EventMark, Link, StateMark } from "./Marks";
import { MessageTime, TIME_TITLES, timeOf } from "./Times";

type Column = {
  id: string;
  title: (state: State) => string;
  /** Narrow screens drop "mid" columns, very narrow ones "wide" and "mid". */
  class: string;
  value: (message: Message) => string | number;
  cell: (message: Message, state: State) => ComponentChildren;
};

const COLUMNS: Column[] = [
  {
    id: "id",
    title: () => "Id",
    class: "mono",
    value: (m) => m.id,
    cell: (m) => (
      <span class="id-cell">
        <Link href={messageHref(m.queue, m.id)} title={m.id}>
          {shortId(m.id)}
        </Link>
        <AnomalyMarks kinds={m.anomalies} />
        <Copy text={m.id} what="id" />
      </span>
    ),
  },
  { id: "kind", title: () => "Kind", class: "clip kind-cell", value: (m) => m.kind, cell: (m) => m.kind || <span class="muted">–</span> },
  { id: "time", title: (s) => TIME_TITLES[s], class: "time num", value: timeOf, cell: (m, s) => <MessageTime message={m} state={s} /> },
  { id: "attempts", title: () => "Attempts", class: "right num mid-only", value: (m) => m.attempts, cell: (m) => `${m.attempts} / ${m.max_attempts}` },
  { id: "priority", title: () => "Priority", class: "right num wide-only", value: (m) => m.priority, cell: (m) => m.priority },
  { id: "size", title: () => "Size", class: "right num wide-only", value: (m) => m.size, cell: (m) => bytes(m.size) },
  { id: "consumer", title: () => "Consumer", class: "clip mid-only", value: (m) => m.consumer, cell: (m) => m.consumer || <span class="muted">–</span> },
  {
    id: "error",
    title: () => "Error",
    class: "clip error-cell",
    value: (m) => `${m.error_class} ${m.error}`,
    cell: (m) =>
      m.error_class || m.error ? (
        <span title={m.error}>
          <b>{m.error_class}</b> {m.error.startsWith(`${m.error_class}: `) ? m.error.slice(m.error_class.length + 2) : m.error}
        </span>
      ) : (
        <span class="muted">–</span>
      ),
  },
];

/** The rows in the order the viewer asked for: "attempts" ascending, "-attempts" descending, "" as the server gave them. */
export function sorted(messages: Message[], sort: string): Message[] {
  const column = COLUMNS.find(({ id }) => id === sort.replace(/^-/, ""));
  if (column === undefined) return messages;
  const sign = sort.startsWith("-") ? -1 : 1;
  return [...messages].sort((a, b) => {
    const x = column.value(a);
    const y = column.value(b);
    return x < y ? -sign : x > y ? sign : 0;
  });
}

const nextSort = (id: string, sort: string): string => (sort === id ? `-${id}` : sort === `-${id}` ? "" : id);

type Props = {
  state: State;
  messages: Message[];
  moved: ReadonlyMap<string, Moved>;
  sort: string;
  onSort: (sort: string) => void;
  selection: Selection;
  /** Whether rows can be chosen; the keyboard's cursor moves in any case. */
  selectable: boolean;
};

export function MessageTable({ state, messages, moved, sort, onSort, selection, selectable }: Props) {
  const whole = messages.length > 0 && messages.every(({ id }) => selection.chosen.has(id));
  return (
    <div class="table-box">
      <table class={`messages of-${state}`}>
        <thead>
          <tr>
            {selectable && (
              <th scope="col" class="select">
                <input type="checkbox" aria-label="Select every message of this page" checked={whole} onChange={selection.togglePage} />
              </th>
            )}
            {COLUMNS.map((column) => {
              const up = sort === column.id;
              const down = sort === `-${column.id}`;
              return (
                <th key={column.id} scope="col" class={column.class} aria-sort={up ? "ascending" : down ? "descending" : "none"}>
                  <button type="button" class="sort" onClick={() => onSort(nextSort(column.id, sort))}>
                    {column.title(state)}
                    <span aria-hidden="true">{up ? " ↑" : down ? " ↓" : ""}</span>
                  </button>
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {messages.map((message) => (
            <Row key={message.id} state={state} message={message} news={moved.get(message.id)} selection={selection} selectable={selectable} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

type RowProps = { state: State; message: Message; news: Moved | undefined; selection: Selection; selectable: boolean };

function Row({ state, message, news, selection, selectable }: RowProps) {
  const row = useRef<HTMLTableRowElement>(null);
  const now = apply(message, news);
  const left = news !== undefined && news.state !== state;
  const chosen = selection.chosen.has(message.id);
  const current = selection.cursor === message.id;
  useEffect(() => {
    if (current && document.activeElement?.closest("tr") !== row.current) row.current?.focus();
  }, [current]);
  return (
    <tr
      ref={row}
      tabIndex={-1}
      class={`${left ? "left" : ""} ${current ? "cursor" : ""}`}
      aria-selected={selectable ? chosen : undefined}
      data-testid="message-row"
      data-id={message.id}
      data-state={news?.state ?? message.state}
    >
      {selectable && (
        <td class="select">
          <input
            type="checkbox"
            checked={chosen}
            aria-label={`Select message ${message.id}`}
            data-testid="row-select"
            onClick={(event) => selection.toggle(message.id, event.shiftKey)}
          />
        </td>
      )}
      {COLUMNS.map((column) => (
        <td key={column.id} class={column.class}>
          {column.id === "time" && left ? (
            <span class="moved">
              <EventMark event={news.event} /> <StateMark state={news.state} />
            </span>
          ) : (
            column.cell(now, now.state)
          )}
        </td>
      ))}
    </tr>
  );
}
