// The consumers: where each runs, when it was last seen, and which messages it has leased.
import { count, plural, shortId } from "../format";
import { useCounts, useFeed } from "../live";
import { AnomalyMarks, Empty, Link } from "../parts/Marks";
import { Ago, Countdown } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { messageHref, queueHref } from "../router";
import type { Consumers, Holder, MessageOut } from "../types";

const READ_EVERY = 2_000;
/** Child processes of a consumer whose numbers are listed. */
const PROCESSES = 8;

export function ConsumersPage() {
  useFeed({ journal: "none" });
  const found = useResource<Consumers>("/api/consumers", READ_EVERY);
  useCounts(() => found.reloadSoon(1_000), []);
  const consumers = found.data?.consumers ?? [];
  const held = consumers.reduce((sum, consumer) => sum + consumer.held_count, 0);
  if (found.data === null) return found.error ? <Failed error={found.error} what="the consumers" /> : <Loading />;
  return (
    <>
      <header class="page-head">
        <h1>Consumers</h1>
        <p class="muted">
          {plural(consumers.length, "consumer")}, {plural(held, "message")} leased
        </p>
      </header>
      {consumers.length === 0 && <Empty title="No active consumers">A consumer appears here after its first receive, with the messages it has leased.</Empty>}
      <div class="cards">
        {consumers.map((consumer) => (
          <Card key={consumer.name} consumer={consumer} />
        ))}
      </div>
    </>
  );
}

function Card({ consumer }: { consumer: Holder }) {
  const more = consumer.held_count - consumer.held.length;
  return (
    <article class="panel consumer">
      <h2>{consumer.name}</h2>
      <p class="facts-line">
        <span>
          {[consumer.host, consumer.pid ? `pid ${consumer.pid}` : ""].filter(Boolean).join(", ") || "unknown host"}
        </span>
        <span>
          last seen <Ago at={consumer.last_seen_at} />
        </span>
        <span>
          <b class="num">{count(consumer.held_count)}</b> leased
        </span>
        {consumer.concurrency > 0 && (
          <span>
            concurrency <b class="num">{count(consumer.concurrency)}</b>
          </span>
        )}
        {consumer.processes.length > 0 && (
          <span data-part="processes" title={consumer.processes.map((process) => `${process.name}: pid ${process.pid}`).join("\n")}>
            <b class="num">{count(consumer.processes.length)}</b> {consumer.processes.length === 1 ? "process" : "processes"}:{" "}
            {consumer.processes.slice(0, PROCESSES).map((process) => process.pid).join(", ")}
            {consumer.processes.length > PROCESSES && " …"}
          </span>
        )}
        {consumer.hung > 0 && (
          <span class="badge badge-bad" title="Handlers that did not end at their time limit and still run. Others took their places.">
            {plural(consumer.hung, "handler hangs", "handlers hang")}
          </span>
        )}
      </p>
      <p class="facts-line">
        {consumer.queues.map((queue) => (
          <Link key={queue} href={queueHref(queue)}>
            {queue}
          </Link>
        ))}
      </p>
      {consumer.held.length > 0 ? (
        <ul class="held" aria-label={`Messages leased by ${consumer.name}`}>
          {consumer.held.map((message) => (
            <Leased key={`${message.queue}\n${message.id}`} message={message} />
          ))}
        </ul>
      ) : (
        <p class="muted">No leased messages.</p>
      )}
      {more > 0 && <p class="muted">and {plural(more, "more message", "more messages")}</p>}
    </article>
  );
}

const Leased = ({ message }: { message: MessageOut }) => (
  <li>
    <Link href={messageHref(message.queue, message.id)} class="mono" title={message.id}>
      {shortId(message.id)}
    </Link>
    <AnomalyMarks kinds={message.anomalies} />
    <span class="clip muted">{message.kind || message.queue}</span>
    {message.lease_expires_at !== null && <Countdown at={message.lease_expires_at} />}
  </li>
);
