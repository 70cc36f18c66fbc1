// Dialogs: the modal frame of every form, and `ask` for a yes or a no.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";

type ModalProps = {
  title: string;
  /** The label of the confirming button. Without it the dialog can only be closed. */
  yes?: string;
  /** The label of the button that closes the dialog without an action; "Cancel" by default. */
  no?: string;
  danger?: boolean;
  part?: string;
  wide?: boolean;
  /** Returns false to keep the dialog open. */
  onYes?: (form: FormData) => void | boolean | Promise<void | boolean>;
  onClose: () => void;
  children?: ComponentChildren;
};

export function Modal({ title, yes, no, danger, part, wide, onYes, onClose, children }: ModalProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  const [busy, setBusy] = useState(false);
  useLayoutEffect(() => {
    const before = document.activeElement;
    const shown = dialog.current;
    shown?.showModal();
    shown?.querySelector<HTMLElement>("[data-first], button[type=submit]")?.focus();
    return () => {
      shown?.close();
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    const keep = (await onYes?.(new FormData(event.currentTarget as HTMLFormElement))) === false;
    if (keep) setBusy(false);
    else onClose();
  };
  return (
    <dialog
      ref={dialog}
      class={wide ? "wide" : ""}
      aria-modal="true"
      aria-labelledby={heading}
      data-part={part}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === dialog.current) onClose();
      }}
    >
      <form method="dialog" onSubmit={(event) => void submit(event)}>
        <h2 id={heading}>{title}</h2>
        <div class="dialog-body">{children}</div>
        <footer>
          {yes !== undefined && (
            <button type="button" onClick={onClose}>
              {no ?? "Cancel"}
            </button>
          )}
          <button
            type="submit"
            class={danger ? "danger" : "primary"}
            disabled={busy}
            data-part={yes === undefined ? undefined : "confirm-yes"}
          >
            {yes ?? "Close"}
          </button>
        </footer>
      </form>
    </dialog>
  );
}

type Question = { title: string; text?: string; yes: string; no?: string; danger?: boolean };
const asked = signal<(Question & { answer: (yes: boolean) => void }) | null>(null);

/** Asks for a yes or a no; Enter is yes, Escape is no. */
export function ask(question: Question): Promise<boolean> {
  return new Promise((resolve) => {
    asked.value = {
      ...question,
      answer: (yes) => {
        asked.value = null;
        resolve(yes);
      },
    };
  });
}

export function Asked() {
  const question = asked.value;
  if (question === null) return null;
  let confirmed = false;
  return (
    <Modal
      title={question.title}
      yes={question.yes}
      no={question.no ?? "Cancel"}
      danger={question.danger ?? false}
      part="confirm-dialog"
      onYes={() => {
        confirmed = true;
      }}
      onClose={() => question.answer(confirmed)}
    >
      {question.text && <p>{question.text}</p>}
    </Modal>
  );
}
