"""What a service makes on RabbitMQ, counted; services that are known without a store; `restante topics`."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from restante import fixed
from restante.bus import Bus, BusClient
from restante.bus.directory import announce, announced_handlers
from restante.bus.inventory import take_inventory
from tests.bus.places import OnRabbitMQ, Service
from tests.celery.workers import wait_for
from tests.cli.conftest import Cli
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import RedisServer

CALL = "shop.price.get"


@pytest.fixture
def url(rabbit: RabbitServer) -> Iterator[str]:
    with rabbit.virtual_host(f"inventory-{uuid.uuid4().hex[:8]}") as made:
        yield made


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(None, tmp_path)
    yield made
    made.close()


def handle(data: Any) -> None:
    """No worker runs here."""


def declared(url: str, service: str, *handlers: str, answers: str = "", **options: Any) -> None:
    """A service that has started, and has no store."""
    bus = Bus(service, url, dedup=0, retry=fixed(1), **options)
    for name in handlers:
        bus.subscribe("shop.#", name=name)(handle)
    if answers:
        bus.answer(answers, name="answering")(handle)
    bus.declare()
    bus.close()


def names(rabbit: RabbitServer, url: str, what: str, *columns: str) -> list[list[str]]:
    lines = rabbit.control(what, "-p", url.rsplit("/", 1)[1], "name", *columns).splitlines()[1:]
    return [line.split("\t") for line in lines]


def test_running_services_make_no_more_queues_than_the_guide_says(
    rabbit: RabbitServer, redis: RedisServer, url: str, tmp_path: Path
) -> None:
    place = OnRabbitMQ(tmp_path, rabbit, redis)
    place.url = url
    handlers = ["paid", "every", "price"]
    with Service(place, "billing", handlers, pool="solo"), Service(place, "mail", handlers, pool="solo"):
        with place.client() as client:
            wait_for(lambda: client.publish("shop.order.paid", {"order": 1}).subscriptions == 4)
            place.wait_rows(2, "paid")
        made = names(rabbit, url, "list_queues", "auto_delete", "exclusive")
        kept = {name for name, *transient in made if "true" not in transient}
        exchanges = {name for name, *_ in names(rabbit, url, "list_exchanges")}
    # For each service two handlers of events, the queue of calls to all, and an archive; both answer the same call.
    assert len(kept) == 22 + 2 * (2 + 1 + 1) + 1, sorted(kept)
    ours = {name for name in exchanges if name and not name.startswith(("amq.", "celery", "reply.celery"))}
    assert len(ours) == 28 + 2 * 2, sorted(ours)  # a door, and the exchange that Celery makes for a service


def test_services_without_a_store_are_known_by_the_broker_alone(url: str) -> None:
    assert announced_handlers(url) == []
    declared(url, "billing", "invoice", "books", answers=CALL, rabbitmq={"archive_length": 5})
    declared(url, "mail", "thank", rabbitmq={"archive": False})
    with BusClient(url, source="shop") as client:
        client.publish("shop.paid", 1)
        client.publish("shop.paid", 2, delay=100)
    found = take_inventory(url)
    assert [(info.name, info.queue, info.broker) for info in found.handlers] == [
        ("billing.answering", f"call:{CALL}", "rabbitmq"),
        ("billing.books", "billing.books", "rabbitmq"),
        ("billing.invoice", "billing.invoice", "rabbitmq"),
        ("mail.thank", "mail.thank", "rabbitmq"),
    ]
    assert found.waiting == {f"call:{CALL}": 0, "billing.books": 1, "billing.invoice": 1, "mail.thank": 1}
    archives = [(one.service, one.messages, one.limit, one.nearly_full) for one in found.archives]
    assert archives == [("billing", 0, 5, False), ("mail", None, None, False)]
    assert [(one.seconds, one.messages) for one in found.rungs if one.messages] == [(64.0, 1)]
    # A service that starts again with other handlers says so, and one that ends is remembered.
    declared(url, "billing", "invoice", rabbitmq={"archive_length": 5})
    assert [info.name for info in announced_handlers(url)] == ["billing.invoice", "mail.thank"]


def test_many_read_and_write_the_list_of_services_at_once_and_miss_nobody(url: str) -> None:
    declared(url, "first", "watch")
    (info,) = announced_handlers(url)
    seen: list[set[str]] = []
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(3):
                announce(url, f"other{number}", [info])
                seen.append({one.service for one in announced_handlers(url)})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failed == []
    assert [one for one in seen if "first" not in one] == []


def test_the_command_shows_what_waits_on_rabbitmq_with_archives_and_rungs(
    url: str, cli: Cli, rabbit: RabbitServer
) -> None:
    declared(url, "billing", "invoice", rabbitmq={"archive_length": 5})
    with BusClient(url, source="shop") as client:
        client.publish("shop.paid", 1)
        client.publish("shop.paid", 2, delay=100)
        broker: Any = client._broker
        for number in range(4):
            broker.pool.publish(b"1", {}, {"delivery_mode": 2}, "", "billing.archive", id=str(number))
    told = cli.inside("topics", "--broker", url, "--json").json
    assert [(row["handler"], row["waiting"], row["dead"]) for row in told["subscriptions"]] == [("invoice", 1, None)]
    assert told["archives"] == [{"service": "billing", "dead": 4, "limit": 5, "nearly_full": True}]
    assert {one["queue"]: one["messages"] for one in told["rungs"]}["ladder:quorum.64s"] == 1
    shown = cli.inside("topics", "--broker", url)
    assert shown.code == 0
    for text in ("invoice", "80% nearly full", "ladder:quorum.64s"):
        assert text in shown.out
    assert "1 messages on the 20 rungs of the ladder, 0 unrouted" in shown.err


def test_the_command_says_what_it_was_not_told(redis: RedisServer, url: str, tmp_path: Path) -> None:
    bus = Bus("billing", url, store=f"{redis.url}/0")
    bus.subscribe("shop.paid", name="invoice")(handle)
    bus.declare()
    bus.close()
    cli = Cli(f"{redis.url}/0", tmp_path)
    try:
        shown = cli.inside("topics")
        assert (shown.code, "--broker amqp://" in shown.err) == (0, True)
        row = cli.inside("topics", "--json").json["subscriptions"][0]
        assert (row["waiting"], row["dead"]) == (None, None)
        assert cli.inside("topics", "--broker", url, "--json").json["subscriptions"][0]["waiting"] == 0
    finally:
        cli.close()
