// What lives beside the queues: those of RSMQ clients.
import { count } from "../format";
import { useFeed } from "../live";
import { Empty } from "../parts/Marks";
import { Failed, Loading } from "../parts/Waiting";
import { useResource } from "../resource";
import type { Queues } from "../types";

const READ_EVERY = 5_000;

export function RsmqPage() {
  useFeed({ journal: "none" });
  const found = useResource<Queues>("/api/queues", READ_EVERY);
  if (found.data === null) return found.error ? <Failed error={found.error} what="the RSMQ queues" /> : <Loading />;
  const queues = found.data.rsmq ?? [];
  return (
    <>
      <header class="page-head">
        <h1>RSMQ</h1>
        <p class="muted">Queues kept in the key schema of RSMQ, as its clients see them.</p>
      </header>
      {queues.length === 0 && <Empty title="No RSMQ queues here." />}
      {queues.length > 0 && (
        <div class="table-box">
          <table>
            <thead>
              <tr>
                <th scope="col">Queue</th>
                <th scope="col">Namespace</th>
                <th scope="col" class="right">Messages</th>
                <th scope="col" class="right">Hidden</th>
              </tr>
            </thead>
            <tbody>
              {queues.map(({ queue, namespace, messages, hidden }) => (
                <tr key={`${namespace}\n${queue}`}>
                  <th scope="row">{queue}</th>
                  <td>{namespace}</td>
                  <td class="right num">{count(messages)}</td>
                  <td class="right num">{count(hidden)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
