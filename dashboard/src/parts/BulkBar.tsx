// What can be done with the chosen rows; stays out of the way until there are some.
import { count } from "../format";
import type { State } from "../lifecycle";

type Props = {
  chosen: number;
  state: State;
  onReplay: () => void;
  onDelete: () => void;
  onMove: () => void;
  onClear: () => void;
};

export function BulkBar({ chosen, state, onReplay, onDelete, onMove, onClear }: Props) {
  if (chosen === 0) return null;
  return (
    <div class="bulk-bar" role="toolbar" aria-label="Selected messages" data-testid="bulk-bar">
      <b class="num">{count(chosen)} selected</b>
      {state === "dead" && (
        <button type="button" class="primary" data-testid="bulk-replay" onClick={onReplay}>
          Replay <kbd>R</kbd>
        </button>
      )}
      {state !== "leased" && (
        <>
          <button type="button" data-testid="bulk-move" onClick={onMove}>
            Move…
          </button>
          <button type="button" class="danger-quiet" data-testid="bulk-delete" onClick={onDelete}>
            Delete <kbd>#</kbd>
          </button>
        </>
      )}
      {state === "leased" && <span class="muted">Held messages cannot be deleted or moved.</span>}
      <button type="button" class="ghost" onClick={onClear}>
        Clear <kbd>Esc</kbd>
      </button>
    </div>
  );
}
