// The queues of RSMQ clients beside the native ones: how much each holds, and how much of it is hidden.
import { useRef } from "preact/hooks";
import { bytes, count } from "../format";
import { useKeys } from "../keys";
import { useFeed } from "../live";
import { Empty, Link } from "../parts/Marks";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import { query, rsmqApi, rsmqHref } from "../router";
import type { RsmqQueue } from "../types";

/** These queues have no journal to follow: they are read again this often, in milliseconds. */
const READ_EVERY = 2_000;

export function RsmqPage() {
  useFeed({ journal: "none" });
  const namespace = query.value.get("namespace") ?? "";
  const found = useResource<{ queues: RsmqQueue[] }>(rsmqApi("", { namespace }), READ_EVERY);
  const box = useRef<HTMLTableSectionElement>(null);
  const step = (by: number): void => {
    const all = [...(box.current?.querySelectorAll<HTMLElement>("tr") ?? [])];
    const at = all.indexOf(document.activeElement?.closest("tr") ?? document.createElement("tr"));
    all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))]?.focus();
  };
  useKeys({
    j: () => step(1),
    k: () => step(-1),
    Enter: () => document.activeElement?.closest("tr")?.querySelector<HTMLElement>("a")?.click(),
  });
  if (found.data === null) return found.error ? <Failed error={found.error} what="the RSMQ queues" /> : <Loading />;
  const { queues } = found.data;
  return (
    <>
      <header class="page-head">
        <h1>RSMQ</h1>
        <p class="muted">
          Queues kept in the key schema of RSMQ{namespace && `, in the namespace ${namespace}`}. Their clients and ours see the same.
        </p>
      </header>
      {queues.length === 0 ? (
        <Empty title="No RSMQ queues here.">
          <p>
            A client makes one, or <code>restante rsmq queue create -n orders</code> does.
          </p>
        </Empty>
      ) : (
        <div class="table-box">
          <table class="queues" aria-label="RSMQ queues">
            <thead>
              <tr>
                <th scope="col">Queue</th>
                <th scope="col" class="right">Messages</th>
                <th scope="col" class="right" title="Scheduled or leased: nobody can receive them now">Hidden</th>
                <th scope="col" class="right mid-only">Sent</th>
                <th scope="col" class="right mid-only">Received</th>
                <th scope="col" class="right mid-only" title="How long a received message is hidden">Lease</th>
                <th scope="col" class="right wide-only">Delay</th>
                <th scope="col" class="right wide-only">Largest payload</th>
              </tr>
            </thead>
            <tbody ref={box}>
              {queues.map((one) => (
                <tr key={one.queue} tabIndex={-1} data-testid="rsmq-row" data-queue={one.queue}>
                  <th scope="row">
                    <Link href={rsmqHref(one.queue, { namespace })}>{one.queue}</Link>
                  </th>
                  <td class="right num" data-testid="messages">
                    <span class={one.messages === 0 ? "zero" : ""}>{count(one.messages)}</span>
                  </td>
                  <td class="right num">
                    <span class={one.hidden === 0 ? "zero" : ""}>{count(one.hidden)}</span>
                  </td>
                  <td class="right num mid-only">{count(one.sent)}</td>
                  <td class="right num mid-only">{count(one.received)}</td>
                  <td class="right num mid-only">{count(one.lease_seconds)} s</td>
                  <td class="right num wide-only">{one.delay_seconds === 0 ? <span class="muted">–</span> : `${count(one.delay_seconds)} s`}</td>
                  <td class="right num wide-only">{one.max_payload_bytes === null ? "no limit" : bytes(one.max_payload_bytes)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
