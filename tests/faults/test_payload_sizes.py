"""Row 36: payloads of no byte, one byte, the queue's limit and one beyond it, at which nothing reaches the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import restante
from restante import Client, Draft, PayloadTooLarge, Queue
from restante.core.settings import DEFAULT_MAX_PAYLOAD
from tests.faults.rows import verdict
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer

#: Bytes that the queues of these tests take.
LIMIT = 100_000


@pytest.fixture
def through(proxy: FaultProxy) -> Iterator[Client]:
    """A client whose bytes are counted."""
    with restante.connect(proxy.url) as opened:
        yield opened


def text_of(size: int) -> str:
    """A JSON text that takes this many bytes, quotes included."""
    return "é" * ((size - 2) // 2) + "x" * (size % 2)


@pytest.mark.parametrize(
    "payload", [b"", b"\x00", b"x" * LIMIT, text_of(LIMIT), None, ""], ids=lambda one: repr(one)[:9]
)
def test_a_payload_up_to_the_limit_comes_back_byte_by_byte(post: Client, name: str, payload: Any) -> None:
    queue = post.queue(name, max_payload=LIMIT)
    alone = queue.send(payload)
    batched = queue.send_many([payload, Draft(payload, priority=0)])
    found = queue.receive_many(10)
    assert [message.payload for message in found] == [payload] * 3
    assert [type(message.payload) for message in found] == [type(payload)] * 3
    verdict(36, n=3, lost=len({alone, *batched} - {message.id for message in found}))


#: Ways to send one payload.
WAYS: dict[str, Callable[[Queue, Any], Any]] = {
    "send": lambda queue, payload: queue.send(payload),
    "with options": lambda queue, payload: queue.send(payload, priority=3, delay=5, unique="u", headers={"a": 1}),
    "batch": lambda queue, payload: queue.send_many(["small", payload, "small"]),
    "drafts": lambda queue, payload: queue.send_many([Draft("small"), Draft(payload, kind="k")]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("payload", [b"x" * (LIMIT + 1), text_of(LIMIT + 1)], ids=["bytes", "text"])
def test_a_payload_beyond_the_limit_is_refused_before_the_network(
    proxy: FaultProxy, through: Client, post: Client, name: str, way: str, payload: Any
) -> None:
    post.queue(name, max_payload=LIMIT).send("the queue is known")
    queue = through.queue(name)
    queue.send("the client knows its limit")
    before = proxy.counters
    with pytest.raises(PayloadTooLarge, match=f"{LIMIT + 1} bytes.*{LIMIT}.*send a reference"):
        WAYS[way](queue, payload)
    assert proxy.counters == before  # no byte and no connection
    assert restante.Admin(post).counts(name).waiting == 2
    verdict(36, n=1, way=way)


def test_sixty_four_megabytes_cost_the_server_nothing(server: RedisServer, post: Client, name: str) -> None:
    queue = post.queue(name)
    queue.send("the limit is known")
    before = server.info("memory")["used_memory_peak"]
    with pytest.raises(PayloadTooLarge, match=str(DEFAULT_MAX_PAYLOAD)):
        queue.send(b"x" * 64_000_000)
    assert server.info("memory")["used_memory_peak"] == before
    assert restante.Admin(post).counts(name).waiting == 1
    verdict("36b", n=1)


async def test_asyncio_refuses_it_before_the_network_too(proxy: FaultProxy, post: Client, name: str) -> None:
    post.queue(name, max_payload=LIMIT).send("the queue is known")
    async with restante.aio.connect(proxy.url) as opened:
        queue = opened.queue(name)
        await queue.send("the client knows its limit")
        before = proxy.counters
        with pytest.raises(PayloadTooLarge):
            await queue.send(b"x" * (LIMIT + 1))
        assert proxy.counters == before


def test_a_client_that_does_not_know_the_limit_yet_is_refused_by_the_server(
    server: RedisServer, post: Client, name: str
) -> None:
    with restante.connect(server.url) as other:
        queue = other.queue(name)
        queue.send("it takes the default")
        post.queue(name).configure(max_payload=10)
        with pytest.raises(PayloadTooLarge):
            queue.send("more than ten bytes")
        assert restante.Admin(post).counts(name).waiting == 1
