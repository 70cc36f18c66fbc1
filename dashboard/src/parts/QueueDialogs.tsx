// The dialogs of a queue: send a message, import messages, change settings, move messages to another queue.
import { useState } from "preact/hooks";
import { moveIds, saveSettings } from "../actions";
import { post, postLines } from "../api";
import { parseExact } from "../exactjson";
import { count, plural } from "../format";
import { useResource } from "../resource";
import { queueApi } from "../router";
import type { Imported, Overview, Sent, SettingsOut } from "../types";
import { Modal } from "./Dialog";
import { attempt } from "./Toasts";

type Props = { queue: string; onClose: () => void; onDone: () => void };

const text = (form: FormData, name: string): string => String(form.get(name) ?? "").trim();

/** The value of a number field; null if it is empty. */
const number = (form: FormData, name: string): number | null => (text(form, name) === "" ? null : Number(text(form, name)));

/** A text area that checks while you type whether it contains JSON. */
export function JsonField({ name, label, value, rows }: { name: string; label: string; value: string; rows: number }) {
  const [wrong, setWrong] = useState("");
  return (
    <label class="field">
      <span>{label}</span>
      <textarea
        name={name}
        rows={rows}
        class="mono"
        spellcheck={false}
        data-first
        defaultValue={value}
        aria-invalid={wrong !== ""}
        onInput={(event) => {
          const problem = jsonProblem(event.currentTarget.value);
          event.currentTarget.setCustomValidity(problem);
          setWrong(problem);
        }}
      />
      <small class="problem" role="status">
        {wrong}
      </small>
    </label>
  );
}

function jsonProblem(source: string): string {
  try {
    JSON.parse(source);
    return "";
  } catch (error) {
    return `Invalid JSON: ${error instanceof Error ? error.message : String(error)}`;
  }
}

export function SendDialog({ queue, onClose, onDone }: Props) {
  const send = async (form: FormData): Promise<boolean> => {
    const sent = await attempt(async () => {
      const { id } = await post<Sent>(queueApi(queue, "/messages"), {
        payload: parseExact(text(form, "payload")),
        ...(text(form, "kind") ? { kind: text(form, "kind") } : {}),
        priority: number(form, "priority") ?? 0,
        delay_seconds: number(form, "delay") ?? 0,
      });
      return `Sent ${id} to ${queue}.`;
    });
    if (sent) onDone();
    return sent;
  };
  return (
    <Modal title={`Send a message to ${queue}`} yes="Send" wide onYes={send} onClose={onClose}>
      <JsonField name="payload" label="Payload (JSON)" value="{}" rows={8} />
      <div class="fields">
        <label class="field">
          <span>Kind</span>
          <input name="kind" type="text" autocomplete="off" />
        </label>
        <label class="field">
          <span>Priority (0–255, highest first)</span>
          <input name="priority" type="number" min="0" max="255" defaultValue="0" />
        </label>
        <label class="field">
          <span>Delay in seconds</span>
          <input name="delay" type="number" min="0" step="any" defaultValue="0" />
        </label>
      </div>
    </Modal>
  );
}

export function ImportDialog({ queue, onClose, onDone }: Props) {
  const load = async (form: FormData): Promise<boolean> => {
    const file = form.get("file");
    const lines = file instanceof File && file.size > 0 ? await file.text() : text(form, "lines");
    const imported = await attempt(async () => {
      const { stored, existing } = await postLines<Imported>(queueApi(queue, "/import"), lines);
      const known = existing > 0 ? ` ${count(existing)} existed already.` : "";
      return `Imported ${plural(stored, "message")} into ${queue}.${known}`;
    });
    if (imported) onDone();
    return imported;
  };
  return (
    <Modal title={`Import messages into ${queue}`} yes="Import" wide onYes={load} onClose={onClose}>
      <p class="muted">One JSON object per line, as in an export. Only the payload is required.</p>
      <label class="field">
        <span>File</span>
        <input name="file" type="file" accept=".ndjson,.jsonl,.json,.txt" data-first />
      </label>
      <label class="field">
        <span>Or paste lines</span>
        <textarea name="lines" rows={6} class="mono" spellcheck={false} placeholder={'{"payload": {"n": 1}}'} />
      </label>
    </Modal>
  );
}

export function MoveDialog({ queue, ids, onClose, onDone }: Props & { ids: string[] }) {
  const queues = useResource<Overview>("/api/queues");
  const others = (queues.data?.queues ?? []).map((one) => one.queue).filter((name) => name !== queue);
  const move = async (form: FormData): Promise<boolean> => {
    const moved = await moveIds(queue, ids, text(form, "to"));
    if (moved) onDone();
    return moved;
  };
  return (
    <Modal
      title={`Move ${plural(ids.length, "message")} from ${queue}?`}
      yes={`Move ${count(ids.length)}`}
      part="confirm-dialog"
      onYes={move}
      onClose={onClose}
    >
      <label class="field">
        <span>Target queue</span>
        <input name="to" type="text" required list="queues-known" autocomplete="off" data-first />
      </label>
      <datalist id="queues-known">
        {others.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
    </Modal>
  );
}

const SETTING_TEXTS: Record<keyof SettingsOut, string> = {
  lease_seconds: "Lease (seconds)",
  max_attempts: "Maximum attempts",
  retry: "Retry policy",
  max_length: "Maximum waiting messages",
  max_dead: "Maximum dead letters",
  max_payload_bytes: "Maximum payload (bytes)",
  max_leased: "Maximum leased messages",
  rate: "Maximum received per second",
  keep_done: "Done messages kept",
  dedup_seconds: "Deduplication (seconds)",
  timeout_seconds: "Time limit of handlers (seconds)",
  soft_timeout_seconds: "Soft time limit of handlers (seconds)",
  durability: "Durability",
  journal: "Journal level",
  journal_keep: "Journal lines kept",
  journal_cap: "Maximum journal lines",
};

const JOURNAL_LEVELS = ["full", "payloads", "terminal", "off"];
const TEXT_SETTINGS = new Set<string>(["retry", "durability", "journal"]);
/** Settings whose empty field means "no limit"; an empty field of any other changes nothing. */
const LIMITS = new Set<string>(["max_length", "max_dead", "max_leased", "rate", "timeout_seconds", "soft_timeout_seconds"]);

export function SettingsDialog({ queue, settings, onClose, onDone }: Props & { settings: SettingsOut }) {
  const names = Object.keys(SETTING_TEXTS) as (keyof SettingsOut)[];
  const save = async (form: FormData): Promise<boolean> => {
    const changed: Record<string, string | number | null> = {};
    for (const name of names) {
      const value = TEXT_SETTINGS.has(name) ? text(form, name) : number(form, name);
      if ((value === null && !LIMITS.has(name)) || value === settings[name]) continue;
      changed[name] = value;
    }
    if (Object.keys(changed).length === 0) return true;
    const saved = await saveSettings(queue, changed as Partial<SettingsOut>);
    if (saved) onDone();
    return saved;
  };
  return (
    <Modal title={`Settings of ${queue}`} yes="Save" wide onYes={save} onClose={onClose}>
      <div class="fields">
        {names.map((name) => (
          <label key={name} class="field">
            <span>{SETTING_TEXTS[name]}</span>
            {name === "journal" ? (
              <select name={name}>
                {JOURNAL_LEVELS.map((level) => (
                  <option key={level} value={level} selected={level === settings.journal}>
                    {level}
                  </option>
                ))}
              </select>
            ) : TEXT_SETTINGS.has(name) ? (
              <input name={name} type="text" defaultValue={String(settings[name])} />
            ) : (
              <input
                name={name}
                type="number"
                min="0"
                step="any"
                placeholder={LIMITS.has(name) ? "no limit" : ""}
                defaultValue={String(settings[name] ?? "")}
              />
            )}
          </label>
        ))}
      </div>
    </Modal>
  );
}
