// The actions of an operator on messages and queues: each asks first, with the number of messages, then acts and reports.
import { explain, post, put, refetchAll, remove } from "./api";
import { count, plural } from "./format";
import type { State } from "./lifecycle";
import { ask } from "./parts/Dialog";
import { attempt, say } from "./parts/Toasts";
import { filterText, runReplay, whileReplaying } from "./replays";
import { batchApi, queueApi, rsmqApi } from "./router";
import type { BatchResumed, Cancelled, DeadEvent, Deleted, Dropped, Moved, Purged, QueueOut, ReplayedEvents, Revoked, ScheduleOut, SettingsOut } from "./types";

const messages = (n: number): string => plural(n, "message");

export async function replayIds(queue: string, ids: string[]): Promise<boolean> {
  const yes = await ask({
    title: `Replay ${messages(ids.length)} of ${queue}?`,
    text: "They become ready immediately with all their attempts available. Their earlier errors are kept.",
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

/** Which dead events of a service: all that match, or the given IDs in one subscription. */
type Choice = { ids?: string[]; subscription?: string | null; error_class?: string | null };

const replayChoice = (service: string, choice: Choice, dryRun: boolean): Promise<ReplayedEvents> =>
  post<ReplayedEvents>(`/api/topics/${encodeURIComponent(service)}/replay`, { ...choice, dry_run: dryRun });

/** Asks, then replays dead events in the subscriptions they died in. */
async function replayEvents(service: string, many: number, matching: string, choices: Choice[]): Promise<boolean> {
  const events = plural(many, "dead event");
  const yes = await ask({
    title: `Replay ${events} of ${service}?`,
    text: `${matching} Each event returns only to the subscription it died in, with all its attempts available.`,
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

/** Counts the matching events, then asks. */
export async function proposeEvents(service: string, choice: Choice): Promise<boolean> {
  try {
    const { replayed } = await replayChoice(service, choice, true);
    const { subscription, error_class } = choice;
    const filter = [subscription ? `subscription ${subscription}` : "", error_class ? `error ${error_class}` : ""].filter(Boolean);
    if (replayed > 0) return await replayEvents(service, replayed, filterText(filter), [choice]);
    say(`No dead event of ${service} matches any longer.`);
  } catch (error) {
    say(explain(error), "bad");
  }
  return false;
}

/** Replays an event only in the selected subscriptions, even if it is dead in others of the service too. */
export function replayChosen(service: string, chosen: DeadEvent[]): Promise<boolean> {
  const ids = new Map<string, string[]>();
  for (const { subscription, id } of chosen) ids.set(subscription, [...(ids.get(subscription) ?? []), id]);
  const choices = [...ids].map(([subscription, some]) => ({ ids: some, subscription }));
  return replayEvents(service, chosen.length, "Only the selected events.", choices);
}

export async function deleteIds(queue: string, ids: string[]): Promise<boolean> {
  const yes = await ask({
    title: `Delete ${messages(ids.length)} from ${queue}?`,
    text: "Deleted messages cannot be restored. The journal keeps one line per message.",
    yes: `Delete ${count(ids.length)}`,
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    const { deleted } = await post<Deleted>(queueApi(queue, "/delete"), { ids });
    return `Deleted ${messages(deleted)} from ${queue}.`;
  });
}

export async function revokeIds(queue: string, ids: string[]): Promise<boolean> {
  const yes = await ask({
    title: `Take ${messages(ids.length)} of ${queue} back from ${ids.length === 1 ? "its consumer" : "their consumers"}?`,
    text: "They are ready again immediately, and the attempt counts. A handler that runs now cannot settle its message any more; what it has done may be done twice.",
    yes: `Take back ${count(ids.length)}`,
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    const { revoked } = await post<Revoked>(queueApi(queue, "/revoke"), { ids });
    const missing = ids.length - revoked;
    const done = `Took back ${messages(revoked)} of ${queue}.`;
    return missing > 0 ? `${done} ${count(missing)} were no longer leased.` : done;
  });
}

export async function cancelIds(queue: string, ids: string[]): Promise<boolean> {
  const yes = await ask({
    title: `Cancel ${messages(ids.length)} of ${queue}?`,
    text: "Cancelled messages cannot be restored. A handler that runs one now is told when it next renews its lease. The journal keeps one line per message.",
    yes: `Cancel ${messages(ids.length)}`,
    no: "Keep",
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    const { cancelled } = await post<Cancelled>(queueApi(queue, "/cancel"), { ids });
    const missing = ids.length - cancelled;
    const done = `Cancelled ${messages(cancelled)} of ${queue}.`;
    return missing > 0 ? `${done} ${count(missing)} had ended already.` : done;
  });
}

export async function cancelBatch(id: string, pending: number): Promise<boolean> {
  const yes = await ask({
    title: `Cancel the batch ${id}?`,
    text: `Its ${messages(pending)} are cancelled, also those that run, and the batches in it. No message of its end is sent.`,
    yes: "Cancel the batch",
    no: "Keep",
    danger: true,
  });
  if (!yes) return false;
  const done = await attempt(async () => {
    const { cancelled } = await post<Cancelled>(batchApi(id, "/cancel"), {});
    return `Cancelled ${messages(cancelled)} of ${id}.`;
  });
  refetchAll();
  return done;
}

export async function resumeBatch(id: string): Promise<boolean> {
  const yes = await ask({
    title: `Seal the batch ${id}?`,
    text: "Do this if its producer has died. Messages that were not sent leave the batch, and it ends with the last of the others.",
    yes: "Seal",
  });
  if (!yes) return false;
  const done = await attempt(async () => {
    const { missing } = await post<BatchResumed>(batchApi(id, "/resume"), {});
    return `Sealed ${id} without ${messages(missing)}.`;
  });
  refetchAll();
  return done;
}

export const moveIds = (queue: string, ids: string[], to: string): Promise<boolean> =>
  attempt(async () => {
    const { moved } = await post<Moved>(queueApi(queue, "/move"), { ids, to });
    return `Moved ${messages(moved)} from ${queue} to ${to}.`;
  });

export async function deleteRsmq(queue: string, namespace: string, ids: string[]): Promise<boolean> {
  const yes = await ask({
    title: `Delete ${messages(ids.length)} from the RSMQ queue ${queue}?`,
    text: "Deleted messages cannot be restored. A consumer that has received one is not notified and may still be processing it.",
    yes: `Delete ${count(ids.length)}`,
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    const { deleted } = await post<Deleted>(rsmqApi(`${queue}/delete`, { namespace }), { ids });
    return `Deleted ${messages(deleted)} from ${queue}.`;
  });
}

export const moveRsmq = (queue: string, namespace: string, ids: string[], to: string, inside: boolean): Promise<boolean> =>
  attempt(async () => {
    const { moved } = await post<Moved>(rsmqApi(`${queue}/move`, { namespace }), { ids, to, rsmq: inside });
    const gone = ids.length - moved;
    return `Moved ${messages(moved)} from ${queue} to ${to}.${gone > 0 ? ` ${count(gone)} had been received or deleted in the meantime.` : ""}`;
  });

export const setPaused = (queue: string, pause: boolean): Promise<boolean> =>
  attempt(async () => {
    await post<QueueOut>(queueApi(queue, pause ? "/pause" : "/resume"));
    return pause ? `Paused ${queue}. No message is delivered until you resume it.` : `Resumed ${queue}.`;
  });

export async function purge(queue: string, state: State, held: number): Promise<boolean> {
  const yes = await ask({
    title: `Purge ${count(held)} ${state} ${held === 1 ? "message" : "messages"} from ${queue}?`,
    text: "Purged messages cannot be restored. The journal keeps one line with the count.",
    yes: `Purge ${count(held)}`,
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    const { purged } = await post<Purged>(queueApi(queue, "/purge"), { states: [state] });
    return `Purged ${messages(purged)} from ${queue}.`;
  });
}

export async function drop(queue: string, held: number): Promise<boolean> {
  const yes = await ask({
    title: held > 0 ? `Drop the queue ${queue} and its ${messages(held)}?` : `Drop the empty queue ${queue}?`,
    text: "This permanently removes the queue with its messages, settings and journal.",
    yes: "Drop queue",
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    await remove<Dropped>(queueApi(queue));
    return `Dropped ${queue}.`;
  });
}

export const saveSettings = (queue: string, changed: Partial<SettingsOut>): Promise<boolean> =>
  attempt(async () => {
    await put<QueueOut>(queueApi(queue), changed);
    return `Saved ${plural(Object.keys(changed).length, "setting")} of ${queue}.`;
  });

const scheduleApi = ({ queue, name }: ScheduleOut, rest = ""): string => queueApi(queue, `/schedules/${encodeURIComponent(name)}${rest}`);

const CHANGED = { run: "Sent the message of", pause: "Paused", resume: "Resumed" };

/** Pauses or resumes a schedule, or sends its message now. */
export const changeSchedule = (schedule: ScheduleOut, verb: "run" | "pause" | "resume"): Promise<boolean> =>
  attempt(async () => {
    await post(scheduleApi(schedule, `/${verb}`));
    return `${CHANGED[verb]} ${schedule.name}.`;
  });

export async function deleteSchedule(schedule: ScheduleOut): Promise<boolean> {
  const yes = await ask({
    title: `Delete the schedule ${schedule.name} of ${schedule.queue}?`,
    text: "It no longer ticks. Messages that it has sent stay.",
    yes: "Delete",
    danger: true,
  });
  if (!yes) return false;
  return attempt(async () => {
    await remove(scheduleApi(schedule));
    return `Deleted ${schedule.name}.`;
  });
}
