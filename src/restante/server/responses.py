"""Models of responses. They document the API, and tests check the real responses against them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from restante.core.message import JournalEvent, State
from restante.server.access import Role


class Problem(BaseModel):
    """The body of every failure."""

    error: str = Field(examples=["LeaseLost"])
    message: str
    hint: str
    ids: list[str] | None = None


class Sent(BaseModel):
    id: str
    stored: bool = Field(description="false: an earlier send had already stored this message")


class SentMany(BaseModel):
    messages: list[Sent]


class _Message(BaseModel):
    """What a message shows to its consumer and to operators."""

    id: str
    queue: str
    kind: str
    priority: int
    size: int
    attempts: int
    max_attempts: int
    replays: int
    content_type: str
    headers: dict[str, Any]
    sent_at: int
    expires_at: int | None
    unique: str | None
    batch: str | None


class ReceivedMessage(_Message):
    suspect: bool
    received_at: int
    lease_expires_at: int
    lease_token: str
    retry: str | None
    timeout_seconds: float | None
    payload: Any = None
    payload_base64: str | None = None


class Taken(BaseModel):
    now: int
    messages: list[ReceivedMessage]
    lost: list[str] = Field(description="IDs among `acks` whose lease was lost")


class Settled(BaseModel):
    settled: int


class Nacked(BaseModel):
    states: list[State]


class Extended(BaseModel):
    lease_expires_at: list[int | None] = Field(description="null: the lease was lost")
    lost: list[str]
    cancelled: list[str] = Field(description="IDs among `lost` whose message was cancelled")


class ProgressOut(BaseModel):
    fraction: float
    step: str
    at: int


class StatusOut(BaseModel):
    id: str
    queue: str
    state: State | None = Field(description="null: it has ended and was not kept, or was never sent")
    acked: bool = Field(description="a message that is gone was acked within dedup_seconds")
    attempts: int
    progress: ProgressOut | None
    result: Any
    error_class: str
    error: str


class Noted(BaseModel):
    noted: bool


class SettingsOut(BaseModel):
    lease_seconds: float
    max_attempts: int
    retry: str
    max_length: int | None
    max_dead: int | None
    max_payload_bytes: int
    max_leased: int | None
    rate: float | None
    keep_done: int
    dedup_seconds: float
    timeout_seconds: float | None
    soft_timeout_seconds: float | None
    durability: str
    journal: str
    journal_keep: int
    journal_cap: int


class Trouble(BaseModel):
    level: Literal["bad", "warn"]
    text: str


class Trends(BaseModel):
    at: list[int]
    ready: list[int]
    sent: list[float]
    acked: list[float]
    failed: list[float]


class StateCounts(BaseModel):
    scheduled: int
    ready: int
    leased: int
    retrying: int
    dead: int
    done: int


class Totals(StateCounts):
    overdue: int


class QueueCounts(BaseModel):
    queue: str
    states: StateCounts
    overdue: int
    waited_seconds: float
    paused: bool


class QueueOut(QueueCounts):
    now: int
    totals: dict[JournalEvent, int]
    settings: SettingsOut
    journal_last: int
    journal_lost: int
    trouble: list[Trouble]
    trends: Trends


class RsmqQueue(BaseModel):
    queue: str
    namespace: str
    messages: int
    hidden: int
    lease_seconds: int
    delay_seconds: int
    max_payload_bytes: int | None
    sent: int
    received: int
    created_at: int
    modified_at: int


class RsmqQueues(BaseModel):
    now: int
    queues: list[RsmqQueue]


class OneRsmqQueue(BaseModel):
    now: int
    queue: RsmqQueue


class RsmqMessageOut(BaseModel):
    id: str
    queue: str
    namespace: str
    state: Literal["ready", "scheduled", "leased"]
    size: int
    attempts: int
    sent_at: int | None
    first_received_at: int | None
    due_at: int
    preview: str
    whole: bool


class RsmqPageOut(BaseModel):
    now: int
    total: int
    messages: list[RsmqMessageOut]
    next: str | None


class WholeRsmqMessage(RsmqMessageOut):
    payload: str | None = None
    payload_base64: str | None = None


class OneRsmqMessage(BaseModel):
    now: int
    message: WholeRsmqMessage


class Overview(BaseModel):
    now: int
    totals: Totals
    queues: list[QueueOut]
    rsmq: list[RsmqQueue]


class AttemptOut(BaseModel):
    attempt: int
    received_at: int | None
    ended_at: int
    event: JournalEvent
    consumer: str
    error_class: str
    error: str


class JournalLine(BaseModel):
    queue: str
    position: int
    event: JournalEvent
    state: State | Literal["gone"]
    at: int
    message_id: str
    sent_at: int | None
    kind: str
    priority: int
    size: int
    attempts: int
    consumer: str
    due_at: int | None
    error_class: str
    detail: str


class MessageOut(_Message):
    state: State
    consumer: str
    due_at: int | None
    lease_expires_at: int | None
    received_at: int | None
    settled_at: int | None
    preview: str
    whole: bool
    error_class: str
    error: str
    progress: ProgressOut | None
    anomalies: list[str]


class WholeMessage(MessageOut):
    payload: Any = None
    payload_base64: str | None = None
    retry: str | None
    result: Any = Field(description="What a done message was acked with.")
    timeout_seconds: float | None
    history: list[AttemptOut]
    journal: list[JournalLine]
    journal_complete: bool


class MessagePage(BaseModel):
    now: int
    state: State
    total: int
    messages: list[MessageOut]
    next: str | None
    scanned: int


class OneMessage(BaseModel):
    now: int
    message: WholeMessage


class TaskOut(BaseModel):
    id: str
    queue: str
    status: Literal["running", "finished", "cancelled"]
    total: int
    seen: int
    replayed: int
    kind: str | None
    error_class: str | None
    dry_run: bool
    operator: str


class OneTask(BaseModel):
    task: TaskOut


class Tasks(BaseModel):
    tasks: list[TaskOut]


class ScheduleOut(BaseModel):
    queue: str
    name: str
    status: Literal["active", "paused", "ended"]
    cron: str | None
    every_seconds: float | None
    tz: str
    start_at: int | None
    end_at: int | None
    jitter_seconds: float
    missed: Literal["once", "skip", "all"]
    overlap: bool
    kind: str
    priority: int
    next_at: int | None = Field(description="the next tick; null: paused or ended")
    due_at: int | None = Field(description="when it fires: the tick and its jitter")
    last_at: int | None = Field(description="the last tick that fired")
    last_id: str | None
    last_state: State | None = Field(description="of the last message; null: acked or removed")
    fired: int
    skipped: int = Field(description="ticks passed over, at least")
    skipped_why: Literal["missed", "overlap"] | None
    origin: str
    ticks: list[int] | None = Field(None, description="the next ticks, without jitter")
    payload: Any = None
    payload_base64: str | None = None


class Schedules(BaseModel):
    now: int
    total: int
    schedules: list[ScheduleOut]


class OneSchedule(BaseModel):
    schedule: ScheduleOut


class RunSchedule(BaseModel):
    id: str


class DeletedSchedule(BaseModel):
    deleted: str


class DeadGroup(BaseModel):
    error_class: str
    kind: str
    count: int
    latest_at: int
    oldest_at: int
    example_id: str
    example_error: str


class DeadGroups(BaseModel):
    now: int
    total: int
    seen: int
    groups: list[DeadGroup]


class HolderProcess(BaseModel):
    name: str
    pid: int
    concurrency: int
    hung: int
    last_seen_at: int


class Holder(BaseModel):
    name: str
    queues: list[str]
    last_seen_at: int
    host: str
    pid: int
    concurrency: int
    hung: int = Field(description="handlers that did not end at their time limit and still run")
    processes: list[HolderProcess]
    held: list[MessageOut]
    held_count: int


class Consumers(BaseModel):
    now: int
    consumers: list[Holder]


class AnomalyOut(BaseModel):
    kind: str
    queue: str
    message_id: str | None
    who: str
    at: int
    count: int
    text: str


class Anomalies(BaseModel):
    now: int
    anomalies: list[AnomalyOut]


class AuditOut(BaseModel):
    id: str
    at: int
    who: str
    verb: str
    queue: str
    count: int
    detail: str


class Audit(BaseModel):
    entries: list[AuditOut]
    next: str | None


class Journal(BaseModel):
    now: int
    entries: list[JournalLine]


class HelloEvent(BaseModel):
    """Data of a `hello` event: sent at the start of a stream, and while there is nothing else to send."""

    now: int


class CountsEvent(BaseModel):
    """Data of a `counts` event: the queues whose counts changed. The data of a `journal` event are journal lines."""

    now: int
    totals: Totals
    queues: list[QueueCounts]
    gone: list[str] = Field(description="Queues that were dropped")


#: Data of server-sent events, which no route returns as its body.
EVENTS: tuple[type[BaseModel], ...] = (HelloEvent, CountsEvent)


class Page(BaseModel):
    id: str
    title: str


class Session(BaseModel):
    user: str
    roles: list[Role]
    open: bool = Field(description="no tokens are configured: any program on this machine may do everything")
    version: str
    server: str
    now: int
    pages: list[Page]


class Purged(BaseModel):
    purged: int


class Revoked(BaseModel):
    revoked: int


class Cancelled(BaseModel):
    cancelled: int


class BatchFailed(BaseModel):
    id: str
    queue: str
    ended: Literal["dead", "cancelled", "deleted", "purged", "lapsed", "lost"]
    error: str


class BatchOut(BaseModel):
    #: Home queue, slash, ID.
    id: str
    state: Literal["open", "running", "complete", "cancelled"]
    title: str
    parent: str | None
    created_at: int
    sealed_at: int | None
    ended_at: int | None
    #: Seconds since it was created, or until its end.
    age: float
    #: The share of its messages that have ended.
    fraction: float
    total: int
    pending: int
    done: int
    dead: int
    cancelled: int
    deleted: int
    purged: int
    lapsed: int
    lost: int
    #: The first messages that did not succeed.
    failed: list[BatchFailed]


class Batches(BaseModel):
    now: int
    batches: list[BatchOut]


class BatchSent(BaseModel):
    id: str
    messages: list[Sent]


class BatchResumed(BaseModel):
    missing: int


class Deleted(BaseModel):
    deleted: int


class Moved(BaseModel):
    moved: int


class Dropped(BaseModel):
    dropped: str = Field(description="Name of the queue")


class Imported(BaseModel):
    lines: int
    stored: int
    existing: int


class PipelineProgress(BaseModel):
    #: `lost`: the pipeline stopped reporting without having ended.
    state: Literal["running", "done", "failed", "lost"]
    phase: str
    done: int
    total: int
    rows: int
    rows_expected: int
    #: Whether the run also draws the report.
    report: bool
    started_at: int
    updated_at: int
    ended_at: int | None
    error: str


class Insights(BaseModel):
    available: bool
    made_at: int | None
    hint: str
    progress: PipelineProgress | None


class Subscription(BaseModel):
    subscription: str
    service: str
    handler: str
    pattern: str
    queue: str
    broker: Literal["redis", "rabbitmq"]
    retry: str
    max_attempts: int
    waiting: int | None
    leased: int | None
    dead: int | None
    sent: int | None
    acked: int | None
    nacked: int | None
    oldest_seconds: float | None
    p50_ms: float | None
    p95_ms: float | None


class Topic(BaseModel):
    way: Literal["event", "call"]
    topic: str
    subscriptions: list[Subscription]


class Archive(BaseModel):
    service: str
    broker: Literal["redis", "rabbitmq"]
    dead: int | None
    limit: int | None
    fill: float | None
    nearly_full: bool


class Rung(BaseModel):
    queue: str
    type: Literal["classic", "quorum"]
    seconds: float
    messages: int


class Topics(BaseModel):
    now: int
    topics: list[Topic]
    archives: list[Archive]
    rungs: list[Rung]
    unrouted: int
    problem: str


class DeadEvent(BaseModel):
    id: str
    subscription: str
    topic: str
    source: str
    attempts: int
    died_at: int | None
    error_class: str
    error: str
    data: str
    replays: int


class DeadEvents(BaseModel):
    service: str
    dead: list[DeadEvent]


class ReplayedEvents(BaseModel):
    replayed: int
    dry_run: bool


class Health(BaseModel):
    status: str
