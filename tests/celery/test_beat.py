"""`celery beat -S restante`: two beats on one broker, killed and restarted, send each tick once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured
from celery.schedules import BaseSchedule, crontab, solar

from restante import Admin, Client, InvalidInput, JournalEvent
from restante.celery.beat import Scheduler, timing_of
from tests.harness.deadlines import wait_until
from tests.harness.processes import PythonProcess
from tests.harness.servers import RedisServer

APP = """
from celery import Celery
from celery.schedules import crontab

app = Celery("shop", broker="{url}")
app.conf.beat_schedule = {{
    **{{f"poll {{n}}": {{"task": "shop.poll", "schedule": 1.0, "args": [n]}} for n in range(5)}},
    "nightly": {{"task": "shop.nightly", "schedule": crontab(hour=3, minute=0), "options": {{"queue": "night"}}}},
}}
app.conf.task_create_missing_queues = True
"""
BEAT = "import sys; from celery.__main__ import main; sys.argv[0] = 'celery'; sys.exit(main())"


class Sunset(solar):
    """One that needs no ephem to be made."""

    def __init__(self) -> None:
        BaseSchedule.__init__(self)


class Beat(PythonProcess):
    def __init__(self, url: str, folder: Path, scheduler: str) -> None:
        (folder / "shop_app.py").write_text(APP.format(url=url))
        words = ("-A", "shop_app:app", "beat", "-S", scheduler, "-l", "INFO", "--pidfile=")
        super().__init__(BEAT, *words, cwd=folder)


@pytest.fixture
def app(url: str) -> Iterator[Celery]:
    made = Celery("shop", broker=url, set_as_current=False)
    yield made
    made.close()


def installed() -> str:
    """The short name, where this version is installed; else the class."""
    named = [one.name for one in entry_points(group="celery.beat_schedulers")]
    return "restante" if "restante" in named else "restante.celery.beat.Scheduler"


def test_two_beats_that_are_killed_and_restarted_send_each_tick_once(url: str, post: Client, tmp_path: Path) -> None:
    beats = [Beat(url, tmp_path, installed()) for _ in range(2)]
    admin = Admin(post)

    def sent() -> list[Any]:
        entries = admin.journal("celery", limit=10_000) if "celery" in admin.queues() else []
        return [entry for entry in entries if entry.event is JournalEvent.SENT]

    try:
        for number in range(4):
            goal = len(sent()) + 10
            wait_until(partial(lambda goal: len(sent()) >= goal, goal))
            beats[number % 2].kill9()
            beats[number % 2].close()
            beats[number % 2] = Beat(url, tmp_path, installed())
    finally:
        for beat in beats:
            beat.close()
    lines = sent()
    counts = Counter(line.message_id for line in lines)
    assert set(counts.values()) == {1}
    assert {line.detail for line in lines} == {f"schedule beat:poll-{n}" for n in range(5)}
    for line in lines:
        tick = line.message_id.rpartition("@")[2].replace("Z", "+00:00")
        assert line.at.isoformat() >= tick
    found = {one.name: one for one in admin.schedules()}
    assert (found["beat:nightly"].queue, found["beat:nightly"].timing.text) == ("night", "0 3 * * *")
    message = post.queue("celery").receive()
    assert message is not None
    assert message.kind == "shop.poll"
    assert message.schedule in found
    with pytest.raises(InvalidInput, match="only celery beat can make the message"):
        admin.run_schedule("celery", "beat:poll-1")


def test_a_paused_entry_is_not_sent_until_it_is_resumed(app: Celery, post: Client) -> None:
    app.conf.beat_schedule = {"poll": {"task": "shop.poll", "schedule": 1.0}}
    beat, admin = Scheduler(app), Admin(post)
    assert 0 <= beat.tick() <= 1
    admin.pause_schedule("celery", "beat:poll")
    time.sleep(1.5)
    assert beat.tick() > 1
    assert admin.counts("celery").waiting == 0
    admin.resume_schedule("celery", "beat:poll")
    wait_until(lambda: (beat.tick(), admin.counts("celery").waiting)[1])
    # Consumers leave to the beat what only it can make.
    time.sleep(1.5)
    waiting = admin.counts("celery").waiting
    post.queue("celery").receive()
    assert admin.counts("celery").waiting == waiting
    beat.close()


def test_an_entry_that_was_removed_on_the_server_is_stored_again(app: Celery, post: Client) -> None:
    app.conf.beat_schedule = {"poll": {"task": "shop.poll", "schedule": 3600.0}}
    beat, admin = Scheduler(app), Admin(post)
    beat.tick()
    admin.delete_schedule("celery", "beat:poll")
    beat.tick()
    beat.tick()
    assert [one.name for one in admin.schedules()] == ["beat:poll"]
    beat.close()


def test_while_the_broker_is_away_a_beat_tries_again(server: RedisServer, app: Celery, post: Client) -> None:
    app.conf.beat_schedule = {"poll": {"task": "shop.poll", "schedule": 1.0}}
    app.conf.broker_transport_options = {"patience": 0.1}
    beat = Scheduler(app)
    beat.tick()
    server.kill9()
    assert beat.tick() == 1.0
    server.restart()
    wait_until(lambda: (beat.tick(), Admin(post).counts("celery").waiting)[1])
    beat.close()


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        (30.0, "every 30s"),
        (timedelta(hours=2), "every 2h"),
        (crontab(), "* * * * *"),
        (crontab(minute="*/15", hour="8-10", day_of_week="mon-fri"), "*/15 8,9,10 * * 1,2,3,4,5"),
        (crontab(0, 0, day_of_month="1,15", month_of_year="*/3"), "0 0 1,15 */3 *"),
    ],
)
def test_an_entry_s_schedule_is_that_of_celery(app: Celery, schedule: Any, text: str) -> None:
    app.conf.beat_schedule = {"a": {"task": "shop.poll", "schedule": schedule}}
    beat = Scheduler(app)
    (entry,) = beat.schedule.values()
    assert timing_of("a", entry.schedule).text == text


def test_a_crontab_is_of_the_app_s_time_zone(app: Celery) -> None:
    app.conf.timezone = "Europe/Berlin"
    app.conf.beat_schedule = {"a": {"task": "shop.poll", "schedule": crontab(hour=3, minute=0, app=app)}}
    (entry,) = Scheduler(app).schedule.values()
    assert timing_of("a", entry.schedule).tz == "Europe/Berlin"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"schedule": Sunset()}, "solar times are not known to restante"),
        ({"schedule": crontab(day_of_month="1", day_of_week="mon")}, "leave one of them out"),
        ({"schedule": 0.01}, "every must be between 0.1"),
        ({"schedule": 5.0, "options": {"countdown": 5}}, "has countdown"),
        ({"schedule": 5.0, "options": {"exchange": "x", "routing_key": "y"}}, "give it options={'queue'"),
    ],
)
def test_what_only_celery_s_own_beat_can_do_is_refused_with_the_remedy(app: Celery, entry: Any, said: str) -> None:
    app.conf.beat_schedule = {"a": {"task": "shop.poll", **entry}}
    with pytest.raises(ImproperlyConfigured) as refused:
        Scheduler(app)
    assert said in str(refused.value)


def test_a_broker_that_keeps_no_schedules_is_refused() -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.beat_schedule = {"a": {"task": "shop.poll", "schedule": 5.0}}
    with pytest.raises(ImproperlyConfigured, match="set broker_url"):
        Scheduler(app).tick()
    app.close()
