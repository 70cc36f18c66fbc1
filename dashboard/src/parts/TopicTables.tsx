// The subscriptions to events, as a group of rows per topic, and the services that answer calls.
import type { ComponentChildren } from "preact";
import { count, duration, short, taken } from "../format";
import { retryWords } from "../retrying";
import { queueHref, search } from "../router";
import type { Subscription, Topic } from "../types";
import { SpanBar } from "./Charts";
import { Dash, Link } from "./Marks";
import { Table, type Column } from "./Table";

type Broker = Subscription["broker"];

const BROKERS: Record<Broker, string> = { redis: "Redis", rabbitmq: "RabbitMQ" };

export const BrokerTag = ({ broker }: { broker: Broker }) => <span class={`tag tag-${broker}`}>{BROKERS[broker]}</span>;

/** A topic, which may break only after a dot. */
const Name = ({ topic }: { topic: string }) => (
  <>
    {topic.split(/(?<=\.)/).flatMap((word, i) => (i === 0 ? [word] : [<wbr key={i} />, word]))}
  </>
);

const sum = (some: Subscription[], name: "waiting" | "dead"): number => some.reduce((all, one) => all + (one[name] ?? 0), 0);

/** Subscriptions with dead events first, then those with the most waiting events; topics stay together. */
function byNeed(topics: Topic[]): Topic[] {
  const rank = (a: Subscription[], b: Subscription[]): number =>
    Number(sum(b, "dead") > 0) - Number(sum(a, "dead") > 0) || sum(b, "waiting") - sum(a, "waiting");
  return topics
    .map((topic) => ({
      ...topic,
      subscriptions: [...topic.subscriptions].sort((a, b) => rank([a], [b]) || a.subscription.localeCompare(b.subscription)),
    }))
    .sort((a, b) => rank(a.subscriptions, b.subscriptions) || a.topic.localeCompare(b.topic));
}

/** The link that opens a service's archive at the dead events of one subscription. */
const archiveHref = ({ service, subscription }: Subscription): string => `/topics${search({ open: service, subscription })}`;

function Waiting({ one, problem }: { one: Subscription; problem: string }) {
  if (one.waiting === null) return <Dash why={problem || "This queue does not exist on RabbitMQ: its service has not started there yet"} />;
  return (
    <>
      <span class={one.waiting === 0 ? "zero" : ""}>{short(one.waiting)}</span>
      {one.waiting > 0 && one.oldest_seconds !== null && <small class="muted under">oldest {duration(one.oldest_seconds * 1000)}</small>}
    </>
  );
}

const Total = ({ count }: { count: number | null }) =>
  count === null ? <Dash why="RabbitMQ counts no totals: they need a store in the settings of the service's bus" /> : <>{short(count)}</>;

function Dead({ one }: { one: Subscription }) {
  if (one.dead === null) return <Dash why="On RabbitMQ a service keeps its dead events in one archive, see below" />;
  if (one.dead === 0) return <span class="zero">0</span>;
  return (
    <Link href={archiveHref(one)} class="mark state-dead number-dead" title={`${count(one.dead)} dead, see below`}>
      <span class="dot" aria-hidden="true" />
      {short(one.dead)}
    </Link>
  );
}

const Latency = ({ one, children }: { one: Subscription; children?: ComponentChildren }) =>
  one.p50_ms === null || one.p95_ms === null ? (
    <Dash why="This server has seen no ack yet" />
  ) : (
    <>
      {taken(one.p50_ms)} <span class="muted">/</span> {taken(one.p95_ms)}
      {children}
    </>
  );

const LATENCY = "Time from send to ack: median and 95th percentile of the latest messages";

export function EventTable({ topics, problem }: { topics: Topic[]; problem: string }) {
  return (
    <div class="table-box">
      <table class="topics" aria-label="Subscriptions by topic">
        <thead>
          <tr>
            <th scope="col">Topic</th>
            <th scope="col">Service</th>
            <th scope="col">Handler</th>
            <th scope="col" class="right">Waiting</th>
            <th scope="col" class="right mid-only">Leased</th>
            <th scope="col" class="right">Dead</th>
            <th scope="col" class="right mid-only">Sent</th>
            <th scope="col" class="right mid-only">Acked</th>
            <th scope="col" class="right mid-only" title={LATENCY}>p50 / p95</th>
            <th scope="col" class="wide-only">Retry</th>
          </tr>
        </thead>
        {byNeed(topics).map(({ topic, subscriptions }) => (
          <tbody key={topic}>
            {subscriptions.map((one, i) => (
              <tr key={one.subscription} tabIndex={-1} data-row data-part="subscription-row" data-subscription={one.subscription}>
                {i === 0 && (
                  <th scope="rowgroup" rowSpan={subscriptions.length} class={subscriptions.length === 1 ? "alone" : undefined}>
                    <Name topic={topic} />
                  </th>
                )}
                <td>
                  <span class="queue-name">
                    {one.service} <BrokerTag broker={one.broker} />
                  </span>
                </td>
                <td>
                  {one.broker === "redis" ? (
                    <Link href={queueHref(one.queue)} title={`The queue ${one.queue}`}>
                      {one.handler}
                    </Link>
                  ) : (
                    one.handler
                  )}
                </td>
                <td class="right num" data-part="waiting">
                  <Waiting one={one} problem={problem} />
                </td>
                <td class="right num mid-only">
                  {one.leased === null ? <Dash why="RabbitMQ does not report leased messages" /> : <span class={one.leased === 0 ? "zero" : ""}>{short(one.leased)}</span>}
                </td>
                <td class="right num" data-part="dead">
                  <Dead one={one} />
                </td>
                <td class="right num mid-only">
                  <Total count={one.sent} />
                </td>
                <td class="right num mid-only">
                  <Total count={one.acked} />
                </td>
                <td class="right num mid-only">
                  <Latency one={one} />
                </td>
                <RetryCell one={one} />
              </tr>
            ))}
          </tbody>
        ))}
      </table>
    </div>
  );
}

function RetryCell({ one }: { one: Subscription }) {
  const { waits, attempts } = retryWords(one.retry, one.max_attempts);
  return (
    <td class="wide-only" title={one.retry}>
      {waits}
      <small class="muted under">{attempts}</small>
    </td>
  );
}

/** All services that answer a topic on one broker share one queue: any of its subscriptions has the numbers. */
const queuesOf = ({ subscriptions }: Topic): Subscription[] =>
  subscriptions.filter((one, i) => subscriptions.findIndex((other) => other.broker === one.broker) === i);

type Call = { topic: Topic; queue: Subscription };

const callColumns = (problem: string, slowest: number): Column<Call>[] => [
  {
    id: "topic",
    title: "Topic",
    names: true,
    cell: ({ topic, queue }) => {
      const name = <Name topic={topic.topic} />;
      return queue.broker === "redis" ? <Link href={queueHref(queue.queue)}>{name}</Link> : name;
    },
  },
  {
    id: "answering",
    title: "Answered by",
    cell: ({ topic, queue }) => (
      <span class="queue-name">
        {topic.subscriptions.filter(({ broker }) => broker === queue.broker).map(({ subscription }) => subscription).join(", ")}{" "}
        <BrokerTag broker={queue.broker} />
      </span>
    ),
  },
  { id: "waiting", title: "Waiting", class: "right num", cell: ({ queue }) => <Waiting one={queue} problem={problem} /> },
  { id: "called", title: "Called", class: "right num mid-only", cell: ({ queue }) => <Total count={queue.sent} /> },
  { id: "answered", title: "Answered", class: "right num mid-only", cell: ({ queue }) => <Total count={queue.acked} /> },
  {
    id: "latency",
    title: "p50 / p95",
    hint: LATENCY,
    class: "right num mid-only",
    cell: ({ queue }) => (
      <Latency one={queue}>
        <SpanBar p50={queue.p50_ms ?? 0} p95={queue.p95_ms ?? 0} most={slowest} />
      </Latency>
    ),
  },
];

export function CallTable({ topics, problem }: { topics: Topic[]; problem: string }) {
  const rows = topics.flatMap((topic) => queuesOf(topic).map((queue): Call => ({ topic, queue })));
  rows.sort((a, b) => (b.queue.waiting ?? 0) - (a.queue.waiting ?? 0) || a.topic.topic.localeCompare(b.topic.topic));
  return (
    <Table
      label="Calls by topic"
      class="topics"
      columns={callColumns(problem, Math.max(...rows.map(({ queue }) => queue.p95_ms ?? 0)))}
      rows={rows}
      keyOf={({ topic, queue }) => `${topic.topic} ${queue.broker}`}
      part="call-row"
      attributes={({ topic }) => ({ "data-row": "", "data-topic": topic.topic })}
    />
  );
}
