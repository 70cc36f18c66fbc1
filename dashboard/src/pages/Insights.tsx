// The report of the data pipeline in a frame; until there is one, the progress of the pipeline.
import { useEffect, useMemo, useRef } from "preact/hooks";
import { plural } from "../format";
import { useFeed } from "../live";
import { Empty } from "../parts/Marks";
import { phaseText, PipelineSteps } from "../parts/PipelineSteps";
import { Ago } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { theme } from "../theme";
import type { Insights, PipelineProgress } from "../types";

const READ_EVERY = 1_000;

export function InsightsPage() {
  useFeed({ journal: "none" });
  const found = useResource<Insights>("/api/insights", READ_EVERY);
  if (found.data === null) return found.error ? <Failed error={found.error} what="the insights" /> : <Loading />;
  const { available, made_at, hint, progress } = found.data;
  return (
    <>
      <header class="page-head">
        <h1>Insights</h1>
        {made_at !== null && (
          <p class="muted">
            Created <Ago at={made_at} />
            {progress?.state === "running" && <> · current step: {phaseText(progress)}</>}
          </p>
        )}
      </header>
      {available && progress !== null && <Stopped progress={progress} />}
      {available ? (
        <Report key={made_at} />
      ) : (
        <NoReport progress={progress} hint={hint} />
      )}
    </>
  );
}

/** The report in its frame, which follows the theme: at first by its address, which then stays, so that it keeps its place. */
function Report() {
  const frame = useRef<HTMLIFrameElement>(null);
  const address = useMemo(() => `/insights/report#theme-${theme.peek()}`, []);
  const shown = theme.value;
  const tell = () => {
    // The frame has no origin that could be named; the message is no secret.
    frame.current?.contentWindow?.postMessage(theme.peek(), "*");
  };
  useEffect(tell, [shown]);
  return <iframe ref={frame} class="report" title="Insights report" src={address} sandbox="allow-scripts" onLoad={tell} />;
}

/** Why no newer report will follow. */
function Stopped({ progress }: { progress: PipelineProgress }) {
  if (progress.state !== "failed" && progress.state !== "lost") return null;
  return (
    <section class="panel panel-bad" role="alert" data-part="pipeline-stopped">
      <h2>The pipeline stopped</h2>
      <p>
        {progress.state === "failed" ? (
          progress.error
        ) : (
          <>
            Its process has not reported for <Ago at={progress.updated_at} after="" />. Its last step: {phaseText(progress)}.
          </>
        )}
      </p>
    </section>
  );
}

function NoReport({ progress, hint }: { progress: PipelineProgress | null; hint: string }) {
  if (progress === null)
    return (
      <Empty title="No report yet">
        <p>The data pipeline builds the report from the journals. This page shows its progress after you have started it:</p>
        <code class="command">{hint}</code>
      </Empty>
    );
  if (progress.state === "running")
    return (
      <section class="panel making" data-part="first-report" aria-busy="true">
        <h2>{progress.report ? "The pipeline is building the first report" : "The pipeline is loading the journals"}</h2>
        <p class="muted">
          Started <Ago at={progress.started_at} />
        </p>
        <PipelineSteps progress={progress} />
        {!progress.report && (
          <div class="muted">
            <p>This run creates no report. After it has finished, run:</p>
            <code class="command">{hint}</code>
          </div>
        )}
      </section>
    );
  if (progress.state === "done")
    return (
      <Empty title={progress.rows > 0 ? "The journals are loaded, but there is no report yet" : "Nothing to report yet"}>
        <p>
          The pipeline finished <Ago at={progress.ended_at ?? progress.updated_at} /> and loaded {plural(progress.rows, "journal line")}. To create a report, run:
        </p>
        <code class="command">{hint}</code>
      </Empty>
    );
  return (
    <>
      <Stopped progress={progress} />
      <Empty title="No report yet">
        <p>Start the pipeline again. It continues where it stopped:</p>
        <code class="command">{hint}</code>
      </Empty>
    </>
  );
}
