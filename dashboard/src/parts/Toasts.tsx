// Short notices about the result of an action. They disappear by themselves.
import { signal } from "@preact/signals";
import { explain } from "../api";

type Toast = { id: number; text: string; tone: "good" | "bad" };

/** Milliseconds that a notice stays; errors take longer to read. */
const STAYS = { good: 6_000, bad: 12_000 };

const toasts = signal<Toast[]>([]);
let last = 0;

const dismiss = (id: number): void => {
  toasts.value = toasts.value.filter((toast) => toast.id !== id);
};

export function say(text: string, tone: Toast["tone"] = "good"): void {
  const id = (last += 1);
  toasts.value = [...toasts.value.slice(-3), { id, text, tone }];
  window.setTimeout(() => dismiss(id), STAYS[tone]);
}

/** Runs an action and shows its result or its error. Returns whether it succeeded. */
export async function attempt(action: () => Promise<string>): Promise<boolean> {
  try {
    say(await action());
    return true;
  } catch (error) {
    say(explain(error), "bad");
    return false;
  }
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((toast) => (
        <div key={toast.id} class={`toast toast-${toast.tone}`} data-part="toast">
          <span>{toast.text}</span>
          <button type="button" class="ghost small" aria-label="Dismiss notice" onClick={() => dismiss(toast.id)}>
            ✕
          </button>
        </div>
      ))}
    </div>
  );
}
