// Events and calls between services: which subscriptions are behind, and which events are dead.
import { useRef } from "preact/hooks";
import { count, plural } from "../format";
import { focusFilter, useKeys } from "../keys";
import { useCounts, useFeed } from "../live";
import { ArchiveCard, focusedRow, clickIn } from "../parts/Archives";
import { Ladder } from "../parts/Ladder";
import { Empty, Link } from "../parts/Marks";
import { SearchField } from "../parts/SearchField";
import { CallTable, EventTable } from "../parts/TopicTables";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { query, queueHref, setQuery } from "../router";
import type { Archive, Topic, Topics } from "../types";

const READ_EVERY = 5_000;
/** Minimum of milliseconds between two reads while counts change: each read asks both brokers. */
const COUNTED_GAP = 1_000;
/** The queue of events without a subscription. */
const UNROUTED = "events.unrouted";

const subscriptionsOf = (topics: Topic[]) => topics.flatMap(({ subscriptions }) => subscriptions);

/** The topics whose name, or the subscriptions whose service or handler, has the text. */
function matching(topics: Topic[], text: string): Topic[] {
  const has = (name: string): boolean => name.toLowerCase().includes(text.toLowerCase());
  return topics
    .map((topic) => (has(topic.topic) ? topic : { ...topic, subscriptions: topic.subscriptions.filter((one) => has(one.subscription)) }))
    .filter(({ subscriptions }) => subscriptions.length > 0);
}

export function TopicsPage() {
  useFeed({ journal: "none" });
  const found = useResource<Topics>("/api/topics", READ_EVERY);
  const box = useRef<HTMLDivElement>(null);
  useCounts(
    (counts) => {
      const mine = new Set([UNROUTED, ...subscriptionsOf(found.data?.topics ?? []).map(({ queue }) => queue)]);
      if (counts.queues.some(({ queue }) => mine.has(queue))) found.reloadSoon(COUNTED_GAP);
    },
    [found.data],
  );
  const step = (by: number): void => {
    const all = [...(box.current?.querySelectorAll<HTMLElement>("[data-row]") ?? [])];
    const at = all.indexOf(focusedRow() ?? document.body);
    all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))]?.focus();
  };
  useKeys({
    "/": focusFilter,
    j: () => step(1),
    k: () => step(-1),
    R: () => clickIn("[data-part=archive-replay]"),
    Enter: () => focusedRow()?.querySelector<HTMLElement>("a, [data-part=archive-open]")?.click(),
  });
  if (found.data === null) return found.error ? <Failed error={found.error} what="the topics" /> : <Loading />;
  const { topics, archives, rungs, problem } = found.data;
  const wanted = query.value.get("q") ?? "";
  const shown = matching(topics, wanted);
  const services = new Set(subscriptionsOf(shown).map(({ service }) => service));
  return (
    <>
      <header class="page-head">
        <div class="title-row">
          <h1>Topics</h1>
          {topics.length > 0 && (
            <div class="actions">
              <SearchField label="Topic or service" value={wanted} part="filter" onText={(text) => setQuery({ q: text }, true)} />
            </div>
          )}
        </div>
        {topics.length > 0 && <Totals found={found.data} />}
      </header>
      {problem && (
        <p class="banner" role="status" data-part="problem">
          Some information is missing: {problem}
        </p>
      )}
      {topics.length === 0 && <Begin />}
      {topics.length > 0 && shown.length === 0 && <Empty title="No topic or service contains this text." />}
      <div ref={box} class="topics-page">
        <Section title="Events" topics={shown.filter(({ way }) => way === "event")} Table={EventTable} problem={problem} />
        <Section title="Calls" topics={shown.filter(({ way }) => way === "call")} Table={CallTable} problem={problem} />
        {rungs.length > 0 && (
          <section aria-label="Ladder">
            <div class="section-head">
              <h2>Ladder</h2>
            </div>
            <Ladder rungs={rungs} />
          </section>
        )}
        <Archives archives={archives.filter(({ service }) => services.has(service))} />
      </div>
    </>
  );
}

function Totals({ found: { topics, archives, unrouted } }: { found: Topics }) {
  const events = subscriptionsOf(topics.filter(({ way }) => way === "event"));
  const services = new Set(subscriptionsOf(topics).map(({ service }) => service)).size;
  const waiting = events.reduce((sum, one) => sum + (one.waiting ?? 0), 0);
  const dead = archives.reduce((sum, one) => sum + (one.dead ?? 0), 0);
  const least = (known: (number | null)[]): string => (known.includes(null) ? "at least " : "");
  return (
    <p class="facts-line" data-part="topic-totals">
      <span>
        <b class="num">{count(events.length)}</b> {events.length === 1 ? "subscription" : "subscriptions"} of <b class="num">{count(services)}</b>{" "}
        {services === 1 ? "service" : "services"}
      </span>
      <span>
        {least(events.map((one) => one.waiting))}
        <b class="num">{count(waiting)}</b> waiting
      </span>
      <span class={dead > 0 ? "mark state-dead" : ""}>
        {dead > 0 && <span class="dot" aria-hidden="true" />}
        <span>
          {least(archives.map((one) => one.dead))}
          <b class="num">{count(dead)}</b> dead
        </span>
      </span>
      <span title="Events published to topics without a subscription">
        {unrouted > 0 && events.some(({ broker }) => broker === "redis") ? (
          <Link href={queueHref(UNROUTED)}>{plural(unrouted, "unrouted event")}</Link>
        ) : (
          <>
            <b class="num">{count(unrouted)}</b> unrouted
          </>
        )}
      </span>
    </p>
  );
}

type SectionProps = { title: string; topics: Topic[]; problem: string; Table: typeof EventTable };

function Section({ title, topics, problem, Table }: SectionProps) {
  if (topics.length === 0) return null;
  return (
    <section aria-label={title}>
      <div class="section-head">
        <h2>{title}</h2>
      </div>
      <Table topics={topics} problem={problem} />
    </section>
  );
}

function Archives({ archives }: { archives: Archive[] }) {
  const full = archives.filter(({ dead }) => (dead ?? 0) > 0).sort((a, b) => (b.dead ?? 0) - (a.dead ?? 0));
  const unknown = archives.filter(({ dead }) => dead === null).map(({ service }) => service);
  if (archives.length === 0) return null;
  return (
    <section aria-label="Archives" class="archives">
      <div class="section-head">
        <h2>Archives</h2>
      </div>
      {full.length === 0 && unknown.length === 0 && <p class="muted">No dead events.</p>}
      {unknown.length > 0 && <p class="muted">Unknown: the dead events of {unknown.join(", ")} on RabbitMQ.</p>}
      {full.map((archive) => (
        <ArchiveCard key={`${archive.service} ${archive.broker}`} archive={archive} dead={archive.dead ?? 0} />
      ))}
    </section>
  );
}

const FIRST = `from restante.bus import Bus

bus = Bus("billing", "restante://localhost:6379/0")

@bus.subscribe("shop.order.paid")
def send_invoice(order):
    ...`;

const Begin = () => (
  <Empty title="No subscriptions yet">
    <p>A service is a Celery app whose handlers subscribe to topics:</p>
    <pre class="begin">{FIRST}</pre>
    <p>
      It appears here after its worker has started: <code>celery -A billing worker</code>
    </p>
  </Empty>
);
