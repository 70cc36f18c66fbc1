// Dead letters of every queue, grouped by what killed them, to be replayed group by group.
import { useRef, useState } from "preact/hooks";
import { count, plural } from "../format";
import { useKeys } from "../keys";
import { useCounts, useFeed } from "../live";
import { Empty, Link } from "../parts/Marks";
import { Ago } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { proposeReplay } from "../replays";
import { useResource } from "../resource";
import { messageHref, queueApi, queueHref } from "../router";
import { mayOperate } from "../session";
import type { DeadGroup, DeadGroups, Queues } from "../types";

const READ_EVERY = 5_000;

export function DeadPage() {
  useFeed({ journal: "none" });
  const queues = useResource<Queues>("/api/queues", READ_EVERY);
  const box = useRef<HTMLDivElement>(null);
  const [cursor, setCursor] = useState(-1);
  useCounts((counts) => {
    const known = new Map(queues.data?.queues.map((one) => [one.queue, one.states.dead]));
    if (counts.queues.some((one) => known.get(one.queue) !== one.states.dead)) queues.reloadSoon();
  }, [queues.data]);
  const cards = (): HTMLElement[] => [...(box.current?.querySelectorAll<HTMLElement>("[data-testid=dead-group]") ?? [])];
  const step = (by: number): void => {
    const all = cards();
    const next = Math.min(all.length - 1, Math.max(0, cursor + by));
    all[next]?.focus();
    setCursor(next);
  };
  const press = (hook: string): void => document.activeElement?.closest("[data-testid=dead-group]")?.querySelector<HTMLElement>(hook)?.click();
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    R: () => press("[data-testid=dead-replay]"),
    Enter: () => press("a"),
  });
  if (queues.data === null) return queues.error ? <Failed error={queues.error} what="the dead letters" /> : <Loading />;
  const dying = queues.data.queues.filter((queue) => queue.states.dead > 0).sort((a, b) => b.states.dead - a.states.dead);
  const total = dying.reduce((sum, queue) => sum + queue.states.dead, 0);
  return (
    <>
      <header class="page-head">
        <h1>Dead letters</h1>
        <p class="muted">
          {total === 0 ? "None." : `${plural(total, "message")} in ${plural(dying.length, "queue")}, grouped by error and kind.`}
        </p>
      </header>
      <div ref={box}>
        {dying.map((queue) => (
          <QueueGroups key={queue.queue} queue={queue.queue} dead={queue.states.dead} />
        ))}
      </div>
      {total === 0 && <Empty title="No dead letters.">Messages whose attempts are spent, or that were buried, wait here to be replayed.</Empty>}
    </>
  );
}

function QueueGroups({ queue, dead }: { queue: string; dead: number }) {
  // The count is part of nothing the server reads: it only makes the groups be fetched anew when it changes.
  const groups = useResource<DeadGroups>(queueApi(queue, "/dead"), READ_EVERY);
  const known = useRef(dead);
  if (known.current !== dead) {
    known.current = dead;
    groups.reloadSoon();
  }
  /** Whether the error class alone names the group, so that messages without a kind can be named at all. */
  const isAlone = ({ error_class }: DeadGroup): boolean =>
    unseen === 0 && groups.data?.groups.filter((other) => other.error_class === error_class).length === 1;
  const unseen = groups.data === null ? 0 : groups.data.total - groups.data.seen;
  return (
    <section class="dead-queue" aria-label={`Dead letters of ${queue}`}>
      <div class="section-head">
        <h2>
          <Link href={queueHref(queue, { state: "dead" })}>{queue}</Link> <span class="muted num">{count(dead)}</span>
        </h2>
        {mayOperate.value && (
          <button type="button" onClick={() => void proposeReplay({ queue, kind: null, errorClass: null })}>
            Replay all {count(dead)}…
          </button>
        )}
      </div>
      {groups.error && groups.data === null && <Failed error={groups.error} what={`the dead letters of ${queue}`} />}
      {groups.data?.groups.map((group) => (
        <Group key={`${group.error_class}\n${group.kind}`} queue={queue} group={group} alone={isAlone(group)} />
      ))}
      {unseen > 0 && <p class="muted">{plural(unseen, "older dead letter")} not looked at for these groups.</p>}
    </section>
  );
}

/** A traceback says what happened in its last line. */
const lastLine = (error: string): string => error.trimEnd().split("\n").at(-1) ?? "";

function Group({ queue, group, alone }: { queue: string; group: DeadGroup; alone: boolean }) {
  const filters = { state: "dead", error_class: group.error_class, kind: group.kind };
  return (
    <article class="panel dead-group" data-testid="dead-group" data-queue={queue} tabIndex={-1}>
      <div class="dead-what">
        <h3>
          {group.error_class || "No error class"} {group.kind && <span class="muted">{group.kind}</span>}
        </h3>
        <p class="error-line" title={group.example_error}>
          {lastLine(group.example_error)}
        </p>
        <p class="muted">
          latest <Ago at={group.latest_at} />, oldest <Ago at={group.oldest_at} />,{" "}
          <Link href={messageHref(queue, group.example_id)}>an example</Link>
        </p>
      </div>
      <div class="dead-do">
        <Link href={queueHref(queue, filters)} class="num">
          Show {count(group.count)}
        </Link>
        {mayOperate.value && (
          <button
            type="button"
            class="primary"
            data-testid="dead-replay"
            onClick={() => void proposeReplay({ queue, kind: alone ? null : group.kind, errorClass: group.error_class })}
          >
            Replay these {count(group.count)}
          </button>
        )}
      </div>
    </article>
  );
}
