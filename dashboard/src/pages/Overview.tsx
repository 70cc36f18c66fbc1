// The first screen: is anything wrong now, and in which queue.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, duration, plural, rate, short } from "../format";
import { focusFilter, useKeys } from "../keys";
import { STATES, title } from "../lifecycle";
import { useCounts, useFeed } from "../live";
import { RateChart, Sparkline, type Series } from "../parts/Charts";
import { Empty, Link, Troubles } from "../parts/Marks";
import { SearchField } from "../parts/SearchField";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { go, query, queueHref, setQuery } from "../router";
import type { Counts, Queue, Queues, Totals, Trends } from "../types";

/** How often troubles and trends are read again, in milliseconds; counts come live. */
const READ_EVERY = 4_000;
/** Samples of different queues closer than this belong together, in milliseconds. */
const SAMPLE = 2_000;

/** The queues' rates added up, sample by sample. */
function sum(all: Trends[]): { at: number[]; series: Series[] } {
  const buckets = new Map<number, { sent: number; acked: number; failed: number }>();
  for (const trends of all) {
    trends.at.forEach((at, i) => {
      const key = Math.round(at / SAMPLE) * SAMPLE;
      const bucket = buckets.get(key) ?? { sent: 0, acked: 0, failed: 0 };
      bucket.sent += trends.sent[i] ?? 0;
      bucket.acked += trends.acked[i] ?? 0;
      bucket.failed += trends.failed[i] ?? 0;
      buckets.set(key, bucket);
    });
  }
  const at = [...buckets.keys()].sort((a, b) => a - b);
  const values = (name: "sent" | "acked" | "failed"): number[] => at.map((key) => buckets.get(key)?.[name] ?? 0);
  return {
    at,
    series: [
      { label: "sent", token: "--ready", values: values("sent") },
      { label: "acked", token: "--leased", values: values("acked") },
      { label: "failed", token: "--dead", values: values("failed") },
    ],
  };
}

/** Lays newer counts over what was fetched. */
function useLiveQueues(fetched: Queues | null, reload: () => void): Queues | null {
  const [news, setNews] = useState<Counts | null>(null);
  useEffect(() => setNews(null), [fetched]);
  useCounts(
    (counts) => {
      setNews((before) => {
        const queues = new Map((before?.queues ?? []).map((one) => [one.queue, one]));
        for (const one of counts.queues) queues.set(one.queue, one);
        return { ...counts, queues: [...queues.values()] };
      });
      const known = new Map(fetched?.queues.map((one) => [one.queue, one]));
      const changed = counts.queues.some((one) => {
        const old = known.get(one.queue);
        return old === undefined || old.states.dead !== one.states.dead || old.paused !== one.paused || old.overdue !== one.overdue;
      });
      if (changed || counts.gone?.length) reload();
    },
    [fetched],
  );
  return useMemo(() => {
    if (fetched === null || news === null) return fetched;
    const newer = new Map(news.queues.map((one) => [one.queue, one]));
    return {
      ...fetched,
      totals: news.totals,
      queues: fetched.queues.map((queue) => ({ ...queue, ...newer.get(queue.queue) })),
    };
  }, [fetched, news]);
}

export function OverviewPage() {
  useFeed({ journal: "none" });
  const resource = useResource<Queues>("/api/queues", READ_EVERY);
  const data = useLiveQueues(resource.data, () => resource.reloadSoon());
  const trends = useMemo(() => sum(resource.data?.queues.map((queue) => queue.trends) ?? []), [resource.data]);
  const wanted = query.value.get("q") ?? "";
  const rows = (data?.queues ?? []).filter(({ queue }) => queue.toLowerCase().includes(wanted.toLowerCase()));
  const [cursor, setCursor] = useState(-1);
  const step = (by: number): void => setCursor(Math.min(rows.length - 1, Math.max(0, cursor + by)));
  useKeys({
    "/": focusFilter,
    j: () => step(1),
    k: () => step(-1),
    Enter: () => {
      const row = rows[cursor];
      if (row) go(queueHref(row.queue));
    },
  });
  if (data === null) return resource.error ? <Failed error={resource.error} what="the queues" /> : <Loading />;
  return (
    <>
      <header class="page-head">
        <h1 class="quiet">Overview</h1>
        <Verdict queues={data.queues} />
      </header>
      <Tiles totals={data.totals} />
      {data.queues.length === 0 ? (
        <Empty title="No queues yet">
          Send a first message with <code>{`restante send orders '{"n":1}'`}</code>
        </Empty>
      ) : (
        <>
          <section aria-label="Queues">
            <div class="section-head">
              <h2>Queues</h2>
              <SearchField label="Filter queues" value={wanted} testid="filter" onText={(text) => setQuery({ q: text }, true)} />
            </div>
            <QueueTable queues={rows} cursor={cursor} />
            {rows.length === 0 && <Empty title="No queue has that in its name." />}
          </section>
          <section aria-label="Throughput">
            <div class="section-head">
              <h2>Throughput, all queues</h2>
            </div>
            <RateChart at={trends.at} series={trends.series} height={180} />
          </section>
        </>
      )}
    </>
  );
}

function Verdict({ queues }: { queues: Queue[] }) {
  const troubled = queues.filter((queue) => queue.trouble.length > 0);
  const bad = troubled.filter((queue) => queue.trouble.some(({ level }) => level === "bad")).length;
  const watch = troubled.length - bad;
  const tone = bad > 0 ? "bad" : watch > 0 ? "warn" : "good";
  return (
    <p class={`verdict verdict-${tone}`} role="status" aria-live="polite" data-testid="verdict">
      <span class="verdict-sign" aria-hidden="true" />
      {bad > 0 && `${plural(bad, "queue")} ${bad === 1 ? "needs" : "need"} you`}
      {bad === 0 && (watch > 0 ? `${plural(watch, "queue")} to watch` : "All is well")}
      {bad > 0 && watch > 0 && <small class="muted">and {count(watch)} to watch</small>}
    </p>
  );
}

function Tiles({ totals }: { totals: Totals }) {
  return (
    <ul class="tiles" aria-label="Messages by state">
      {STATES.map((state) => (
        <li key={state} class={`tile state-${state}`} data-testid={`tile-${state}`} title={count(totals[state])}>
          <span class="tile-name">
            <span class="dot" aria-hidden="true" />
            {title(state)}
          </span>
          <b class="tile-number num">{short(totals[state])}</b>
          {state === "leased" && totals.overdue > 0 && <span class="overdue num">{count(totals.overdue)} overdue</span>}
        </li>
      ))}
    </ul>
  );
}

const NUMBER_CLASS = { scheduled: "wide-only", ready: "", leased: "mid-only", retrying: "mid-only", dead: "", done: "wide-only" } as const;

function QueueTable({ queues, cursor }: { queues: Queue[]; cursor: number }) {
  return (
    <div class="table-box">
      <table class="queues">
        <thead>
          <tr>
            <th scope="col">Queue</th>
            {STATES.map((state) => (
              <th key={state} scope="col" class={`right ${NUMBER_CLASS[state]}`}>
                {title(state)}
              </th>
            ))}
            <th scope="col" class="right mid-only">Oldest wait</th>
            <th scope="col" class="right mid-only">Sent/s</th>
            <th scope="col" class="right mid-only">Acked/s</th>
            <th scope="col" class="wide-only">Ready, 2 min</th>
          </tr>
        </thead>
        <tbody>
          {queues.map((queue, i) => (
            <QueueRow key={queue.queue} queue={queue} current={i === cursor} />
          ))}
        </tbody>
      </table>
    </div>
  );
}

function QueueRow({ queue, current }: { queue: Queue; current: boolean }) {
  const { trends } = queue;
  const row = useRef<HTMLTableRowElement>(null);
  useEffect(() => {
    if (current) row.current?.focus();
  }, [current]);
  return (
    <tr ref={row} tabIndex={-1} class={current ? "cursor" : ""} data-testid="queue-row" data-queue={queue.queue}>
      <th scope="row">
        <span class="queue-name">
          <Link href={queueHref(queue.queue)}>{queue.queue}</Link>
          <Troubles queue={queue} />
        </span>
      </th>
      {STATES.map((state) => (
        <td key={state} class={`right num ${NUMBER_CLASS[state]} ${queue.states[state] === 0 ? "zero" : `number-${state}`}`}>
          <Link href={queueHref(queue.queue, { state })} title={`${count(queue.states[state])} ${state}`}>
            {short(queue.states[state])}
          </Link>
          {state === "leased" && queue.overdue > 0 && <span class="overdue"> +{short(queue.overdue)} overdue</span>}
        </td>
      ))}
      <td class="right num mid-only">{queue.waited_seconds ? duration(queue.waited_seconds * 1000) : <span class="muted">–</span>}</td>
      <td class="right num mid-only">{rate(trends.sent.at(-1) ?? 0)}</td>
      <td class="right num mid-only">{rate(trends.acked.at(-1) ?? 0)}</td>
      <td class="wide-only">
        <Sparkline values={trends.ready} label={`ready messages of ${queue.queue} over the last two minutes`} />
      </td>
    </tr>
  );
}
