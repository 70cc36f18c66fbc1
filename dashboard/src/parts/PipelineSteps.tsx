// The steps of a run of the data pipeline, and the progress of the current one.
import { count } from "../format";
import type { PipelineProgress } from "../types";

type Step = { title: string; phases: string[] };

const STEPS: Step[] = [
  { title: "Start Spark", phases: ["waiting for the shop to open", "starting Spark"] },
  { title: "Read the journals", phases: ["bronze"] },
  { title: "Build the tables", phases: ["silver and gold", "compact", "retention"] },
  { title: "Create the report", phases: ["report"] },
];

const at = (phase: string): number => STEPS.findIndex(({ phases }) => phases.includes(phase));

/** The current step and its progress as text. */
export function phaseText(progress: PipelineProgress): string {
  const step = STEPS[at(progress.phase)];
  const far = progressText(progress);
  return `${step === undefined ? progress.phase : step.title.toLowerCase()}${far === "" ? "" : `, ${far}`}`;
}

function progressText({ phase, done, total, rows, rows_expected }: PipelineProgress): string {
  if (phase === "bronze") return rows_expected > 0 ? `${count(rows)} of ${count(rows_expected)} lines` : `${count(rows)} lines`;
  if (phase === "silver and gold" && total > 0) return `${count(done)} of ${count(total)} tables`;
  return total > 0 ? `${count(done)} of ${count(total)}` : "";
}

export function PipelineSteps({ progress }: { progress: PipelineProgress }) {
  const known = at(progress.phase);
  // A phase that is not a step, such as "server away", interrupts the reading of the journals.
  const current = known === -1 ? 1 : known;
  const steps = progress.report ? STEPS : STEPS.slice(0, -1);
  return (
    <ol class="steps">
      {steps.map(({ title }, i) => {
        const state = i < current ? "done" : i === current ? "now" : "next";
        return (
          <li key={title} class={`step step-${state}`} data-part="step" data-state={state} aria-current={state === "now" ? "step" : undefined}>
            <span class="step-mark" aria-hidden="true">
              {state === "done" ? "✓" : i + 1}
            </span>
            <span class="step-title">{title}</span>
            {state === "now" && <Now progress={progress} interrupted={known === -1} />}
            {state === "done" && i === 1 && <span class="muted num">{count(progress.rows)} lines</span>}
          </li>
        );
      })}
    </ol>
  );
}

function Now({ progress, interrupted }: { progress: PipelineProgress; interrupted: boolean }) {
  const reading = progress.phase === "bronze";
  const most = reading ? progress.rows_expected : progress.total;
  const done = reading ? progress.rows : progress.done;
  if (interrupted) return <span class="muted">{progress.phase}</span>;
  return (
    <>
      {most > 0 ? <progress max={most} value={Math.min(done, most)} aria-label="Progress" /> : <progress aria-label="Running" />}
      <span class="muted num">{progressText(progress)}</span>
    </>
  );
}
