"""Celery beat on schedules of the server: `celery -A app beat -S restante`, as many as wanted, each tick sent once.

Each entry of `beat_schedule` is a schedule of the queue that its task goes to, which only beats fire: they alone can
make the task's message. A beat computes what is due as every firer does, and publishes the task; the publisher then
stores the message and the schedule's next tick by one script, which refuses if another beat has fired the tick. On
failure nothing is sent and the tick stays due: a beat logs the error and tries again, and another beat may be quicker.

| Celery | Restante |
|---|---|
| an entry of `beat_schedule` | a schedule named `beat:<entry>`, with `overlap=True` and `missed="once"` |
| crontab | cron expression in the zone of `timezone` |
| interval | every; counted from 1970-01-01 00:00 UTC and not from the last run |
| solar | refused |
"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

from celery.beat import ScheduleEntry, SchedulingError
from celery.beat import Scheduler as CeleryScheduler
from celery.exceptions import ImproperlyConfigured
from celery.schedules import crontab, solar
from celery.schedules import schedule as interval
from celery.utils.log import get_logger

from restante.celery.channel import Channel
from restante.core.errors import InvalidInput, RestanteError
from restante.core.firing import LOOK_EVERY, Fired, Firing, plan, tick
from restante.core.queue_ref import QueueRef
from restante.core.routes import QueueInfo
from restante.core.schedule import LONGEST_NAME, Definition, Page, Schedule, agenda, defining
from restante.core.scripts import ScriptCall
from restante.core.stored import encode
from restante.core.ticks import Timing, cron, every

logger = get_logger(__name__)

#: Who fires these schedules: every other firer leaves them alone.
FIRER = "celery beat"
#: Seconds until a beat tries again after an error.
AGAIN = 1.0
_UNFIT = re.compile(r"[^A-Za-z0-9._:@/+-]")
_STARS = re.compile(r"\*(/\d+)?")
#: What a schedule whose message only a beat can make stores in place of one.
_NO_FORM = encode(None)[0]


def _field(text: Any, numbers: set[int], low: int, high: int) -> str:
    """A field of a crontab: its stars as they are, anything else as the numbers that Celery has read from it."""
    if isinstance(text, str) and _STARS.fullmatch(text):
        return text
    return "*" if numbers >= set(range(low, high + 1)) else ",".join(map(str, sorted(numbers)))


def timing_of(name: str, schedule: Any) -> Timing:
    """When an entry ticks; ImproperlyConfigured with the remedy for a schedule that only Celery's own beat knows."""
    try:
        if isinstance(schedule, crontab):
            day, weekday = (
                _field(schedule._orig_day_of_month, schedule.day_of_month, 1, 31),
                _field(schedule._orig_day_of_week, schedule.day_of_week, 0, 6),
            )
            if day != "*" and weekday != "*" and not (day.startswith("*") or weekday.startswith("*")):
                raise InvalidInput("Celery matches days that fit day_of_month and day_of_week; leave one of them out")
            minute = _field(schedule._orig_minute, schedule.minute, 0, 59)
            hour = _field(schedule._orig_hour, schedule.hour, 0, 23)
            month = _field(schedule._orig_month_of_year, schedule.month_of_year, 1, 12)
            return cron(f"{minute} {hour} {day} {month} {weekday}", tz=str(schedule.tz))
        if isinstance(schedule, solar):
            raise InvalidInput("solar times are not known to restante: run it under another beat, or give a crontab")
        if type(schedule) is interval:
            return every(schedule.run_every)
        raise InvalidInput(
            f"{type(schedule).__name__} is not known to restante: give a crontab, a timedelta or seconds"
        )
    except InvalidInput as error:
        raise ImproperlyConfigured(f"beat_schedule[{name!r}]: {error}") from None


class _Planned:
    """An entry, its queue, and the definition of its schedule."""

    def __init__(self, entry: ScheduleEntry, queue: str, timing: Timing) -> None:
        self.entry, self.queue = entry, queue
        self.name = f"beat:{_UNFIT.sub('-', entry.name)}"[:LONGEST_NAME]
        self.definition = Definition(timing, 0, _NO_FORM, FIRER, "celery")
        self.stored = False


class Scheduler(CeleryScheduler):
    """The scheduler that `-S restante` names."""

    def setup_schedule(self) -> None:
        super().setup_schedule()
        self._planned: dict[str, _Planned] = {}
        for entry in self.schedule.values():
            planned = _Planned(entry, self._queue_of(entry), timing_of(entry.name, entry.schedule))
            if planned.name in self._planned:
                raise ImproperlyConfigured(f"beat_schedule: {entry.name!r} and another entry are both {planned.name}")
            self._planned[planned.name] = planned

    def _queue_of(self, entry: ScheduleEntry) -> str:
        """The queue that holds the entry's schedule, and gets its messages."""
        options = dict(entry.options)
        if late := {"countdown", "eta"} & options.keys():
            raise ImproperlyConfigured(
                f"beat_schedule[{entry.name!r}] has {late.pop()}: the task is sent when its tick is due, so change that"
            )
        task = self.app.tasks.get(entry.task)
        route = self.app.amqp.router.route(
            {**(task._get_exec_options() if task else {}), **options}, entry.task, entry.args, entry.kwargs
        )
        queue = route.get("queue") or self.app.amqp.queues[self.app.conf.task_default_queue]
        if "exchange" in options or "routing_key" in options or queue.exchange.type not in ("direct", None):
            raise ImproperlyConfigured(
                f"beat_schedule[{entry.name!r}] goes to an exchange, and restante fires into one queue: give it "
                "options={'queue': '…'}"
            )
        return str(queue.name)

    # -- the loop ------------------------------------------------------------------------------------------------

    def tick(self, *_: Any, **__: Any) -> float:
        """Fires what is due; returns the seconds until the next look."""
        try:
            return self._look()
        except (RestanteError, SchedulingError) as error:
            logger.error("beat: tries again in %g s: %s", AGAIN, error)
            return AGAIN

    def _look(self) -> float:
        channel = self.producer.channel
        if not isinstance(channel, Channel):
            raise ImproperlyConfigured("-S restante keeps its schedules on the broker: set broker_url = 'restante://…'")
        broker, wait = channel.broker, min(LOOK_EVERY, self.max_interval)
        by_queue: dict[str, list[_Planned]] = {}
        for planned in self._planned.values():
            by_queue.setdefault(planned.queue, []).append(planned)
        for queue, some in by_queue.items():
            ref = broker.run(broker.router.open(queue))
            for planned in some:
                if not planned.stored:
                    broker.run(defining(ref, planned.name, planned.definition, FIRER.replace(" ", "-")))
                    planned.stored = True
            page: Page = broker.client.connection.run(agenda(ref, [planned.name for planned in some]))
            found = {one.name: one for one in page.schedules}
            for planned in some:
                stored = found.get(planned.name)
                if stored is None:
                    planned.stored, wait = False, 0.0  # removed by hand, or the server was emptied
                elif stored.status == "active":
                    left = (stored.head.due_ms - page.now_ms) / 1000
                    if left <= 0:
                        self._fire(planned, stored, page.now_ms)
                        left = 0.0
                    wait = min(wait, left)
        return float(wait)

    def _fire(self, planned: _Planned, stored: Schedule, now: int) -> None:
        """Publishes the task of a schedule that is due, unless another beat does."""
        firing = plan(stored, now)
        ((id, _),) = firing.messages  # `missed="once"` sends one
        outcome: list[str] = []

        def fire(ref: QueueRef, info: QueueInfo, send: ScriptCall[Any]) -> ScriptCall[Any]:
            """The call that stores the message with the next tick, in place of the send."""
            *_, priority, form = send.args
            assert isinstance(form, bytes)
            definition = replace(planned.definition, priority=int(priority))
            own: Firing = firing._replace(schedule=replace(stored, definition=definition), forms=[form])
            call = tick(ref, [own], most=0)

            def parse(reply: Any) -> Fired:
                fired = call.parse(reply)
                outcome[:] = fired.statuses
                return fired

            return call._replace(parse=parse)

        entry = self.Entry(**dict(planned.entry))
        # The publisher takes both from the properties of the message, which Kombu keeps over its retries.
        entry.options = {**entry.options, "queue": planned.queue, "restante_id": id, "restante_fire": fire}
        started = time.monotonic()
        result = self.apply_async(entry, producer=self.producer, advance=False)
        if outcome == ["fired"]:
            took = time.monotonic() - started
            logger.info("Scheduler: sent %s (%s) id=%s tick=%s took=%.3f", entry.name, entry.task, result, id, took)
        else:
            logger.debug("Scheduler: another beat sent %s tick=%s", entry.name, id)

    @property
    def info(self) -> str:
        """What `celery beat` shows when it starts."""
        return f"    . schedules -> {len(self._planned) if hasattr(self, '_planned') else 0} on the broker"
