// The keyboard shortcuts, in a dialog.
import { signal } from "@preact/signals";
import { Modal } from "./Dialog";

export const helpShown = signal(false);

const KEYS: [string, string][] = [
  ["/", "go to the filter"],
  ["j  k", "next row, previous row"],
  ["x  Shift x", "select the row, select a range"],
  ["Enter", "open the row"],
  ["R", "replay the selected dead letters, or the current row"],
  ["#  Delete", "delete the selected messages, or the current row"],
  ["Esc", "clear the selection, or go back"],
  ["p", "pause or resume the journal page"],
  ["g o", "overview"],
  ["g d", "dead letters"],
  ["g t", "topics"],
  ["g c", "consumers"],
  ["g s", "schedules"],
  ["g j", "journal"],
  ["t", "switch between light and dark"],
  ["?", "this help"],
];

export function Help() {
  if (!helpShown.value) return null;
  const close = (): void => {
    helpShown.value = false;
  };
  return (
    <Modal title="Keyboard shortcuts" part="help-dialog" onClose={close}>
      <dl class="facts keys">
        {KEYS.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              {keys.split("  ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Modal>
  );
}
