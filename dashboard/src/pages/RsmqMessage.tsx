// One message of an RSMQ queue: its details and its payload. It can be deleted and moved.
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { deleteRsmq } from "../actions";
import { parseExact, pretty } from "../exactjson";
import { bytes, count, instant } from "../format";
import { useKeys } from "../keys";
import { useFeed } from "../live";
import { FactList } from "../parts/FactList";
import { Copy, Crumbs, StateMark } from "../parts/Marks";
import { Source } from "../parts/Payload";
import { RsmqMoveDialog } from "../parts/RsmqMove";
import { Available } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { go, query, rsmqApi, rsmqHref } from "../router";
import { mayOperate } from "../session";
import type { OneRsmqMessage, WholeRsmqMessage } from "../types";

const READ_EVERY = 2_000;

export function RsmqMessagePage({ queue, id }: { queue: string; id: string }) {
  useFeed({ journal: "none" });
  const namespace = query.value.get("namespace") ?? "";
  const up = rsmqHref(queue, { namespace });
  const found = useResource<OneRsmqMessage>(rsmqApi(`${queue}/messages/${id}`, { namespace }), READ_EVERY);
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
        <Crumbs
          links={[
            ["RSMQ", rsmqHref("", { namespace })],
            [queue, up],
          ]}
        />
        <div class="title-row">
          <h1 class="mono">{id}</h1>
          <Copy text={id} what="ID" />
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
        {found.error?.status === 404 && <p class="muted">This message no longer exists: it was deleted or moved. RSMQ keeps no journal.</p>}
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
            <FactList facts={facts(message)} />
          </div>
        </div>
      )}
      {moving && <RsmqMoveDialog queue={queue} namespace={namespace} ids={[id]} onClose={() => setMoving(false)} onDone={() => go(up)} />}
    </>
  );
}

/** RSMQ stores text. JSON, which most of it is, is shown indented. */
function Text({ message }: { message: WholeRsmqMessage }) {
  const { payload = null, payload_base64 = null } = message;
  const json = useMemo(() => {
    try {
      return payload !== null && /^\s*[[{]/.test(payload) ? pretty(parseExact(payload)) : null;
    } catch {
      return null;
    }
  }, [payload]);
  if (payload === "") return <p class="muted">The payload is empty.</p>;
  if (payload === null) return <Source text={payload_base64 ?? ""} what="payload" />;
  return <Source text={json ?? payload} what="payload" json={json !== null} />;
}

function facts(message: WholeRsmqMessage): [string, ComponentChildren][] {
  return [
    ["Available", <Available at={message.due_at} />],
    ["Attempts", count(message.attempts)],
    ["Size", bytes(message.size)],
    ["Sent", message.sent_at === null ? "" : instant(message.sent_at)],
    ["First received", message.first_received_at === null ? "" : instant(message.first_received_at)],
    ["Namespace", message.namespace],
  ];
}
