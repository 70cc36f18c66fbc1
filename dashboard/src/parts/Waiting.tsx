// What a page shows before its first answer, and if a request has failed.
import { explain, type ApiError } from "../api";

export const Loading = () => (
  <div class="loading" role="status">
    Loading…
  </div>
);

export function Failed({ error, what }: { error: ApiError; what: string }) {
  return (
    <div class="empty" role="alert">
      <p class="empty-title">
        {error.status === 404 ? `Not found: ${what}.` : error.status === 403 ? `Your token may not read ${what}.` : `Could not load ${what}.`}
      </p>
      <div class="muted">{explain(error)}</div>
    </div>
  );
}
