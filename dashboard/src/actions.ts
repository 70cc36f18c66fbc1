// What an operator can do to messages and queues: ask with the number in the question, act, and tell what came of it.
import { explain, post, put, refetchAll, remove } from "./api";
import { count, plural } from "./format";
import type { State } from "./lifecycle";
import { ask } from "./parts/Dialog";
import { attempt, say } from "./parts/Toasts";
import { runReplay, whileReplaying } from "./replays";
import { queueApi, rsmqApi } from "./router";
import type { DeadEvent, Queue, ReplayedEvents, Settings } from "./types";

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

/** Which dead events of a service: all that fit, or those named, which died in one subscription. */
type Choice = { ids?: string[]; subscription?: string | null; error_class?: string | null };

const replayChoice = (service: string, choice: Choice, dryRun: boolean): Promise<ReplayedEvents> =>
  post<ReplayedEvents>(`/api/topics/${encodeURIComponent(service)}/replay`, { ...choice, dry_run: dryRun });

/** Asks, then puts dead events back into the subscriptions they died in. */
async function replayEvents(service: string, many: number, which: string, choices: Choice[]): Promise<boolean> {
  const events = plural(many, "dead event");
  const yes = await ask({
    title: `Replay ${events} of ${service}?`,
    text: `${which} They go back to the subscriptions they died in and to no other, with all their attempts before them.`,
    yes: `Replay ${count(many)}`,
  });
  if (!yes) return false;
  const done = await attempt(async () => {
    let replayed = 0;
    await whileReplaying(service, async () => {
      for (const choice of choices) replayed += (await replayChoice(service, choice, false)).replayed;
    });
    return `Replayed ${plural(replayed, "event")} of ${service}.`;
  });
  refetchAll();
  return done;
}

/** Counts what fits without moving anything, then asks. */
export async function proposeEvents(service: string, choice: Choice): Promise<boolean> {
  try {
    const { replayed } = await replayChoice(service, choice, true);
    const told = [choice.subscription ?? "", choice.error_class ? `error ${choice.error_class}` : ""].filter(Boolean).join(", ");
    if (replayed > 0) return await replayEvents(service, replayed, `Matching: ${told || "all of them"}.`, [choice]);
    say(`Nothing of ${service} matches any more.`);
  } catch (error) {
    say(explain(error), "bad");
  }
  return false;
}

/** An event may be dead in several subscriptions of a service: only those chosen are meant. */
export function replayChosen(service: string, chosen: DeadEvent[]): Promise<boolean> {
  const ids = new Map<string, string[]>();
  for (const { subscription, id } of chosen) ids.set(subscription, [...(ids.get(subscription) ?? []), id]);
  const choices = [...ids].map(([subscription, some]) => ({ ids: some, subscription }));
  return replayEvents(service, chosen.length, "Those selected.", choices);
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

export async function deleteRsmq(queue: string, namespace: string, ids: string[]): Promise<boolean> {
  const yes = await ask({
    title: `Delete ${messages(ids.length)} from the RSMQ queue ${queue}?`,
    text: "Deleted messages do not come back. Whoever has received one is not told, and may still be at work on it.",
    yes: `Delete ${count(ids.length)}`,
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    const { deleted } = await post<{ deleted: number }>(rsmqApi(`${queue}/delete`, { namespace }), { ids });
    return `Deleted ${messages(deleted)} from ${queue}.`;
  });
}

export const moveRsmq = (queue: string, namespace: string, ids: string[], to: string, inside: boolean): Promise<boolean> =>
  attempt(async () => {
    const { moved } = await post<{ moved: number }>(rsmqApi(`${queue}/move`, { namespace }), { ids, to, rsmq: inside });
    const gone = ids.length - moved;
    return `Moved ${messages(moved)} from ${queue} to ${to}.${gone > 0 ? ` ${count(gone)} were received or deleted meanwhile.` : ""}`;
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
