"""Counts every queue every few seconds, measures times from the journal, and detects anomalies.

Its data lives in this process and is lost with it; the data pipeline keeps lasting figures. While Redis is unavailable
the figures do not change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Histogram

from restante.core.admin import Admin
from restante.core.call_retry import away
from restante.core.errors import RestanteError
from restante.core.inspector import CONSUMER_GONE, Counts
from restante.core.journal import JournalEntry
from restante.core.message import JournalEvent, Message, State
from restante.core.settings import QueueSettings
from restante.server.journal_feed import write_event
from restante.server.serializers import counts_out, ms

if TYPE_CHECKING:
    from restante.server.state import ServerState

log = logging.getLogger("restante")

#: Seconds between two samples of the trends, and the number of samples kept.
EVERY, KEPT = 2.0, 60
#: Seconds between two counts while a client follows the counts.
WATCHED = 0.5
#: Share of the time that counting may take: with many queues the figures get slower, and not the server.
SHARE = 0.1
#: Longest pause in seconds between two counts: an overview that does not change for minutes looks broken.
LONGEST = 10.0
#: Messages per queue whose latencies are kept.
LATEST = 500
#: Received messages whose verdict is awaited, to measure the time between.
FOLLOWED = 50_000
#: Number of past anomalies kept, and the seconds for which they are shown.
REMEMBERED, SHOWN = 500, 3600.0
#: Deletions by one operator within a few seconds that count as a bulk delete.
BULK = 10
#: A burst is at least this many receives per second, and this many times the usual rate.
BURST, BURST_TIMES = 200, 10
#: A payload is large beyond this many bytes.
LARGE = 1024 * 1024
#: A message is long-running after this many leases, and at least this many seconds.
LONG_LEASES, LONG_SECONDS = 5, 300.0
#: Seconds a message may wait in a queue without consumers before the queue shows trouble.
UNATTENDED = 30.0
#: Messages per state that are checked for anomalies.
LOOKED = 200
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
_TIMED = (State.SCHEDULED.value, State.LEASED.value, State.RETRYING.value)
_FAILURES = (JournalEvent.NACKED, JournalEvent.BURIED, JournalEvent.EXPIRED)
#: Events with which a handler ends an attempt, and all that end one.
_VERDICTS = (JournalEvent.ACKED, JournalEvent.NACKED, JournalEvent.BURIED)
_ENDS = (*_VERDICTS, JournalEvent.EXPIRED, JournalEvent.RELEASED, JournalEvent.REVOKED, JournalEvent.CANCELLED)
_REMOVALS = (JournalEvent.DELETED, JournalEvent.PURGED, JournalEvent.CANCELLED)


@dataclass(slots=True)
class Anomaly:
    """An event or condition that an operator should look at."""

    kind: str
    queue: str
    at: int
    text: str
    message_id: str | None = None
    who: str = ""
    count: int = 1

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "queue": self.queue,
            "message_id": self.message_id,
            "who": self.who,
            "at": self.at,
            "count": self.count,
            "text": self.text,
        }


@dataclass(slots=True)
class Trend:
    """The last samples of one queue."""

    at: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    ready: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT))
    sent: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    acked: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    failed: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    before: tuple[int, int, int, int] | None = None

    def add(self, counts: Counts) -> None:
        at = ms(counts.at) or 0
        totals = counts.totals
        now = (at, totals["sent"], totals["acked"], sum(totals[event] for event in _FAILURES))
        if self.before is not None and at > self.before[0]:
            seconds = (at - self.before[0]) / 1000
            self.at.append(at)
            self.ready.append(counts.ready)
            rates = (
                max(0.0, round((new - old) / seconds, 2)) for new, old in zip(now[1:], self.before[1:], strict=True)
            )
            for series, rate in zip((self.sent, self.acked, self.failed), rates, strict=True):
                series.append(rate)
        self.before = now

    def as_dict(self) -> dict[str, Any]:
        return {
            "at": list(self.at),
            "ready": list(self.ready),
            "sent": list(self.sent),
            "acked": list(self.acked),
            "failed": list(self.failed),
        }


def totals_of(rows: Sequence[Counts]) -> dict[str, int]:
    """Number of messages of all queues by state."""
    totals = {state.value: sum(getattr(row, state.value) for row in rows) for state in State}
    return {**totals, "overdue": sum(row.overdue for row in rows)}


def _differ(before: dict[str, Any] | None, now: dict[str, Any]) -> bool:
    """Whether counts changed, apart from the passing of time."""
    return before is None or {**before, "waited_seconds": 0} != {**now, "waited_seconds": 0}


_NO_TREND = Trend().as_dict()


class Monitor:
    """Figures of the last minutes, as far as this process has seen them."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self.started = time.monotonic()
        self._trends: dict[str, Trend] = {}
        self._sampled_at = float("-inf")
        #: The latest counts, and when they were taken.
        self.rows: list[Counts] = []
        self.taken_at = float("-inf")
        #: Queue → seconds since a consumer was last seen there.
        self.seen: dict[str, float] = {}
        self.consumers: frozenset[str] = frozenset()
        #: Queue → handlers of its consumers that did not end at their time limit and still run.
        self.hung: Counter[str] = Counter()
        #: The latest counts as sent to clients, the number of the change, and the change as an event.
        self.sent: dict[str, dict[str, Any]] = {}
        self.number = 0
        self.change = b""
        self._watching: set[asyncio.Event] = set()
        self._stirred = asyncio.Event()
        self._past: deque[Anomaly] = deque(maxlen=REMEMBERED)
        self._received: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._usual: dict[str, float] = {}
        #: Queue → milliseconds from send to ack of the last messages.
        self._latest: dict[str, deque[float]] = {}
        self._bursting: dict[str, tuple[int, Counter[str]]] = {}
        self.registry = CollectorRegistry()
        words = ("queue",)
        self._wait = Histogram(
            "restante_wait_seconds", "From send to first receive.", words, buckets=_BUCKETS, registry=self.registry
        )
        self._run = Histogram(
            "restante_run_seconds", "From receive to verdict.", words, buckets=_BUCKETS, registry=self.registry
        )

    # -- counts --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Counts until cancelled."""
        failures = 0
        while True:
            self._stirred.clear()  # before the count: a client that starts watching during it needs another
            try:
                started = time.monotonic()
                await self.count()
                took = time.monotonic() - started
                pause, failures = min(LONGEST, max(WATCHED if self._watching else EVERY, took / SHARE)), 0
            except Exception as error:  # an unforeseen error must not end the figures
                failures += 1
                pause = away(failures)
                log.warning("count failed error=%s", error, exc_info=not isinstance(error, RestanteError))
            try:
                async with asyncio.timeout(pause):
                    await self._stirred.wait()
            except TimeoutError:
                pass

    async def count(self) -> list[Counts]:
        """Counts every queue now."""
        places = dict(self._state.hub.places)
        rows, holders = await self._state.call(self._look)
        self.rows, self.taken_at = rows, time.monotonic()
        now = max((row.at.timestamp() for row in rows), default=0.0)
        self.consumers = frozenset(name for holder in holders for name in holder.names)
        self.seen, self.hung = {}, Counter()
        for holder in holders:
            self.hung.update(holder.hung_by_queue)
            for queue in holder.queues:
                age = max(0.0, now - holder.last_seen.timestamp())
                self.seen[queue] = min(self.seen.get(queue, CONSUMER_GONE), age)
        if self.taken_at - self._sampled_at >= EVERY * 0.9:
            self._sampled_at = self.taken_at
            for row in rows:
                self._trends.setdefault(row.queue, Trend()).add(row)
            for name in self._trends.keys() - {row.queue for row in rows}:
                del self._trends[name]
        for row in rows:
            self._state.hub.check(row.queue, row.journal_last, places)
        self._compare(rows)
        return rows

    def _compare(self, rows: list[Counts]) -> None:
        """Serializes what changed since the previous count, once for all clients."""
        counts = {row.queue: counts_out(row) for row in rows}
        fresh = [row for name, row in counts.items() if _differ(self.sent.get(name), row)]
        gone = sorted(self.sent.keys() - counts.keys())
        self.sent = counts
        if fresh or gone:
            self.number += 1
            self.change = self.event(fresh, gone)
            for woken in self._watching:
                woken.set()

    def event(self, fresh: list[dict[str, Any]], gone: Sequence[str] = ()) -> bytes:
        """Serializes counts as an event."""
        now = max((ms(row.at) or 0 for row in self.rows), default=0)
        return write_event("counts", {"now": now, "totals": totals_of(self.rows), "queues": fresh, "gone": list(gone)})

    def _look(self) -> tuple[list[Counts], list[Any]]:
        admin = Admin(self._state.client, operator="server")
        return admin.all_counts(), admin.consumers()

    def trend(self, queue: str) -> dict[str, Any]:
        trend = self._trends.get(queue)
        return trend.as_dict() if trend is not None else _NO_TREND

    def latency(self, queue: str) -> dict[str, float | None]:
        """Median and 95th percentile from send to ack of the last messages that this process has seen."""
        latest = sorted(self._latest.get(queue, ()))
        if not latest:
            return {"p50_ms": None, "p95_ms": None}
        return {"p50_ms": round(latest[len(latest) // 2], 1), "p95_ms": round(latest[int(len(latest) * 0.95)], 1)}

    def watch(self) -> asyncio.Event:
        """Returns an event that is set when counts change. Pass it to `unwatch` at the end."""
        woken = asyncio.Event()
        self._watching.add(woken)
        self._stirred.set()
        return woken

    def unwatch(self, woken: asyncio.Event) -> None:
        self._watching.discard(woken)

    def trouble(self, counts: Counts) -> list[dict[str, str]]:
        """The problems of a queue, worst first."""
        problems: list[tuple[str, str]] = []
        attended = counts.queue in self.seen
        if counts.dead:
            problems.append(("bad", _number(counts.dead, "dead letter")))
        if counts.overdue:
            problems.append(("bad", f"{counts.overdue:,} overdue"))
        if counts.ready and not attended and not counts.paused and counts.waited > UNATTENDED:
            problems.append(("bad", f"no consumers, next message waiting for {_span(counts.waited)}"))
        if self.hung[counts.queue]:
            problems.append(("bad", _number(self.hung[counts.queue], "hung handler")))
        limit = counts.settings.max_length
        if limit is not None and counts.waiting >= 0.8 * limit:
            problems.append(
                ("bad" if counts.waiting >= limit else "warn", f"{counts.waiting:,} of at most {limit:,} messages")
            )
        if counts.paused:
            problems.append(("warn", "paused"))
        if counts.retrying:
            problems.append(("warn", f"{counts.retrying:,} retrying"))
        if counts.journal_lost:
            problems.append(("warn", f"{_number(counts.journal_lost, 'journal line')} trimmed before being read"))
        return [{"level": level, "text": text} for level, text in problems]

    # -- journal lines ----------------------------------------------------------------------------------

    def observe(self, lines: list[JournalEntry]) -> None:
        """Measures times and detects anomalies from new journal lines."""
        removed: dict[tuple[JournalEvent, str, str], list[JournalEntry]] = {}
        for entry in lines:
            if entry.event is JournalEvent.RECEIVED:
                self._begin(entry)
            elif entry.event in _ENDS:
                self._end(entry)
            if entry.event in _REMOVALS and entry.error_class != "Lapsed":
                removed.setdefault((entry.event, entry.queue, entry.consumer), []).append(entry)
        self._expect(lines)
        for (event, queue, who), entries in removed.items():
            if event is JournalEvent.PURGED or len(entries) >= BULK:
                self._remove(event, queue, who, entries)

    def _expect(self, lines: list[JournalEntry]) -> None:
        """Tells the sweeper when the first of the new leases ends or delays passes, per queue."""
        first: dict[str, tuple[datetime, JournalEntry]] = {}
        for entry in lines:
            due_at = entry.due_at
            if due_at is None or entry.state not in _TIMED:
                continue
            if entry.queue not in first or due_at < first[entry.queue][0]:
                first[entry.queue] = due_at, entry
        for queue, (due_at, entry) in first.items():
            # Both times are of the Redis server's clock. The age of the line makes the sweeper a little late.
            self._state.sweeper.expect(queue, (due_at - entry.at).total_seconds())

    def _begin(self, entry: JournalEntry) -> None:
        """An attempt began."""
        at = entry.at.timestamp()
        if entry.attempts == 1 and entry.sent_at is not None:
            self._wait.labels(entry.queue).observe(max(0.0, at - entry.sent_at.timestamp()))
        self._received[(entry.queue, entry.message_id)] = round(at * 1000)
        if len(self._received) > FOLLOWED:
            self._received.popitem(last=False)
        self._count_burst(entry, int(at))

    def _end(self, entry: JournalEntry) -> None:
        """An attempt ended."""
        at = entry.at.timestamp()
        begun = self._received.pop((entry.queue, entry.message_id), None)
        if entry.event is JournalEvent.ACKED and entry.sent_at is not None:
            taken = max(0.0, at - entry.sent_at.timestamp()) * 1000
            self._latest.setdefault(entry.queue, deque(maxlen=LATEST)).append(taken)
        if begun is not None and entry.event in _VERDICTS:
            self._run.labels(entry.queue).observe(max(0.0, at - begun / 1000))
        if entry.event is JournalEvent.EXPIRED:
            text = f"lease of {entry.consumer or 'a consumer'} expired on attempt {entry.attempts}"
            self._remember(Anomaly("lease_lost", entry.queue, round(at * 1000), text, entry.message_id, entry.consumer))

    def _remove(self, event: JournalEvent, queue: str, who: str, entries: list[JournalEntry]) -> None:
        kind, word = ("purge" if event is JournalEvent.PURGED else "bulk_delete"), event.value
        at = ms(entries[-1].at) or 0
        for past in self._past:
            if (past.kind, past.queue, past.who) == (kind, queue, who) and at - past.at < 5000:
                past.count += len(entries)
                past.at, past.text = at, f"{who} {word} {_number(past.count, 'message')}"
                return
        count = len(entries)
        self._remember(Anomaly(kind, queue, at, f"{who} {word} {_number(count, 'message')}", None, who, count))

    def _count_burst(self, entry: JournalEntry, second: int) -> None:
        begun, counter = self._bursting.get(entry.queue, (second, Counter()))
        if second > begun:
            total = counter.total()
            usual = self._usual.get(entry.queue, float(total))
            if total >= BURST and total > BURST_TIMES * max(1.0, usual):
                who, most = counter.most_common(1)[0]
                self._remember(
                    Anomaly(
                        "burst",
                        entry.queue,
                        begun * 1000,
                        f"{total:,} messages received within one second, {most:,} of them by {who}",
                        None,
                        who,
                        total,
                    )
                )
            self._usual[entry.queue] = 0.9 * usual + 0.1 * total
            counter = Counter()
            self._bursting[entry.queue] = (second, counter)
        elif entry.queue not in self._bursting:
            self._bursting[entry.queue] = (second, counter)
        counter[entry.consumer] += 1

    def _remember(self, anomaly: Anomaly) -> None:
        self._past.appendleft(anomaly)

    # -- stored messages ---------------------------------------------------------------------------------------

    def flags(self, message: Message, settings: QueueSettings, now: int) -> list[str]:
        """The kinds of anomalies that a stored message shows."""
        kinds = []
        limit = message.max_attempts or settings.max_attempts
        if message.state in (State.READY, State.RETRYING, State.LEASED) and limit > 1:
            spent = message.attempts - (message.state is State.LEASED)
            if spent == limit - 1:
                kinds.append("near_dead")
        if message.state is State.LEASED:
            gone = self.consumers and message.consumer not in self.consumers
            if gone or now > message.expires_ms + 1000:
                kinds.append("zombie")
            held = (now - message.received_ms) / 1000
            lease = (message.stored.lease_ms or settings.lease * 1000) / 1000
            if message.received_ms and held > max(LONG_SECONDS, LONG_LEASES * lease):
                kinds.append("long_running")
        if message.size > LARGE:
            kinds.append("large_payload")
        return kinds

    def anomalies(self, admin: Admin) -> list[dict[str, Any]]:
        """Current anomalies and those of the last hour, newest first."""
        now = admin.now_ms()
        anomalies = [past for past in (*self._past, *_unroutable(admin)) if now - past.at < SHOWN * 1000]
        for counts in admin.all_counts():
            for state in (State.LEASED, State.RETRYING, State.READY, State.DEAD):
                if not getattr(counts, state.value):
                    continue
                page = admin.messages(counts.queue, state, limit=LOOKED, preview=0)
                anomalies += self._odd(page.messages, counts.settings, now)
        for archive in self._state.rabbitmq.look().nearly_full:
            anomalies.append(
                Anomaly(
                    "archive_full",
                    archive.queue,
                    now,
                    f"{archive.messages:,} of at most {archive.limit:,} dead events. Replay or purge some: a full "
                    "archive rejects further events, which are then retried without end.",
                    None,
                    archive.service,
                    archive.messages or 0,
                )
            )
        return [anomaly.as_dict() for anomaly in sorted(anomalies, key=lambda item: item.at, reverse=True)[:REMEMBERED]]

    def _odd(self, messages: Sequence[Message], settings: QueueSettings, now: int) -> list[Anomaly]:
        anomalies = []
        for message in messages:
            for kind in self.flags(message, settings, now):
                at = message.received_ms or message.stored.sent_ms
                anomalies.append(
                    Anomaly(kind, message.queue, at, _TEXTS[kind](message, now), message.id, message.consumer)
                )
        return anomalies


def _unroutable(admin: Admin) -> list[Anomaly]:
    """Exchanges that dropped messages because no queue was bound."""
    return [
        Anomaly(
            "unroutable",
            "",
            int(dropped.at.timestamp() * 1000),
            f"exchange {exchange} has dropped {_number(dropped.count, 'message')} because no queue was bound",
            count=dropped.count,
        )
        for exchange, dropped in admin.unroutable().items()
        if dropped.at is not None
    ]


_TEXTS = {
    "near_dead": lambda message, now: (
        f"failed {_number(message.attempts - (message.state is State.LEASED), 'time')}, one attempt left"
    ),
    "zombie": lambda message, now: f"leased by {message.consumer}, which is gone or let the lease expire",
    "long_running": lambda message, now: f"leased for {_span((now - message.received_ms) / 1000)}",
    "large_payload": lambda message, now: f"payload of {message.size / 1024 / 1024:.1f} MB",
}


def _number(count: int, noun: str) -> str:
    """A count with its noun as text for the dashboard."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _span(seconds: float) -> str:
    """A duration as text for the dashboard."""
    for size, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {word}"
    return f"{seconds:.0f} s"
