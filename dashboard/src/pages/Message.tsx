// One message: its details, states, payload, attempts and journal, and the actions on it.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { cancelIds, deleteIds, replayIds, revokeIds } from "../actions";
import { patch } from "../api";
import { parseExact, plain, pretty } from "../exactjson";
import { bytes, duration, instant } from "../format";
import { useKeys } from "../keys";
import { isCancellable, isEditable } from "../lifecycle";
import { useFeed, useJournal } from "../live";
import { Modal } from "../parts/Dialog";
import { FactList } from "../parts/FactList";
import { JournalTable } from "../parts/JournalTable";
import { AnomalyMarks, Copy, Crumbs, Empty, EventMark, StateMark } from "../parts/Marks";
import { Json, Payload, Source } from "../parts/Payload";
import { ProgressPanel } from "../parts/Progress";
import { JsonField, MoveDialog } from "../parts/QueueDialogs";
import { StateDiagram } from "../parts/StateDiagram";
import { MessageTime, TIME_TITLES } from "../parts/Times";
import { attempt } from "../parts/Toasts";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { go, queueApi, queueHref, search } from "../router";
import { mayOperate } from "../session";
import type { AttemptOut, Journal, JournalLine, OneMessage, WholeMessage } from "../types";

export function MessagePage({ queue, id }: { queue: string; id: string }) {
  useFeed({ journal: "one", queue });
  const path = queueApi(queue, `/messages/${encodeURIComponent(id)}`);
  const found = useResource<OneMessage>(path, 0, true);
  const [ended, setEnded] = useState("");
  const missing = found.error?.status === 404 || ended === path;
  const life = useResource<Journal>(
    missing ? `/api/journal${search({ queue, message_id: id, limit: 200 })}` : null,
  );
  useJournal((entries) => {
    const last = entries.filter((entry) => entry.message_id === id).at(-1);
    if (last === undefined) return;
    // What the journal says is gone need not be asked for.
    setEnded(last.state === "gone" ? path : "");
    if (last.state !== "gone") found.reloadSoon();
  }, [path]);
  const message = found.stale || missing || found.data === null ? null : calculable(found.data.message);
  if (message !== null) return <Existing message={message} reload={found.reload} />;
  if (!missing) return found.error ? <Failed error={found.error} what={`the message ${id}`} /> : <Loading />;
  return <Gone queue={queue} id={id} journal={life.data?.entries ?? null} />;
}

/** The message with plain numbers where the page calculates; payload and result keep the text of theirs. */
function calculable(message: WholeMessage): WholeMessage {
  const { progress, timeout_seconds } = message;
  return {
    ...message,
    timeout_seconds: timeout_seconds === null ? null : plain(timeout_seconds),
    progress: progress === null ? null : { ...progress, fraction: plain(progress.fraction) },
  };
}

const crumbs = (queue: string): [string, string][] => [
  ["Overview", "/"],
  [queue, queueHref(queue)],
];

/** How the message ended, if the journal still knows. */
function ending(journal: JournalLine[] | null): string {
  const last = [...(journal ?? [])].sort((a, b) => b.position - a.position)[0];
  if (last === undefined || last.state !== "gone") return "acked, cancelled, deleted or purged";
  return last.event === "acked" || !last.consumer ? last.event : `${last.event} by ${last.consumer}`;
}

function Gone({ queue, id, journal }: { queue: string; id: string; journal: JournalLine[] | null }) {
  return (
    <>
      <header class="page-head">
        <Crumbs links={crumbs(queue)} />
        <h1 class="mono">{id}</h1>
        <p class="muted">This message no longer exists: it was {ending(journal)}. The journal shows its history.</p>
      </header>
      {journal === null ? (
        <Loading />
      ) : journal.length === 0 ? (
        <Empty title="The journal has no lines about this message.">They may have been trimmed, or the message never existed.</Empty>
      ) : (
        <>
          <StateDiagram journal={journal} state="gone" />
          <section class="history" aria-label="Journal">
            <h2>Journal</h2>
            <JournalTable entries={journal} one />
          </section>
        </>
      )}
    </>
  );
}

function Existing({ message, reload }: { message: WholeMessage; reload: () => void }) {
  const { queue, id, state } = message;
  const [form, setForm] = useState<"edit" | "move" | null>(null);
  const operate = mayOperate.value;
  const then = (done: boolean): void => {
    if (done) reload();
  };
  const replay = (): void => {
    if (operate && state === "dead") void replayIds(queue, [id]).then(then);
  };
  const erase = (): void => {
    if (operate && state !== "leased") void deleteIds(queue, [id]).then((done) => done && go(queueHref(queue)));
  };
  const revoke = (): void => {
    if (operate && state === "leased") void revokeIds(queue, [id]).then(then);
  };
  const cancel = (): void => {
    if (operate && isCancellable(state)) void cancelIds(queue, [id]).then((done) => done && go(queueHref(queue)));
  };
  useKeys({ R: replay, "#": erase, Delete: erase, Escape: () => go(queueHref(queue, { state })) });
  return (
    <>
      <header class="page-head">
        <Crumbs links={crumbs(queue)} />
        <div class="title-row">
          <h1 class="mono">{id}</h1>
          <Copy text={id} what="ID" />
          <StateMark state={state} />
          <AnomalyMarks kinds={message.anomalies} />
          {operate && (
            <span class="actions">
              {state === "dead" && (
                <button type="button" class="primary" data-part="replay" onClick={replay}>
                  Replay <kbd>R</kbd>
                </button>
              )}
              {isEditable(state) && (
                <button type="button" onClick={() => setForm("edit")}>
                  Edit
                </button>
              )}
              {state === "leased" && (
                <button type="button" data-part="revoke" onClick={revoke}>
                  Take back
                </button>
              )}
              {isCancellable(state) && (
                <button type="button" class="danger-quiet" data-part="cancel" onClick={cancel}>
                  Cancel message
                </button>
              )}
              {state !== "leased" && (
                <>
                  <button type="button" onClick={() => setForm("move")}>
                    Move…
                  </button>
                  <button type="button" class="danger-quiet" onClick={erase}>
                    Delete <kbd>#</kbd>
                  </button>
                </>
              )}
            </span>
          )}
        </div>
      </header>
      <div class="message-grid">
        <div>
          {message.error && (
            <section class="panel panel-bad" aria-label="Last error">
              <h2>
                {message.error_class || "Last error"} <small class="muted">attempt {message.history.at(-1)?.attempt ?? message.attempts}</small>
              </h2>
              <p class="error-line">{message.error}</p>
            </section>
          )}
          {state === "leased" && <ProgressPanel message={message} />}
          {message.result !== null && (
            <section class="panel" aria-label="Result">
              <h2>Result</h2>
              <Json value={message.result} what="result" />
            </section>
          )}
          <section class="panel" aria-label="Payload">
            <h2>Payload</h2>
            <Payload message={message} />
          </section>
          {Object.keys(message.headers).length > 0 && (
            <section class="panel" aria-label="Headers">
              <h2>Headers</h2>
              <Json value={message.headers} what="headers" />
            </section>
          )}
          {message.history.length > 0 && <h2>Attempts</h2>}
          {[...message.history].reverse().map((one) => (
            <AttemptCard key={`${one.attempt} ${one.ended_at}`} attempt={one} />
          ))}
        </div>
        <div>
          <FactList facts={facts(message)} />
          <section class="panel" aria-label="States">
            <h2>States</h2>
            <StateDiagram journal={message.journal} state={state} />
          </section>
        </div>
      </div>
      <section class="history" aria-label="Journal">
        <h2>Journal</h2>
        {!message.journal_complete && <p class="muted">Older lines about this message have been trimmed.</p>}
        <JournalTable entries={[...message.journal].sort((a, b) => b.position - a.position)} one />
      </section>
      {form === "edit" && <EditDialog message={message} onClose={() => setForm(null)} onDone={reload} />}
      {form === "move" && (
        <MoveDialog queue={queue} ids={[id]} onClose={() => setForm(null)} onDone={() => go(queueHref(queue))} />
      )}
    </>
  );
}

function facts(message: WholeMessage): [string, ComponentChildren][] {
  const when = (at: number | null): string => (at === null ? "" : instant(at));
  return [
    [TIME_TITLES[message.state], <MessageTime message={message} state={message.state} />],
    ["Kind", message.kind],
    ["Priority", message.priority],
    ["Attempts", `${message.attempts} / ${message.max_attempts}`],
    ["Replays", message.replays || ""],
    ["Size", `${bytes(message.size)} ${message.content_type}`],
    ["Consumer", message.consumer],
    ["Sent", when(message.sent_at)],
    ["Due", when(message.due_at)],
    ["Received", when(message.received_at)],
    ["Settled", when(message.settled_at)],
    ["Expires", when(message.expires_at)],
    ["Unique key", message.unique ?? ""],
    ["Retry policy", message.retry ?? ""],
    ["Time limit", message.timeout_seconds === null ? "" : duration(message.timeout_seconds * 1000)],
  ];
}

function AttemptCard({ attempt: one }: { attempt: AttemptOut }) {
  const took = one.received_at === null ? "" : `after ${((one.ended_at - one.received_at) / 1000).toFixed(1)} s`;
  return (
    <article class="panel attempt">
      <h3>
        Attempt {one.attempt} <EventMark event={one.event} /> {one.error_class && <b>{one.error_class}</b>}
      </h3>
      <p class="muted">
        {[one.consumer, took, instant(one.ended_at)].filter(Boolean).join(" · ")}
      </p>
      {one.error && <Source text={one.error} what={`error of attempt ${one.attempt}`} />}
    </article>
  );
}

function EditDialog({ message, onClose, onDone }: { message: WholeMessage; onClose: () => void; onDone: () => void }) {
  const before = message.payload === undefined ? null : pretty(message.payload);
  const save = async (form: FormData): Promise<boolean> => {
    const payload = form.get("payload");
    const delay = String(form.get("delay") ?? "");
    const priority = Number(form.get("priority"));
    // A form returns its lines with carriage returns, which are not a change.
    const edited = payload === null ? null : String(payload).replaceAll("\r\n", "\n");
    const change = {
      ...(edited !== null && edited !== before ? { payload: parseExact(edited) } : {}),
      ...(priority !== message.priority ? { priority } : {}),
      ...(delay !== "" ? { delay_seconds: Number(delay) } : {}),
    };
    if (Object.keys(change).length === 0) return true;
    const saved = await attempt(async () => {
      await patch(queueApi(message.queue, `/messages/${encodeURIComponent(message.id)}`), change);
      return `Edited ${message.id}.`;
    });
    if (saved) onDone();
    return saved;
  };
  return (
    <Modal title={`Edit ${message.id}`} yes="Save" wide onYes={save} onClose={onClose}>
      {before !== null && <JsonField name="payload" label="Payload (JSON)" value={before} rows={12} />}
      <div class="fields">
        <label class="field">
          <span>Priority (0–255, highest first)</span>
          <input name="priority" type="number" min="0" max="255" defaultValue={String(message.priority)} />
        </label>
        <label class="field">
          <span>Delay in seconds from now</span>
          <input name="delay" type="number" min="0" step="any" placeholder="unchanged" disabled={message.state === "dead"} />
        </label>
      </div>
    </Modal>
  );
}
