"""Failed tasks in real workers: which become dead letters, with which error, and what a replay does with them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.result import AsyncResult

import restante.celery
from restante import Admin, Client, InvalidInput, Message, State
from restante.celery.requests import Unset
from tests.celery.workers import Worker, wait_for
from tests.cli.conftest import Cli
from tests.harness.clock import FrozenClock
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import RedisServer

Start = Callable[..., Worker]


def settled(admin: Admin) -> Callable[[], bool]:
    """Whether no message waits or is leased."""
    return lambda: (counts := admin.counts("celery")).waiting == 0 and counts.leased == 0


def failed(result: AsyncResult[Any], words: str) -> None:
    """Waits until the result backend has the failure."""
    wait_for(lambda: result.state == "FAILURE", PATIENCE, lambda: result.state)
    assert re.search(words, repr(result.result)), result.result


def dead(admin: Admin) -> dict[str, Message]:
    """Dead letters by task id."""
    return {message.headers["id"]: message for message in admin.walk("celery", State.DEAD)}


class TestPools:
    @pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
    def test_a_task_that_failed_for_good_is_a_dead_letter_and_runs_again_by_replay(
        self, worker: Start, admin: Admin, pool: str
    ) -> None:
        one = worker(pool=pool)
        failing = one.send("fail", 1)
        spent = one.send("auto")
        retried = one.send("flaky", 1, 0.1)
        quiet, acked, early = one.send("fail_quietly"), one.send("fail_acked"), one.send("fail_early")
        ignored, rejected = one.send("ignore"), one.send("reject", False)
        assert retried.get(timeout=PATIENCE) == "ok"
        for result in (failing, quiet, acked, early):
            failed(result, "LookupError|lamp|nobody|acked")
        failed(spent, "price")
        wait_for(settled(admin), PATIENCE)
        found = dead(admin)
        assert set(found) == {failing.id, spent.id, rejected.id}, one.stderr[-3000:]
        assert ignored.state == "PENDING"
        shown = admin.show("celery", found[failing.id].id)
        (attempt,) = shown.history
        assert (str(attempt.event), attempt.error_class) == ("buried", "LookupError")
        assert "no such lamp" in attempt.error
        assert "in fail" in attempt.error  # the traceback
        assert len(one.rows("tried")) == 5  # three of auto, two of flaky
        assert [one.error_class for one in admin.show("celery", found[spent.id].id).history] == ["KeyError"]
        assert "failed after an early ack, so there is no dead letter task=shop.fail_early" in one.stderr
        admin.replay("celery", ids=[found[failing.id].id])
        wait_for(lambda: one.app.AsyncResult(failing.id).state == "SUCCESS", PATIENCE)
        wait_for(settled(admin), PATIENCE)
        assert set(dead(admin)) == {spent.id, rejected.id}


class TestCelerysOwnEnds:
    def test_time_limits_end_as_dead_letters_and_the_worker_goes_on(self, worker: Start, admin: Admin) -> None:
        one = worker()
        hard, soft = one.send("slow"), one.send("slow_softly")
        failed(hard, "TimeLimitExceeded")
        failed(soft, "SoftTimeLimitExceeded")
        assert one.send("add", 1, 1).get(timeout=PATIENCE) == 2
        wait_for(settled(admin), PATIENCE)
        classes = {id: admin.show("celery", message.id).history[-1].error_class for id, message in dead(admin).items()}
        assert classes == {hard.id: "TimeLimitExceeded", soft.id: "SoftTimeLimitExceeded"}
        assert len(one.rows("slow")) == 1

    def test_errbacks_and_chords_run_and_the_lost_process_is_in_the_history(self, worker: Start, admin: Admin) -> None:
        one = worker(options={"delivery_limit": 2})
        task = lambda name, *args: one.app.signature(f"shop.{name}", args=args, app=one.app)  # noqa: E731
        failing = task("fail").apply_async(link_error=task("errback"))
        body = chord(group(task("fail"), task("add", 1, 1)), task("total"))
        total = body.apply_async()
        killer = one.send("die", 99)
        failed(total, "lamp|Dependency")
        assert [row["id"] for row in one.wait_rows(1, "errback")] == [failing.id]
        wait_for(lambda: killer.id in dead(admin), PATIENCE, lambda: one.stderr[-3000:])
        history = admin.show("celery", dead(admin)[killer.id].id).history
        assert [attempt.error_class for attempt in history] == ["WorkerLostError", "WorkerLostError"]

    def test_a_failed_task_goes_to_the_dead_letter_exchange_of_its_queue(self, connect: Any, worker: Start) -> None:
        one = worker(pool="solo", queues="lettered", dead_letter_to="graveyard")
        result = one.send("fail", queue="lettered")
        failed(result, "lamp")
        channel = connect().channel()
        found: list[Any] = []

        def look() -> bool:
            found.extend(filter(None, [channel.basic_get("graveyard")]))
            return bool(found)

        wait_for(look, PATIENCE)
        assert found[0].headers["id"] == result.id
        assert found[0].headers["x-death"][0]["reason"] == "rejected"
        found[0].ack()


class TestChoices:
    def test_an_app_can_do_without_and_a_task_with(self, worker: Start, admin: Admin) -> None:
        one = worker(dead_letters=False)
        failed(one.send("fail"), "lamp")
        kept = one.send("fail_kept")
        failed(kept, "kept")
        wait_for(settled(admin), PATIENCE)
        assert set(dead(admin)) == {kept.id}

    def test_an_apps_choice_of_celerys_own_setting_wins(self, worker: Start, admin: Admin) -> None:
        one = worker(conf={"task_acks_on_failure": True})
        failed(one.send("fail"), "lamp")
        failed(one.send("fail_kept"), "kept")
        wait_for(settled(admin), PATIENCE)
        assert dead(admin) == {}

    def test_with_the_url_alone_tasks_are_acked_before_they_run_and_only_what_cannot_run_is_dead(
        self, worker: Start, admin: Admin
    ) -> None:
        one = worker(install=False)
        failed(one.send("fail"), "lamp")
        one.send("reject", False, ignore_result=True)
        unknown = one.send("nobody_wrote_this", ignore_result=True)
        wait_for(lambda: len(one.rows("rejecting")) == 1, PATIENCE)
        wait_for(settled(admin), PATIENCE)
        assert set(dead(admin)) == {unknown.id}

    def test_install_keeps_every_choice_of_the_app(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Config:
            task_acks_late = False

        class Django:
            CELERY_TASK_ACKS_LATE = False
            CELERY_TASK_ACKS_ON_FAILURE = True

        monkeypatch.setitem(sys.modules, "shop_config", Config)
        by_module, by_namespace, direct, late = (Celery(name, set_as_current=False) for name in "abcd")
        by_module.config_from_object(Config)
        by_namespace.config_from_object(Django, namespace="CELERY")
        direct.conf.task_acks_late = False
        for app in (by_module, by_namespace, direct, late):
            restante.celery.install(app)
        late.conf.task_acks_late = False
        for app in (by_module, by_namespace, direct, late):
            assert app.conf.task_acks_late is False
            assert app.conf.task_reject_on_worker_lost is True
        assert by_namespace.conf.task_acks_on_failure is True
        plain = Celery("e", set_as_current=False)
        restante.celery.install(plain)
        assert plain.conf.task_acks_late is True
        assert isinstance(plain.conf.task_acks_on_failure_or_timeout, Unset)

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"dead_leters": False}, "did you mean dead_letters"),
            ({"task_acks_late": False}, r"app\.conf\.task_acks_late"),
            ({"nonsense": 1}, "known are dead_letters"),
            ({"dead_letters": "no"}, "must be True or False"),
        ],
    )
    def test_install_refuses_what_it_does_not_know(self, given: dict[str, Any], words: str) -> None:
        with pytest.raises(InvalidInput, match=words):
            restante.celery.install(Celery("x", set_as_current=False), **given)


class TestEta:
    @pytest.mark.parametrize("install", [True, False], ids=["installed", "URL alone"])
    def test_a_task_sees_the_eta_it_was_sent_with_and_is_not_early(
        self, worker: Start, server: RedisServer, install: bool
    ) -> None:
        from datetime import UTC, datetime, timedelta

        one = worker(pool="solo", install=install)
        eta = datetime.now(UTC) + timedelta(seconds=0.7)
        sent, ran_at = one.send("eta", eta=eta).get(timeout=PATIENCE)
        assert datetime.fromisoformat(sent) == eta
        assert ran_at >= eta.timestamp()
        sent, _ = one.send("eta", countdown=0.2).get(timeout=PATIENCE)
        assert sent is not None
        assert one.send("eta").get(timeout=PATIENCE)[0] is None

    def test_a_worker_whose_clock_is_an_hour_behind_runs_a_due_task_at_once(self, worker: Start) -> None:
        clock = FrozenClock()
        clock.offset(-3600)
        one = worker(pool="solo", clock=clock)
        one.send("note", "due", countdown=0.2)
        assert [row["number"] for row in one.wait_rows(1, "done")] == ["due"]


def test_the_command_line_shows_a_dead_letters_traceback(server: RedisServer, post: Client, tmp_path: Path) -> None:
    queue = post.queue("celery")
    queue.send({"order": 1})
    message = queue.receive()
    assert message is not None
    try:
        raise LookupError("no such lamp")
    except LookupError as error:
        message.bury(error=error)
    cli = Cli(server.url, tmp_path)
    shown = cli.inside("show", "celery", message.id).out
    cli.close()
    assert "Traceback (most recent call last)" in shown
    assert 'raise LookupError("no such lamp")' in shown
