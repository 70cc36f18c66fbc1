// Moves messages of an RSMQ queue into a native queue or into another RSMQ queue.
import { useState } from "preact/hooks";
import { moveRsmq } from "../actions";
import { count, plural } from "../format";
import { useResource } from "../resource";
import { rsmqApi } from "../router";
import type { Overview, RsmqQueues } from "../types";
import { Modal } from "./Dialog";

type Props = { queue: string; namespace: string; ids: string[]; onClose: () => void; onDone: () => void };

export function RsmqMoveDialog({ queue, namespace, ids, onClose, onDone }: Props) {
  const [inside, setInside] = useState(false);
  const natives = useResource<Overview>("/api/queues");
  const others = useResource<RsmqQueues>(rsmqApi("", { namespace }));
  const names = (inside ? others.data?.queues : natives.data?.queues)?.map((one) => one.queue) ?? [];
  const move = async (form: FormData): Promise<boolean> => {
    const moved = await moveRsmq(queue, namespace, ids, String(form.get("to") ?? "").trim(), inside);
    if (moved) onDone();
    return moved;
  };
  return (
    <Modal title={`Move ${plural(ids.length, "message")} from ${queue}?`} yes={`Move ${count(ids.length)}`} part="confirm-dialog" onYes={move} onClose={onClose}>
      <label class="field">
        <span>Move to</span>
        <select data-part="move-kind" onChange={(event) => setInside(event.currentTarget.value === "rsmq")}>
          <option value="native">a native queue</option>
          <option value="rsmq">another RSMQ queue</option>
        </select>
      </label>
      <label class="field">
        <span>Target queue</span>
        <input name="to" type="text" required list="rsmq-targets" autocomplete="off" data-first />
      </label>
      <datalist id="rsmq-targets">
        {names
          .filter((name) => !inside || name !== queue)
          .map((name) => (
            <option key={name} value={name} />
          ))}
      </datalist>
      <p class="muted">RSMQ does not record who has received a message. A consumer may still be processing one that you move.</p>
    </Modal>
  );
}
