// Who has subscribed to which events and who answers which calls, and how they keep up: a group of rows per topic.
import type { ComponentChildren } from "preact";
import { count, duration, short, taken } from "../format";
import { retryWords } from "../retrying";
import { queueHref, search } from "../router";
import type { BrokerName, Subscription, Topic } from "../types";
import { SpanBar } from "./Charts";
import { Link } from "./Marks";

const BROKERS: Record<BrokerName, string> = { redis: "Redis", rabbitmq: "RabbitMQ" };

export const BrokerTag = ({ broker }: { broker: BrokerName }) => <span class={`tag tag-${broker}`}>{BROKERS[broker]}</span>;

/** A dash that says on hover why there is no number. */
const Unknown = ({ why }: { why: string }) => (
  <span class="muted" title={why}>
    –
  </span>
);

/** A topic may break after a dot and nowhere else. */
const Name = ({ topic }: { topic: string }) => (
  <>
    {topic.split(/(?<=\.)/).flatMap((word, i) => (i === 0 ? [word] : [<wbr key={i} />, word]))}
  </>
);

const sum = (some: Subscription[], name: "waiting" | "dead"): number => some.reduce((all, one) => all + (one[name] ?? 0), 0);

/** Who has dead events first, then who is most behind, then by name; topics stay together. */
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

/** The query that opens a service's archive at what died in one subscription. */
const archiveHref = ({ service, subscription }: Subscription): string => `/topics${search({ open: service, subscription })}`;

function Waiting({ one, problem }: { one: Subscription; problem: string }) {
  if (one.waiting === null) return <Unknown why={problem || "RabbitMQ has no such queue: the service that makes it has not started there"} />;
  return (
    <>
      <span class={one.waiting === 0 ? "zero" : ""}>{short(one.waiting)}</span>
      {one.waiting > 0 && one.oldest_seconds !== null && <small class="muted under">oldest {duration(one.oldest_seconds * 1000)}</small>}
    </>
  );
}

const Total = ({ count }: { count: number | null }) =>
  count === null ? <Unknown why="RabbitMQ keeps no totals: give the service's bus a store" /> : <>{short(count)}</>;

function Dead({ one }: { one: Subscription }) {
  if (one.dead === null) return <Unknown why="On RabbitMQ the dead events of a service lie together in its archive, see below" />;
  if (one.dead === 0) return <span class="zero">0</span>;
  return (
    <Link href={archiveHref(one)} class="mark state-dead number-dead" title={`${count(one.dead)} dead, see below`}>
      <span class="dot" aria-hidden="true" />
      {short(one.dead)}
    </Link>
  );
}

const Spans = ({ one, children }: { one: Subscription; children?: ComponentChildren }) =>
  one.p50_ms === null || one.p95_ms === null ? (
    <Unknown why="This server has seen no ack here yet" />
  ) : (
    <>
      {taken(one.p50_ms)} <span class="muted">/</span> {taken(one.p95_ms)}
      {children}
    </>
  );

const SPANS = "From send to ack: half of the latest were faster than the first, all but one in twenty than the second";

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
            <th scope="col" class="right mid-only" title={SPANS}>p50 / p95</th>
            <th scope="col" class="wide-only">Retry</th>
          </tr>
        </thead>
        {byNeed(topics).map(({ topic, subscriptions }) => (
          <tbody key={topic}>
            {subscriptions.map((one, i) => (
              <tr key={one.subscription} tabIndex={-1} data-row data-testid="subscription-row" data-subscription={one.subscription}>
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
                <td class="right num" data-testid="waiting">
                  <Waiting one={one} problem={problem} />
                </td>
                <td class="right num mid-only">
                  {one.leased === null ? <Unknown why="RabbitMQ does not say how many are held" /> : <span class={one.leased === 0 ? "zero" : ""}>{short(one.leased)}</span>}
                </td>
                <td class="right num" data-testid="dead">
                  <Dead one={one} />
                </td>
                <td class="right num mid-only">
                  <Total count={one.sent} />
                </td>
                <td class="right num mid-only">
                  <Total count={one.acked} />
                </td>
                <td class="right num mid-only">
                  <Spans one={one} />
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

/** All who answer a topic on one broker share its queue, so its numbers are those of any of them. */
const queuesOf = ({ subscriptions }: Topic): Subscription[] =>
  subscriptions.filter((one, i) => subscriptions.findIndex((other) => other.broker === one.broker) === i);

export function CallTable({ topics, problem }: { topics: Topic[]; problem: string }) {
  const rows = topics.flatMap((topic) => queuesOf(topic).map((queue) => ({ topic, queue })));
  rows.sort((a, b) => (b.queue.waiting ?? 0) - (a.queue.waiting ?? 0) || a.topic.topic.localeCompare(b.topic.topic));
  const most = Math.max(...rows.map(({ queue }) => queue.p95_ms ?? 0));
  return (
    <div class="table-box">
      <table class="topics" aria-label="Calls by topic">
        <thead>
          <tr>
            <th scope="col">Topic</th>
            <th scope="col">Who answers</th>
            <th scope="col" class="right">Waiting</th>
            <th scope="col" class="right mid-only">Called</th>
            <th scope="col" class="right mid-only">Answered</th>
            <th scope="col" class="right mid-only" title={SPANS}>p50 / p95</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ topic, queue }) => (
            <tr key={`${topic.topic} ${queue.broker}`} tabIndex={-1} data-row data-testid="call-row" data-topic={topic.topic}>
              <th scope="row">
                {queue.broker === "redis" ? (
                  <Link href={queueHref(queue.queue)}>
                    <Name topic={topic.topic} />
                  </Link>
                ) : (
                  <Name topic={topic.topic} />
                )}
              </th>
              <td>
                <span class="queue-name">
                  {topic.subscriptions.filter(({ broker }) => broker === queue.broker).map(({ subscription }) => subscription).join(", ")}{" "}
                  <BrokerTag broker={queue.broker} />
                </span>
              </td>
              <td class="right num">
                <Waiting one={queue} problem={problem} />
              </td>
              <td class="right num mid-only">
                <Total count={queue.sent} />
              </td>
              <td class="right num mid-only">
                <Total count={queue.acked} />
              </td>
              <td class="right num mid-only">
                <Spans one={queue}>
                  <SpanBar p50={queue.p50_ms ?? 0} p95={queue.p95_ms ?? 0} most={most} />
                </Spans>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
