// How far a handler is: a bar in lists, and on a message's page a panel that follows it.
import { useResource } from "../resource";
import { queueApi } from "../router";
import type { ProgressOut, StatusOut, WholeMessage } from "../types";
import { Ago } from "./Times";

/** Milliseconds between two looks at a running message: the journal has no line about its progress. */
const LOOK_EVERY = 1_000;

const percent = (fraction: number): string => `${Math.floor(fraction * 100)} %`;

export const ProgressBar = ({ progress }: { progress: ProgressOut }) => (
  <span class="progress-bar" data-part="progress">
    <progress value={progress.fraction} aria-label={progress.step || "progress"} />
    <span class="num">{percent(progress.fraction)}</span>
  </span>
);

/** The progress of a leased message, followed while the page shows it; nothing until its handler has noted any. */
export function ProgressPanel({ message }: { message: WholeMessage }) {
  const found = useResource<StatusOut>(queueApi(message.queue, `/messages/${encodeURIComponent(message.id)}/status`), LOOK_EVERY);
  const progress = (found.stale ? null : found.data?.progress) ?? message.progress;
  if (progress === null) return null;
  return (
    <section class="panel" aria-label="Progress">
      <h2>
        Progress <small class="muted">noted <Ago at={progress.at} /></small>
      </h2>
      <ProgressBar progress={progress} />
      {progress.step && <p class="muted">{progress.step}</p>}
    </section>
  );
}
