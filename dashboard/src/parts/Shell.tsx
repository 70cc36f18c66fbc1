// The frame of every page: navigation, state of the live feed, the signed-in caller, and notices about the server.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { reachable } from "../api";
import { serverNow } from "../clock";
import { short } from "../format";
import { status, statusText, totals } from "../live";
import { ReplayProgress } from "../replays";
import { useResource } from "../resource";
import { parts } from "../router";
import { session, signOut } from "../session";
import { theme, toggleTheme } from "../theme";
import type { Anomalies } from "../types";
import { helpShown } from "./Help";
import { Link } from "./Marks";
import { attempt } from "./Toasts";

/** Milliseconds between two reads for the mark at "Anomalies". */
const ANOMALIES_EVERY = 15_000;
/** Milliseconds for which an anomaly shows the mark. */
const RECENT = 15 * 60_000;

const hrefOf = (page: string): string => (page === "overview" ? "/" : `/${encodeURIComponent(page)}`);

function Navigation() {
  const anomalies = useResource<Anomalies>("/api/anomalies", ANOMALIES_EVERY);
  const recent = (anomalies.data?.anomalies ?? []).filter(({ at }) => at > serverNow() - RECENT).length;
  const current = parts.value[0] ?? "overview";
  const here = current === "queues" ? "overview" : current;
  const dead = totals.value?.dead ?? 0;
  const bar = useRef<HTMLElement>(null);
  useEffect(() => {
    // On narrow screens the bar scrolls, and the current page may be out of view.
    bar.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [here, dead > 0, recent > 0]);
  return (
    <nav class="navigation" aria-label="Dashboard" ref={bar}>
      {(session.value?.pages ?? []).map(({ id, title }) => (
        <Link key={id} href={hrefOf(id)} current={id === here}>
          {title}
          {id === "dead" && dead > 0 && <span class="nav-count num">{short(dead)}</span>}
          {id === "anomalies" && recent > 0 && (
            <span class="nav-mark" role="img" aria-label={`${recent} recent`} title={`${recent} in the last 15 minutes`} />
          )}
        </Link>
      ))}
    </nav>
  );
}

function LiveStatus() {
  return (
    <span class="live-status" data-part="live-status" data-status={status.value} title={statusText.value}>
      <span class="dot" aria-hidden="true" />
      {statusText.value}
    </span>
  );
}

export function Shell({ children }: { children: ComponentChildren }) {
  const who = session.value;
  return (
    <div class="shell">
      <a class="skip" href="#content">
        Skip to content
      </a>
      <header class="side">
        <Link href="/" class="brand">
          <img src="/favicon.svg" alt="" width="24" height="24" />
          Restante
        </Link>
        <Navigation />
        <div class="side-foot">
          <LiveStatus />
          <div class="side-buttons">
            <button type="button" class="ghost small" data-part="theme-toggle" onClick={toggleTheme} aria-label={`Switch to the ${theme.value === "dark" ? "light" : "dark"} theme`}>
              {theme.value === "dark" ? "Light" : "Dark"}
            </button>
            <button type="button" class="ghost small" onClick={() => (helpShown.value = true)} aria-label="Show the keyboard shortcuts">
              Keys
            </button>
          </div>
          {who && (
            <p class="who muted">
              <span>
                {who.user} on {who.server}
              </span>
              <span>
                v{who.version}
                {!who.open && (
                  <button type="button" class="ghost small" onClick={() => void attempt(async () => (await signOut(), "Signed out."))}>
                    Sign out
                  </button>
                )}
              </span>
            </p>
          )}
        </div>
      </header>
      <main id="content" tabIndex={-1}>
        {!reachable.value && (
          <p class="banner" role="status">
            The server cannot be reached. Retrying… This page shows the last known data.
          </p>
        )}
        <ReplayProgress />
        {children}
      </main>
    </div>
  );
}
