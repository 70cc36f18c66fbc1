// The shapes of the HTTP API as the dashboard reads them; instants are integer milliseconds of the server's clock.
import type { EventName, Place, State } from "./lifecycle";

export type Role = "read" | "send" | "consume" | "operate";

export type Session = {
  user: string;
  roles: Role[];
  open: boolean;
  version: string;
  server: string;
  now: number;
  pages: { id: string; title: string }[];
};

export type StateCounts = Record<State, number>;
export type Totals = StateCounts & { overdue: number };

export type Settings = {
  lease_seconds: number;
  max_attempts: number;
  retry: string;
  max_length: number | null;
  max_dead: number | null;
  max_payload_bytes: number;
  max_leased: number | null;
  rate: number | null;
  keep_done: number;
  dedup_seconds: number;
  durability: string;
  journal: string;
  journal_keep: number;
  journal_cap: number;
};

export type Trouble = { level: "bad" | "warn"; text: string };
export type Trends = { at: number[]; ready: number[]; sent: number[]; acked: number[]; failed: number[] };

/** What a `counts` event tells of one queue. */
export type QueueCounts = {
  queue: string;
  states: StateCounts;
  overdue: number;
  waited_seconds: number | null;
  paused: boolean;
};

export type Queue = QueueCounts & {
  totals: Partial<Record<EventName, number>>;
  settings: Settings;
  journal_last: number;
  journal_lost: number;
  trouble: Trouble[];
  trends: Trends;
};

export type RsmqQueue = {
  queue: string;
  namespace: string;
  messages: number;
  hidden: number;
  lease_seconds: number;
  delay_seconds: number;
  max_payload_bytes: number | null;
  sent: number;
  received: number;
  created_at: number;
  modified_at: number;
};

export type RsmqMessage = {
  id: string;
  queue: string;
  namespace: string;
  state: "ready" | "scheduled" | "leased";
  size: number;
  attempts: number;
  sent_at: number | null;
  first_received_at: number | null;
  due_at: number;
  preview: string;
  whole: boolean;
};

export type WholeRsmqMessage = RsmqMessage & { payload?: string; payload_base64?: string };
export type RsmqQueuePage = { now: number; total: number; messages: RsmqMessage[]; next: string | null };
export type Queues = { now: number; totals: Totals; queues: Queue[]; rsmq?: RsmqQueue[] };
/** `gone` names queues that were dropped. */
export type Counts = { now: number; totals: Totals; queues: QueueCounts[]; gone?: string[] };

export type Message = {
  id: string;
  queue: string;
  state: State;
  kind: string;
  priority: number;
  size: number;
  attempts: number;
  max_attempts: number;
  replays: number;
  consumer: string;
  content_type: string;
  sent_at: number;
  due_at: number | null;
  lease_expires_at: number | null;
  received_at: number | null;
  settled_at: number | null;
  expires_at: number | null;
  unique: string | null;
  headers: Record<string, unknown>;
  preview: string;
  whole: boolean;
  error_class: string;
  error: string;
  anomalies: string[];
};

export type Attempt = {
  attempt: number;
  received_at: number | null;
  ended_at: number;
  event: EventName;
  consumer: string;
  error_class: string;
  error: string;
};

export type JournalEntry = {
  queue: string;
  position: number;
  event: EventName;
  state: Place;
  at: number;
  message_id: string;
  sent_at: number | null;
  kind: string;
  priority: number;
  size: number;
  attempts: number;
  consumer: string;
  /** The due_at or the lease_expires_at, by what the event sets. */
  due_at: number | null;
  error_class: string;
  detail: string;
};

export type FullMessage = Message & {
  payload?: unknown;
  payload_base64?: string;
  retry: string | null;
  history: Attempt[];
  journal: JournalEntry[];
  journal_complete: boolean;
};

export type MessagePage = {
  now: number;
  state: State;
  total: number;
  messages: Message[];
  next: string | null;
  scanned: number;
};

export type ReplayTask = {
  id: string;
  queue: string;
  status: "running" | "finished" | "cancelled";
  total: number;
  seen: number;
  replayed: number;
  kind: string | null;
  error_class: string | null;
  dry_run: boolean;
  operator: string;
};

export type DeadGroup = {
  error_class: string;
  kind: string;
  count: number;
  latest_at: number;
  oldest_at: number;
  example_id: string;
  example_error: string;
};

export type DeadGroups = { now: number; total: number; seen: number; groups: DeadGroup[] };

export type ConsumerFacts = {
  name: string;
  queues: string[];
  last_seen_at: number;
  host: string;
  pid: number;
  concurrency: number;
  held: Message[];
  held_count: number;
};

export type Anomaly = {
  kind: string;
  queue: string;
  message_id: string | null;
  who: string;
  at: number;
  count: number;
  text: string;
};

export type AuditEntry = {
  id: string;
  at: number;
  who: string;
  verb: string;
  queue: string;
  count: number;
  detail: string;
};

export type BrokerName = "redis" | "rabbitmq";

/** One handler of one service; what cannot be known is null. */
export type Subscription = {
  subscription: string;
  service: string;
  handler: string;
  pattern: string;
  queue: string;
  broker: BrokerName;
  retry: string;
  max_attempts: number;
  waiting: number | null;
  leased: number | null;
  dead: number | null;
  sent: number | null;
  acked: number | null;
  nacked: number | null;
  oldest_seconds: number | null;
  p50_ms: number | null;
  p95_ms: number | null;
};

export type Topic = { way: "event" | "call"; topic: string; subscriptions: Subscription[] };
export type Archive = {
  service: string;
  broker: BrokerName;
  dead: number | null;
  limit: number | null;
  fill: number | null;
  nearly_full: boolean;
};
export type Rung = { queue: string; type: "classic" | "quorum"; seconds: number; messages: number };
export type Topics = { now: number; topics: Topic[]; archives: Archive[]; rungs: Rung[]; unrouted: number; problem: string };

export type DeadEvent = {
  id: string;
  subscription: string;
  topic: string;
  source: string;
  attempts: number;
  died_at: number | null;
  error_class: string;
  error: string;
  data: string;
  replays: number;
};

export type DeadEvents = { service: string; dead: DeadEvent[] };
export type ReplayedEvents = { replayed: number; dry_run: boolean };

export type PipelineProgress = {
  state: "running" | "done" | "failed" | "lost";
  phase: string;
  done: number;
  total: number;
  rows: number;
  rows_expected: number;
  report: boolean;
  started_at: number;
  updated_at: number;
  ended_at: number | null;
  error: string;
};

export type Insights = {
  available: boolean;
  made_at: number | null;
  hint: string;
  progress: PipelineProgress | null;
};
