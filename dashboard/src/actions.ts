// What an operator can do to messages and queues: ask with the number in the question, act, and tell what came of it.
import { post, put, remove } from "./api";
import { count, plural } from "./format";
import type { State } from "./lifecycle";
import { ask } from "./parts/Dialog";
import { attempt } from "./parts/Toasts";
import { runReplay } from "./replays";
import { queueApi } from "./router";
import type { Queue, Settings } from "./types";

const messages = (n: number): string => plural(n, "message");

export async function replayIds(queue: string, ids: string[]): Promise<boolean> {
  const yes = await ask({
    title: `Replay ${messages(ids.length)} of ${queue}?`,
    text: "They become ready at once, with all their attempts before them; their earlier errors are kept.",
    yes: `Replay ${count(ids.length)}`,
  });
  if (!yes) return false;
  return attempt(async () => {
    const task = await runReplay(queue, { ids });
    const missing = ids.length - task.replayed;
    const done = `Replayed ${messages(task.replayed)} of ${queue}.`;
    return missing > 0 ? `${done} ${count(missing)} were no longer dead.` : done;
  });
}

export async function deleteIds(queue: string, ids: string[]): Promise<boolean> {
  const yes = await ask({
    title: `Delete ${messages(ids.length)} from ${queue}?`,
    text: "Deleted messages do not come back; the journal keeps a line for each.",
    yes: `Delete ${count(ids.length)}`,
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    const { deleted } = await post<{ deleted: number }>(queueApi(queue, "/delete"), { ids });
    return `Deleted ${messages(deleted)} from ${queue}.`;
  });
}

export const moveIds = (queue: string, ids: string[], to: string): Promise<boolean> =>
  attempt(async () => {
    const { moved } = await post<{ moved: number }>(queueApi(queue, "/move"), { ids, to });
    return `Moved ${messages(moved)} from ${queue} to ${to}.`;
  });

export const setPaused = (queue: string, pause: boolean): Promise<boolean> =>
  attempt(async () => {
    await post<Queue>(queueApi(queue, pause ? "/pause" : "/resume"));
    return pause ? `Paused ${queue}: nobody receives from it until it is resumed.` : `Resumed ${queue}.`;
  });

export async function purge(queue: string, state: State, held: number): Promise<boolean> {
  const yes = await ask({
    title: `Purge ${count(held)} ${state} ${held === 1 ? "message" : "messages"} from ${queue}?`,
    text: "Purged messages do not come back; the journal keeps one line with the count.",
    yes: `Purge ${count(held)}`,
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    const { purged } = await post<{ purged: number }>(queueApi(queue, "/purge"), { states: [state] });
    return `Purged ${messages(purged)} from ${queue}.`;
  });
}

export async function drop(queue: string, held: number): Promise<boolean> {
  const yes = await ask({
    title: `Drop the queue ${queue} with ${messages(held)}?`,
    text: "The queue, its messages, its settings and its journal are removed for good.",
    yes: "Drop queue",
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    await remove(queueApi(queue));
    return `Dropped ${queue}.`;
  });
}

export const saveSettings = (queue: string, changed: Partial<Settings>): Promise<boolean> =>
  attempt(async () => {
    await put<Queue>(queueApi(queue), changed);
    return `Saved ${plural(Object.keys(changed).length, "setting")} of ${queue}.`;
  });
