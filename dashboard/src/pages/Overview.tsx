// The first page: whether anything is wrong now, and in which queue.
import { useEffect, useMemo, useState } from "preact/hooks";
import { count, duration, plural, rate, short } from "../format";
import { focusFilter, useKeys } from "../keys";
import { STATES, title } from "../lifecycle";
import { useCounts, useFeed } from "../live";
import { RateChart, Sparkline, type Series } from "../parts/Charts";
import { Dash, Empty, Link, Troubles } from "../parts/Marks";
import { SearchField } from "../parts/SearchField";
import { Table, type Column } from "../parts/Table";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { go, query, queueHref, setQuery } from "../router";
import { cursorKeys, useCursor } from "../selection";
import type { CountsEvent, Overview, QueueOut, Totals, Trends } from "../types";

/** Milliseconds between two reads of problems and trends; counts arrive live. */
const READ_EVERY = 4_000;
/** Samples of different queues within this many milliseconds are added up. */
const SAMPLE = 2_000;

/** The sum of the queues' rates, sample by sample. */
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

/** The fetched queues with the newest counts. */
function useLiveQueues(fetched: Overview | null, reload: () => void): Overview | null {
  const [news, setNews] = useState<CountsEvent | null>(null);
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
  const resource = useResource<Overview>("/api/queues", READ_EVERY);
  const data = useLiveQueues(resource.data, () => resource.reloadSoon());
  const trends = useMemo(() => sum(resource.data?.queues.map((queue) => queue.trends) ?? []), [resource.data]);
  const wanted = query.value.get("q") ?? "";
  const rows = (data?.queues ?? []).filter(({ queue }) => queue.toLowerCase().includes(wanted.toLowerCase()));
  const cursor = useCursor(rows.map(({ queue }) => queue));
  useKeys({ ...cursorKeys(cursor, (queue) => go(queueHref(queue))), "/": focusFilter });
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
          Send the first message with <code>{`restante send orders '{"n":1}'`}</code>
        </Empty>
      ) : (
        <>
          <section aria-label="Queues">
            <div class="section-head">
              <h2>Queues</h2>
              <SearchField label="Filter queues" value={wanted} part="filter" onText={(text) => setQuery({ q: text }, true)} />
            </div>
            <Table
              label="Queues"
              class="queues"
              columns={COLUMNS}
              rows={rows}
              keyOf={({ queue }) => queue}
              part="queue-row"
              attributes={({ queue }) => ({ "data-queue": queue })}
              cursor={cursor.cursor}
            />
            {rows.length === 0 && <Empty title="No queue name contains this text." />}
          </section>
          <section aria-label="Throughput">
            <div class="section-head">
              <h2>Throughput of all queues</h2>
            </div>
            <RateChart at={trends.at} series={trends.series} height={180} />
          </section>
        </>
      )}
    </>
  );
}

function Verdict({ queues }: { queues: QueueOut[] }) {
  const troubled = queues.filter((queue) => queue.trouble.length > 0);
  const bad = troubled.filter((queue) => queue.trouble.some(({ level }) => level === "bad")).length;
  const warned = troubled.length - bad;
  const tone = bad > 0 ? "bad" : warned > 0 ? "warn" : "good";
  return (
    <p class={`verdict verdict-${tone}`} role="status" aria-live="polite" data-part="verdict">
      <span class="verdict-sign" aria-hidden="true" />
      {bad > 0 && `${plural(bad, "queue")} ${bad === 1 ? "needs" : "need"} attention`}
      {bad === 0 && (warned > 0 ? `${plural(warned, "queue")} with warnings` : "All queues are healthy")}
      {bad > 0 && warned > 0 && <small class="muted">{count(warned)} with warnings</small>}
    </p>
  );
}

function Tiles({ totals }: { totals: Totals }) {
  return (
    <ul class="tiles" aria-label="Messages by state">
      {STATES.map((state) => (
        <li key={state} class={`tile state-${state}`} data-part={`tile-${state}`} title={count(totals[state])}>
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

const COUNT_CLASS = { scheduled: "wide-only", ready: "", leased: "mid-only", retrying: "mid-only", dead: "", done: "wide-only" } as const;

const COLUMNS: Column<QueueOut>[] = [
  {
    id: "queue",
    title: "Queue",
    names: true,
    cell: (queue) => (
      <span class="queue-name">
        <Link href={queueHref(queue.queue)}>{queue.queue}</Link>
        <Troubles queue={queue} />
      </span>
    ),
  },
  ...STATES.map(
    (state): Column<QueueOut> => ({
      id: state,
      title: title(state),
      class: `right num ${COUNT_CLASS[state]}`,
      cellClass: ({ states }) => (states[state] === 0 ? "zero" : `number-${state}`),
      cell: ({ queue, states, overdue }) => (
        <>
          <Link href={queueHref(queue, { state })} title={`${count(states[state])} ${state}`}>
            {short(states[state])}
          </Link>
          {state === "leased" && overdue > 0 && <span class="overdue"> {short(overdue)} overdue</span>}
        </>
      ),
    }),
  ),
  {
    id: "waited",
    title: "Wait",
    hint: "How long the next message has waited",
    class: "right num mid-only",
    cell: ({ waited_seconds }) => (waited_seconds ? duration(waited_seconds * 1000) : <Dash />),
  },
  { id: "sent", title: "Sent/s", class: "right num mid-only", cell: ({ trends }) => rate(trends.sent.at(-1) ?? 0) },
  { id: "acked", title: "Acked/s", class: "right num mid-only", cell: ({ trends }) => rate(trends.acked.at(-1) ?? 0) },
  {
    id: "trend",
    title: "Ready, 2 min",
    class: "wide-only",
    cell: ({ queue, trends }) => <Sparkline values={trends.ready} label={`Ready messages of ${queue} in the last two minutes`} />,
  },
];
