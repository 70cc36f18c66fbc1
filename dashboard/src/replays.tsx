// Replays many dead letters: counts them, asks with the number, then shows the progress of the task.
import { signal } from "@preact/signals";
import { explain, get, post, refetchAll } from "./api";
import { count, plural } from "./format";
import { Modal } from "./parts/Dialog";
import { attempt, say } from "./parts/Toasts";
import { queueApi } from "./router";
import type { OneTask, TaskOut } from "./types";

/** Milliseconds between two reads of a running task. */
const PROGRESS_EVERY = 700;

type Match = { queue: string; kind: string | null; errorClass: string | null };

const proposal = signal<(Match & { matching: number }) | null>(null);
/** The running replays. `task` is null before the server has reported it. */
const running = signal<{ strip: number; queue: string; task: TaskOut | null }[]>([]);
let strips = 0;

const wait = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function follow(task: TaskOut, report: (task: TaskOut) => void): Promise<TaskOut> {
  let latest = task;
  while (latest.status === "running") {
    report(latest);
    await wait(PROGRESS_EVERY);
    latest = (await get<OneTask>(queueApi(task.queue, `/replays/${encodeURIComponent(task.id)}`))).task;
  }
  return latest;
}

/** Starts a replay and follows it to its end. A dry run shows no progress. */
export async function runReplay(queue: string, body: Record<string, unknown>): Promise<TaskOut> {
  const strip = (strips += 1);
  const show = (task: TaskOut | null): void => {
    if (body.dry_run !== true) running.value = [...running.value.filter((one) => one.strip !== strip), { strip, queue, task }];
  };
  try {
    // The strip is shown before the answer, because the server may answer only after much of the work.
    show(null);
    const { task } = await post<OneTask>(queueApi(queue, "/replay"), body);
    return await follow(task, show);
  } finally {
    running.value = running.value.filter((one) => one.strip !== strip);
  }
}

/** Shows that a replay is running whose progress the server does not report. */
export async function whileReplaying<T>(queue: string, work: () => Promise<T>): Promise<T> {
  const strip = (strips += 1);
  running.value = [...running.value, { strip, queue, task: null }];
  try {
    return await work();
  } finally {
    running.value = running.value.filter((one) => one.strip !== strip);
  }
}

const bodyOf = (match: Match, rate: number | null, dryRun: boolean) => ({
  kind: match.kind,
  error_class: match.errorClass,
  rate,
  dry_run: dryRun,
});

/** Counts the matching messages, then opens the dialog. */
export async function proposeReplay(match: Match): Promise<void> {
  try {
    const { replayed } = await runReplay(match.queue, bodyOf(match, null, true));
    if (replayed === 0) say(`No dead letter in ${match.queue} matches any longer.`);
    else proposal.value = { ...match, matching: replayed };
  } catch (error) {
    say(explain(error), "bad");
  }
}

async function replay(match: Match, rate: number | null): Promise<void> {
  await attempt(async () => {
    const ended = await runReplay(match.queue, bodyOf(match, rate, false));
    const early = ended.status === "cancelled" ? " before the replay was cancelled" : "";
    return `Replayed ${plural(ended.replayed, "message")} of ${match.queue}${early}.`;
  });
  refetchAll();
}

/** The filter of a replay as a sentence. */
export const filterText = (parts: string[]): string => (parts.length > 0 ? `Filter: ${parts.join(", ")}.` : "No filter.");

const describe = ({ kind, errorClass }: Match): string =>
  filterText([kind === null ? "" : `kind ${kind || "(none)"}`, errorClass === null ? "" : `error ${errorClass || "(none)"}`].filter(Boolean));

export function ReplayDialog() {
  const asked = proposal.value;
  if (asked === null) return null;
  return (
    <Modal
      title={`Replay ${plural(asked.matching, "message")} of ${asked.queue}?`}
      yes={`Replay ${count(asked.matching)}`}
      part="confirm-dialog"
      onYes={(form) => {
        const rate = Number(form.get("rate"));
        void replay(asked, rate > 0 ? rate : null);
      }}
      onClose={() => {
        proposal.value = null;
      }}
    >
      <p>
        {describe(asked)} The messages become ready with all their attempts available. A message that dies again during
        the replay is not replayed a second time.
      </p>
      <label class="field">
        <span>Limit per second</span>
        <input name="rate" type="number" min="1" step="1" placeholder="no limit" />
      </label>
    </Modal>
  );
}

export function ReplayProgress() {
  return (
    <>
      {running.value.map(({ strip, queue, task }) => (
        <div key={strip} class="progress-strip" role="status">
          <span>
            Replaying {queue}
            {task && `: ${count(task.replayed)} replayed, ${count(task.seen)} of ${count(task.total)} examined`}
          </span>
          <progress max={Math.max(1, task?.total ?? 1)} value={task?.seen} aria-label={`Replay of ${queue}`} />
        </div>
      ))}
    </>
  );
}
