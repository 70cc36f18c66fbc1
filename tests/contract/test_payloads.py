"""What goes in comes out, byte for byte, and what cannot is refused before anything is stored."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from restante import InvalidInput, InvalidName, InvalidPayload, PayloadTooLarge, Queue
from tests.contract.rooms import Room, needs


def nested(depth: int, inner: Any = 1) -> Any:
    """Lists inside lists."""
    for _ in range(depth):
        inner = [inner]
    return inner


EXACT = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    -0.0,
    1e308,
    5e-324,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    2**64,
    -(2**70),
    10**4000,
    "",
    "a",
    "null",
    "NaN",
    "\x00",
    "\r\n\t",
    "é",
    "日本語",
    "😀",
    "\ufffd",
    [],
    {},
    [None],
    {"": None},
    {"a": {"b": [1, 2.5, "c", None, True]}},
    {"big": 2**100, "text": "日本", "none": None},
    nested(200),
]


@pytest.mark.parametrize("payload", EXACT, ids=lambda value: repr(value)[:30])
async def test_any_json_value_comes_out_as_it_went_in(room: Room, payload: Any) -> None:
    queue = room.queue()
    await room.send(queue, payload)
    message = await room.take(queue)
    assert message.payload == payload
    assert type(message.payload) is type(payload)
    assert json.dumps(message.payload) == json.dumps(payload)
    assert message.content_type == "application/json"


@needs("bytes")
@pytest.mark.parametrize("payload", [b"", b"\x00", b"\xff\xfe\x80", b"\r\n$5\r\n", bytes(range(256)) * 300])
async def test_bytes_come_out_as_they_went_in(room: Room, payload: bytes) -> None:
    queue = room.queue()
    await room.send(queue, payload)
    await room.send(queue, payload, content_type="image/png")
    first, second = await room.take(queue), await room.take(queue)
    assert (first.payload, first.content_type, first.size) == (payload, "application/octet-stream", len(payload))
    assert (second.payload, second.content_type) == (payload, "image/png")


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payloads=st.lists(_VALUES | st.binary(max_size=64), min_size=1, max_size=20))
def test_whatever_json_or_bytes_a_producer_thinks_of_survives(plain_queue: Queue, payloads: list[Any]) -> None:
    plain_queue.send_many(payloads)
    taken = plain_queue.receive_many(1000)
    plain_queue.ack_many(taken)
    assert [message.payload for message in taken] == payloads
    assert [type(message.payload) for message in taken] == [type(payload) for payload in payloads]


REFUSED = [
    math.nan,
    math.inf,
    -math.inf,
    [None, {"a": math.nan}],
    "\ud800",
    {"\udfff": 1},
    ["\ud800", 2**70],
    nested(10_000),
    nested(10_000, 2**70),
    object(),
    {1: 2},
    {1: 2, "a": 2**70},
    {"a": 2**70, 1: "x"},
    {"a": 2**70, None: "x"},
    {1, 2},
    1j,
    10**5000,
]


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 1


class Shouted(str):
    pass


@dataclasses.dataclass
class Point:
    x: int = 1


#: What an encoder would turn into something else, and what to send instead.
CONVERTED = [
    (uuid.UUID(int=1), r"payload .* UUID; send str\(value\)"),
    ({"user": {"id": uuid.UUID(int=1)}}, r"payload\['user'\]\['id'\] .* UUID; send str\(value\)"),
    (Colour.RED, r"Colour; send its \.value"),
    ([1, {"level": Level.HIGH}], r"payload\[1\]\['level'\] .* Level; send its \.value"),
    ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, r"datetime; send value\.isoformat\(\)"),
    ({"on": date(2026, 1, 1)}, r"date; send value\.isoformat\(\)"),
    ({"price": Decimal("1.10")}, r"Decimal; send str\(value\)"),
    ({"point": Point()}, r"Point; send dataclasses\.asdict\(value\)"),
    ({"text": Shouted("a")}, r"Shouted; send a plain str"),
    ({"data": b"bytes"}, r"bytes; send bytes as the whole payload"),
    ({"tags": {"a"}}, r"set; send sorted\(value\) or list\(value\)"),
    ({Colour.RED: 1}, r"its key .* is a Colour; use string keys"),
    ({Level.HIGH: 1}, r"its key .* is a Level; use string keys"),
]


@needs("admin")
@pytest.mark.parametrize(("payload", "remedy"), CONVERTED, ids=lambda value: str(value)[:25])
async def test_what_would_arrive_as_another_value_is_refused_with_its_place_and_remedy(
    room: Room, payload: Any, remedy: str
) -> None:
    queue = room.queue()
    with pytest.raises(InvalidPayload, match=remedy):
        await room.send(queue, payload)
    with pytest.raises(InvalidPayload, match=remedy.removeprefix("payload .* ")):
        await room.call(queue.send_many, ["first", payload])
    with pytest.raises(InvalidInput, match="headers"):
        await room.send(queue, 1, headers={"h": payload})
    assert room.states(queue) == {}


@needs("batch", "admin")
@pytest.mark.parametrize(
    "messages",
    ["abc", b"abc", {"a": 1}, {1, 2}, iter([1]), (one for one in "a"), 5, None, {"a": 1}.values()],
    ids=lambda value: type(value).__name__,
)
async def test_what_is_no_list_of_messages_is_refused_and_nothing_is_sent(room: Room, messages: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="send_many takes a list"):
        await room.call(queue.send_many, messages)
    assert room.states(queue) == {}
    await room.call(queue.send_many, ("a", "b"))
    assert await room.drain(queue) == ["a", "b"]


@needs("batch", "admin")
async def test_a_misspelt_option_of_a_send_is_refused_with_the_nearest(room: Room) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput, match="'priorty': did you mean priority"):
        await room.send(queue, 1, priorty=3)
    with pytest.raises(InvalidInput, match="'dealy': did you mean delay"):
        await room.call(queue.send_many, [1], dealy=3)
    with pytest.raises(InvalidInput, match="'max_attemps': did you mean max_attempts"):
        room.queue(max_attemps=3)
    with pytest.raises(InvalidInput, match="the same id"):
        await room.call(queue.send_many, [1], id="a")
    assert room.states(queue) == {}


@pytest.mark.parametrize("payload", REFUSED, ids=lambda value: type(value).__name__)
async def test_what_json_cannot_say_is_refused_and_nothing_is_stored(room: Room, payload: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidPayload):
        await room.send(queue, payload)
    with pytest.raises(InvalidPayload):
        await room.call(queue.send_many, ["good", payload])
    assert room.states(queue) == {}


@needs("headers")
async def test_headers_and_kind_travel_beside_the_payload(room: Room) -> None:
    queue = room.queue()
    headers = {"trace": "00-abc", "n": 2**80, "nested": {"a": [1, None]}, "ü": "日本"}
    await room.send(queue, {"x": 1}, headers=headers, kind="order.created")
    message = await room.take(queue)
    assert (message.headers, message.kind, message.payload) == (headers, "order.created", {"x": 1})


@needs("headers")
@pytest.mark.parametrize("headers", [{"a": math.nan}, {"a": object()}, {1: 2}, "text", {"a": "x" * 70_000}])
async def test_headers_that_cannot_travel_are_refused(room: Room, headers: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidInput):
        await room.send(queue, 1, headers=headers)
    assert room.states(queue) == {}


@needs("headers")
@pytest.mark.parametrize("name", ["-a", "a b", "a\n", "{a}", "a" * 201, "é", "*", 5, b"a"])
async def test_a_kind_or_an_id_that_is_no_name_is_refused(room: Room, name: Any) -> None:
    queue = room.queue()
    with pytest.raises(InvalidName, match="kind"):
        await room.send(queue, 1, kind=name)
    with pytest.raises(InvalidName, match="message id"):
        await room.send(queue, 1, id=name)
    assert room.states(queue) == {}


@needs("limits")
async def test_the_largest_payload_is_taken_and_one_byte_more_is_refused(room: Room) -> None:
    queue = room.queue(max_payload=1000)
    await room.send(queue, b"x" * 1000)
    with pytest.raises(PayloadTooLarge, match="1001 bytes"):
        await room.send(queue, b"x" * 1001)
    await room.send(queue, "x" * 998)
    with pytest.raises(PayloadTooLarge):
        await room.send(queue, "x" * 999)
    assert room.states(queue) == {"ready": 2}


@needs("limits")
async def test_a_smaller_limit_set_by_another_client_holds_at_once(room: Room) -> None:
    queue = room.queue()
    await room.send(queue, "x" * 100)
    room.admin.configure(queue.name, max_payload=50)
    with pytest.raises(PayloadTooLarge):
        await room.send(queue, "x" * 100)


@needs("bytes")
async def test_a_payload_of_several_megabytes_survives(room: Room) -> None:
    queue = room.queue()
    payload = bytes(range(256)) * 16 * 1024
    await room.send(queue, payload)
    message = await room.take(queue)
    assert message.payload == payload
    await room.call(message.ack)
