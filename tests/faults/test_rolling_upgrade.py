"""Row 32: processes of an earlier and of this version work on one queue, as during a rolling upgrade."""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from restante import Admin, Client
from tests.faults.rows import history_faults, verdict, wait_until
from tests.faults.workers import Worker, runs_of
from tests.harness.processes import CHECKOUT
from tests.harness.requirements import lack, require
from tests.harness.servers import RedisServer

#: Where the scripts and the stored form are: the earlier version is the one before their last change.
_FORM = ("src/restante/core/lua", "src/restante/core/stored.py")


def _git(*words: str) -> bytes:
    done = subprocess.run([require("git"), *words], cwd=CHECKOUT, capture_output=True)
    if done.returncode:
        lack(f"git {words[0]} ended with {done.returncode}: {done.stderr.decode()[-200:]}")
    return done.stdout


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The package as it was before the last change of its scripts or of its stored form."""
    changed = _git("log", "-1", "--format=%H", "--", *_FORM).decode().strip()
    if not changed:
        lack("this checkout has no history of its scripts")
    with tarfile.open(fileobj=io.BytesIO(_git("archive", f"{changed}~1", "src"))) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "src"


@pytest.mark.chaos
@pytest.mark.parametrize("seconds", [30, 120])
def test_consumers_of_two_versions_share_a_queue_and_lose_nothing(
    server: RedisServer, post: Client, view: Admin, name: str, earlier: Path, seconds: int
) -> None:
    """Both take each other's messages, and one of each is killed every two seconds."""
    queue = post.queue(name, lease=3.0, max_attempts=1000)
    sent: list[str] = []
    everyone: list[Worker] = []
    killed: set[str] = set()
    with ExitStack() as running:

        def hire(source: Path | None) -> Worker:
            consumer = f"{name}:{len(everyone)}"
            worker = running.enter_context(
                Worker(server.url, name, source=source, seconds=0.02, concurrency=2, client={"consumer": consumer})
            )
            everyone.append(worker)
            return worker

        at_work = {source: hire(source) for source in (None, earlier)}
        for worker in at_work.values():
            worker.wait_line("up")
        until = time.monotonic() + seconds
        next_kill = time.monotonic() + 2
        while time.monotonic() < until:
            sent += queue.send_many([len(sent) + place for place in range(5)])
            time.sleep(0.05)
            if time.monotonic() >= next_kill:
                for source, worker in list(at_work.items()):
                    worker.kill9()
                    killed.add(f"{name}:{everyone.index(worker)}")
                    at_work[source] = hire(source)
                next_kill = time.monotonic() + 2
        wait_until(lambda: Admin(post).counts(name).waiting == 0, 60, "draining")
        shares = [sum(len(worker.said("end")) for worker in everyone[place::2]) for place in range(2)]
    runs = runs_of(everyone)
    assert min(shares) > len(sent) / 10, f"one version did nearly nothing: {shares}"
    assert not view.counts(name).dead
    verdict(
        32,
        n=len(sent),
        lost=len(set(sent) - {id for id, _ in runs}),
        **history_faults(view, name, runs, excused=lambda received, _: received.consumer in killed),
        shares=shares,
    )
