"""What goes in comes out, byte for byte, and what cannot is refused before anything is stored."""

from __future__ import annotations

import json
import math
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
    None, True, False, 0, -1, 1.5, -0.0, 1e308, 5e-324, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**70),
    10**4000, "", "a", "null", "NaN", "\x00", "\r\n\t", "é", "日本語", "😀", "\ufffd", [], {}, [None], {"": None},
    {"a": {"b": [1, 2.5, "c", None, True]}}, {"big": 2**100, "text": "日本", "none": None}, nested(200),
]  # fmt: skip


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
    math.nan, math.inf, -math.inf, [None, {"a": math.nan}], "\ud800", {"\udfff": 1}, ["\ud800", 2**70], nested(10_000),
    nested(10_000, 2**70), object(), {1: 2}, {1: 2, "a": 2**70}, {"a": 2**70, 1: "x"}, {"a": 2**70, None: "x"},
    {1, 2}, 1j, 10**5000,
]  # fmt: skip


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
