// Small signs used everywhere: a state's dot and word, an event's word, links, copying, anomaly marks.
import type { ComponentChildren } from "preact";
import { title, type Place } from "../lifecycle";
import { go } from "../router";
import type { Queue } from "../types";
import { say } from "./Toasts";

export function StateMark({ state, label }: { state: Place; label?: string }) {
  return (
    <span class={`mark state-${state}`}>
      <span class="dot" aria-hidden="true" />
      {label ?? title(state)}
    </span>
  );
}

export const EventMark = ({ event }: { event: string }) => <span class={`event event-${event}`}>{event}</span>;

type LinkProps = {
  href: string;
  class?: string;
  current?: boolean;
  title?: string;
  testid?: string;
  children: ComponentChildren;
};

/** A link that stays inside the page unless the viewer asks for a new tab. */
export function Link({ href, class: name, current, title: hint, testid, children }: LinkProps) {
  return (
    <a
      href={href}
      class={name}
      title={hint}
      data-testid={testid}
      aria-current={current ? "page" : undefined}
      onClick={(event) => {
        if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
        event.preventDefault();
        go(href);
      }}
    >
      {children}
    </a>
  );
}

export function Copy({ text, what }: { text: string; what: string }) {
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(text);
      say(`Copied the ${what}.`);
    } catch {
      say("The browser does not allow copying here.", "bad");
    }
  };
  return (
    <button type="button" class="copy" aria-label={`Copy ${what}`} title={`Copy ${what}`} onClick={() => void copy()}>
      <svg viewBox="0 0 16 16" aria-hidden="true">
        <rect x="5.5" y="5.5" width="8" height="8" rx="1.5" />
        <path d="M10.5 3.500v-.5A1.5 1.5 0 0 0 9 1.500H3A1.5 1.5 0 0 0 1.5 3v6A1.5 1.5 0 0 0 3 10.500h.5" />
      </svg>
    </button>
  );
}

const ANOMALY_TEXTS: Record<string, string> = {
  near_dead: "one attempt left before it is dead",
  zombie: "its lease ended and nobody took it back",
  long_running: "held unusually long",
  large_payload: "unusually large payload",
  burst: "taken in an unusual burst",
  bulk_delete: "many messages deleted at once",
  purge: "a queue was purged",
  archive_full: "an archive is nearly full",
  unroutable: "published by Celery or Kombu, and no queue was bound for it",
  lease_lost: "the lease ended without a word of its consumer",
};

export const anomalyText = (kind: string): string => ANOMALY_TEXTS[kind] ?? kind.replaceAll("_", " ");

export function AnomalyMarks({ kinds }: { kinds: string[] }) {
  return (
    <>
      {kinds.map((kind) => (
        <span key={kind} class="anomaly" role="img" title={anomalyText(kind)} aria-label={`Anomaly: ${anomalyText(kind)}`}>
          !
        </span>
      ))}
    </>
  );
}

/** What is wrong with a queue; a pause is always said, by the server or here. */
export function Troubles({ queue }: { queue: Queue }) {
  const said = queue.trouble.some(({ text }) => text.includes("paused"));
  return (
    <>
      {queue.paused && !said && <span class="badge badge-warn">paused</span>}
      {queue.trouble.map(({ level, text }) => (
        <span key={text} class={`badge badge-${level}`}>
          {text}
        </span>
      ))}
    </>
  );
}

/** What to show where there is nothing. */
export function Empty({ title: heading, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{heading}</p>
      {children && <div class="muted">{children}</div>}
    </div>
  );
}
