// The head of a queue's page: its name, problems and actions, and its states as tabs.
import { useEffect, useRef, useState } from "preact/hooks";
import { drop, purge, setPaused } from "../actions";
import { count, duration, rate } from "../format";
import { isState, STATES, title, type State } from "../lifecycle";
import { retryWords } from "../retrying";
import { go, queueApi, queueHref, search } from "../router";
import { mayOperate, maySend } from "../session";
import type { QueueOut } from "../types";
import { Link, Troubles } from "./Marks";
import { Menu } from "./Menu";
import { ImportDialog, SendDialog, SettingsDialog } from "./QueueDialogs";

type Props = { queue: QueueOut; state: State; reload: () => void };

export function QueueHeader({ queue, state, reload }: Props) {
  const [form, setForm] = useState<"send" | "import" | "settings" | null>(null);
  const name = queue.queue;
  const tabs = useRef<HTMLElement>(null);
  useEffect(() => {
    // The tabs scroll on narrow screens, and a link may open one that is out of view.
    tabs.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [state]);
  const close = (): void => setForm(null);
  const held = STATES.reduce((sum, one) => sum + queue.states[one], 0);
  const then = (done: boolean): void => {
    if (done) reload();
  };
  const last = queue.trends.at.length - 1;
  const { waits, attempts } = retryWords(queue.settings.retry, queue.settings.max_attempts);
  return (
    <header class="page-head">
      <div class="title-row">
        <h1>{name}</h1>
        <span class="actions">
          {maySend.value && (
            <button type="button" class="primary" onClick={() => setForm("send")}>
              Send
            </button>
          )}
          {mayOperate.value && (
            <button type="button" onClick={() => void setPaused(name, !queue.paused).then(then)}>
              {queue.paused ? "Resume" : "Pause"}
            </button>
          )}
          <Menu label="More">
            <a href={queueApi(name, `/export${search({ state })}`)} download>
              Export {state}
            </a>
            {mayOperate.value && (
              <>
                <button type="button" onClick={() => setForm("import")}>
                  Import…
                </button>
                <button type="button" onClick={() => setForm("settings")}>
                  Settings…
                </button>
                {state !== "leased" && state !== "done" && (
                  <button type="button" class="danger-quiet" disabled={queue.states[state] === 0} onClick={() => void purge(name, state, queue.states[state]).then(then)}>
                    Purge {state}…
                  </button>
                )}
                <button
                  type="button"
                  class="danger-quiet"
                  onClick={() => void drop(name, held).then((dropped) => dropped && go("/"))}
                >
                  Drop queue…
                </button>
              </>
            )}
          </Menu>
        </span>
      </div>
      <p class="facts-line">
        <Troubles queue={queue} />
        <span>
          next message waiting <b class="num">{duration(queue.waited_seconds * 1000)}</b>
        </span>
        {last >= 0 && (
          <>
            <span>
              <b class="num">{rate(queue.trends.sent[last] ?? 0)}</b>/s sent
            </span>
            <span>
              <b class="num">{rate(queue.trends.acked[last] ?? 0)}</b>/s acked
            </span>
          </>
        )}
        <span>
          lease <b class="num">{queue.settings.lease_seconds}</b> s
        </span>
        <span title={queue.settings.retry}>
          retry after <b>{waits}</b>, <b>{attempts}</b>
        </span>
      </p>
      <nav class="tabs" aria-label="States" ref={tabs}>
        {STATES.map((one) => (
          <Link
            key={one}
            href={queueHref(name, { state: one })}
            class={`tab state-${one}`}
            current={one === state}
            part={`tab-${one}`}
          >
            <span class="dot" aria-hidden="true" />
            {title(one)} <b class="num">{count(queue.states[one])}</b>
            {one === "leased" && queue.overdue > 0 && <span class="overdue num"> {count(queue.overdue)} overdue</span>}
          </Link>
        ))}
      </nav>
      {form === "send" && <SendDialog queue={name} onClose={close} onDone={reload} />}
      {form === "import" && <ImportDialog queue={name} onClose={close} onDone={reload} />}
      {form === "settings" && <SettingsDialog queue={name} settings={queue.settings} onClose={close} onDone={reload} />}
    </header>
  );
}

/** The state that a link names, else the one that needs attention first. */
export function stateShown(asked: string, queue: QueueOut | null): State {
  if (isState(asked)) return asked;
  if (queue === null) return "ready";
  const order: State[] = ["dead", "leased", "ready", "retrying", "scheduled", "done"];
  return order.find((state) => queue.states[state] > 0) ?? "ready";
}
