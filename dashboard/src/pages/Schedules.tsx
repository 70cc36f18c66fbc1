// The schedules of all queues: when each ticks next, what became of the last tick's message, and what an operator may do.
import { changeSchedule, deleteSchedule } from "../actions";
import { count, instant, plural } from "../format";
import { useCounts, useFeed } from "../live";
import { Dash, Empty, Link, StateMark } from "../parts/Marks";
import { Menu } from "../parts/Menu";
import { Table, type Column } from "../parts/Table";
import { Ago, UntilTick } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { messageHref, queueHref, search } from "../router";
import { mayOperate } from "../session";
import type { ScheduleOut, Schedules } from "../types";

const READ_EVERY = 5_000;
/** Schedules that the page shows: the next to tick. */
const SHOWN = 500;

export function SchedulesPage() {
  useFeed({ journal: "none" });
  const found = useResource<Schedules>(`/api/schedules${search({ limit: SHOWN })}`, READ_EVERY);
  useCounts(() => found.reloadSoon(1_000), []);
  if (found.data === null) return found.error ? <Failed error={found.error} what="the schedules" /> : <Loading />;
  const { schedules, total } = found.data;
  const columns = mayOperate.value ? [...COLUMNS, actions(() => found.reloadSoon(0))] : COLUMNS;
  return (
    <>
      <header class="page-head">
        <h1>Schedules</h1>
        <p class="muted">
          {plural(total, "schedule")}, the next to tick first{total > schedules.length && `; these are ${count(schedules.length)}`}.
        </p>
      </header>
      {schedules.length === 0 ? (
        <Empty title="No schedules">
          A program adds one with <code>queue.schedule("nightly", "0 3 * * *")</code>, an operator with <code>restante schedule add</code>.
        </Empty>
      ) : (
        <Table
          label="Schedules"
          columns={columns}
          rows={schedules}
          keyOf={({ queue, name }) => `${queue}\n${name}`}
          part="schedule-row"
          attributes={({ name, status }) => ({ "data-name": name, "data-status": status })}
        />
      )}
    </>
  );
}

const when = ({ cron, every_seconds, tz }: ScheduleOut): string => (cron === null ? `every ${count(every_seconds ?? 0)} s` : `${cron} ${tz}`);

function Last({ schedule }: { schedule: ScheduleOut }) {
  const { queue, last_id, last_state, last_at } = schedule;
  if (last_id === null) return <Dash />;
  return (
    <>
      {last_state === null ? (
        <span class="muted">gone</span>
      ) : (
        <Link href={messageHref(queue, last_id)} title={last_id}>
          <StateMark state={last_state} />
        </Link>
      )}{" "}
      {last_at !== null && <Ago at={last_at} />}
    </>
  );
}

const COLUMNS: Column<ScheduleOut>[] = [
  { id: "name", title: "Schedule", class: "clip", names: true, cell: ({ name }) => <b>{name}</b>, cellHint: ({ name, origin }) => `${name}, defined by ${origin}` },
  { id: "queue", title: "Queue", class: "clip", cell: ({ queue }) => <Link href={queueHref(queue)}>{queue}</Link> },
  { id: "when", title: "When", class: "clip mono", cell: when, cellHint: when },
  {
    id: "next",
    title: "Next tick",
    class: "num",
    cell: ({ due_at, status }) => (due_at === null ? <span class="muted">{status}</span> : <UntilTick at={due_at} />),
    cellHint: ({ next_at }) => (next_at === null ? undefined : instant(next_at)),
  },
  { id: "last", title: "Last message", class: "num", cell: (schedule) => <Last schedule={schedule} /> },
  { id: "fired", title: "Fired", class: "right num mid-only", cell: ({ fired }) => count(fired) },
  {
    id: "skipped",
    title: "Passed over",
    hint: "Ticks that were missed, or that came while the last message was not settled",
    class: "right num wide-only",
    cell: ({ skipped }) => (skipped > 0 ? count(skipped) : <Dash />),
    cellHint: ({ skipped_why }) => skipped_why ?? undefined,
  },
];

const actions = (done: () => void): Column<ScheduleOut> => ({
  id: "actions",
  title: "Actions",
  class: "right",
  cell: (schedule) => {
    const act = (work: Promise<boolean>): void => void work.then((changed) => changed && done());
    const { status } = schedule;
    return (
      <Menu label="Change">
        <button type="button" onClick={() => act(changeSchedule(schedule, "run"))}>
          Run now
        </button>
        {status !== "ended" && (
          <button type="button" onClick={() => act(changeSchedule(schedule, status === "paused" ? "resume" : "pause"))}>
            {status === "paused" ? "Resume" : "Pause"}
          </button>
        )}
        <button type="button" class="danger" onClick={() => act(deleteSchedule(schedule))}>
          Delete
        </button>
      </Menu>
    );
  },
});
