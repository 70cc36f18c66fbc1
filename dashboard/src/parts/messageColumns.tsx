// The columns of message lists: native messages in each state, and messages of RSMQ.
import { bytes, count, shortId } from "../format";
import type { State } from "../lifecycle";
import type { Moved } from "../moved";
import { messageHref, rsmqHref } from "../router";
import type { MessageOut, RsmqMessageOut } from "../types";
import { AnomalyMarks, Copy, Dash, EventMark, Link, StateMark } from "./Marks";
import { ProgressBar } from "./Progress";
import type { Column } from "./Table";
import { Ago, Available, MessageTime, TIME_TITLES, timeOf } from "./Times";

const Id = ({ id, href, anomalies = [] }: { id: string; href: string; anomalies?: string[] }) => (
  <span class="id-cell">
    <Link href={href} title={id}>
      {shortId(id)}
    </Link>
    <AnomalyMarks kinds={anomalies} />
    <Copy text={id} what="ID" />
  </span>
);

const Failure = ({ error_class, error }: MessageOut) => (
  <>
    <b>{error_class}</b> {error.startsWith(`${error_class}: `) ? error.slice(error_class.length + 2) : error}
  </>
);

/** The columns in one state, with progress if any is `noted`. A message that has left the state since the last fetch shows where it went. */
export function messageColumns(state: State, moved: ReadonlyMap<string, Moved>, noted = false): Column<MessageOut>[] {
  const progress: Column<MessageOut> = {
    id: "progress",
    title: "Progress",
    class: "progress-cell",
    value: (m) => m.progress?.fraction ?? -1,
    cell: (m) => (m.progress ? <ProgressBar progress={m.progress} /> : <Dash />),
    cellHint: (m) => m.progress?.step || undefined,
  };
  return [
    {
      id: "id",
      title: "ID",
      class: "mono",
      value: (m) => m.id,
      cell: (m) => <Id id={m.id} href={messageHref(m.queue, m.id)} anomalies={m.anomalies} />,
    },
    { id: "kind", title: "Kind", class: "clip kind-cell", value: (m) => m.kind, cell: (m) => m.kind || <Dash /> },
    {
      id: "time",
      title: TIME_TITLES[state],
      class: "time num",
      value: timeOf,
      cell: (m) => {
        const news = moved.get(m.id);
        if (news === undefined || news.state === state) return <MessageTime message={m} state={m.state} />;
        return (
          <span class="moved">
            <EventMark event={news.event} /> <StateMark state={news.state} />
          </span>
        );
      },
    },
    { id: "attempts", title: "Attempts", class: "right num mid-only", value: (m) => m.attempts, cell: (m) => `${m.attempts} / ${m.max_attempts}` },
    { id: "priority", title: "Priority", class: "right num wide-only", value: (m) => m.priority, cell: (m) => m.priority },
    { id: "size", title: "Size", class: "right num wide-only", value: (m) => m.size, cell: (m) => bytes(m.size) },
    { id: "consumer", title: "Consumer", class: "clip mid-only", value: (m) => m.consumer, cell: (m) => m.consumer || <Dash /> },
    ...(noted ? [progress] : []),
    {
      id: "error",
      title: "Error",
      class: "clip error-cell",
      value: (m) => `${m.error_class} ${m.error}`,
      cell: (m) => (m.error_class || m.error ? <Failure {...m} /> : <Dash />),
      cellHint: (m) => m.error || undefined,
    },
  ];
}

/** RSMQ lists all states together, in the order in which messages become available. */
export const rsmqMessageColumns = (namespace: string): Column<RsmqMessageOut>[] => [
  {
    id: "id",
    title: "ID",
    class: "mono",
    cell: (m) => <Id id={m.id} href={rsmqHref(`${m.queue}/messages/${m.id}`, { namespace })} />,
  },
  { id: "state", title: "State", class: "mid-only", cell: (m) => <StateMark state={m.state} /> },
  { id: "time", title: "Available", class: "time num", cell: (m) => <Available at={m.due_at} /> },
  { id: "attempts", title: "Attempts", class: "right num mid-only", cell: (m) => count(m.attempts) },
  {
    id: "first",
    title: "First received",
    class: "num mid-only",
    cell: (m) => (m.first_received_at === null ? <Dash /> : <Ago at={m.first_received_at} />),
  },
  { id: "size", title: "Size", class: "right num wide-only", cell: (m) => bytes(m.size) },
  {
    id: "payload",
    title: "Payload",
    class: "preview-cell mono",
    cell: (m) => m.preview || <i>empty</i>,
    cellHint: (m) => m.preview,
  },
];
