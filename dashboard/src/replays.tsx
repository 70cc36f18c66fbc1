// Replaying many dead letters: counts first, asks with the number, then shows the task's progress until it ends.
import { signal } from "@preact/signals";
import { explain, get, post, refetchAll } from "./api";
import { count, plural } from "./format";
import { Modal } from "./parts/Dialog";
import { attempt, say } from "./parts/Toasts";
import { queueApi } from "./router";
import type { ReplayTask } from "./types";

/** How often a running task is asked for its progress, in milliseconds. */
const PROGRESS_EVERY = 700;

type Match = { queue: string; kind: string | null; errorClass: string | null };

const proposal = signal<(Match & { matching: number }) | null>(null);
/** Replays under way; `task` is null until the server has told of it. */
const running = signal<{ strip: number; queue: string; task: ReplayTask | null }[]>([]);
let strips = 0;

const wait = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

async function follow(task: ReplayTask, report: (task: ReplayTask) => void): Promise<ReplayTask> {
  let latest = task;
  while (latest.status === "running") {
    report(latest);
    await wait(PROGRESS_EVERY);
    latest = (await get<{ task: ReplayTask }>(queueApi(task.queue, `/replays/${encodeURIComponent(task.id)}`))).task;
  }
  return latest;
}

/** Starts a replay and follows it to its end; only a real one shows its progress. */
export async function runReplay(queue: string, body: Record<string, unknown>): Promise<ReplayTask> {
  const strip = (strips += 1);
  const show = (task: ReplayTask | null): void => {
    if (body.dry_run !== true) running.value = [...running.value.filter((one) => one.strip !== strip), { strip, queue, task }];
  };
  try {
    // The server may answer only once much of the work is done, so the strip is there before the answer.
    show(null);
    const { task } = await post<{ task: ReplayTask }>(queueApi(queue, "/replay"), body);
    return await follow(task, show);
  } finally {
    running.value = running.value.filter((one) => one.strip !== strip);
  }
}

/** Shows that something is being replayed where nobody tells how far it is. */
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

/** Counts what matches without moving anything, then opens the question. */
export async function proposeReplay(match: Match): Promise<void> {
  try {
    const { replayed } = await runReplay(match.queue, bodyOf(match, null, true));
    if (replayed === 0) say(`Nothing in ${match.queue} matches any more.`);
    else proposal.value = { ...match, matching: replayed };
  } catch (error) {
    say(explain(error), "bad");
  }
}

async function replay(match: Match, rate: number | null): Promise<void> {
  await attempt(async () => {
    const ended = await runReplay(match.queue, bodyOf(match, rate, false));
    return `Replayed ${plural(ended.replayed, "message")} of ${match.queue}${ended.status === "cancelled" ? "; then it was cancelled" : ""}.`;
  });
  refetchAll();
}

const describe = ({ kind, errorClass }: Match): string => {
  const said = [kind === null ? "" : `kind ${kind || "(none)"}`, errorClass === null ? "" : `error ${errorClass || "(none)"}`];
  return said.filter(Boolean).join(", ") || "all of them";
};

export function ReplayDialog() {
  const asked = proposal.value;
  if (asked === null) return null;
  return (
    <Modal
      title={`Replay ${plural(asked.matching, "message")} of ${asked.queue}?`}
      yes={`Replay ${count(asked.matching)}`}
      testid="confirm-dialog"
      onYes={(form) => {
        const rate = Number(form.get("rate"));
        void replay(asked, rate > 0 ? rate : null);
      }}
      onClose={() => {
        proposal.value = null;
      }}
    >
      <p>
        Matching: {describe(asked)}. They become ready with all their attempts before them; what dies again meanwhile is
        not replayed twice.
      </p>
      <label class="field">
        <span>At most per second</span>
        <input name="rate" type="number" min="1" step="1" placeholder="as fast as possible" />
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
            {task && `: ${count(task.replayed)} replayed, ${count(task.seen)} of ${count(task.total)} looked at`}
          </span>
          <progress max={Math.max(1, task?.total ?? 1)} value={task?.seen} aria-label={`Replay of ${queue}`} />
        </div>
      ))}
    </>
  );
}
