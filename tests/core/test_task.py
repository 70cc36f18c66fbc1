"""Tasks: what a send checks and stores, what a consumer makes of it, and what is refused when a task is defined."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import json
import re
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NewType

import pytest
from pydantic import AliasChoices, BaseModel, Field, SecretBytes, field_serializer

import restante
from restante import Admin, Consumer, Draft, InvalidArguments, InvalidInput, InvalidPayload, LeasedMessage, State
from restante.aio import AsyncClient, AsyncLeasedMessage
from restante.core.task import AnyTask, SendingOptions
from tests.core.bench import Bench
from tests.faults.test_holding_on import serving
from tests.harness.deadlines import PATIENCE, wait_until

if TYPE_CHECKING:
    from restante import Client, Message, Queue

OrderId = NewType("OrderId", int)


class Size(Enum):
    SMALL = "small"


@dataclasses.dataclass
class Address:
    street: str
    since: date


class Line(BaseModel):
    sku: str
    count: Annotated[int, Field(gt=0)] = 1


class Foreign:
    """A class that neither JSON nor pydantic knows."""


class OneWay(BaseModel):
    """A model whose JSON it does not take back."""

    at: datetime

    @field_serializer("at")
    def shorten(self, at: datetime) -> str:
        return f"in {at.year}"


class Renamed(BaseModel):
    """A model whose fields have other names in JSON."""

    sku: str = Field(alias="stockKeepingUnit")


@pytest.fixture
def post(debian: Bench) -> Iterator[Client]:
    with restante.connect(debian.server.url) as opened:
        yield opened


@pytest.fixture
def orders(post: Client) -> Queue:
    """A queue whose failed messages retry at once, and are dead after the second attempt."""
    return post.queue("orders", max_attempts=2, retry=restante.fixed(0))


def work(*queues: Any) -> Consumer:
    """Handles what is there."""
    consumer = Consumer(queues, stop_when_empty=True)
    consumer.run()
    return consumer


def stored(post: Client, queue: Queue) -> list[Message]:
    """The messages that are ready or wait to be."""
    admin = Admin(post)
    return [*admin.walk(queue.name, "ready"), *admin.walk(queue.name, "scheduled")]


def died(post: Client, queue: Queue) -> dict[str, tuple[int, str]]:
    """Attempts and last error of each dead message, by its kind."""
    admin = Admin(post)
    found = [admin.show(queue.name, message.id) for message in admin.walk(queue.name, "dead")]
    return {one.kind: (one.attempts, one.history[-1].error) for one in found}


# -- what a send does ------------------------------------------------------------------------------------------------


def test_a_call_is_sent_as_an_object_of_its_arguments_and_handled(post: Client, orders: Queue) -> None:
    seen: list[tuple[int, bool]] = []

    @orders.task
    def ship(order: int, express: bool = False) -> None:
        """Ships."""
        seen.append((order, express))

    first, second = ship.send(42), ship.send(express=True, order=43)
    told = stored(post, orders)
    assert [(message.id, message.kind, message.payload) for message in told] == [
        (first.id, "ship", {"order": 42}),
        (second.id, "ship", {"express": True, "order": 43}),
    ]
    assert {message.content_type for message in told} == {"application/json"}
    ship(44)
    work(orders)
    assert seen == [(44, False), (42, False), (43, True)]
    assert ship.__doc__ == "Ships."
    assert list(inspect.signature(ship).parameters) == ["order", "express"]
    assert repr(ship) == "<Task ship of orders>"


def test_a_message_that_another_language_sent_is_handled_like_one_of_the_task(orders: Queue) -> None:
    seen: list[Any] = []

    @orders.task
    def ship(order: int, due: date | None = None) -> None:
        seen.append((order, due))

    orders.send(json.loads('{"order": 42, "due": "2030-01-31"}'), kind="ship")
    work(orders)
    assert seen == [(42, date(2030, 1, 31))]


def test_the_default_of_the_code_that_handles_a_message_applies(post: Client, orders: Queue) -> None:
    @orders.task
    def ship(order: int, carrier: str = "then") -> None: ...

    ship.send(1)
    newer = restante.connect(post.url)
    again = newer.queue("orders")
    seen: list[str] = []

    @again.task(kind="ship")
    def ship_now(order: int, carrier: str = "now") -> None:
        seen.append(carrier)

    work(again)
    newer.close()
    assert seen == ["now"]


async def test_a_task_is_sent_from_a_coroutine_without_blocking_its_loop(
    post: Client, orders: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    plain = orders.send

    def noted(*args: Any, **options: Any) -> restante.MessageId:
        threads.append(threading.get_ident())
        return plain(*args, **options)

    @orders.task
    def ship(order: int) -> None: ...

    monkeypatch.setattr(orders, "send", noted)
    handle = await ship.send_async(order=42)
    assert [message.id for message in stored(post, orders)] == [handle.id]
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_drafts_of_several_tasks_are_one_batch(post: Client, orders: Queue) -> None:
    @orders.task
    def ship(order: int) -> None: ...

    @orders.task(kind="order.cancelled", priority=7)
    def cancel(order: int) -> None: ...

    drafts = [ship.draft(1), cancel.draft(order=2), cancel.using(id="third", delay=60).draft(3)]
    assert drafts[0] == Draft({"order": 1}, kind="ship")
    ids = orders.send_many(drafts)
    assert ids[2] == "third"
    assert [(one.kind, one.priority, one.payload) for one in stored(post, orders)] == [
        ("order.cancelled", 7, {"order": 2}),
        ("ship", 0, {"order": 1}),
        ("order.cancelled", 7, {"order": 3}),
    ]
    with pytest.raises(InvalidInput, match="give it to send_many"):
        ship.using(durability="memory").draft(1)


def test_the_options_of_a_task_are_those_of_its_messages_and_a_send_may_have_others(
    post: Client, orders: Queue
) -> None:
    policy = restante.fixed(1, 2)

    @orders.task(priority=5, max_attempts=3, retry=policy, lease=7, expires=60, unique_states=frozenset({State.READY}))
    def ship(order: int) -> None: ...

    usual, urgent = ship.send(1), ship.using(priority=9, headers={"trace": "a"}).send(2)
    messages = {message.id: message for message in stored(post, orders)}
    one, other = messages[usual.id], messages[urgent.id]
    assert (one.priority, one.max_attempts, one.retry) == (5, 3, policy)
    assert (other.priority, other.max_attempts, other.headers) == (9, 3, {"trace": "a"})
    assert other.expires_at is not None
    assert other.expires_at - other.sent_at == timedelta(seconds=60)
    taken = orders.receive()
    assert taken is not None
    assert taken.lease_ms == 7000
    assert ship.using(due_at=datetime(2030, 1, 1, tzinfo=UTC)).using(priority=1).draft(1).priority == 1
    assert ship.draft(1).due_at is None


@pytest.mark.parametrize("unique", [True, "order", ("order",)])
def test_a_task_unique_by_arguments_is_stored_once_for_them(post: Client, orders: Queue, unique: Any) -> None:
    @orders.task(unique=unique)
    def ship(order: int, carrier: str = "post") -> None: ...

    @orders.task(unique=unique)
    def bill(order: int) -> None: ...

    first = ship.send(42)
    again, by_default, other, billed = ship.send(order=42), ship.send(42, carrier="post"), ship.send(43), bill.send(42)
    assert again.id == by_default.id == first.id
    assert not getattr(again.id, "stored", True)
    assert len({first.id, other.id, billed.id}) == 3
    assert (ship.send(42, carrier="air").id == first.id) is (unique is not True)
    assert {ship.using(unique=None).send(42).id, ship.using(unique="mine").send(42).id} & {first.id} == set()
    keys = {message.unique for message in stored(post, orders)}
    assert ('ship:{"order":42}' in keys) is (unique is not True)
    work(orders)
    assert ship.send(42).id != first.id


def test_long_arguments_are_unique_by_their_hash(orders: Queue) -> None:
    @orders.task(unique=True)
    def note(text: str) -> None: ...

    first, again, other = note.send("a" * 1000), note.send("a" * 1000), note.send("a" * 999 + "b")
    assert first.id == again.id != other.id
    key = note.draft("é" * 1000).unique
    assert key is not None
    assert re.fullmatch(r"note:[0-9a-f]{64}", key)


# -- what a send refuses ---------------------------------------------------------------------------------------------

#: A call of `ship` below that does not fit, and what its error says.
WRONG_CALLS: Final[list[tuple[tuple[Any, ...], dict[str, Any], str]]] = [
    ((), {}, "ship() needs the argument order."),
    ((), {"ordr": 1}, "ship() has no argument 'ordr': did you mean order?"),
    ((1, "post", 3), {}, "ship() takes 2 positional arguments, not 3."),
    ((1,), {"order": 1}, "ship() got the argument order twice"),
    (("42",), {}, "ship() takes order as int: this is a str."),
    ((True,), {}, "ship() takes order as int: this is a bool."),
    ((1.0,), {}, "ship() takes order as int: this is a float."),
    ((None,), {}, "ship() takes order as int: this is None."),
    ((1, 2), {}, "ship() takes carrier as Literal['post', 'air']: this is another value."),
    ((1,), {"weights": [1, "2"]}, "ship() takes weights as list[float | None]: at item 1: this is a str."),
    ((1,), {"labels": {"a": 1}}, "ship() takes labels as dict[str, str] | None: at item 'a': this is an int."),
    ((1,), {"labels": {1: "a"}}, "ship() takes labels as dict[str, str] | None: at item 1: this is an int."),
    ((1,), {"weights": (1.0,)}, "ship() takes weights as list[float | None]: this is a tuple."),
    ((1,), {"due": "2030-01-31"}, "ship() takes due as date | None: Input should be a valid date."),
    ((1,), {"size": "small"}, "ship() takes size as Size: "),
    ((1,), {"line": {"sku": 1}}, "ship() takes line as Line | None: sku: Input should be a valid string."),
    ((1,), {"line": Line.model_construct(sku=1)}, "ship() takes line as Line | None: "),
    ((1,), {"amount": 1.5}, "ship() takes amount as Decimal: "),
    ((1,), {"count": 0}, "ship() takes count as Annotated[int, Field(gt=0)]: Input should be greater than 0."),
]


@pytest.mark.parametrize(("args", "kwargs", "text"), WRONG_CALLS, ids=[text for _, _, text in WRONG_CALLS])
def test_a_call_that_does_not_fit_is_refused_before_anything_is_stored(
    post: Client, orders: Queue, args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    @orders.task
    def ship(
        order: int,
        carrier: Literal["post", "air"] = "post",
        *,
        weights: list[float | None] = [],  # noqa: B006
        labels: dict[str, str] | None = None,
        due: date | None = None,
        size: Size = Size.SMALL,
        line: Line | None = None,
        amount: Decimal = Decimal(0),
        count: Annotated[int, Field(gt=0)] = 1,
    ) -> None: ...

    ship.send(1, "air", weights=[1, None], labels={"a": "b"}, due=date(2030, 1, 1), size=Size.SMALL, line=Line(sku="a"))
    for send in (ship.send, ship.draft):
        with pytest.raises(InvalidArguments, match=re.escape(text)) as refused:
            send(*args, **kwargs)
        assert '{"order": int, ' in str(refused.value) or "did you mean" in text
    assert len(stored(post, orders)) == 1


def test_a_value_that_is_not_json_is_refused_where_nothing_is_annotated(post: Client, orders: Queue) -> None:
    @orders.task
    def note(text, more: Any = None):  # type: ignore[no-untyped-def]
        ...

    note.send("a", more=[1, {"b": None}])
    for value in (datetime.now(UTC), {1: 2}, float("nan"), object(), uuid.uuid4(), {3}):
        with pytest.raises(InvalidPayload):
            note.send(value)
        with pytest.raises(InvalidPayload):
            note.send("a", [value])
    assert len(stored(post, orders)) == 1


def test_a_misspelt_or_impossible_option_of_a_send_is_refused(post: Client, orders: Queue) -> None:
    @orders.task
    def ship(order: int) -> None: ...

    for options, text in (
        ({"dealy": 3}, "did you mean delay?"),
        ({"kind": "other"}, "has no option 'kind'"),
        ({"payload": 1}, "has no option 'payload'"),
        ({"content_type": "text/plain"}, "has no option 'content_type'"),
        ({"priority": 256}, "priority must be"),
        ({"delay": -1}, "delay must be"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(text)):
            ship.using(**options).send(1)
    assert stored(post, orders) == []


def test_a_slip_is_refused_with_what_to_write_instead(orders: Queue) -> None:
    @orders.task
    def ship(order: int) -> None: ...

    for option in ("kind", "soft_timeout"):
        with pytest.raises(InvalidInput, match=f"no option '{option}': give it to @orders.task"):
            ship.using(**{option: 1})  # type: ignore[arg-type]
    for value in (ship, ship.draft(1), [ship.draft(1)]):
        with pytest.raises(
            InvalidPayload, match=r"send a Draft by send_many\(\[draft\]\), a call of a task by task\.send"
        ):
            orders.send(value)
    with pytest.raises(InvalidInput, match="handler has no option 'knd': did you mean kind"):
        orders.handler(knd="ship")  # type: ignore[call-overload]


def test_using_takes_what_a_type_checker_knows(orders: Queue) -> None:
    @orders.task
    def ship(order: int) -> None: ...

    sent = set(inspect.signature(orders.send).parameters) - {"self", "payload", "kind", "content_type"}
    assert set(SendingOptions.__annotations__) == sent


# -- values ----------------------------------------------------------------------------------------------------------

#: An annotation, a value of it, and the JSON it becomes.
VALUES: Final[list[tuple[Any, Any, Any]]] = [
    (int, 10**30, 10**30),
    (OrderId, 42, 42),
    (float, 1, 1),
    (str, "ä\u0000", "ä\u0000"),
    (bool | None, None, None),
    (Annotated[int, "the order"], 3, 3),
    (list[list[int]], [[1], []], [[1], []]),
    (dict[str, Any], {"a": [1]}, {"a": [1]}),
    (datetime, datetime(2030, 1, 31, 12, tzinfo=UTC), "2030-01-31T12:00:00Z"),
    (timedelta, timedelta(seconds=90), "PT1M30S"),
    (Decimal, Decimal("1.10"), "1.10"),
    (uuid.UUID, uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
    (Size, Size.SMALL, "small"),
    (bytes, b"\xff\x00", "_wA="),
    (set[int], {3}, [3]),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (dict[int, date], {1: date(2030, 1, 31)}, {"1": "2030-01-31"}),
    (Address, Address("Main", date(2020, 2, 2)), {"street": "Main", "since": "2020-02-02"}),
    (Line, Line(sku="a"), {"sku": "a", "count": 1}),
    (list[Line], [Line(sku="a", count=2)], [{"sku": "a", "count": 2}]),
    (Renamed, Renamed(stockKeepingUnit="a"), {"stockKeepingUnit": "a"}),
    (list[int] | Address, [1], [1]),
]


@pytest.mark.parametrize(("annotation", "value", "as_json"), VALUES, ids=[str(one[0]) for one in VALUES])
def test_a_value_arrives_as_it_was_sent(post: Client, orders: Queue, annotation: Any, value: Any, as_json: Any) -> None:
    seen: list[Any] = []

    def take(value: Any) -> None:
        seen.append(value)

    take.__annotations__["value"] = annotation
    task = orders.task(take)
    task.send(value)
    assert [message.payload for message in stored(post, orders)] == [{"value": as_json}]
    work(orders)
    assert seen == [value]
    assert type(seen[0]) is type(value)


def test_a_value_whose_json_its_type_does_not_take_back_is_refused_at_the_send(orders: Queue) -> None:
    @orders.task
    def note(at: OneWay) -> None: ...

    with pytest.raises(InvalidArguments, match="its JSON cannot be read again: at: Input should be a valid datetime"):
        note.send(OneWay(at=datetime.now(UTC)))

    @orders.task
    def bare(values: set[float]) -> None: ...

    with pytest.raises(InvalidInput):
        bare.send({float("inf")})


def test_parameters_before_a_slash_are_given_by_position(orders: Queue) -> None:
    seen: list[Any] = []

    @orders.task
    def ship(order: int, carrier: str = "post", /, *, express: bool = False) -> None:
        seen.append((order, carrier, express))

    ship.send(1, express=True)
    ship.send(2, "air")
    with pytest.raises(InvalidArguments, match="takes order by position"):
        ship.send(order=3)  # type: ignore[call-arg]
    work(orders)
    assert seen == [(1, "post", True), (2, "air", False)]


# -- handling --------------------------------------------------------------------------------------------------------

#: A payload that does not fit `ship`, and what the error of the dead message says.
WRONG_PAYLOADS: Final = [
    ({"ordr": 1}, "it has no argument 'ordr': did you mean order? Send a corrected message"),
    ({}, "it needs the argument order."),
    ({"order": "1"}, "it takes order as int: this is a str."),
    ({"order": 1, "due": 3.5}, "it takes due as date | None: "),
    ([1], "it is an array, not an object of arguments."),
    (7, "it is a number, not an object of arguments."),
    (None, "it is null, not an object of arguments."),
    (b'{"order": 1}', "it is bytes, not an object of arguments."),
]


@pytest.mark.parametrize(("payload", "text"), WRONG_PAYLOADS, ids=[text for _, text in WRONG_PAYLOADS])
def test_a_payload_that_does_not_fit_is_retried_and_then_dead_with_the_remedy(
    post: Client, orders: Queue, payload: Any, text: str
) -> None:
    @orders.task
    def ship(order: int, due: date | None = None) -> None:
        raise AssertionError("must not run")

    id = orders.send(payload, kind="ship")
    work(orders)
    attempts, error = died(post, orders)["ship"]
    assert attempts == 2
    assert 'the task ship, which takes {"order": int, "due?": date | None}: ' + text in error
    assert "start a consumer whose task takes this one and replay it" in error
    assert Admin(post).show("orders", id).history[-1].error_class == "InvalidArguments"


@pytest.mark.parametrize("coroutines", [False, True])
def test_a_kind_without_a_handler_is_retried_and_then_dead_with_the_known_kinds(
    post: Client, orders: Queue, coroutines: bool
) -> None:
    if coroutines:

        @orders.task(kind="ship")
        async def ship_async() -> None: ...

    else:

        @orders.task(kind="ship")
        def ship() -> None: ...

        @orders.task
        async def bill() -> None: ...

    orders.send({}, kind="shipp")
    orders.send({})
    consumer = Consumer([orders])
    with serving(consumer):
        wait_until(lambda: len(died(post, orders)) == 2)
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("restante-worker")]
    assert bool(threads) is not coroutines
    assert consumer.failed == 4
    found = died(post, orders)
    known = "ship" if coroutines else "bill, ship"
    assert found["shipp"][0] == found[""][0] == 2
    assert "no handler for kind 'shipp' in orders: did you mean ship? " in found["shipp"][1]
    assert f"no handler for kind '' in orders. This consumer knows {known}. Start a consumer" in found[""][1]


def test_a_handler_of_every_kind_takes_what_no_task_takes(post: Client, orders: Queue) -> None:
    seen: list[str] = []

    @orders.task
    def ship(order: int) -> None:
        seen.append("ship")

    @orders.handler
    def other(message: LeasedMessage) -> None:
        seen.append(message.kind)

    ship.send(1)
    orders.send("x", kind="note")
    work(orders)
    assert sorted(seen) == ["note", "ship"]


def test_functions_and_coroutines_get_the_message_if_they_ask_for_it(orders: Queue) -> None:
    seen: list[Any] = []

    @orders.task
    def ship(message: LeasedMessage, order: int) -> None:
        seen.append((message.kind, message.attempts, order))

    @orders.task
    async def bill(message: Message, /, order: int, *, tax: float = 0) -> None:
        seen.append((message.kind, message.attempts, order))

    @orders.task
    def log(message: str) -> None:
        seen.append(message)

    for handle in (ship.send(1), bill.send(order=2), log.send("text")):
        assert handle.id
    assert ship.draft(3).payload == {"order": 3}
    work(orders)
    assert sorted(seen, key=str) == [("bill", 1, 2), ("ship", 1, 1), "text"]
    held = orders.receive()
    assert held is None
    ship.send(5)
    held = orders.receive()
    assert held is not None
    ship(held, 6)
    assert seen[-1] == ("ship", 1, 6)


def test_a_task_that_fails_is_retried(post: Client, orders: Queue) -> None:
    attempts: list[int] = []

    @orders.task
    def ship(message: LeasedMessage, order: int) -> None:
        attempts.append(message.attempts)
        if message.attempts == 1:
            raise ConnectionError("the carrier does not answer")

    ship.send(1)
    consumer = work(orders)
    assert (attempts, consumer.handled, consumer.failed) == ([1, 2], 1, 1)


async def _asynchronous_tasks(client: AsyncClient, seen: list[Any]) -> None:
    queue = client.queue("parcels")

    @queue.task
    async def deliver(message: AsyncLeasedMessage, to: str) -> None:
        seen.append((type(message).__name__, to))
        if to == "nowhere":
            await message.bury(error="no address")

    @queue.task
    def lift(message: LeasedMessage, kilos: float) -> None:
        seen.append((type(message).__name__, kilos))

    @queue.task(priority=3)
    async def weigh(kilos: float) -> float:
        return kilos * 2

    assert await weigh(2) == 4
    await deliver.send("nowhere")
    await lift.using(priority=9).send_async(kilos=70)
    handle = await weigh.send(1.5)
    assert handle.id
    with pytest.raises(InvalidArguments, match="takes kilos as float"):
        await weigh.send("heavy")  # type: ignore[arg-type]
    await queue.send_many([deliver.draft("Ada"), weigh.draft(kilos=3)])
    consumer = Consumer([queue], stop_when_empty=True)
    await run_beside(consumer)
    assert consumer.handled == 5


async def run_beside(consumer: Consumer) -> None:
    """Runs a consumer beside this loop, as another process would."""
    thread = threading.Thread(target=consumer.run)
    thread.start()
    await asyncio.to_thread(thread.join, PATIENCE)


async def test_tasks_of_an_asyncio_queue_are_awaited(debian: Bench) -> None:
    seen: list[Any] = []
    async with restante.aio.connect(debian.server.url) as client:
        await _asynchronous_tasks(client, seen)
    assert sorted(seen, key=str) == [
        ("AsyncLeasedMessage", "Ada"),
        ("AsyncLeasedMessage", "nowhere"),
        ("LeasedMessage", 70),
    ]


def test_what_a_consumer_reads_of_a_task_is_on_its_handler(orders: Queue) -> None:
    @orders.task(timeout=timedelta(minutes=1), soft_timeout=50)
    def ship(order: int) -> int:
        return order

    @orders.task
    async def model() -> Line:
        return Line(sku="a")

    @orders.task
    def other() -> Address | Foreign:
        return Foreign()

    @orders.task
    def unlike() -> Line:
        return "no line"  # type: ignore[return-value]

    handlers = orders.handlers
    assert (handlers["ship"].timeout, handlers["ship"].soft_timeout, handlers["ship"].returns) == (60, 50, True)  # type: ignore[attr-defined]
    assert (handlers["model"].timeout, handlers["model"].soft_timeout) == (None, None)  # type: ignore[attr-defined]
    for task in (ship.using(id="a"), other, unlike):
        task.send(1) if task.kind == "ship" else task.send()  # type: ignore[call-arg]
    results = {}
    for message in orders.receive_many(10):
        results[message.kind] = handlers[message.kind](message)
    assert results["ship"] == 1
    assert isinstance(results["other"], Foreign)
    assert results["unlike"] == "no line"
    model.send()
    held = orders.receive()
    assert asyncio.run(handlers["model"](held)) == {"sku": "a", "count": 1}


# -- definitions -----------------------------------------------------------------------------------------------------


def generator() -> Iterator[int]:
    yield 1


def method(self, order: int) -> None: ...  # type: ignore[no-untyped-def]


def star(*items: int) -> None: ...


def stars(order: int, **more: int) -> None: ...


def late(order: int, message: LeasedMessage) -> None: ...


def keyword(*, message: LeasedMessage) -> None: ...


def asynchronous(message: AsyncLeasedMessage) -> None: ...


def foreign(session: Foreign) -> None: ...


def fine(order: int) -> None: ...


def again(order: int) -> None: ...


#: What cannot be a task, with its options, and what the refusal says.
REFUSED: Final[list[tuple[Any, dict[str, Any], str]]] = [
    ("ship", {}, "must be a function"),
    (lambda order: None, {}, "has no name for its messages: give one, @orders.task(kind=…)"),
    (functools.partial(fine, 1), {}, "has no name for its messages"),
    (generator, {}, "has a yield"),
    (method, {}, "is a method"),
    (star, {}, "take a list, items: list[…]"),
    (stars, {}, "take a dict, more: dict[str, …]"),
    (late, {}, "must take the message as its first parameter"),
    (keyword, {}, "must take the message by position"),
    (asynchronous, {}, "gets LeasedMessage: annotate message with that"),
    (foreign, {}, "the argument session: Foreign of foreign cannot be checked: pydantic does not know this type"),
    (fine, {"kind": "a b"}, "kind 'a b' is not valid"),
    (fine, {"unique": "ordr"}, "names no argument 'ordr': did you mean order?"),
    (fine, {"unique": ["order", "x"]}, "names no argument 'x'"),
    (dict, {"kind": "x"}, "has no readable signature"),
    (fine, {"priority": 300}, "priority must be"),
    (fine, {"prioty": 3}, "did you mean priority?"),
    (fine, {"retry": 3}, "retry must be a RetryPolicy"),
    (fine, {"timeout": 0}, "timeout must be"),
    (fine, {"unique": True, "unique_states": {"waiting"}}, "unique_states must be a set of State members"),
    (fine, {"timeout": 5, "soft_timeout": 5}, "soft_timeout must be shorter than timeout"),
]


@pytest.mark.parametrize(("function", "options", "text"), REFUSED, ids=[f"{text}" for _, _, text in REFUSED])
def test_what_cannot_be_a_task_is_refused_when_it_is_defined(
    orders: Queue, function: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(text)):
        orders.task(**options)(function)
    assert orders.handlers == {}


def test_a_name_has_one_task_or_handler(orders: Queue) -> None:
    ship = orders.task(kind="ship")(fine)
    with pytest.raises(InvalidInput, match="already has a handler for ship: give this one another kind="):
        orders.task(kind="ship")(again)
    with pytest.raises(InvalidInput, match="already has a handler for ship"):
        orders.handler(kind="ship")(lambda message: None)
    with pytest.raises(InvalidInput, match="is a task already"):
        orders.task(ship)
    with pytest.raises(InvalidInput, match="is a task, which is registered already"):
        orders.handler(ship)  # type: ignore[type-var]

    @orders.handler(kind="plain")
    def plain(message: LeasedMessage) -> None: ...

    with pytest.raises(InvalidInput, match=r"already has a handler for plain"):
        orders.task(kind="plain")(fine)
    with pytest.raises(InvalidInput, match=r"plain is a handler of orders already: remove @orders\.handler"):
        orders.task(kind="other")(plain)
    assert sorted(map(str, orders.handlers)) == ["plain", "ship"]
    assert orders.task(kind="over")(ship.function).function is fine


def test_a_name_that_is_defined_later_is_read_at_the_first_send(orders: Queue) -> None:
    def later(line: NotYet) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    task: AnyTask[Any, Any] = orders.task(later)
    with pytest.raises(InvalidInput, match="'NotYet' is not defined; define or import that name at the top"):
        task.draft(line=1)
    globals()["NotYet"] = Line
    try:
        assert task.draft(line=Line(sku="a")).payload == {"line": {"sku": "a", "count": 1}}
    finally:
        del globals()["NotYet"]


def test_objects_partial_functions_and_functions_without_annotations_are_tasks(orders: Queue) -> None:
    seen: list[Any] = []

    class Shipping:
        async def __call__(self, order: int, due: date) -> None:
            seen.append((order, due))

    def two(carrier: str, due: date | None = None, *, order: int) -> None:
        seen.append((carrier, order))

    ship: AnyTask[Any, Any] = orders.task(kind="object")(Shipping())
    part: AnyTask[Any, Any] = orders.task(kind="partial")(functools.partial(two, "post"))
    orders.send_many([ship.draft(1, due=date(2030, 1, 1)), part.draft(order=2)])
    work(orders)
    assert sorted(seen, key=str) == [("post", 2), (1, date(2030, 1, 1))]


def test_a_secret_is_not_what_an_error_shows(orders: Queue) -> None:
    @orders.task
    def login(password: int, key: SecretBytes | None = None) -> None: ...

    with pytest.raises(InvalidArguments) as refused:
        login.send("hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(refused.value)
    with pytest.raises(InvalidArguments) as refused:
        login.send(1, key="hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(refused.value)


def test_the_choices_of_an_alias_that_json_does_not_use_are_refused_at_the_send(orders: Queue) -> None:
    class Choice(BaseModel):
        sku: str = Field(validation_alias=AliasChoices("stock", "keeping"))

    def take(choice: Any) -> None: ...

    take.__annotations__["choice"] = Choice
    task = orders.task(take)
    with pytest.raises(InvalidArguments, match="its JSON cannot be read again"):
        task.send(Choice.model_validate({"stock": "a"}))
