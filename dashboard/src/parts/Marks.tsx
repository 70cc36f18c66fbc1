// Small elements of every page: states, events, links, numbers, copy buttons, anomaly marks, empty lists.
// Everywhere `data-part` names a part of the page: keyboard shortcuts find their targets by it.
import type { ComponentChildren } from "preact";
import { short } from "../format";
import { title, type Place } from "../lifecycle";
import { go } from "../router";
import type { QueueOut } from "../types";
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
  part?: string;
  children: ComponentChildren;
};

/** A link that stays inside the page unless the viewer asks for a new tab. */
export function Link({ href, class: name, current, title: hint, part, children }: LinkProps) {
  return (
    <a
      href={href}
      class={name}
      title={hint}
      data-part={part}
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
      say("The browser does not allow this page to copy.", "bad");
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
  near_dead: "one attempt left",
  zombie: "its consumer is gone, or its lease has expired",
  long_running: "leased for unusually long",
  large_payload: "unusually large payload",
  burst: "messages received at an unusual rate",
  bulk_delete: "many messages deleted at once",
  purge: "messages purged",
  archive_full: "archive nearly full",
  unroutable: "published by Celery or Kombu to an exchange without a bound queue",
  lease_lost: "the lease expired before the consumer settled the message",
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

/** The problems of a queue. A pause is always shown, even before the server lists it. */
export function Troubles({ queue }: { queue: QueueOut }) {
  const listed = queue.trouble.some(({ text }) => text.includes("paused"));
  return (
    <>
      {queue.paused && !listed && <span class="badge badge-warn">paused</span>}
      {queue.trouble.map(({ level, text }) => (
        <span key={text} class={`badge badge-${level}`}>
          {text}
        </span>
      ))}
    </>
  );
}

/** A value that a row does not have. */
export const Dash = ({ why }: { why?: string }) => (
  <span class="muted" title={why}>
    –
  </span>
);

/** A count; zero is drawn lighter, so that the others stand out. */
export const Count = ({ n, part }: { n: number; part?: string }) => (
  <span class={n === 0 ? "zero" : ""} data-part={part}>
    {short(n)}
  </span>
);

/** The pages above this one. */
export const Crumbs = ({ links }: { links: [name: string, href: string][] }) => (
  <nav class="crumbs" aria-label="Breadcrumb">
    {links.map(([name, href], i) => (
      <span key={href}>
        {i > 0 && " / "}
        <Link href={href}>{name}</Link>
      </span>
    ))}
  </nav>
);

/** Shown in place of an empty list. */
export function Empty({ title: heading, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{heading}</p>
      {children && <div class="muted">{children}</div>}
    </div>
  );
}
