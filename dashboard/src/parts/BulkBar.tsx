// What can be done with the selected rows; hidden while there are none.
import type { ComponentChildren } from "preact";
import { count } from "../format";

/** "Cancel" alone would be read as leaving the selection. */
const CANCEL_MESSAGES = "Cancel messages";

type Props = { chosen: number; label: string; onClear: () => void; children?: ComponentChildren };

export function BulkBar({ chosen, label, onClear, children }: Props) {
  if (chosen === 0) return null;
  return (
    <div class="bulk-bar" role="toolbar" aria-label={label} data-part="bulk-bar">
      <b class="num">{count(chosen)} selected</b>
      {children}
      <button type="button" class="ghost" onClick={onClear}>
        Clear <kbd>Esc</kbd>
      </button>
    </div>
  );
}

/** Replays the selected rows. */
export const BulkReplay = ({ onClick }: { onClick: () => void }) => (
  <button type="button" class="primary" data-part="bulk-replay" onClick={onClick}>
    Replay <kbd>R</kbd>
  </button>
);

/** Takes the selected messages back from their consumers. */
export const BulkRevoke = ({ onClick }: { onClick: () => void }) => (
  <button type="button" data-part="bulk-revoke" onClick={onClick}>
    Take back
  </button>
);

/** Gives the selected messages up. */
export const BulkCancel = ({ onClick }: { onClick: () => void }) => (
  <button type="button" class="danger-quiet" data-part="bulk-cancel" onClick={onClick}>
    {CANCEL_MESSAGES}
  </button>
);

/** Moves or deletes the selected rows. */
export const BulkMoveDelete = ({ onMove, onDelete }: { onMove: () => void; onDelete: () => void }) => (
  <>
    <button type="button" data-part="bulk-move" onClick={onMove}>
      Move…
    </button>
    <button type="button" class="danger-quiet" data-part="bulk-delete" onClick={onDelete}>
      Delete <kbd>#</kbd>
    </button>
  </>
);
