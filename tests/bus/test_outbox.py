"""Rows of the outbox that cannot be published: set aside with their error, while the others go once and in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect, text, update

import restante
from restante.bus import Bus, BusClient
from restante.bus.outbox import Outbox
from restante.core import errors
from tests.harness.servers import RedisServer, closed_port


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/shop.db")
    yield made
    made.dispose()


@pytest.fixture
def client(redis: RedisServer) -> Iterator[BusClient]:
    bus = Bus("billing", f"{redis.url}/0")
    bus.subscribe("a.b", name="h")(lambda data: None)
    bus.declare()
    bus.close()
    with BusClient(f"{redis.url}/0") as made:
        yield made


def received(redis: RedisServer) -> list[Any]:
    with restante.connect(f"{redis.url}/0") as post:
        return [one.payload for one in post.queue("billing.h").receive_many(100)]


def test_a_bad_row_is_set_aside_and_the_others_go_once_and_in_order(
    engine: Engine, client: BusClient, redis: RedisServer
) -> None:
    outbox = Outbox(client)
    outbox.create(engine)
    with engine.begin() as connection:
        ids = [outbox.publish(connection, "a.b", number) for number in range(5)]
        nobody = outbox.publish(connection, "no.such", 5, unrouted="raise")
        outbox.publish(connection, "a.b", 6)
        # Rows that were damaged, or written by a program with other ideas.
        table = outbox.table
        connection.execute(update(table).where(table.c.id == ids[2]).values(envelope='{"type": "not a topic!"}'))
        connection.execute(update(table).where(table.c.id == ids[3]).values(options="[1, 2"))
    assert outbox.relay(engine) == 4
    assert outbox.relay(engine) == 0
    assert received(redis) == [0, 1, 4, 6]
    with engine.begin() as connection:
        assert outbox.waiting(connection) == 0
        aside = outbox.aside(connection)
        assert [(one.id, one.error_class) for one in aside] == [
            (ids[2], "Malformed"),
            (ids[3], "JSONDecodeError"),
            (nobody, "Unroutable"),
        ]
        assert [one.topic for one in aside] == ["not a topic!", "a.b", "no.such"]
        assert "nobody has subscribed to no.such" in aside[2].error
        assert all(one.set_aside_at.tzinfo is not None for one in aside)


def test_rows_set_aside_are_put_back_or_discarded(engine: Engine, client: BusClient, redis: RedisServer) -> None:
    outbox = Outbox(client)
    outbox.create(engine)
    with engine.begin() as connection:
        for number in range(4):
            outbox.publish(connection, "c.d", number, unrouted="raise", id=f"event-{number}")
    assert outbox.relay(engine) == 0
    bus = Bus("billing", f"{redis.url}/0")
    bus.subscribe("*.*", name="h")(lambda data: None)
    bus.declare()
    bus.close()
    with engine.begin() as connection:
        with pytest.raises(errors.InvalidInput, match="give \\[id\\]"):
            outbox.retry(connection, "event-1")
        assert outbox.discard(connection, ["event-0"]) == 1
        outbox.publish(connection, "a.b", 9)
        outbox.publish(connection, "c.d", 2, id="event-2")  # the program has written it again meanwhile
        assert outbox.retry(connection, ["event-3"]) == 1
        assert outbox.retry(connection) == 2
        assert outbox.aside(connection) == []
    assert outbox.relay(engine) == 4
    assert received(redis) == [9, 3, 1, 2]  # behind what waited, in the order they were put back


def test_an_outbox_from_before_gets_its_second_table_when_it_needs_it(
    engine: Engine, client: BusClient, redis: RedisServer
) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "create table restante_outbox (number integer primary key, id varchar(200) not null unique, "
                "envelope text not null, data text not null, options text not null)"
            )
        )
    outbox = Outbox(client)
    with engine.begin() as connection:
        outbox.publish(connection, "a.b", 1)
        outbox.publish(connection, "no.such", 2, unrouted="raise")
        outbox.publish(connection, "a.b", 3)
    assert outbox.relay(engine) == 2
    assert inspect(engine).has_table("restante_outbox_aside")
    assert received(redis) == [1, 3]


def test_rows_before_a_broker_that_goes_away_are_not_published_again(
    engine: Engine, client: BusClient, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox(client)
    outbox.create(engine)
    with engine.begin() as connection:
        for number in range(4):
            outbox.publish(connection, "a.b", number)
    forward, went = client.forward, []

    def away(envelope: Any, data: bytes, how: Any) -> Any:
        went.append(data)
        if len(went) == 3:
            raise errors.Unavailable()
        return forward(envelope, data, how)

    monkeypatch.setattr(client, "forward", away)
    with pytest.raises(errors.Unavailable):
        outbox.relay(engine)
    with engine.begin() as connection:
        assert (outbox.waiting(connection), outbox.aside(connection)) == (2, [])
    assert outbox.relay(engine) == 2
    assert went == [b"0", b"1", b"2", b"2", b"3"]
    assert received(redis) == [0, 1, 2, 3]


def test_unknown_keywords_of_an_outbox_are_refused(engine: Engine) -> None:
    with BusClient(f"redis://127.0.0.1:{closed_port()}/0") as client:
        with pytest.raises(errors.InvalidInput, match="did you mean metadata"):
            Outbox(client, metdata=None)  # type: ignore[arg-type]
        with engine.begin() as connection, pytest.raises(errors.InvalidInput, match="did you mean delay"):
            Outbox(client).publish(connection, "a.b", 1, dealy=3)  # type: ignore[call-arg]
        with engine.begin() as connection, pytest.raises(errors.InvalidInput, match="'wait'"):
            Outbox(client).publish(connection, "a.b", 1, wait=False)  # type: ignore[call-arg]
