// Selects the page by the path and draws it inside the shell, after the session is known.
import { useSignalEffect } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { reachable, resync, signInNeeded } from "./api";
import { useKeys } from "./keys";
import { title } from "./lifecycle";
import { AnomaliesPage } from "./pages/Anomalies";
import { AuditPage } from "./pages/Audit";
import { BatchesPage } from "./pages/Batches";
import { ConsumersPage } from "./pages/Consumers";
import { DeadPage } from "./pages/Dead";
import { InsightsPage } from "./pages/Insights";
import { JournalPage } from "./pages/Journal";
import { MessagePage } from "./pages/Message";
import { OverviewPage } from "./pages/Overview";
import { QueuePage } from "./pages/Queue";
import { RsmqPage } from "./pages/Rsmq";
import { RsmqMessagePage } from "./pages/RsmqMessage";
import { RsmqQueuePage } from "./pages/RsmqQueue";
import { SchedulesPage } from "./pages/Schedules";
import { SignInPage } from "./pages/SignIn";
import { TopicsPage } from "./pages/Topics";
import { UnknownPage } from "./pages/Unknown";
import { Asked } from "./parts/Dialog";
import { Help, helpShown } from "./parts/Help";
import { Shell } from "./parts/Shell";
import { Toasts } from "./parts/Toasts";
import { Loading } from "./parts/Waiting";
import { ReplayDialog } from "./replays";
import { go, parts } from "./router";
import { loadSession, session } from "./session";
import { toggleTheme } from "./theme";

const PLAIN_PAGES: Record<string, () => JSX.Element> = {
  dead: DeadPage,
  batches: BatchesPage,
  consumers: ConsumersPage,
  schedules: SchedulesPage,
  journal: JournalPage,
  anomalies: AnomaliesPage,
  audit: AuditPage,
  insights: InsightsPage,
  topics: TopicsPage,
  rsmq: RsmqPage,
};

function Page() {
  const [first, queue, messages, id] = parts.value;
  if (first === undefined) return <OverviewPage />;
  if (first === "queues" && queue !== undefined) {
    if (messages === undefined) return <QueuePage key={queue} name={queue} />;
    if (messages === "messages" && id !== undefined) return <MessagePage key={`${queue}\n${id}`} queue={queue} id={id} />;
  }
  if (first === "rsmq" && queue !== undefined) {
    if (messages === undefined) return <RsmqQueuePage key={queue} name={queue} />;
    if (messages === "messages" && id !== undefined) return <RsmqMessagePage key={`${queue}\n${id}`} queue={queue} id={id} />;
  }
  const Plain = PLAIN_PAGES[first];
  if (Plain && queue === undefined) return <Plain key={first} />;
  const offered = session.value?.pages.find((page) => page.id === first);
  return <UnknownPage offered={offered?.title ?? null} />;
}

function titleOf([first, queue, , id]: string[]): string {
  if (first === undefined) return "Restante";
  if (first === "rsmq") return `${id ?? queue ?? "RSMQ"} · Restante`;
  if (first === "queues") return `${id ?? queue} · Restante`;
  return `${session.value?.pages.find((page) => page.id === first)?.title ?? title(first)} · Restante`;
}

export function App() {
  useSignalEffect(() => {
    // At the start, and again after every outage, until the session is known.
    if (resync.value >= 0 && session.peek() === null) loadSession().catch(() => undefined);
  });
  useEffect(() => {
    document.title = titleOf(parts.value);
  }, [parts.value, session.value]);
  useKeys({
    "?": () => (helpShown.value = true),
    t: toggleTheme,
    "g o": () => go("/"),
    "g d": () => go("/dead"),
    "g t": () => go("/topics"),
    "g j": () => go("/journal"),
    "g c": () => go("/consumers"),
    "g s": () => go("/schedules"),
  });
  if (signInNeeded.value) {
    return (
      <>
        <SignInPage />
        <Toasts />
      </>
    );
  }
  if (session.value === null) return reachable.value ? <Loading /> : <p class="banner">The server cannot be reached. Retrying…</p>;
  return (
    <>
      <Shell>
        <Page />
      </Shell>
      <Asked />
      <ReplayDialog />
      <Help />
      <Toasts />
    </>
  );
}
