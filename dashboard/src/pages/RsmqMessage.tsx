// One message of an RSMQ queue: its facts, its whole payload, and deleting and moving it.
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { deleteRsmq } from "../actions";
import { parseExact, pretty } from "../exactjson";
import { bytes, count, instant } from "../format";
import { useKeys } from "../keys";
import { useFeed } from "../live";
import { Copy, Link, StateMark } from "../parts/Marks";
import { Source } from "../parts/Payload";
import { RsmqMoveDialog } from "../parts/RsmqMove";
import { Receivable } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { go, query, rsmqApi, rsmqHref } from "../router";
import { mayOperate } from "../session";
import type { WholeRsmqMessage } from "../types";

const READ_EVERY = 2_000;

export function RsmqMessagePage({ queue, id }: { queue: string; id: string }) {
  useFeed({ journal: "none" });
  const namespace = query.value.get("namespace") ?? "";
  const up = rsmqHref(queue, { namespace });
  const found = useResource<{ message: WholeRsmqMessage }>(rsmqApi(`${queue}/messages/${id}`, { namespace }), READ_EVERY);
  const [moving, setMoving] = useState(false);
  const message = found.error?.status === 404 ? null : (found.data?.message ?? null);
  const erase = (): void => {
    if (message !== null && mayOperate.value) void deleteRsmq(queue, namespace, [id]).then((done) => done && go(up));
  };
  useKeys({ "#": erase, Delete: erase, Escape: () => go(up) });
  if (message === null && found.error === null) return <Loading />;
  return (
    <>
      <header class="page-head">
        <nav class="crumbs" aria-label="Where this is">
          <Link href={rsmqHref("", { namespace })}>RSMQ</Link> / <Link href={up}>{queue}</Link>
        </nav>
        <div class="title-row">
          <h1 class="mono">{id}</h1>
          <Copy text={id} what="id" />
          {message !== null && <StateMark state={message.state} />}
          {message !== null && mayOperate.value && (
            <span class="actions">
              <button type="button" onClick={() => setMoving(true)}>
                Move…
              </button>
              <button type="button" class="danger-quiet" onClick={erase}>
                Delete <kbd>#</kbd>
              </button>
            </span>
          )}
        </div>
        {found.error?.status === 404 && <p class="muted">This message is no longer here: it was deleted or moved. RSMQ keeps no journal.</p>}
      </header>
      {message === null && found.error !== null && found.error.status !== 404 && <Failed error={found.error} what={`the message ${id}`} />}
      {message !== null && (
        <div class="message-grid">
          <div>
            <section class="panel" aria-label="Payload">
              <h2>Payload</h2>
              <Text message={message} />
            </section>
          </div>
          <div>
            <Facts message={message} />
          </div>
        </div>
      )}
      {moving && <RsmqMoveDialog queue={queue} namespace={namespace} ids={[id]} onClose={() => setMoving(false)} onDone={() => go(up)} />}
    </>
  );
}

/** RSMQ carries text; most of it is JSON, and is shown as such. */
function Text({ message }: { message: WholeRsmqMessage }) {
  const { payload = null, payload_base64 = null } = message;
  const json = useMemo(() => {
    try {
      return payload !== null && /^\s*[[{]/.test(payload) ? pretty(parseExact(payload)) : null;
    } catch {
      return null;
    }
  }, [payload]);
  if (payload === "") return <p class="muted">The empty text.</p>;
  if (payload === null) return <Source text={payload_base64 ?? ""} what="payload" />;
  return <Source text={json ?? payload} what="payload" json={json !== null} />;
}

function Facts({ message }: { message: WholeRsmqMessage }) {
  const facts: [string, ComponentChildren][] = [
    ["Receivable", <Receivable at={message.due_at} />],
    ["Attempts", count(message.attempts)],
    ["Size", bytes(message.size)],
    ["Sent", message.sent_at === null ? "" : instant(message.sent_at)],
    ["First received", message.first_received_at === null ? "" : instant(message.first_received_at)],
    ["Namespace", message.namespace],
  ];
  return (
    <section class="panel" aria-label="Facts">
      <h2>Facts</h2>
      <dl class="facts">
        {facts
          .filter(([, value]) => value !== "")
          .map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd class="num">{value}</dd>
            </div>
          ))}
      </dl>
    </section>
  );
}
