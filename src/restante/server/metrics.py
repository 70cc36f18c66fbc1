"""The Prometheus page: counts taken at each scrape, and the histograms of the monitor."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from restante.core.inspector import Counts, Dropped
from restante.core.message import State
from restante.rabbitmq.topology import UNROUTED

if TYPE_CHECKING:
    from restante.server.rabbitmq import Seen
    from restante.server.state import ServerState


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"restante_{name}", text, labels=labels)


def _counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"restante_{name}", text, labels=labels)


class _Counts(Collector):
    def __init__(self, state: ServerState, rows: Sequence[Counts], dropped: Mapping[str, Dropped]) -> None:
        self._state = state
        self._rows = rows
        self._dropped = dropped

    def collect(self) -> Iterable[Metric]:
        depth = _gauge("messages", "Messages in a state.", "queue", "state")
        oldest = _gauge(
            "oldest_seconds",
            "Age of the next message (ready), of the first expired lease (leased), of the oldest message (dead, done).",
            "queue",
            "state",
        )
        ahead = _gauge("next_due_seconds", "Time until the first message of a state is due.", "queue", "state")
        overdue = _gauge("overdue", "Expired leases that wait to be reclaimed.", "queue")
        paused = _gauge("paused", "1 while the queue is paused.", "queue")
        polled = _gauge("last_poll_seconds", "Time since a consumer of the queue was last seen.", "queue")
        hung = _gauge("hung_handlers", "Handlers that did not end at their time limit and still run.", "queue")
        events = _counter("events", "Journal lines by event.", "queue", "event")
        lost = _counter("journal_lost", "Journal lines trimmed before a reader had read them.", "queue")
        for row in self._rows:
            for state in State:
                depth.add_metric((row.queue, state.value), getattr(row, state.value))
            oldest.add_metric((row.queue, "ready"), row.waited)
            for state, at in row.edges.items():
                age = (row.at - at).total_seconds()
                family = ahead if state in (State.SCHEDULED, State.RETRYING) else oldest
                family.add_metric((row.queue, state.value), max(0.0, -age if family is ahead else age))
            overdue.add_metric((row.queue,), row.overdue)
            paused.add_metric((row.queue,), float(row.paused))
            if row.queue in self._state.monitor.seen:
                polled.add_metric((row.queue,), self._state.monitor.seen[row.queue])
            hung.add_metric((row.queue,), float(self._state.monitor.hung[row.queue]))
            for event, count in row.totals.items():
                events.add_metric((row.queue, event), count)
            lost.add_metric((row.queue,), row.journal_lost)
        yield from (depth, oldest, ahead, overdue, paused, polled, hung, events, lost)
        unroutable = _counter(
            "unroutable", "Messages of Celery or Kombu programs dropped because no queue was bound.", "exchange"
        )
        for exchange, dropped in self._dropped.items():
            unroutable.add_metric((exchange,), dropped.count)
        yield unroutable
        yield GaugeMetricFamily(
            "restante_sweeper_lag_seconds", "Duration of the sweeper's last round.", self._state.sweeper.lag
        )
        yield GaugeMetricFamily("restante_live_clients", "Clients that follow the journal.", len(self._state.hub))
        yield GaugeMetricFamily("restante_waiting_receives", "Receives that are waiting.", self._state.waiting)
        yield GaugeMetricFamily(
            "restante_counted_seconds",
            "Time since the queues were last counted.",
            max(0.0, time.monotonic() - self._state.monitor.taken_at),
        )


class _One:
    """A registry with a single collector, as `generate_latest` requires one."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterable[Metric]:
        return self._collector.collect()


class _RabbitMQ(Collector):
    """Queues, archives and rungs of the server's RabbitMQ."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def collect(self) -> Iterable[Metric]:
        inventory = self._seen.inventory
        yield GaugeMetricFamily("restante_rabbitmq_up", "1 while RabbitMQ is reachable.", float(inventory is not None))
        if inventory is None:
            return
        held = _gauge(
            "rabbitmq_messages", "Messages in a queue on RabbitMQ, without unacknowledged ones.", "queue", "kind"
        )
        limit = _gauge("rabbitmq_limit", "Length limit of a queue on RabbitMQ.", "queue", "kind")
        kinds = {card.queue: "call" if card.answers else "subscription" for card in inventory.handlers}
        for queue, count in (inventory.waiting or {}).items():
            if count is not None:
                held.add_metric((queue, kinds[queue]), count)
        for archive in inventory.archives:
            if archive.messages is not None:
                held.add_metric((archive.queue, "archive"), archive.messages)
                if archive.limit is not None:
                    limit.add_metric((archive.queue, "archive"), archive.limit)
        for rung in inventory.rungs:
            held.add_metric((rung.queue, "rung"), rung.messages)
        held.add_metric((UNROUTED, "unrouted"), inventory.unrouted)
        yield from (held, limit)


def page(state: ServerState, rows: Sequence[Counts], dropped: Mapping[str, Dropped], seen: Seen) -> bytes:
    """The whole page in Prometheus text format."""
    own = generate_latest(_One(_Counts(state, rows, dropped)))
    far = generate_latest(_One(_RabbitMQ(seen))) if state.rabbitmq.url is not None else b""
    return own + far + generate_latest(state.monitor.registry)
