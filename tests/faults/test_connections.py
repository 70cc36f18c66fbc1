"""Rows 9-14: producers killed, replies and requests lost, connections reset, half-open, slow and cut to bytes."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import restante
from restante import Admin, Client, LeasedMessage, MessageId, State, Unavailable, Unconfirmed
from restante.core import call_retry, operations, pool
from restante.core import queue as queue_module
from restante.core.keys import QueueKeys
from restante.core.scripts import pack, with_question
from tests.faults.rows import (
    drain,
    early_deliveries,
    history_faults,
    keep_whole_journal,
    missing,
    never_run,
    places,
    verdict,
    wait_until,
)
from tests.harness.deadlines import PATIENCE, took_at_most
from tests.harness.processes import PythonProcess
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer

PRODUCER = Path(__file__).with_name("producer.py")
#: Seconds that a silent server may go unnoticed beyond the time a consumer sleeps there: the promise.
NOTICE = 5.0


@pytest.fixture
def through(proxy: FaultProxy) -> Iterator[Client]:
    """A client behind the proxy."""
    with restante.connect(proxy.url) as opened:
        yield opened


class Listener:
    """A consumer in a thread; notes what it takes and when."""

    def __init__(self, post: Client, name: str) -> None:
        self.seen: list[tuple[str, int, float]] = []
        self._queue = post.queue(name)
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for message in self._queue.consume():
            with message:
                self.seen.append((message.id, message.attempts, time.monotonic()))
            if self._over:
                return

    @property
    def ids(self) -> list[str]:
        return [id for id, _, _ in self.seen]

    @property
    def runs(self) -> list[tuple[str, int]]:
        return [(id, attempts) for id, attempts, _ in self.seen]

    def stop(self, post: Client) -> None:
        self._over = True
        post.queue(self._queue.name).send("the end")
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.chaos)])
def test_every_id_a_killed_producer_got_back_is_delivered_whole(
    server: RedisServer, post: Client, name: str, rounds: int
) -> None:
    confirmed: list[str] = []
    for number in range(rounds):
        with PythonProcess(
            PRODUCER.read_text(), json.dumps({"url": server.url, "queue": name}), forked=True
        ) as producer:
            producer.wait_line("sent")
            time.sleep(0.05 + 0.037 * (number % 5))
            producer.kill9()
            producer.wait()
            confirmed += [line.split()[1] for line in producer.lines if line.startswith("sent ") and len(line) == 31]
    queue = post.queue(name)
    seen: list[str] = []
    while taken := queue.receive_many(1000):
        for message in taken:
            assert message.payload["text"] == "x" * 200  # not torn
        queue.ack_many(taken)
        seen += [message.id for message in taken]
    verdict(9, n=len(confirmed), lost=missing(confirmed, seen), dup=len(seen) - len(set(seen)))


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_send_whose_reply_is_lost_is_stored_once(
    proxy: FaultProxy, through: Client, post: Client, view: Admin, name: str, times: int
) -> None:
    queue = through.queue(name)
    queue.send("warm")
    sent = []
    for number in range(10):
        proxy.cut_before_reply(times, matching=b"EVALSHA")
        sent.append(queue.send(number, unique=f"key {number}" if number % 2 else None))
    assert proxy.counters.cut >= 10
    counts = view.counts(name)
    assert (counts.ready, counts.totals["sent"]) == (11, 11)
    seen = drain(post, name)
    verdict(10, n=10, lost=missing(sent, seen), dup=len(seen) - 11, times=times)


@pytest.mark.parametrize("runner", ["sync", "asyncio"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_send_whose_message_was_acked_before_its_repeat_is_not_stored_again(
    proxy: FaultProxy, post: Client, view: Admin, name: str, runner: str, count: int
) -> None:
    """The reply to the first attempt is lost; before the second arrives, a consumer is done with the message."""
    acked: list[str] = []
    attempts = 0

    def first(request: bytes) -> bool:
        nonlocal attempts
        if b"EVALSHA" not in request:
            return False
        attempts += 1
        if attempts == 2:
            acked.extend(drain(post, name))
        return attempts == 1

    def blocking() -> list[MessageId]:
        with restante.connect(proxy.url) as through:
            queue = through.queue(name)
            queue.ensure_open()
            proxy.cut_before_reply(2, matching=first)
            return [queue.send("once")] if count == 1 else queue.send_many(["once"] * count)

    async def waiting() -> list[MessageId]:
        async with restante.aio.connect(proxy.url) as through:
            queue = through.queue(name)
            await queue.ensure_open()
            proxy.cut_before_reply(2, matching=first)
            return [await queue.send("once")] if count == 1 else await queue.send_many(["once"] * count)

    post.queue(name).send("warm")  # the server knows the scripts
    drain(post, name)
    sent = blocking() if runner == "sync" else asyncio.run(waiting())
    proxy.pass_through()
    assert attempts == 2
    assert acked == list(sent)
    counts = view.counts(name)
    assert (counts.waiting, counts.totals["sent"]) == (0, 1 + count)


@pytest.mark.parametrize("runner", ["sync", "asyncio"])
def test_a_question_that_travels_with_a_send_is_answered_also_when_the_send_is_repeated(
    proxy: FaultProxy, post: Client, view: Admin, name: str, runner: str
) -> None:
    question = pack(("HGET", QueueKeys(name)["queue"], "sent"))

    def blocking() -> list[Any]:
        with restante.connect(proxy.url) as through:
            queue = through.queue(name)
            queue.send("before")
            asked = through.connection.run(with_question(operations.send(queue.ref, "asked"), question))
            proxy.cut_before_reply(1, matching=b"EVALSHA")
            return [asked, through.connection.run(with_question(operations.send(queue.ref, "again"), question))]

    async def waiting() -> list[Any]:
        async with restante.aio.connect(proxy.url) as through:
            queue = through.queue(name)
            await queue.send("before")
            asked = await through.connection.run(with_question(operations.send(queue.ref, "asked"), question))
            proxy.cut_before_reply(1, matching=b"EVALSHA")
            return [asked, await through.connection.run(with_question(operations.send(queue.ref, "again"), question))]

    (first, id), (second, repeated) = blocking() if runner == "sync" else asyncio.run(waiting())
    # The first attempt of the second send was stored, and the question of its repeat counts it.
    assert (first, second) == (b"1", b"3")
    assert {id, repeated} < set(places(view, name))
    assert view.counts(name).ready == 3


def test_a_batch_whose_reply_is_lost_is_stored_once(proxy: FaultProxy, through: Client, view: Admin, name: str) -> None:
    queue = through.queue(name)
    queue.send("warm")
    proxy.cut_before_reply(3, matching=b"EVALSHA")
    ids = queue.send_many(list(range(100)))
    assert len(set(ids)) == 100
    assert set(ids) <= set(places(view, name))
    verdict("10b", n=100, dup=view.counts(name).ready - 101)


@pytest.mark.parametrize("times", [1, 5])
def test_an_ack_whose_reply_is_lost_is_one_ack_and_no_error(
    proxy: FaultProxy, through: Client, view: Admin, name: str, times: int
) -> None:
    queue = through.queue(name)
    queue.send_many(["a", "b"])
    first, second = queue.receive_many(2)
    proxy.cut_before_reply(times, matching=b"EVALSHA")
    first.ack()
    proxy.cut_before_reply(times, matching=b"EVALSHA")
    assert queue.receive_many(1, acks=[second]) == []
    counts = view.counts(name)
    assert (counts.totals["acked"], counts.waiting) == (2, 0)
    verdict("10c", n=2, times=times)


def test_a_receive_whose_reply_is_lost_comes_again_after_its_lease(
    proxy: FaultProxy, through: Client, view: Admin, name: str
) -> None:
    queue = through.queue(name, lease=0.5)
    assert queue.receive() is None  # loads the script: what is cut below is a reply that hands messages out
    sent = queue.send_many([1, 2, 3])
    proxy.cut_before_reply(1, matching=b"EVALSHA")
    seen: list[tuple[str, int]] = []
    while len({id for id, _ in seen}) < 3:
        message = queue.receive(timeout=PATIENCE)
        assert message is not None
        seen.append((message.id, message.attempts))
        message.ack()
    assert sorted(attempts for _, attempts in seen) == [1, 1, 2]
    verdict(
        "10d",
        n=3,
        lost=missing(sent, [id for id, _ in seen]),
        **history_faults(view, name, seen, excused=never_run(seen)),
    )


@pytest.mark.parametrize("times", [1, 3])
def test_a_lost_request_is_made_again(proxy: FaultProxy, through: Client, view: Admin, name: str, times: int) -> None:
    queue = through.queue(name)
    queue.send("warm")
    sent = []
    for number in range(10):
        proxy.drop_request(times, matching=b"EVALSHA")
        sent.append(queue.send(number))
    assert proxy.counters.dropped >= 10
    assert len(sent) == len(set(sent))
    assert set(sent) <= set(places(view, name))
    verdict(11, n=10, dup=view.counts(name).ready - 11, times=times)


@pytest.mark.timed
def test_a_send_the_server_never_answers_is_unconfirmed_and_safe_to_repeat(name: str) -> None:
    with RedisServer(appendonly="always") as server, restante.connect(server.url, patience=1.0) as post:
        queue = post.queue(name)
        queue.send("warm")
        with FaultProxy(server.port) as proxy, restante.connect(proxy.url, patience=1.0) as through:
            doubtful = through.queue(name)
            doubtful.send("warm too")
            proxy.cut_before_reply(1000, matching=b"EVALSHA")
            started = time.monotonic()
            with pytest.raises(Unconfirmed) as doubt:
                doubtful.send("in doubt")
            took = time.monotonic() - started
            proxy.pass_through()
            again = doubtful.send("in doubt", id=doubt.value.ids[0])
        assert drain(post, name).count(again) == 1
        server.kill9()
        # The pooled connection took the bytes before it noticed, so nobody can know; a fresh one never did.
        with pytest.raises(Unconfirmed):
            queue.send("nobody there")
        with restante.connect(server.url, patience=0.5) as late, pytest.raises(Unavailable):
            late.queue(name).send("nobody there")
    verdict("11b", n=1, max_recovery_s=took, within_s=5.0)


def test_a_send_in_doubt_stays_in_doubt_when_the_server_comes_back_unready(
    server: RedisServer, proxy: FaultProxy, name: str
) -> None:
    """The first try is stored and its reply lost; every further try hears that the server is loading."""
    with restante.connect(proxy.url, patience=1.0) as through:
        queue = through.queue(name)
        queue.send("warm")
        unready = _Unready(proxy)
        proxy.cut_before_reply(1, matching=unready.seen)
        with pytest.raises(Unconfirmed) as doubt:
            queue.send("in doubt")
        unready.over()
        assert queue.send("in doubt", id=doubt.value.ids[0]).stored is False


class _Unready:
    """After the first matching request the proxy leads to a server that answers LOADING to everything."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._right = proxy.target
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def seen(self, request: bytes) -> bool:
        if b"EVALSHA" not in request:
            return False
        self._proxy.target = self._socket.getsockname()  # runs on the proxy's loop
        return True

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with client:
                try:
                    while data := client.recv(65536):
                        client.sendall(b"-LOADING Redis is loading the dataset in memory\r\n" * data.count(b"*"))
                except OSError:
                    pass  # the client had enough

    def over(self) -> None:
        self._proxy.target = self._right
        self._proxy.reset_all()
        self._socket.close()


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.chaos)])
@pytest.mark.timed
def test_a_storm_of_resets_loses_and_doubles_nothing(
    server: RedisServer, proxy: FaultProxy, post: Client, view: Admin, name: str, seconds: float
) -> None:
    keep_whole_journal(post.queue(name, lease=3))
    # The consumer's calls fail during the storm, so that it must keep what they carried.
    with restante.connect(proxy.url) as sender, restante.connect(proxy.url, patience=0) as taker:
        queue = sender.queue(name)
        listener = Listener(taker, name)
        sent: list[str] = [queue.send("before the storm")]
        wait_until(lambda: len(listener.seen) == 1, 10, "the first message")
        until = time.monotonic() + seconds
        storm = threading.Thread(target=_storm, args=(proxy, until))
        storm.start()
        while time.monotonic() < until:
            sent.append(queue.send(len(sent)))
        storm.join()
        last = queue.send("after the storm")
        recovery = wait_until(lambda: last in listener.ids, 10, "recovery")
        # Everything has been seen and acked, also what a lost answer had leased to nobody until its lease ran out.
        wait_until(lambda: view.counts(name).waiting == 0, 20, "everything")
        listener.stop(post)
    verdict(
        12,
        n=len(sent),
        lost=missing(sent, listener.ids),
        # The consumer lives and renews: only what it never heard of may come again.
        **history_faults(view, name, listener.runs, excused=never_run(listener.runs)),
        max_recovery_s=recovery,
        within_s=2.0,
    )


def _storm(proxy: FaultProxy, until: float) -> None:
    while time.monotonic() < until:
        proxy.reset_all()
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("block", "margin"), [(0.5, 0.3), pytest.param(call_retry.BLOCK, call_retry.BLOCK_MARGIN, marks=pytest.mark.chaos)]
)
@pytest.mark.parametrize("hole", [0.0, pytest.param(30.0, marks=pytest.mark.chaos)])
@pytest.mark.timed
def test_a_half_open_connection_is_noticed_and_work_goes_on_after_it_heals(
    proxy: FaultProxy,
    post: Client,
    name: str,
    block: float,
    margin: float,
    hole: float,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hole stays open until the consumer has noticed it, and `hole` seconds at least."""
    for module in (pool, queue_module):
        monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(pool, "BLOCK_MARGIN", margin)
    with restante.connect(proxy.url) as taker, caplog.at_level(logging.WARNING, "restante"):
        # Other threads have left connections behind, which are half-open too once the hole is there.
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(taker.queue(name).receive, [0.2] * 4)) == [None] * 4
        listener = Listener(taker, name)
        post.queue(name).send("before")
        wait_until(lambda: len(listener.seen) == 1, 10, "the first message")
        wait_until(lambda: _sleeping(post), 10, "the consumer's sleep")
        proxy.blackhole()
        sent = post.queue(name).send("into the hole")
        noticed = wait_until(lambda: "receive failed" in caplog.text, 10, "the noticing")
        time.sleep(max(0.0, hole - noticed))
        assert sent not in listener.ids
        proxy.heal()
        failed = caplog.text.count("receive failed")
        recovery = wait_until(lambda: sent in listener.ids, 10, "recovery")
        if not hole:  # else a try may have begun in the hole and end after it
            # What was noticed once is not noticed again, connection by connection.
            assert caplog.text.count("receive failed") == failed
        listener.stop(post)
    took_at_most(noticed, block + NOTICE, "the noticing")
    verdict(13, n=2, max_recovery_s=recovery, within_s=2.0, noticed_s=round(noticed, 2), block_s=block, hole_s=hole)


def _sleeping(post: Client) -> bool:
    """Whether a consumer sleeps at the server."""
    clients = post.connection.command("CLIENT", "LIST").decode().splitlines()
    return any("cmd=bzpopmin" in line and "flags=b" in line for line in clients)


@pytest.mark.parametrize("socket_timeout", [0.5, pytest.param(5.0, marks=pytest.mark.chaos)])
@pytest.mark.timed
def test_a_call_on_a_half_open_connection_ends_in_a_typed_error(
    proxy: FaultProxy, name: str, socket_timeout: float
) -> None:
    with restante.connect(proxy.url, socket_timeout=socket_timeout, patience=1.0) as through:
        queue = through.queue(name)
        queue.send("warm")
        proxy.blackhole()
        started = time.monotonic()
        with pytest.raises(Unconfirmed):
            queue.send("in doubt")
        took = time.monotonic() - started
    verdict("13b", n=1, max_recovery_s=took, within_s=socket_timeout + NOTICE)


@pytest.mark.parametrize(("seconds", "count"), [(0.05, 15), pytest.param(0.5, 40, marks=pytest.mark.chaos)])
def test_latency_and_single_bytes_slow_down_and_break_nothing(
    proxy: FaultProxy, through: Client, post: Client, view: Admin, name: str, seconds: float, count: int
) -> None:
    queue = through.queue(name)
    queue.send("warm")
    drain(post, name)
    listener = Listener(through, name)
    proxy.delay(seconds, jitter=seconds / 2)
    proxy.split()
    sent = [queue.send({"n": number}, delay=0.6 if number % 3 == 0 else 0) for number in range(count)]
    wait_until(lambda: not missing(sent, listener.ids), 60 + count * seconds * 10, "delivery")
    proxy.pass_through()
    taken = listener.ids
    listener.stop(post)
    verdict(
        14,
        n=count,
        lost=missing(sent, taken),
        dup=len(taken) - len(set(taken)),
        early=early_deliveries(view, name, delayed=len(range(0, count, 3))),
    )


def test_an_early_look_at_delayed_messages_through_a_slow_line_gets_nothing(
    proxy: FaultProxy, through: Client, name: str
) -> None:
    queue = through.queue(name)
    proxy.delay(0.02)
    id = queue.send("later", delay=0.3)
    message: LeasedMessage | None = None
    while message is None:
        message = queue.receive(timeout=0.05)
    assert message.id == id
    assert message.received_at is not None
    waited = (message.received_at - message.sent_at).total_seconds()
    verdict("14b", n=1, early=int(waited < 0.3))
    assert message.state is State.LEASED
