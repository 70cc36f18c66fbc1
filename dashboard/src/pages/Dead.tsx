// The dead letters of every queue, grouped by error and kind. Each group can be replayed.
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
import type { DeadGroup, DeadGroups, Overview } from "../types";

const READ_EVERY = 5_000;

export function DeadPage() {
  useFeed({ journal: "none" });
  const queues = useResource<Overview>("/api/queues", READ_EVERY);
  const box = useRef<HTMLDivElement>(null);
  const [cursor, setCursor] = useState(-1);
  useCounts((counts) => {
    const known = new Map(queues.data?.queues.map((one) => [one.queue, one.states.dead]));
    if (counts.queues.some((one) => known.get(one.queue) !== one.states.dead)) queues.reloadSoon();
  }, [queues.data]);
  const cards = (): HTMLElement[] => [...(box.current?.querySelectorAll<HTMLElement>("[data-part=dead-group]") ?? [])];
  const step = (by: number): void => {
    const all = cards();
    const next = Math.min(all.length - 1, Math.max(0, cursor + by));
    all[next]?.focus();
    setCursor(next);
  };
  const press = (hook: string): void => document.activeElement?.closest("[data-part=dead-group]")?.querySelector<HTMLElement>(hook)?.click();
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    R: () => press("[data-part=dead-replay]"),
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
          {total === 0 ? "Messages that are out of attempts or were buried." : `${plural(total, "message")} in ${plural(dying.length, "queue")}, grouped by error and kind.`}
        </p>
      </header>
      <div ref={box}>
        {dying.map((queue) => (
          <QueueGroups key={queue.queue} queue={queue.queue} dead={queue.states.dead} />
        ))}
      </div>
      {total === 0 && <Empty title="No dead letters">Dead letters are kept here until you replay or delete them.</Empty>}
    </>
  );
}

function QueueGroups({ queue, dead }: { queue: string; dead: number }) {
  // The request does not contain the count; a changed count only triggers a new request.
  const groups = useResource<DeadGroups>(queueApi(queue, "/dead"), READ_EVERY);
  const known = useRef(dead);
  if (known.current !== dead) {
    known.current = dead;
    groups.reloadSoon();
  }
  /** Whether the error class alone identifies the group: an empty kind cannot be a filter. */
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
      {unseen > 0 && <p class="muted">{plural(unseen, "older dead letter")} not included in these groups.</p>}
    </section>
  );
}

/** The last line of a traceback names the error. */
const lastLine = (error: string): string => error.trimEnd().split("\n").at(-1) ?? "";

function Group({ queue, group, alone }: { queue: string; group: DeadGroup; alone: boolean }) {
  const filters = { state: "dead", error_class: group.error_class, kind: group.kind };
  return (
    <article class="panel dead-group" data-part="dead-group" data-queue={queue} tabIndex={-1}>
      <div class="dead-what">
        <h3>
          {group.error_class || "No error class"} {group.kind && <span class="muted">{group.kind}</span>}
        </h3>
        <p class="error-line" title={group.example_error}>
          {lastLine(group.example_error)}
        </p>
        <p class="muted">
          latest <Ago at={group.latest_at} />, oldest <Ago at={group.oldest_at} />,{" "}
          <Link href={messageHref(queue, group.example_id)}>example</Link>
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
            data-part="dead-replay"
            onClick={() => void proposeReplay({ queue, kind: alone ? null : group.kind, errorClass: group.error_class })}
          >
            Replay {count(group.count)}…
          </button>
        )}
      </div>
    </article>
  );
}
