"""What consumers hold, hand back, isolate and keep alive, and what a failure in between leaves behind."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import restante
from restante import Admin, Client, Consumer, Corrupt, LeasedMessage, Queue, State, Sweeper, Unavailable
from restante.core import operations, prefetch, renewal
from tests.faults.test_holding_on import events, fail, serving, settled
from tests.harness.deadlines import PATIENCE, wait_until, wait_until_async
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer, call


@pytest.fixture
def through(proxy: FaultProxy, caplog: pytest.LogCaptureFixture) -> Iterator[Client]:
    """A client behind the proxy that gives up soon."""
    caplog.set_level(logging.INFO, "restante")
    with restante.connect(proxy.url, patience=0.1) as opened:
        yield opened


def suspect(queue: Queue, view: Admin) -> str:
    """A message whose consumer died of it."""
    id = queue.send("suspect", priority=9)
    assert queue.receive(lease=0.05) is not None
    wait_until(lambda: view.counts(queue.name).overdue == 1)
    return id


@pytest.mark.parametrize("company", ["same queue", "another queue"])
def test_a_message_whose_consumer_died_runs_alone(post: Client, view: Admin, name: str, company: str) -> None:
    queues = [post.queue(name), post.queue(f"{name}-other")]
    suspect(queues[0], view)
    queues[company == "another queue"].send_many(list(range(8)))
    order: list[Any] = []

    def handle(message: LeasedMessage) -> None:
        order.append(message.payload)
        if message.payload == "suspect":
            time.sleep(0.3)  # long enough for company to come
            order.append("over")

    for queue in queues:
        queue.handler(handle)
    Consumer(queues, concurrency=4, stop_when_empty=True).run()
    assert order[:2] == ["suspect", "over"]
    assert sorted(order[2:]) == list(range(8))


def test_a_slow_handler_leaves_the_other_messages_to_others(post: Client, name: str) -> None:
    queue = post.queue(name)
    queue.send_many(list(range(50)))
    begun, go = threading.Event(), threading.Event()

    @queue.handler
    def slow(message: LeasedMessage) -> None:
        begun.set()
        go.wait(PATIENCE)

    with serving(Consumer([queue])):
        wait_until(begun.is_set)
        left = len(queue.receive_many(50))
        go.set()
    assert left >= 45


def test_both_queues_of_a_consumer_are_served_though_one_is_never_empty(post: Client, name: str) -> None:
    busy, calm = post.queue(name), post.queue(f"{name}-calm")
    over = threading.Event()

    @busy.handler
    def again(message: LeasedMessage) -> None:
        if not over.is_set():
            busy.send("again")

    @calm.handler
    def once(message: LeasedMessage) -> None:
        over.set()

    busy.send_many(list(range(20)))
    with serving(Consumer([busy, calm])):
        calm.send("x")
        try:
            wait_until(over.is_set)
        finally:
            over.set()


def test_a_kind_without_a_handler_fails_though_all_handlers_are_coroutines(
    post: Client, view: Admin, name: str
) -> None:
    queue = post.queue(name, max_attempts=1)

    @queue.handler(kind="order")
    async def order(message: LeasedMessage) -> None: ...

    unknown = queue.send("x", kind="refund")
    Consumer([queue], stop_when_empty=True).run()
    assert view.show(name, unknown).history[-1].error_class == "NoHandler"


def test_a_message_goes_to_the_handler_of_its_kind(post: Client, view: Admin, name: str) -> None:
    queue, strict = post.queue(name), post.queue(f"{name}-strict", max_attempts=1)
    seen: list[tuple[str, str]] = []

    @queue.handler(kind="order")
    def order(message: LeasedMessage) -> None:
        seen.append(("order", message.kind))

    @queue.handler
    def other(message: LeasedMessage) -> None:
        seen.append(("other", message.kind))

    @strict.handler(kind="order")
    def never(message: LeasedMessage) -> None:
        raise AssertionError("not its kind")

    for kind in ("order", "refund", ""):
        queue.send("x", kind=kind)
    unknown = strict.send("x", kind="refund")
    Consumer([queue, strict], stop_when_empty=True).run()
    assert sorted(seen) == [("order", "order"), ("other", ""), ("other", "refund")]
    shown = view.show(strict.name, unknown)
    assert shown.state is State.DEAD
    assert "no handler for kind 'refund'" in shown.history[0].error


def test_a_coroutine_that_fails_is_nacked(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, retry=restante.fixed(3600))
    id = queue.send("x")

    @queue.handler
    async def failing(message: LeasedMessage) -> None:
        raise RuntimeError("in a coroutine")

    Consumer([queue], stop_when_empty=True).run()
    assert events(view, name, id) == ["sent", "received", "nacked"]
    assert "in a coroutine" in view.show(name, id).history[0].error


def test_a_consumer_that_ends_has_acked_what_it_handled(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, lease=3600)
    for start in (0, 1000, 2000):
        queue.send_many(list(range(start, start + 1000)))
    consumer: Consumer

    @queue.handler
    def quick(message: LeasedMessage) -> None:
        # Late enough that the consumer knows that its handler is quick, so that acks wait for the next receive.
        if message.payload == 2500:
            consumer.stop()

    consumer = Consumer([queue])
    consumer.run()
    counts = view.counts(name)
    assert (counts.leased, counts.ready, counts.totals["acked"]) == (0, 3000 - consumer.handled, consumer.handled)


# -- consume() -------------------------------------------------------------------------------------------------------


def test_acks_of_a_loop_ride_again_when_their_receive_fails(
    proxy: FaultProxy, through: Client, view: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = through.queue(name, lease=3600)
    for start in (0, 1000, 2000):
        queue.send_many(list(range(start, start + 1000)))

    def heal() -> None:
        wait_until(lambda: "receive failed" in caplog.text)
        proxy.pass_through()

    healing = threading.Thread(target=heal)
    seen = []
    for message in queue.consume(stop_when_empty=True):
        with message:
            seen.append(message.payload)
            if message.payload == 2000:
                fail(proxy, operations.RECEIVE)
                healing.start()
    healing.join()
    assert sorted(seen) == list(range(3000))
    assert settled(view, name), view.counts(name)


def test_a_loop_that_is_left_hands_back_what_it_took_ahead(
    post: Client, view: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch.Prefetch, "room", 5)
    queue = post.queue(name)
    queue.send_many(list(range(8)))
    for message in queue.consume():
        message.ack()
        break
    counts = view.counts(name)
    assert (counts.ready, counts.leased, counts.totals["acked"]) == (7, 0, 1)
    assert {message.attempts for message in view.walk(name, State.READY)} == {0}


def test_an_interrupt_ends_the_loop_and_its_attempt_counts(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name)
    id = queue.send("x")

    def loop() -> None:
        for message in queue.consume(stop_when_empty=True):
            with message:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop()
    assert events(view, name, id) == ["sent", "received", "nacked"]
    assert view.show(name, id).attempts == 1


@pytest.mark.parametrize("verb", ["ack", "nack", "bury", "release"])
def test_a_verdict_that_failed_can_be_given_again(
    proxy: FaultProxy, through: Client, view: Admin, name: str, verb: str
) -> None:
    queue = through.queue(name)
    id = queue.send("x")
    message = queue.receive()
    assert message is not None
    fail(proxy, {"ack": operations.ACK, "nack": operations.NACK, "bury": operations.BURY}.get(verb, operations.RELEASE))
    with pytest.raises(Unavailable):
        getattr(message, verb)()
    assert not message.settled
    proxy.pass_through()
    getattr(message, verb)()
    assert len(events(view, name, id)) == 3
    assert view.counts(name).leased == 0


# -- renewal and sweeping --------------------------------------------------------------------------------------------


def test_a_short_lease_beside_a_long_one_is_renewed_in_time(
    post: Client, view: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "RENEW_AFTER", 0.01)
    monkeypatch.setattr(renewal, "LONGEST_TICK", 100 * PATIENCE)
    queue = post.queue(name)
    begun, go = threading.Event(), threading.Event()

    @queue.handler
    def handle(message: LeasedMessage) -> None:
        if message.payload == "long":
            begun.set()
            go.wait(2 * PATIENCE)
        else:
            wait_until(lambda: "extended" in events(view, name, message.id))

    consumer = Consumer([queue], concurrency=2)
    with serving(consumer):
        queue.send("long", lease=1_000_000)
        wait_until(begun.is_set)
        queue.send("short", lease=60)
        wait_until(lambda: consumer.handled + consumer.failed == 1, timeout=2 * PATIENCE)
        go.set()
    assert (consumer.handled, consumer.failed) == (2, 0)


def test_leases_are_renewed_while_another_queue_cannot_be_reached(
    proxy: FaultProxy, view: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cluster that has lost one of its nodes."""
    monkeypatch.setattr(renewal, "RENEW_AFTER", 0.01)
    away = f"{name}-away"
    sha = operations.EXTEND.sha
    proxy.drop_request(1_000_000, matching=lambda request: away.encode() in request and sha in request)
    begun, go = threading.Event(), threading.Event()
    with restante.connect(proxy.url, patience=100 * PATIENCE) as post:
        first, second = post.queue(away, lease=60), post.queue(name, lease=60)

        @first.handler
        def held(message: LeasedMessage) -> None:
            begun.set()
            go.wait(2 * PATIENCE)

        @second.handler
        def renewed(message: LeasedMessage) -> None:
            wait_until(lambda: "extended" in events(view, name, message.id))

        consumer = Consumer([first, second], concurrency=2)
        with serving(consumer):
            first.send("x")
            wait_until(begun.is_set)
            second.send("x")
            wait_until(lambda: consumer.handled + consumer.failed == 1, timeout=2 * PATIENCE)
            go.set()
        assert (consumer.handled, consumer.failed) == (2, 0)


async def test_consume_in_asyncio_renews_its_leases(
    server: RedisServer, view: Admin, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "RENEW_AFTER", 0.01)
    async with restante.aio.connect(server.url) as post:
        queue = post.queue(name, lease=60, max_attempts=1)
        id = await queue.send("x")
        async for message in queue.consume(stop_when_empty=True):
            async with message:
                await wait_until_async(lambda: "extended" in events(view, name, id))
    assert [event for event in events(view, name, id) if event != "extended"] == ["sent", "received", "acked"]


def test_one_round_of_a_sweeper_moves_everything_that_is_due(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name)
    for _ in range(2):
        queue.send_many(list(range(1000)), delay=0.001)
    time.sleep(0.01)
    assert Sweeper(post, (name,)).run_once().promoted == 2000
    assert view.counts(name).ready == 2000


# -- what a failure leaves behind ------------------------------------------------------------------------------------


class Interrupted(Exception):
    """Raised by a signal, as Celery's time limits are."""


def test_a_call_that_is_interrupted_leaves_no_answer_for_the_next_one(
    proxy: FaultProxy, through: Client, name: str
) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    queue, looking = through.queue(name), Admin(through)
    queue.send("warm")
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        proxy.delay(3)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Interrupted):
            queue.send("interrupted")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    proxy.pass_through()
    id = queue.send("afterwards")
    assert looking.show(name, id).payload == "afterwards"
    assert looking.counts(name).ready >= 2
    assert {"afterwards", "warm"} <= {message.payload for message in queue.receive_many(10)}


def test_a_queue_that_cannot_be_counted_does_not_mix_the_counts_of_others() -> None:
    with RedisServer() as server, restante.connect(server.url) as post:
        view, planted = Admin(post), "restante:{b}:ready"
        for size, name in enumerate("abcd", 1):
            post.queue(name).send_many([0] * size)
            assert view.counts(name).ready == size
        call(server.client(), "RENAME", planted, "aside")
        call(server.client(), "SET", planted, "planted")
        with pytest.raises(Corrupt, match=planted):
            view.all_counts()
        call(server.client(), "RENAME", "aside", planted)
        acts: list[Callable[[], list[int]]] = [
            lambda: [counts.ready for counts in view.all_counts()],
            lambda: [view.counts(name).ready for name in "abcd"],
        ]
        assert [act() for act in acts] == [[1, 2, 3, 4]] * 2


def test_an_action_that_the_audit_missed_was_done_all_the_same(
    proxy: FaultProxy, through: Client, view: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    through.queue(name).send("x")
    proxy.drop_request(1_000_000, matching=b"restante:audit")
    Admin(through).pause(name)
    assert view.counts(name).paused
    assert "audit missed verb=pause" in caplog.text
