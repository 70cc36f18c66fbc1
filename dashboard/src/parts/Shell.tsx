// The frame around every page: navigation, how live the page is, who is signed in, and notices about the server.
import type { ComponentChildren } from "preact";
import { reachable } from "../api";
import { serverNow } from "../clock";
import { short } from "../format";
import { status, statusText, totals } from "../live";
import { ReplayProgress } from "../replays";
import { useResource } from "../resource";
import { parts } from "../router";
import { session, signOut } from "../session";
import { theme, toggleTheme } from "../theme";
import type { Anomaly } from "../types";
import { helpShown } from "./Help";
import { Link } from "./Marks";
import { attempt } from "./Toasts";

/** How often the mark at "Anomalies" is looked after, in milliseconds. */
const ANOMALIES_EVERY = 15_000;
/** An anomaly younger than this deserves the mark, in milliseconds. */
const RECENT = 15 * 60_000;

const hrefOf = (page: string): string => (page === "overview" ? "/" : `/${encodeURIComponent(page)}`);

function Navigation() {
  const anomalies = useResource<{ anomalies: Anomaly[] }>("/api/anomalies", ANOMALIES_EVERY);
  const recent = (anomalies.data?.anomalies ?? []).filter(({ at }) => at > serverNow() - RECENT).length;
  const current = parts.value[0] ?? "overview";
  const here = current === "queues" ? "overview" : current;
  const dead = totals.value?.dead ?? 0;
  return (
    <nav class="navigation" aria-label="Dashboard">
      {(session.value?.pages ?? []).map(({ id, title }) => (
        <Link key={id} href={hrefOf(id)} current={id === here}>
          {title}
          {id === "dead" && dead > 0 && <span class="nav-count num">{short(dead)}</span>}
          {id === "anomalies" && recent > 0 && (
            <span class="nav-mark" role="img" aria-label={`${recent} recent`} title={`${recent} in the last quarter of an hour`} />
          )}
        </Link>
      ))}
    </nav>
  );
}

function LiveStatus() {
  return (
    <span class="live-status" data-testid="live-status" data-status={status.value} title={statusText.value}>
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
        Skip to the content
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
            <button type="button" class="ghost small" data-testid="theme-toggle" onClick={toggleTheme} aria-label={`Use the ${theme.value === "dark" ? "light" : "dark"} theme`}>
              {theme.value === "dark" ? "Light" : "Dark"}
            </button>
            <button type="button" class="ghost small" onClick={() => (helpShown.value = true)} aria-label="Show the keys">
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
            Server not reachable, trying again. What you see is the last that was known.
          </p>
        )}
        <ReplayProgress />
        {children}
      </main>
    </div>
  );
}
