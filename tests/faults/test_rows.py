"""What the rows count is counted: every kind of double and of early delivery, made by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from restante import Admin, Client, LeasedMessage, Queue, State
from restante.core.journal import JournalEntry
from tests.faults import rows
from tests.faults.rows import early_deliveries, history_faults, lost_messages, never_run
from tests.harness.deadlines import wait_until
from tests.harness.servers import RedisServer, call

Run = tuple[str, int]


def doubles(view: Admin, queue: str, runs: list[Run], **told: Any) -> int:
    faults = history_faults(view, queue, runs, **told)
    assert (faults["phantom"], faults["stale"]) == (0, 0)
    return faults["dup"]


@pytest.fixture
def queue(post: Client, name: str) -> Queue:
    return post.queue(name)


def take(queue: Queue, runs: list[Run], *, lease: float = 60) -> LeasedMessage:
    """Receives a message and begins to work on it."""
    message = queue.receive(lease=lease)
    assert message is not None
    runs.append((message.id, message.attempts))
    return message


def lose(queue: Queue, view: Admin, runs: list[Run]) -> None:
    """A delivery whose lease runs out."""
    take(queue, runs, lease=0.001)
    wait_until(lambda: view.counts(queue.name).overdue == 1)


def twice_ready(server: RedisServer, queue: Queue, id: str) -> None:
    """Puts a message into the line a second time, as a script that forgets a removal would."""
    call(server.client(), "ZADD", f"restante:{{{queue.name}}}:ready", 1, id)


def test_deliveries_with_a_cause_are_no_doubles(queue: Queue, view: Admin) -> None:
    runs: list[Run] = []
    queue.send("x")
    take(queue, runs).nack(delay=0)
    lose(queue, view, runs)
    message = queue.receive()  # not begun
    assert message is not None
    message.release()
    take(queue, runs).bury(error="no")
    view.replay(queue.name)
    take(queue, runs).ack()
    assert [attempts for _, attempts in runs] == [1, 2, 3, 1]
    assert doubles(view, queue.name, runs) == 0


def test_a_delivery_while_another_holds_the_message_is_a_double(server: RedisServer, queue: Queue, view: Admin) -> None:
    runs: list[Run] = []
    id = queue.send("x")
    take(queue, runs)
    twice_ready(server, queue, id)
    take(queue, runs).ack()
    assert doubles(view, queue.name, runs) == 1
    assert doubles(view, queue.name, []) == 1  # also where no handler ran


def test_a_delivery_after_the_ack_is_a_double(server: RedisServer, post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, keep_done=10)  # what is acked stays stored
    runs: list[Run] = []
    id = queue.send("x")
    take(queue, runs).ack()
    twice_ready(server, queue, id)
    take(queue, runs)
    assert doubles(view, name, runs) == 1


def test_a_second_run_of_one_delivery_is_a_double(queue: Queue, view: Admin) -> None:
    runs: list[Run] = []
    queue.send("x")
    take(queue, runs).ack()
    assert doubles(view, queue.name, [*runs, *runs]) == 1


def test_a_message_that_was_begun_and_released_is_a_double(queue: Queue, view: Admin) -> None:
    runs: list[Run] = []
    queue.send("x")
    take(queue, runs).release()
    take(queue, runs).ack()
    assert doubles(view, queue.name, runs) == 1


def test_an_attempt_that_is_not_counted_is_a_double(server: RedisServer, queue: Queue, view: Admin) -> None:
    runs: list[Run] = []
    id = queue.send("x")
    take(queue, runs).nack(delay=0)
    key = f"restante:{{{queue.name}}}:deliveries"
    stored = call(server.client(), "HGET", key, id)
    call(server.client(), "HSET", key, id, stored.replace(b"\t1\t", b"\t0\t", 1))
    take(queue, runs).ack()
    assert runs[0] == runs[1]
    assert doubles(view, queue.name, runs) == 2  # the wrong number, and the run that repeats it


def test_a_lease_that_ran_out_is_a_double_where_nothing_excuses_it(queue: Queue, view: Admin) -> None:
    runs: list[Run] = []
    queue.send("x")
    lose(queue, view, runs)
    take(queue, runs).ack()
    assert doubles(view, queue.name, runs) == 0
    assert doubles(view, queue.name, runs, excused=never_run(runs)) == 1
    assert doubles(view, queue.name, runs[1:], excused=never_run(runs[1:])) == 0


def test_a_delivery_and_a_run_of_what_nobody_sent_are_phantoms(server: RedisServer, queue: Queue, view: Admin) -> None:
    runs: list[Run] = []
    id, client = queue.send("x"), server.client()
    for key in ("messages", "deliveries"):
        stored = call(client, "HGET", f"restante:{{{queue.name}}}:{key}", id)
        if stored is not None:
            call(client, "HSET", f"restante:{{{queue.name}}}:{key}", "planted", stored)
    twice_ready(server, queue, "planted")
    take(queue, runs)
    take(queue, runs)
    assert {run[0] for run in runs} == {id, "planted"}
    assert history_faults(view, queue.name, []) == {"dup": 0, "phantom": 1, "stale": 0}
    assert history_faults(view, queue.name, [*runs, ("another", 1)]) == {"dup": 0, "phantom": 3, "stale": 0}


def test_a_verdict_on_what_nobody_or_somebody_else_holds_is_stale(
    queue: Queue, view: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Run] = []
    queue.send("x")
    take(queue, runs).nack(delay=0)
    take(queue, runs).ack()
    assert history_faults(view, queue.name, runs) == {"dup": 0, "phantom": 0, "stale": 0}
    lines = list(rows.journal_lines(view, queue.name))

    def told(*changed: JournalEntry) -> dict[str, int]:
        monkeypatch.setattr(rows, "journal_lines", lambda *_: iter(changed))
        return history_faults(view, queue.name, [])

    acked = next(line for line in lines if line.event == "acked")
    assert told(*lines, acked) == {"dup": 0, "phantom": 0, "stale": 1}  # a second ack
    others = [replace(line, consumer="another") if line is acked else line for line in lines]
    assert told(*others) == {"dup": 0, "phantom": 0, "stale": 1}


def test_a_delivery_before_its_time_is_early(server: RedisServer, queue: Queue, view: Admin) -> None:
    id = queue.send("later", delay=3600)
    queue.send("now")
    assert queue.receive() is not None
    assert early_deliveries(view, queue.name, delayed=1) == 0
    twice_ready(server, queue, id)
    assert queue.receive() is not None
    assert early_deliveries(view, queue.name, delayed=1) == 1
    with pytest.raises(AssertionError, match="2 expected"):
        early_deliveries(view, queue.name, delayed=2)


def test_a_retry_before_its_time_is_early(server: RedisServer, queue: Queue, view: Admin) -> None:
    runs: list[Run] = []
    id = queue.send("x")
    take(queue, runs).nack(delay=3600)
    assert early_deliveries(view, queue.name) == 0
    twice_ready(server, queue, id)
    take(queue, runs)
    assert early_deliveries(view, queue.name) == 1


def test_a_message_that_is_nowhere_is_lost_unless_the_journal_says_it_is_gone(
    server: RedisServer, queue: Queue, view: Admin
) -> None:
    queue.send("acked")
    queue.receive_many(1)[0].ack()
    queue.send_many(["deleted", "purged", "purged too"], delay=3600)
    view.delete(queue.name, [next(iter(view.walk(queue.name, State.SCHEDULED))).id])
    view.purge(queue.name, [State.SCHEDULED])
    queue.send("dead")
    queue.receive_many(1)[0].bury(error="no")
    id = queue.send("taken away by hand")
    assert lost_messages(view, queue.name) == 0
    call(server.client(), "ZREM", f"restante:{{{queue.name}}}:ready", id)
    assert lost_messages(view, queue.name) == 1


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The lines that rows of this test tell, without those of other tests."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(rows, "_tell", lambda text: told.append(json.loads(text)))
    monkeypatch.setattr(rows, "uncounted", [])
    return told


def test_what_a_row_does_not_count_is_counted_from_the_journal(
    server: RedisServer, post: Client, queue: Queue, counting: list[dict[str, Any]]
) -> None:
    id = queue.send("x")
    rows.verdict(1, n=1, lost=0, phantom=0)
    assert not {"dup", "early", "stale"} & counting[0].keys()
    rows.count_from_journal(post, queue.name)
    assert counting[1] == {"row": 1, "n": 0, "dup": 0, "early": 0, "stale": 0}
    rows.verdict(2, n=1, dup=0, early=0, phantom=0, stale=0)
    call(server.client(), "ZREM", f"restante:{{{queue.name}}}:ready", id)
    with pytest.raises(AssertionError, match="'lost': 1"):
        rows.count_from_journal(post, queue.name)
    assert counting[-1] == {"row": 2, "n": 0, "lost": 1}
