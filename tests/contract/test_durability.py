"""How sure a send is when it returns: memory, disk, or so many replicas; what the server cannot promise is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import restante
from restante import Unconfirmed, UnsafeServer
from tests.contract.rooms import Room, async_client, fresh_name, sync_client
from tests.harness.deadlines import at_most, wait_until_async
from tests.harness.pretender import Pretender, bulk
from tests.harness.servers import RedisServer, call, debian_binary, embedded_binary

#: Opens a client of a server, synchronous or asyncio.
Opener = Callable[[str], Callable[..., Any]]


@pytest.fixture(params=[debian_binary, embedded_binary], ids=["redis", "valkey"])
def binary(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param()
    return found


@pytest.fixture(params=[sync_client, async_client], ids=["sync", "async"])
def opener(request: pytest.FixtureRequest) -> Opener:
    found: Opener = request.param
    return found


@pytest.fixture
def server(binary: Path) -> Iterator[RedisServer]:
    # Replicas are served at once instead of after the default seconds of waiting for more of them.
    with RedisServer(binary, config={"repl-diskless-sync-delay": "0"}) as running:
        yield running


async def room_on(server: RedisServer, opener: Opener) -> Room:
    return Room("durability", opener(server.url), restante.connect(server.url))


async def leave(room: Room) -> None:
    await room.close()
    room.plain.close()


async def test_memory_is_the_default_and_needs_nothing(server: RedisServer, opener: Opener) -> None:
    room = await room_on(server, opener)
    queue = room.queue()
    await room.send(queue, "x")
    assert queue.settings.durability == "memory"
    await leave(room)


async def test_disk_is_refused_where_nothing_is_written_to_disk(server: RedisServer, opener: Opener) -> None:
    room = await room_on(server, opener)
    queue = room.queue()
    with pytest.raises(UnsafeServer, match="appendonly"):
        await room.send(queue, "x", durability="disk")
    assert room.states(queue) == {}
    await leave(room)


async def test_disk_is_refused_where_the_disk_comes_a_second_later_and_cannot_be_waited_for(opener: Opener) -> None:
    with RedisServer(debian_binary(), appendonly="everysec") as server:
        room, waits_for_disk = await room_on(server, opener), server.version >= (7, 2, 0)  # newer than Debian 12's
        with nullcontext() if waits_for_disk else pytest.raises(UnsafeServer, match="always"):
            await room.send(room.queue(), "x", durability="disk")
        await leave(room)


async def test_disk_is_waited_for_where_it_comes_a_second_later(opener: Opener) -> None:
    with RedisServer(embedded_binary(), appendonly="everysec") as server:
        room = await room_on(server, opener)
        queue = room.queue(fresh_name(), durability="disk")
        await room.send(queue, "x")
        assert "cmdstat_waitaof" in server.info("commandstats")
        server.kill9()
        server.start()
        assert await room.drain(queue) == ["x"]
        await leave(room)


async def test_disk_outlives_a_killed_server(binary: Path, opener: Opener) -> None:
    with RedisServer(binary, appendonly="always") as server:
        room = await room_on(server, opener)
        queue = room.queue(fresh_name(), durability="disk")
        await room.call(queue.send_many, list(range(100)))
        await room.send(queue, 100)
        server.kill9()
        server.start()
        assert await room.drain(queue) == list(range(101))
        await leave(room)


async def test_a_send_that_the_disk_has_not_got_is_unconfirmed(opener: Opener) -> None:
    """Told by WAITAOF, which servers have from 7.2 on; one that says so stands in for it."""

    def answers(words: list[bytes]) -> bytes | None:
        match words[0]:
            case b"EVALSHA":
                return b"*0\r\n" if words[2] == b"3" else b":1\r\n"  # the settings; a send
            case b"INFO" if words[1:] == [b"persistence"]:
                return bulk("aof_enabled:1\r\n")
            case b"WAITAOF":
                return b"*2\r\n:0\r\n:0\r\n"
        return None

    with Pretender("7.2.0", answers) as server:
        client = opener(server.url)(patience=0)
        room = Room("durability", lambda: client, client)
        try:
            with pytest.raises(Unconfirmed, match="durability disk"):
                await room.send(client.queue(fresh_name()), "x", durability="disk")
        finally:
            await room.call(client.close)


async def test_a_replica_confirms(server: RedisServer, binary: Path, opener: Opener) -> None:
    with RedisServer(binary) as replica:
        call(replica.client(), "REPLICAOF", "127.0.0.1", server.port)
        await wait_until_async(
            lambda: replica.info("replication").get("master_link_status") == "up", lambda: replica.log[-1000:]
        )
        room = await room_on(server, opener)
        queue = room.queue(durability="replica:1")
        id = await room.send(queue, "x")
        key = f"restante:{{{queue.name}}}:messages"
        assert call(replica.client(), "HEXISTS", key, id) == 1
        await room.call(queue.send_many, ["y", "z"])
        assert call(replica.client(), "HLEN", key) == 3
        with pytest.raises(Unconfirmed):
            await room.send(room.client(socket_timeout=0.5).queue(queue.name), "x", durability="replica:2")
        await leave(room)


@pytest.mark.timed
async def test_without_a_replica_a_send_is_unconfirmed_and_stored_once(server: RedisServer, opener: Opener) -> None:
    room = Room("durability", opener(server.url), restante.connect(server.url))
    client = room.client(socket_timeout=0.5)
    queue = client.queue(fresh_name())
    try:
        with at_most(5), pytest.raises(Unconfirmed, match="replica:1") as doubt:
            await room.send(queue, "x", durability="replica:1")
        [id] = doubt.value.ids
        again = await room.send(queue, "x", id=id)
        assert (again, again.stored) == (id, False)
        assert await room.drain(queue) == ["x"]
    finally:
        await leave(room)
