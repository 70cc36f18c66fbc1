"""A consumer learns by its renewal that an operator has stopped its message."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from restante import Admin, Client, Consumer, LeasedMessage
from restante.core import renewal
from restante.core.holder import LeaseHolder
from tests.harness.deadlines import wait_until


@pytest.fixture(autouse=True)
def renewed_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "RENEW_AFTER", 0.01)


@contextmanager
def serving(consumer: Consumer) -> Iterator[None]:
    """The consumer in a thread of its own, stopped at the end."""
    thread = threading.Thread(target=consumer.run)
    thread.start()
    try:
        yield
    finally:
        consumer.stop()
        thread.join()


def test_a_running_handler_learns_that_its_message_was_cancelled(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, lease=60)
    seen: list[tuple[bool, bool]] = []

    @queue.handler
    def slow(message: LeasedMessage) -> None:
        view.cancel(name, [message.id])
        wait_until(lambda: message.cancelled)
        seen.append((message.cancelled, message.lease_lost))

    queue.send("x")
    consumer = Consumer([queue])
    with serving(consumer):
        wait_until(lambda: consumer.handled + consumer.failed == 1)
    assert seen == [(True, True)]
    assert view.counts(name).waiting == 0


def test_a_running_handler_learns_that_its_message_was_taken_back(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, lease=60)
    runs: list[tuple[int, bool]] = []

    @queue.handler
    def slow(message: LeasedMessage) -> None:
        if message.attempts == 1:
            view.revoke(name, [message.id])
            wait_until(lambda: message.lease_lost)
        runs.append((message.attempts, message.cancelled))

    queue.send("x")
    consumer = Consumer([queue])
    with serving(consumer):
        wait_until(lambda: consumer.handled + consumer.failed == 2)
    assert runs == [(1, False), (2, False)]
    assert view.counts(name).waiting == 0


def test_the_renewal_calls_on_cancel_once_and_only_for_the_cancelled(
    post: Client, view: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = post.queue(name, lease=60)
    queue.send_many(["cancelled", "revoked", "kept"])
    holder = LeaseHolder(post.connection)
    got, _ = holder.receive(queue, 3)
    assert got is not None
    called: list[str] = []
    for message in got.messages:
        message.on_cancel = functools.partial(called.append, message.id)
    holder.hold(queue, got.messages)
    cancelled, revoked, kept = got.messages
    view.cancel(name, [cancelled.id])
    view.revoke(name, [revoked.id])
    wait_until(lambda: cancelled.lease_lost and revoked.lease_lost)
    assert [message.cancelled for message in (cancelled, revoked, kept)] == [True, False, False]
    assert called == [cancelled.id]
    assert f"cancelled queue={name} id={cancelled.id}" in caplog.text
    assert f"lease lost queue={name} id={revoked.id}" in caplog.text
    holder.close()


def test_what_was_cancelled_before_it_began_is_not_run(post: Client, view: Admin, name: str) -> None:
    queue = post.queue(name, lease=60)
    first, second = queue.send_many(["first", "second"])
    begun, go = threading.Event(), threading.Event()
    runs: list[str] = []

    @queue.handler
    def handle(message: LeasedMessage) -> None:
        runs.append(message.payload)
        begun.set()
        go.wait()

    consumer = Consumer([queue], prefetch=10)
    with serving(consumer):
        begun.wait()
        wait_until(lambda: view.counts(name).leased == 2 or view.counts(name).ready == 1)
        view.cancel(name, [second])
        wait_until(lambda: view.journal(name, limit=1, newest_first=True)[0].event == "extended")
        go.set()
        wait_until(lambda: view.counts(name).waiting == 0)
    assert runs == ["first"]
    assert first != second
