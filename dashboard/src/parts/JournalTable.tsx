// Journal lines as a table, newest first. It does not use Table: a line never changes, so its row is built once and
// reused, which keeps a thousand lines that change several times a second cheap.
import type { VNode } from "preact";
import { isState } from "../lifecycle";
import { messageHref, queueHref } from "../router";
import { shortId } from "../format";
import type { JournalLine } from "../types";
import { EventMark, Link, StateMark } from "./Marks";
import { At } from "./Times";

const drawn = new WeakMap<JournalLine, VNode>();

function line(entry: JournalLine): VNode {
  const kept = drawn.get(entry);
  if (kept) return kept;
  const made = (
    <tr
      key={`${entry.queue}\n${entry.position}`}
      data-part="journal-line"
      data-position={entry.position}
      data-queue={entry.queue}
      data-event={entry.event}
    >
      <td class="num">
        <At at={entry.at} />
      </td>
      <td class="clip">
        <Link href={queueHref(entry.queue)}>{entry.queue}</Link>
      </td>
      <td>
        <EventMark event={entry.event} />
      </td>
      <td>{isState(entry.state) ? <StateMark state={entry.state} /> : <span class="muted">{entry.state}</span>}</td>
      <td class="mono">
        {entry.message_id && (
          <Link href={messageHref(entry.queue, entry.message_id)} title={entry.message_id}>
            {shortId(entry.message_id)}
          </Link>
        )}
      </td>
      <td class="clip mid-only" title={entry.kind}>{entry.kind}</td>
      <td class="right num wide-only">{entry.attempts || ""}</td>
      <td class="clip mid-only" title={entry.consumer}>{entry.consumer}</td>
      <td class="clip wide-only" title={[entry.error_class, entry.detail].filter(Boolean).join(" ")}>
        {entry.error_class && <b>{entry.error_class} </b>}
        {entry.detail}
      </td>
    </tr>
  );
  drawn.set(entry, made);
  return made;
}

/** With `one`, the lines are about one message, so that queue and ID are left out. */
export function JournalTable({ entries, one = false }: { entries: JournalLine[]; one?: boolean }) {
  return (
    <div class="table-box">
      <table class={one ? "journal journal-of-one" : "journal"}>
        <thead>
          <tr>
            <th scope="col" class="at">Time</th>
            <th scope="col">Queue</th>
            <th scope="col" class="event-col">Event</th>
            <th scope="col" class="state-col">State after</th>
            <th scope="col" class="id-col">Message</th>
            <th scope="col" class="mid-only">Kind</th>
            <th scope="col" class="right wide-only attempts-col">Attempts</th>
            <th scope="col" class="mid-only consumer-col">Consumer or operator</th>
            <th scope="col" class="wide-only">Details</th>
          </tr>
        </thead>
        <tbody>{entries.map(line)}</tbody>
      </table>
    </div>
  );
}
