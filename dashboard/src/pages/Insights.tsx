// The report made from the journal's tables, in a frame of its own, or how to make one.
import { useFeed } from "../live";
import { Empty } from "../parts/Marks";
import { Ago } from "../parts/Times";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";

export function InsightsPage() {
  useFeed({ journal: "none" });
  const found = useResource<{ available: boolean; made_at: number | null; hint: string }>("/api/insights");
  if (found.data === null) return found.error ? <Failed error={found.error} what="the insights" /> : <Loading />;
  const { available, made_at, hint } = found.data;
  return (
    <>
      <header class="page-head">
        <h1>Insights</h1>
        {made_at !== null && (
          <p class="muted">
            Made <Ago at={made_at} />
          </p>
        )}
      </header>
      {available ? (
        <iframe class="report" title="Insights report" src="/insights/report" sandbox="allow-scripts" />
      ) : (
        <Empty title="No report yet">
          <code>{hint}</code>
        </Empty>
      )}
    </>
  );
}
