// A page this dashboard does not know: either nobody does, or the server is newer.
import { useFeed } from "../live";
import { Empty, Link } from "../parts/Marks";

export function UnknownPage({ offered }: { offered: string | null }) {
  useFeed({ journal: "none" });
  return (
    <>
      <h1>{offered ?? "Not found"}</h1>
      <Empty title={offered === null ? "There is no such page." : "This dashboard is older than the server."}>
        {offered === null ? <Link href="/">Back to the overview</Link> : "Reload, or rebuild the dashboard of this installation."}
      </Empty>
    </>
  );
}
