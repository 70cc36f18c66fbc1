"""Hooks: in which order they run, what they can change, and what an error in one of them does."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

import restante
from restante import Admin, Client, Consumer, Draft, Hook, InvalidInput, LeasedMessage, Message, State, fixed
from restante.core.hooks import chain
from tests.harness.servers import RedisServer


class Noting(Hook):
    """Notes every call."""

    def __init__(self, name: str, notes: list[Any]) -> None:
        self.name, self.notes = name, notes

    def around(self, message: Message, call: Callable[[], Any]) -> Any:
        self.notes.append(f"{self.name} in")
        try:
            return call()
        finally:
            self.notes.append(f"{self.name} out")

    async def around_async(self, message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        self.notes.append(f"{self.name} in")
        try:
            return await call()
        finally:
            self.notes.append(f"{self.name} out")


class Listening(Hook):
    """Notes how attempts end."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def started(self, message: Message) -> None:
        self.notes.append(("started", message.payload))

    def finished(self, message: Message, seconds: float) -> None:
        assert seconds >= 0
        self.notes.append(("finished", message.payload))

    def failed(self, message: Message, error: BaseException, state: State | None) -> None:
        self.notes.append(("failed", message.payload, str(error), state))

    def dead(self, message: Message, error: BaseException) -> None:
        self.notes.append(("dead", message.payload))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_hooks_of_the_client_are_outside_those_of_the_queue_and_the_consumer(
    server: RedisServer, name: str, asynchronous: bool
) -> None:
    notes: list[Any] = []
    with restante.connect(server.url) as client:
        queue = client.queue(name)
        queue.add_hook(Noting("queue", notes))
        client.add_hook(Noting("client", notes))
        client.add_hook(twice := Noting("client 2", notes))
        queue.add_hook(twice)
        queue.send("x")

        def plain(message: LeasedMessage) -> None:
            notes.append("handler")

        async def coroutine(message: LeasedMessage) -> None:
            notes.append("handler")

        queue.handler(coroutine if asynchronous else plain)
        Consumer([queue], stop_when_empty=True, hooks=[Noting("consumer", notes)]).run()
    names = ["client", "client 2", "queue", "consumer"]
    inward, outward = [f"{each} in" for each in names], [f"{each} out" for each in reversed(names)]
    assert notes == [*inward, "handler", *outward]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_hooks_are_told_how_attempts_end(post: Client, name: str, asynchronous: bool) -> None:
    queue = post.queue(name, retry=fixed(0), max_attempts=2)
    queue.add_hook(listening := Listening())
    queue.send("good", priority=2)
    queue.send("bad", priority=1)

    def plain(message: LeasedMessage) -> None:
        if message.payload == "bad":
            raise LookupError("no customer")

    async def coroutine(message: LeasedMessage) -> None:
        plain(message)

    queue.handler(coroutine if asynchronous else plain)
    Consumer([queue], stop_when_empty=True).run()
    assert [note for note in listening.notes if note[1] == "good"] == [("started", "good"), ("finished", "good")]
    assert [note for note in listening.notes if note[1] == "bad"] == [
        ("started", "bad"),
        ("failed", "bad", "no customer", State.RETRYING),
        ("started", "bad"),
        ("failed", "bad", "no customer", State.DEAD),
        ("dead", "bad"),
    ]


def test_a_failure_that_the_server_does_not_get_has_no_state(post: Client, name: str) -> None:
    queue = post.queue(name)
    queue.add_hook(listening := Listening())
    queue.send("x")

    @queue.handler
    def handle(message: LeasedMessage) -> None:
        message.bury(error="settled by the handler")
        raise LookupError("afterwards")

    Consumer([queue], stop_when_empty=True).run()
    assert listening.notes[1:] == [("failed", "x", "afterwards", None)]


def test_an_error_in_a_listener_is_logged_and_changes_nothing(
    post: Client, view: Admin, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Hook):
        def started(self, message: Message, *details: Any) -> None:
            raise RuntimeError("broken hook")

        finished = failed = dead = started  # type: ignore[assignment]

    queue = post.queue(name, max_attempts=1)
    queue.add_hook(Broken())
    queue.add_hook(listening := Listening())
    queue.send_many(["good", "bad"])

    @queue.handler
    def handle(message: LeasedMessage) -> None:
        if message.payload == "bad":
            raise LookupError("no customer")

    consumer = Consumer([queue], stop_when_empty=True)
    consumer.run()
    assert (consumer.handled, consumer.failed) == (1, 1)
    assert ("finished", "good") in listening.notes
    assert ("dead", "bad") in listening.notes
    assert "hook failed hook=" in caplog.text
    assert view.counts(name).dead == 1


def test_what_around_raises_fails_the_attempt(post: Client, view: Admin, name: str) -> None:
    class Commit(Hook):
        def around(self, message: Message, call: Callable[[], Any]) -> Any:
            call()
            raise ConnectionError("the commit failed")

    queue = post.queue(name, max_attempts=1)
    queue.send("x")
    queue.handler(lambda message: None)
    Consumer([queue], stop_when_empty=True, hooks=[Commit()]).run()
    [dead] = view.walk(name, State.DEAD)
    assert view.show(name, dead.id).history[-1].error_class == "ConnectionError"


async def test_sending_hooks_change_what_every_kind_of_send_stores(server: RedisServer, name: str) -> None:
    class Tenant(Hook):
        def sending(self, queue: str, draft: Draft) -> Draft:
            assert draft.id
            return replace(draft, headers={**(draft.headers or {}), "tenant": queue})

    with restante.connect(server.url) as client:
        queue = client.queue(name)
        client.add_hook(Tenant())
        ids = [queue.send("one"), *queue.send_many(["two", Draft("three", headers={"a": 1}, id="third")])]
        assert not queue.send("again", id="third").stored
        async with restante.aio.connect(server.url) as twin:
            opened = twin.queue(name)
            opened.add_hook(Tenant())
            ids.append(await opened.send("four", headers={"b": 2}))
        found = {message.id: message for message in queue.receive_many(10)}
    assert list(found) == [str(id) for id in ids]
    assert [message.payload for message in found.values()] == ["one", "two", "three", "four"]
    assert [message.headers for message in found.values()] == [
        {"tenant": name},
        {"tenant": name},
        {"a": 1, "tenant": name},
        {"b": 2, "tenant": name},
    ]


def test_a_sending_hook_that_returns_no_draft_refuses_the_send(post: Client, view: Admin, name: str) -> None:
    class Forgetful(Hook):
        def sending(self, queue: str, draft: Draft) -> Draft:
            return None  # type: ignore[return-value]

    queue = post.queue(name)
    queue.add_hook(Forgetful())
    with pytest.raises(InvalidInput, match=r"Forgetful\.sending must return the draft"):
        queue.send("x")
    assert view.counts(name).ready == 0


def test_what_cannot_be_a_hook_is_refused_when_it_is_added(post: Client, name: str) -> None:
    class Async(Hook):
        async def around(self, message: Message, call: Callable[[], Any]) -> Any:
            return await call()

    class AsyncListener(Hook):
        async def failed(self, message: Message, error: BaseException, state: State | None) -> None: ...  # type: ignore[override]

    queue = post.queue(name)
    queue.handler(lambda message: None)
    with pytest.raises(InvalidInput, match=r"subclass of restante\.Hook"):
        queue.add_hook(print)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="around_async"):
        post.add_hook(Async())
    with pytest.raises(InvalidInput, match="without async"):
        Consumer([queue], hooks=[AsyncListener()])


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"arround": lambda self, message, call: call()}, r"Slip\.arround is never called: did you mean around\?"),
        ({"around_asnyc": lambda self, message, call: call()}, r"did you mean around_async\?"),
        ({"finish": lambda self, message: None}, r"overrides no method of restante\.Hook: did you mean finished\?"),
        ({}, r"overrides no method of restante\.Hook: known are"),
        ({"around": lambda self, message: None}, r"Slip\.around must take \(message, call\)"),
        ({"finished": lambda self, message: None}, r"Slip\.finished must take \(message, seconds\)"),
        ({"dead": lambda self, message, error, state: None}, r"Slip\.dead must take \(message, error\)"),
    ],
)
def test_a_hook_that_would_not_be_called_is_refused(post: Client, members: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        post.add_hook(type("Slip", (Hook,), members)())


def test_a_hook_may_have_methods_and_parameters_of_its_own(post: Client) -> None:
    class Own(Hook):
        limit = 3

        def start(self) -> None: ...

        def started(self, *details: Any) -> None: ...

        def failed(self, message: Message, error: BaseException, state: State | None = None, more: int = 0) -> None: ...

    post.add_hook(Own())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_hook_for_the_other_kind_of_handlers_is_named_once(
    post: Client, name: str, caplog: pytest.LogCaptureFixture, asynchronous: bool
) -> None:
    class Plain(Hook):
        def around(self, message: Message, call: Callable[[], Any]) -> Any:
            return call()

    class Coroutine(Hook):
        async def around_async(self, message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
            return await call()

    queue = post.queue(name)

    async def ship_async(message: LeasedMessage) -> None: ...

    def ship(message: LeasedMessage) -> None: ...

    queue.handler(ship_async if asynchronous else ship)
    for hook in (Plain(), Coroutine()):
        queue.add_hook(hook)
    for _ in range(2):
        Consumer([queue], stop_when_empty=True).run()
    called = [record.getMessage() for record in caplog.records if "hook not called" in record.getMessage()]
    named, has, lacks = ("Plain", "around", "around_async") if asynchronous else ("Coroutine", "around_async", "around")
    kind = "coroutine" if asynchronous else "plain"
    (line,) = called
    assert line.startswith(f"hook not called hook={named} handler=")
    assert line.endswith(f": it has {has} and no {lacks}, which {kind} handlers need")


def test_without_hooks_the_handler_itself_is_called() -> None:
    def handle(message: LeasedMessage) -> None: ...

    assert chain((), handle, asynchronous=False) is handle
    assert chain((Listening(),), handle, asynchronous=False) is handle
    assert chain((Noting("x", []),), handle, asynchronous=False) is not handle


async def test_a_loop_tells_hooks_how_its_turns_end(server: RedisServer, post: Client, name: str) -> None:
    queue = post.queue(name, max_attempts=1)
    queue.add_hook(listening := Listening())
    queue.send_many(["good", "bad", "released"])
    for message in queue.consume(stop_when_empty=True):
        with message:
            if message.payload == "bad":
                raise LookupError("no customer")
            if message.payload == "released":
                message.release(delay=3600)
    async with restante.aio.connect(server.url) as client:
        other = client.queue(f"{name}-async")
        other.add_hook(listening)
        await other.send("async")
        async for leased in other.consume(stop_when_empty=True):
            async with leased:
                pass
    assert listening.notes == [
        ("started", "good"),
        ("finished", "good"),
        ("started", "bad"),
        ("failed", "bad", "no customer", State.DEAD),
        ("dead", "bad"),
        ("started", "released"),
        ("started", "async"),
        ("finished", "async"),
    ]


def test_the_log_of_a_failure_names_file_and_line_and_says_when_the_message_is_dead(
    post: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "restante")
    queue = post.queue(name, retry=fixed(0), max_attempts=2)
    id = queue.send("x")

    @queue.handler
    def handle(message: LeasedMessage) -> None:
        raise LookupError("no customer")

    line = handle.__code__.co_firstlineno + 2
    Consumer([queue], stop_when_empty=True).run()
    first, last = (record for record in caplog.records if id in record.getMessage())
    place = f"at={__file__}:{line} error=LookupError: no customer"
    assert first.getMessage() == f"nacked queue={name} id={id} attempt=1 {place}"
    assert (first.levelname, first.exc_info) == ("WARNING", None)
    assert last.getMessage() == f"dead queue={name} id={id} attempt=2 {place}"
    assert last.levelname == "ERROR"
    assert last.exc_info is not None
    assert last.exc_info[2] is not None
    assert last.exc_info[2].tb_frame.f_code is handle.__code__  # no frame of the consumer


def test_a_block_says_before_its_nack_that_the_message_will_be_dead(
    post: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = post.queue(name, retry=fixed(0), max_attempts=2)
    id = queue.send("x")
    for message in queue.consume(stop_when_empty=True):
        with message:
            raise LookupError("no customer")
    texts = [record.getMessage() for record in caplog.records if id in record.getMessage()]
    assert texts == [
        f"failed queue={name} id={id} attempt=1",
        f"failed queue={name} id={id} attempt=2 state=dead",
    ]
