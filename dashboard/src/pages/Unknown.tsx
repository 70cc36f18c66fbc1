// A page that this dashboard does not have: it does not exist, or the server is newer.
import { useFeed } from "../live";
import { Empty, Link } from "../parts/Marks";

export function UnknownPage({ offered }: { offered: string | null }) {
  useFeed({ journal: "none" });
  return (
    <>
      <h1>{offered ?? "Not found"}</h1>
      <Empty title={offered === null ? "This page does not exist." : "This dashboard is older than the server."}>
        {offered === null ? <Link href="/">Back to the overview</Link> : "Reload the page. If that does not help, rebuild the dashboard."}
      </Empty>
    </>
  );
}
