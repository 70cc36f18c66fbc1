"""Figures for Prometheus, taken from the counts when they are asked for."""

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
    from restante.server.office import Office
    from restante.server.rabbitmq import Seen


class _Counts(Collector):
    def __init__(self, office: Office, rows: Sequence[Counts], dropped: Mapping[str, Dropped]) -> None:
        self._office = office
        self._rows = rows
        self._dropped = dropped

    def collect(self) -> Iterable[Metric]:
        depth = GaugeMetricFamily("restante_messages", "Messages in a state.", labels=("queue", "state"))
        oldest = GaugeMetricFamily(
            "restante_oldest_seconds",
            "Since: the next in line was sent (ready), the first lease ended (leased), the oldest came (dead, done).",
            labels=("queue", "state"),
        )
        ahead = GaugeMetricFamily(
            "restante_next_due_seconds", "Until the first of a state falls due.", labels=("queue", "state")
        )
        overdue = GaugeMetricFamily(
            "restante_overdue", "Leases that ended and wait to be reclaimed.", labels=("queue",)
        )
        paused = GaugeMetricFamily("restante_paused", "1 while nothing is handed out.", labels=("queue",))
        polled = GaugeMetricFamily(
            "restante_last_poll_seconds", "Since a consumer of the queue was last seen.", labels=("queue",)
        )
        events = CounterMetricFamily("restante_events", "Lines of the journal by event.", labels=("queue", "event"))
        lost = CounterMetricFamily(
            "restante_journal_lost", "Lines trimmed before a reader had them.", labels=("queue",)
        )
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
            if row.queue in self._office.sampler.seen:
                polled.add_metric((row.queue,), self._office.sampler.seen[row.queue])
            for event, count in row.totals.items():
                events.add_metric((row.queue, event), count)
            lost.add_metric((row.queue,), row.journal_lost)
        yield from (depth, oldest, ahead, overdue, paused, polled, events, lost)
        unroutable = CounterMetricFamily(
            "restante_unroutable", "Messages of Celery or Kombu programs that no queue was bound for.",
            labels=("exchange",),
        )  # fmt: skip
        for exchange, one in self._dropped.items():
            unroutable.add_metric((exchange,), one.count)
        yield unroutable
        yield GaugeMetricFamily(
            "restante_sweeper_lag_seconds", "The last round of the sweeper took so long.", self._office.sweeper.lag
        )
        yield GaugeMetricFamily("restante_live_clients", "Who follows the journal.", len(self._office.hub))
        yield GaugeMetricFamily("restante_waiting_receives", "Long polls under way.", self._office.waiting)
        yield GaugeMetricFamily(
            "restante_counted_seconds", "Since the figures of trends were taken.",
            max(0.0, time.monotonic() - self._office.sampler.taken_at),
        )  # fmt: skip


class _One:
    """A registry of one collector, which is what the library writes out."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterable[Metric]:
        return self._collector.collect()


class _RabbitMQ(Collector):
    """Queues, archives and rungs of the broker the server was told of."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def collect(self) -> Iterable[Metric]:
        inventory = self._seen.inventory
        yield GaugeMetricFamily("restante_rabbitmq_up", "1 while RabbitMQ answers.", float(inventory is not None))
        if inventory is None:
            return
        held = GaugeMetricFamily(
            "restante_rabbitmq_messages", "Messages in a queue on RabbitMQ, without those that a consumer holds.",
            labels=("queue", "kind"),
        )  # fmt: skip
        limit = GaugeMetricFamily(
            "restante_rabbitmq_limit", "Messages a queue on RabbitMQ takes before it refuses.", labels=("queue", "kind")
        )
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


def page(office: Office, rows: Sequence[Counts], dropped: Mapping[str, Dropped], seen: Seen) -> bytes:
    """The whole page."""
    own = generate_latest(_One(_Counts(office, rows, dropped)))
    far = generate_latest(_One(_RabbitMQ(seen))) if office.rabbitmq.url is not None else b""
    return own + far + generate_latest(office.sampler.registry)
