"""Consumers of several processes: killed, stopped, recycled, frozen, crashing, alone in a container."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from restante import Admin, Client, State, fixed
from restante.core.inspector import ConsumerInfo
from restante.core.journal import JournalEntry
from tests.faults.processes import APP, COMMAND, Consuming
from tests.faults.rows import history_faults, verdict, wait_until
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import is_alive, spawn
from tests.harness.requirements import lack, require
from tests.harness.servers import RedisServer

#: Seconds a consumer may hold a message: long enough that a busy machine renews in time.
LEASE = 3.0
METHODS = pytest.mark.parametrize("method", ["fork", "spawn"])


@pytest.mark.parametrize(
    ("method", "kills"),
    [
        ("fork", 6),
        ("spawn", 3),
        pytest.param("fork", 100, marks=pytest.mark.chaos),
        pytest.param("spawn", 100, marks=pytest.mark.chaos),
    ],
)
def test_children_and_parents_killed_at_random_moments_lose_nothing(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path, method: str, kills: int
) -> None:
    queue = post.queue(name, lease=LEASE, max_attempts=1000)
    sent: list[str] = []
    parents: list[Consuming] = []
    killed: set[int] = set()
    dead_parents = 0
    with contextlib.ExitStack() as ending:

        def hire() -> Consuming:
            words = ("--processes", "3", "--concurrency", "2", "--grace", "10s")
            parents.append(ending.enter_context(Consuming(server.url, name, tmp_path, *words, method=method)))
            parents[-1].wait_consuming()
            return parents[-1]

        parent = hire()
        for number in range(kills):
            # More is sent than they can do, so that each has messages in hands when it is killed.
            until = time.monotonic() + random.uniform(0.2, 0.6)
            while time.monotonic() < until:
                sent += queue.send_many([0.03] * 10)
                time.sleep(0.05)
            if number % 4 == 3:
                parent.kill_parent()
                dead_parents += 1
                parent = hire()
            elif children := parent.children():
                victim = random.choice(children)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.add(victim)
        recovery = wait_until(lambda: view.counts(name).waiting == 0, PATIENCE, "draining")
        parent.terminate()
        assert parent.wait() == 0, parent.stderr
        for one in parents:
            one.wait_childless()
        started = [run for one in parents for run in one.said("start")]
        names = {name_ for one in parents for pid, name_ in one.started().items() if pid in killed}
    by = {(run.id, run.attempts): run.pid for run in started}

    def excused(received: JournalEntry, expired: JournalEntry) -> bool:
        """Whether its holder was killed. Of what no handler ran only the name of the holder is known."""
        pid = by.get((received.message_id, received.attempts))
        return pid in killed if pid is not None else received.consumer in names

    assert not view.counts(name).dead  # kills are far fewer than the attempts allowed
    verdict(
        "processes",
        n=len(sent),
        lost=len(set(sent) - {run.id for run in started}),
        **history_faults(view, name, [(run.id, run.attempts) for run in started], excused=excused),
        method=method,
        kills=len(killed),
        parents=dead_parents,
        expired=view.counts(name).totals["expired"],
        drained_s=round(recovery, 2),
    )


@METHODS
def test_a_terminated_parent_lets_all_children_finish_and_hand_back_the_rest_uncounted(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path, method: str
) -> None:
    queue = post.queue(name)
    sent = queue.send_many([0.05] * 400)
    words = ("--processes", "2", "--concurrency", "2", "--prefetch", "50")
    with Consuming(server.url, name, tmp_path, *words, method=method) as parent:
        wait_until(lambda: len({run.pid for run in parent.said("end")}) == 2, PATIENCE, "both at work")
        parent.terminate()
        assert parent.wait() == 0, parent.stderr
        parent.wait_childless()
        done = {run.id for run in parent.said("end")}
        assert {run.id for run in parent.said("start")} == done
        assert f"stopped: {len(done)} handled, 0 failed" in parent.stderr
    assert 0 < len(done) < 400
    counts = view.counts(name)
    assert (counts.leased, counts.ready) == (0, 400 - len(done))
    assert {message.attempts for message in view.walk(name, State.READY)} == {0}
    verdict("processes 4", n=400, lost=len(set(sent)) - len(done) - counts.ready)


def test_ctrl_c_in_a_terminal_is_one_signal_though_every_process_gets_it(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path
) -> None:
    post.queue(name).send_many([1.0] * 2)
    with Consuming(server.url, name, tmp_path, "--processes", "2", method="spawn") as parent:
        wait_until(lambda: len(parent.said("start")) == 2, PATIENCE, "both at work")
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.wait() == 0
        assert len(parent.said("end")) == 2, parent.stderr
    assert view.counts(name).totals["acked"] == 2


def test_sigterm_to_the_whole_group_is_one_signal_too(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path
) -> None:
    post.queue(name).send_many([1.0] * 2)
    with Consuming(server.url, name, tmp_path, "--processes", "2") as parent:
        wait_until(lambda: len(parent.said("start")) == 2, PATIENCE, "both at work")
        os.killpg(parent.pid, signal.SIGTERM)
        assert parent.wait() == 0
        assert len(parent.said("end")) == 2, parent.stderr
    assert view.counts(name).totals["acked"] == 2


@METHODS
def test_a_second_signal_hands_back_everything_at_once(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path, method: str
) -> None:
    post.queue(name).send_many([PATIENCE] * 20)
    words = ("--processes", "2", "--concurrency", "2", "--prefetch", "10", "--grace", "1h")
    with Consuming(server.url, name, tmp_path, *words, method=method) as parent:
        wait_until(lambda: len(parent.said("start")) == 4, PATIENCE, "four running")
        parent.terminate()
        wait_until(lambda: view.counts(name).leased == 4, PATIENCE, "the first signal's effect")
        parent.terminate()
        parent.wait()
        parent.wait_childless()
    counts = view.counts(name)
    # What had not started keeps its attempts; what was begun may have had effects, so its attempt counts.
    assert (counts.leased, counts.ready, counts.retrying) == (0, 16, 4)
    assert {message.attempts for message in view.walk(name, State.READY)} == {0}
    assert {message.attempts for message in view.walk(name, State.RETRYING)} == {1}


def test_a_third_signal_kills(server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path) -> None:
    # A frozen handler hears neither the first nor the second.
    post.queue(name).send(["freeze", 3600])
    with Consuming(server.url, name, tmp_path, "--processes", "1", "--grace", "1h") as parent:
        wait_until(lambda: bool(parent.said("start")), PATIENCE, "the freeze")

        def killed_by_one_more_signal() -> bool:
            time.sleep(0.3)  # signals that a process has not looked at are one
            if not (killing := "killing process=1" in parent.stderr):
                parent.terminate()
            return killing

        wait_until(killed_by_one_more_signal, PATIENCE, "the kill")
        assert parent.wait() == 0, parent.stderr
        parent.wait_childless()


@METHODS
def test_children_whose_parent_was_killed_finish_what_runs_and_end(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path, method: str
) -> None:
    post.queue(name).send_many([0.5] * 100)
    with Consuming(server.url, name, tmp_path, "--processes", "3", "--concurrency", "2", method=method) as parent:
        wait_until(lambda: len({run.pid for run in parent.said("start")}) == 3, PATIENCE, "all at work")
        assert len(parent.children()) == 3
        parent.kill_parent()
        parent.wait_childless()
        assert {run.id for run in parent.said("start")} == {run.id for run in parent.said("end")}
        done = len(parent.said("end"))
        assert parent.stderr.count("the parent process has ended") == 3
    counts = view.counts(name)
    assert (counts.leased, counts.ready, counts.totals["acked"]) == (0, 100 - done, done)
    assert {message.attempts for message in view.walk(name, State.READY)} == {0}


@METHODS
def test_a_killed_child_is_replaced_under_its_name_and_its_messages_are_redelivered(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path, method: str
) -> None:
    queue = post.queue(name, lease=1.0)
    poison = queue.send(["exit", 0])
    with Consuming(server.url, name, tmp_path, "--processes", "2", method=method) as parent:
        wait_until(lambda: poison in {run.id for run in parent.said("end")}, PATIENCE, "the second attempt")
        wait_until(lambda: len(parent.children()) == 2, PATIENCE, "the successor")
        assert re.search(r"crashed process=\d pid=\d+ code=9 ", parent.stderr)
        queue.send_many([0.2] * 4)
        wait_until(lambda: view.counts(name).waiting == 0, PATIENCE, "serving")

        def registered() -> ConsumerInfo:
            (found,) = [one for one in view.consumers() if name in one.queues]
            return found

        pids = set(parent.children())
        wait_until(lambda: {one.pid for one in registered().processes} == pids, PATIENCE, "the successor's entry")
        consumer = registered()
        assert (consumer.pid, consumer.concurrency) == (parent.pid, 2)
        assert [process.name for process in consumer.processes] == [f"{consumer.name}/1", f"{consumer.name}/2"]


@METHODS
def test_processes_recycled_by_the_number_of_their_messages_lose_and_double_nothing(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path, method: str
) -> None:
    sent = post.queue(name).send_many([0.02] * 300)
    words = ("--processes", "2", "--concurrency", "2", "--max-tasks", "40", "--stop-when-empty")
    with Consuming(server.url, name, tmp_path, *words, method=method) as parent:
        assert parent.wait() == 0, parent.stderr
        runs = [(run.id, run.attempts) for run in parent.said("start")]
        assert "reason=max-tasks" in parent.stderr
        assert len(parent.started()) > 2
        assert "stopped: 300 handled, 0 failed" in parent.stderr
    faults = history_faults(view, name, runs, excused=lambda *_: False)
    verdict("processes max-tasks", n=300, lost=len(set(sent) - {id for id, _ in runs}), **faults)
    assert view.counts(name).totals["expired"] == 0


def test_processes_recycled_by_their_memory_lose_and_double_nothing(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path
) -> None:
    queue = post.queue(name)
    sent = queue.send_many([["keep", 40_000_000]] * 8)
    with Consuming(server.url, name, tmp_path, "--max-memory", "200M", "--processes", "1") as parent:
        parent.wait_stderr("reason=max-memory")
        # It has stopped taking messages; those of a second round find its successor.
        wait_until(lambda: len(parent.started()) == 2, PATIENCE, "the successor")
        sent += queue.send_many([0.01] * 20)
        wait_until(lambda: view.counts(name).waiting == 0, PATIENCE, "serving")
        parent.terminate()
        assert parent.wait() == 0
        runs = [(run.id, run.attempts) for run in parent.said("start")]
    faults = history_faults(view, name, runs, excused=lambda *_: False)
    verdict("processes max-memory", n=len(sent), lost=len(set(sent) - {id for id, _ in runs}), **faults)


def test_a_handler_that_holds_the_interpreter_delays_no_other_process_and_is_killed(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path
) -> None:
    queue = post.queue(name, lease=1.0)
    frozen = queue.send(["freeze", 3600])
    patch = "import restante.core.restart_policy; restante.core.restart_policy.SILENT_AFTER = 3.0"
    with Consuming(server.url, name, tmp_path, "--processes", "2", patch=patch) as parent:
        wait_until(lambda: bool(parent.said("start")), PATIENCE, "the freeze")
        others = queue.send_many([0.01] * 50)
        wait_until(lambda: set(others) <= {run.id for run in parent.said("end")}, PATIENCE, "the others")
        # Nobody renews its lease, so the other process has its message, and its parent has it replaced.
        wait_until(lambda: frozen in {run.id for run in parent.said("end")}, PATIENCE, "the second attempt")
        parent.wait_stderr("reason=silent")
        wait_until(lambda: len(parent.started()) == 3, PATIENCE, "the successor")
        victim = parent.said("start")[0].pid
        wait_until(lambda: not is_alive(victim), PATIENCE, "the kill")


def test_a_process_whose_handler_hangs_beyond_its_time_limit_is_replaced_after_the_grace(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path
) -> None:
    queue = post.queue(name, timeout=0.5, retry=fixed(0.1))
    hanging = queue.send(["hang", 3600])
    with Consuming(server.url, name, tmp_path, "--processes", "2", "--grace", "1s") as parent:
        wait_until(lambda: bool(parent.said("start")), PATIENCE, "the hang")
        victim = parent.said("start")[0].pid
        others = queue.send_many([0.01] * 50)
        wait_until(lambda: set(others) <= {run.id for run in parent.said("end")}, PATIENCE, "the others")
        wait_until(lambda: hanging in {run.id for run in parent.said("end")}, PATIENCE, "the second attempt")
        parent.wait_stderr("reason=hung")
        wait_until(lambda: not is_alive(victim), PATIENCE, "its end")
        wait_until(lambda: len(parent.started()) == 3, PATIENCE, "the successor")
        parent.terminate()
        assert parent.wait() == 0
        runs = [(run.id, run.attempts) for run in parent.said("start")]
    faults = history_faults(view, name, runs, excused=lambda *_: False)
    verdict("processes hung", n=51, lost=len({hanging, *others} - {id for id, _ in runs}), **faults)


def test_a_crash_loop_backs_off(server: RedisServer, name: str, tmp_path: Path) -> None:
    app = APP + "\nif os.getpid() != int(os.environ.get('PARENT', '0')): os._exit(3)\n"
    with Consuming(server.url, name, tmp_path, "--processes", "1", method="spawn", app=app) as parent:
        parent.wait_stderr("crashed process=1", times=3)
        delays = [float(text) for text in re.findall(r"restart_seconds=([\d.]+)", parent.stderr)]
        assert delays[0] == 0
        assert 1 <= delays[1] < delays[2]
        parent.terminate()
        assert parent.wait() == 0


def test_process_1_of_a_container_reaps_orphans_and_stops_at_sigterm(
    server: RedisServer, post: Client, view: Admin, name: str, tmp_path: Path
) -> None:
    unshare = require("unshare")
    if (tried := subprocess.run([unshare, "--pid", "--fork", "true"], capture_output=True, text=True)).returncode:
        lack(f"this user may not make a namespace of processes: {tried.stderr.strip()}")
    (tmp_path / "app.py").write_text(APP)
    post.queue(name).send_many([["orphan", 0.1]] * 5)
    command = [sys.executable, "-c", COMMAND, "consume", "app", "--processes", "2"]
    with (tmp_path / "said").open("wb") as said:
        container = spawn(
            [unshare, "--pid", "--fork", "--kill-child", *command],
            env={**os.environ, "RESTANTE_URL": server.url, "TEST_QUEUE": name},
            cwd=tmp_path,
            stdout=said,
            stderr=said,
        )

    def children(pid: int) -> list[int]:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    try:
        wait_until(lambda: view.counts(name).totals["acked"] == 5, PATIENCE, "the handlers")
        (first,) = children(container.pid)
        # The orphans, whom it has inherited, are gone for good: what is left are its two children.
        wait_until(lambda: len(children(first)) == 2 and all(map(is_alive, children(first))), PATIENCE, "the orphans")
        assert "NSpid:" in (status := Path(f"/proc/{first}/status").read_text())
        assert re.search(r"NSpid:\s+\d+\s+1\n", status)
        os.kill(first, signal.SIGTERM)
        assert container.wait(PATIENCE) == 0, (tmp_path / "said").read_text()
    finally:
        container.kill()
        container.wait(PATIENCE)
    assert view.counts(name).leased == 0
