// The head of a queue's page: its name and health, what can be done with the queue, and its states as tabs.
import { useEffect, useRef, useState } from "preact/hooks";
import { drop, purge, setPaused } from "../actions";
import { count, duration, rate } from "../format";
import { isState, STATES, title, type State } from "../lifecycle";
import { go, queueApi, queueHref, search } from "../router";
import { mayOperate, maySend } from "../session";
import type { Queue } from "../types";
import { Link, Troubles } from "./Marks";
import { Menu } from "./Menu";
import { ImportDialog, SendDialog, SettingsDialog } from "./QueueDialogs";

type Props = { queue: Queue; state: State; reload: () => void };

export function QueueHeader({ queue, state, reload }: Props) {
  const [form, setForm] = useState<"send" | "import" | "settings" | null>(null);
  const name = queue.queue;
  const tabs = useRef<HTMLElement>(null);
  useEffect(() => {
    // On narrow screens the tabs scroll, and a link may open one that is out of sight.
    tabs.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [state]);
  const close = (): void => setForm(null);
  const held = STATES.reduce((sum, one) => sum + queue.states[one], 0);
  const then = (done: boolean): void => {
    if (done) reload();
  };
  const last = queue.trends.at.length - 1;
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
          oldest waits <b class="num">{duration((queue.waited_seconds ?? 0) * 1000)}</b>
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
        <span>
          retry <b>{queue.settings.retry}</b>
        </span>
        {queue.journal_lost > 0 && <span class="badge badge-warn">{count(queue.journal_lost)} journal lines lost</span>}
      </p>
      <nav class="tabs" aria-label="States" ref={tabs}>
        {STATES.map((one) => (
          <Link
            key={one}
            href={queueHref(name, { state: one })}
            class={`tab state-${one}`}
            current={one === state}
            testid={`tab-${one}`}
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

/** The state a link names, or the most telling one: dead letters first, then what waits. */
export function stateShown(asked: string, queue: Queue | null): State {
  if (isState(asked)) return asked;
  if (queue === null) return "ready";
  const order: State[] = ["dead", "leased", "ready", "retrying", "scheduled", "done"];
  return order.find((state) => queue.states[state] > 0) ?? "ready";
}
