"""The archive of celery-amqp-events is adopted completely, by function and by command, also after an interruption."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import amqp
import pytest
from celery import Celery
from kombu import Exchange, Queue

from restante.bus import Bus
from restante.bus.adoption import Adoption, adopt
from restante.bus.dead import open_dead_letters
from restante.cli.entry import run
from restante.compat.amqp_events.celery import EventsCelery, events_app
from restante.core.errors import InvalidInput, NotFound, QueueFull, Unavailable
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import RedisServer

#: The archive of a service, with the arguments celery-amqp-events declares.
ARCHIVE = "till:archived"
ARGUMENTS = {"x-message-ttl": 7 * 24 * 3600 * 1000, "x-max-length": 10_000, "x-queue-mode": "lazy"}


@pytest.fixture(scope="module")
def hosts(rabbit: RabbitServer) -> Iterator[tuple[str, str]]:
    """A virtual host with an archive as their worker declares it, and one where our service has been declared."""
    with rabbit.virtual_host("old") as old, rabbit.virtual_host("new") as new:
        with Celery(broker=old).connection() as connection:
            exchange = Exchange(ARCHIVE, type="fanout")
            Queue(ARCHIVE, exchange=exchange, queue_arguments=ARGUMENTS)(connection.default_channel).declare()
        made = service(new)
        made.declare()
        made.close()
        yield old, new


@pytest.fixture
def old(hosts: tuple[str, str]) -> str:
    """The archive with three events, as their service leaves them, and a stray message."""
    url = hosts[0]
    with Celery("till", broker=url) as sender, sender.connection() as connection:
        connection.default_channel.queue_purge(ARCHIVE)
        stray = amqp.Message(b"no task", content_type="text/plain", delivery_mode=2)
        for number in (1, 2, 3):
            sender.send_task(
                "shop.number.drawn",
                args=[number],
                kwargs={"colour": "red"},
                task_id=f"id-{number}",
                retries=11,
                exchange=ARCHIVE,
                routing_key="shop.number.drawn",
                connection=connection,
            )
            if number == 2:
                connection.default_channel.basic_publish(stray, ARCHIVE, "")
    return url


@pytest.fixture
def new(hosts: tuple[str, str]) -> str:
    """The place of our service, with nothing in it."""
    with Celery(broker=hosts[1]).connection() as connection:
        for queue in ("till.archive", "till.shop-number-drawn"):
            connection.default_channel.queue_purge(queue)
    return hosts[1]


def service(url: str) -> EventsCelery:
    made = events_app("till", broker_url=url)
    made.handler("shop.number.drawn")(lambda number, colour: None)
    return made


def waiting(url: str, queue: str = ARCHIVE) -> int:
    with Celery(broker=url).connection() as connection:
        return int(connection.default_channel.queue_declare(queue, passive=True).message_count)


def test_archived_events_are_listed_and_replayed_as_our_own(old: str, new: str) -> None:
    assert adopt(old, "till", to=new, dry_run=True) == Adoption(adopted=3, unreadable=1)
    assert (waiting(old), waiting(new, "till.archive")) == (4, 0)
    assert adopt(old, "till", to=new) == Adoption(adopted=3, unreadable=1)
    assert waiting(old) == 1, "what is no task stays"
    with open_dead_letters(new, "till") as letters:
        found = letters.list()
        assert [(one.id, one.topic, one.subscription, one.attempts) for one in found] == [
            (f"id-{number}", "shop.number.drawn", "till.shop-number-drawn", 11) for number in (1, 2, 3)
        ]
        assert json.loads(found[0].data) == {"0": 1, "colour": "red"}
        assert letters.replay() == 3
    assert waiting(new, "till.shop-number-drawn") == 3


def test_a_break_between_confirm_and_ack_doubles_nothing(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    acked = amqp.Channel.basic_ack
    count = iter(range(10))

    def breaking(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(count) == 1:
            raise ConnectionError("cut")
        return acked(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(amqp.Channel, "basic_ack", breaking)
        with pytest.raises(Unavailable, match="cannot be reached"):
            adopt(old, "till", to=new)
    assert (waiting(old), waiting(new, "till.archive")) == (3, 2)
    assert adopt(old, "till", to=new) == Adoption(adopted=2, known=1, unreadable=1)
    with open_dead_letters(new, "till") as letters:
        assert [one.id for one in letters.list()] == ["id-1", "id-2", "id-3"]


def test_an_archive_that_is_full_or_missing_keeps_the_rest_where_it_was(old: str, new: str) -> None:
    with pytest.raises(NotFound, match="no service other has started"):
        adopt(old, "other", queue=ARCHIVE, to=new)
    with pytest.raises(NotFound, match="no queue till:dusty"):
        adopt(old, "till", queue="till:dusty", to=new)
    with pytest.raises(InvalidInput, match="amqp"):
        adopt("redis://127.0.0.1:1", "till")
    assert waiting(old) == 4
    small = Bus("small", new, dedup=0, rabbitmq={"archive_length": 2})
    small.declare()
    small.close()
    with pytest.raises(QueueFull):
        adopt(old, "small", queue=ARCHIVE, to=new)
    assert (waiting(old), waiting(new, "small.archive")) == (2, 2)


def test_on_redis_the_events_go_to_their_subscription_once(old: str, redis_server: RedisServer) -> None:
    url = f"{redis_server.url.replace('redis://', 'restante://')}/3"
    with pytest.raises(NotFound, match=r"start the service once"):
        adopt(old, "till", to=url)
    made = service(url)
    made.declare()
    try:
        assert adopt(old, "till", to=url) == Adoption(adopted=3, unreadable=1)
        assert made.client.publish("shop.number.drawn", {"number": 4}).subscriptions == 1
        post = made.redis
        assert post is not None
        got = post.queue("till.shop-number-drawn").receive_many(4)
        assert [one.id for one in got][:3] == ["id-1", "id-2", "id-3"]
        first = next(one for one in got if one.id == "id-1")
        assert (first.kind, first.payload) == ("shop.number.drawn", {"0": 1, "colour": "red"})
    finally:
        made.close()


def test_the_command_says_what_it_moved(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["rabbitmq", "adopt-archive", "--broker", new, "--from", old, "--service", "till"]
    assert run([*words, "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"adopted": 3, "known": 0, "unreadable": 1, "dry_run": True}
    assert run([*words, "--handler", "shop.number.drawn=on_drawn"]) == 0
    said = capsys.readouterr().err
    assert "adopted 3 events" in said
    assert "1 message is not of celery-amqp-events" in said
    with open_dead_letters(new, "till") as letters:
        assert {one.subscription for one in letters.list()} == {"till.on_drawn"}
    assert run([*words, "--handler", "wrong"]) == 2
    assert run(words) == 1
