// The report made from the journal's tables, in a frame of its own; until there is one, how far its making is.
import { count } from "../format";
import { useFeed } from "../live";
import { Empty } from "../parts/Marks";
import { phaseText, PipelineSteps } from "../parts/PipelineSteps";
import { Ago } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
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
            Made <Ago at={made_at} />
            {progress?.state === "running" && <> · {phaseText(progress)}</>}
          </p>
        )}
      </header>
      {available && progress !== null && <Stopped progress={progress} />}
      {available ? (
        <iframe key={made_at} class="report" title="Insights report" src="/insights/report" sandbox="allow-scripts" />
      ) : (
        <NoReport progress={progress} hint={hint} />
      )}
    </>
  );
}

/** Why there will be no newer report by itself. */
function Stopped({ progress }: { progress: PipelineProgress }) {
  if (progress.state !== "failed" && progress.state !== "lost") return null;
  return (
    <section class="panel panel-bad" role="alert" data-testid="pipeline-stopped">
      <h2>The pipeline stopped</h2>
      <p>
        {progress.state === "failed" ? (
          progress.error
        ) : (
          <>
            Its process has said nothing for <Ago at={progress.updated_at} after="" />. It was at: {phaseText(progress)}.
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
        <p>The data pipeline turns the journals into a report. Start it, and this page shows how far it is.</p>
        <code class="command">{hint}</code>
      </Empty>
    );
  if (progress.state === "running")
    return (
      <section class="panel making" data-testid="first-report" aria-busy="true">
        <h2>{progress.report ? "The first report is being made" : "The pipeline is filling the lake"}</h2>
        <p class="muted">
          Started <Ago at={progress.started_at} />
        </p>
        <PipelineSteps progress={progress} />
        {!progress.report && (
          <div class="muted">
            <p>This run draws no report. When it has ended:</p>
            <code class="command">{hint}</code>
          </div>
        )}
      </section>
    );
  if (progress.state === "done")
    return (
      <Empty title={progress.rows > 0 ? "The lake is filled, the report is not drawn" : "Nothing to report yet"}>
        <p>
          The pipeline ended <Ago at={progress.ended_at ?? progress.updated_at} /> with {count(progress.rows)} new lines.
        </p>
        <code class="command">{hint}</code>
      </Empty>
    );
  return (
    <>
      <Stopped progress={progress} />
      <Empty title="No report yet">
        <p>Start the pipeline again; it goes on where it was.</p>
        <code class="command">{hint}</code>
      </Empty>
    </>
  );
}
