"""A broker with the ladders of an earlier version, one per service and one for events: taken over without loss.

The old topology is declared by literal words, because no code makes it any more.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import amqp
import pytest
from kombu import Connection

from restante.rabbitmq import Subscribed, TopologyOptions, topology
from restante.rabbitmq.declaration import declare
from restante.rabbitmq.leftovers import find, remove
from tests.cli.conftest import Cli
from tests.harness.deadlines import PATIENCE
from tests.harness.rabbitmq import RabbitServer
from tests.rabbitmq.conftest import LOW, Wire

#: Labels and milliseconds of the old rungs, shortest first.
STEPS = (("125ms", 125), ("250ms", 250), ("500ms", 500), ("1s", 1000), ("2s", 2000), ("4s", 4000))
Arrived = Counter[tuple[str, str]]


@pytest.fixture
def url(server: RabbitServer) -> Iterator[str]:
    with server.virtual_host(f"old-{uuid.uuid4().hex[:8]}") as made:
        yield made


@pytest.fixture
def broker(url: str, connect: Callable[..., Connection]) -> Connection:
    return connect(url)


@pytest.fixture
def old(url: str, connect: Callable[..., Connection]) -> Wire:
    """What a process of the earlier version speaks by; everything that it declared is there."""
    wire = Wire(connect(url))
    _declare_old(wire.channel)
    return wire


@pytest.fixture
def held(url: str, connect: Callable[..., Connection]) -> Wire:
    """The same, but what is on the longest rungs stays there until `let_go`."""
    wire = Wire(connect(url))
    _declare_old(wire.channel, longest=3_600_000)
    return wire


def let_go(wire: Wire, owner: str) -> None:
    """Moves the message on the longest rung to the next one, as the broker does when its time is over."""
    message = wire.channel.basic_get(f"{owner}.rung.4s", no_ack=True)
    wire.channel.basic_publish(message, f"{owner}.rung.2s", message.delivery_info["routing_key"])


def _declare_old(channel: Any, longest: int = STEPS[-1][1]) -> None:
    durable = {"durable": True, "auto_delete": False}
    week = {"x-message-ttl": 604_800_000, "x-max-length": 10_000, "x-overflow": "reject-publish"}
    aside = {"alternate-exchange": "events.unrouted"}
    channel.exchange_declare("events.unrouted", "fanout", **durable)
    channel.exchange_declare("events", "topic", arguments=aside, **durable)
    channel.exchange_declare("events.known", "topic", **durable)
    channel.exchange_declare("calls", "direct", **durable)
    channel.exchange_declare("calls.all", "direct", **durable)
    channel.queue_declare("events.unrouted", arguments=week, **durable)
    channel.queue_bind("events.unrouted", "events.unrouted", "")
    channel.queue_declare("billing.archive", arguments=week, **durable)
    for owner in ("events", "billing"):
        channel.exchange_declare(f"{owner}.return", "topic", arguments=aside, **durable)
        below = f"{owner}.return"
        for place, (label, milliseconds) in enumerate(STEPS):
            name = f"{owner}.rung.{label}"
            waits = longest if label == STEPS[-1][0] else milliseconds
            arguments = {"x-message-ttl": waits, "x-dead-letter-exchange": below}
            channel.exchange_declare(name, "topic", **durable)
            channel.queue_declare(name, arguments=arguments, **durable)
            channel.queue_bind(name, name, "*." * place + "1.#")
            channel.exchange_bind(below, name, "*." * place + "0.#")
            below = name
    rejected = {
        "x-max-priority": 10,
        "x-dead-letter-exchange": "billing.rung.1s",
        "x-dead-letter-routing-key": "0.0.0.1.@.billing.on_paid",
    }
    channel.queue_declare("billing.on_paid", arguments=rejected, **durable)
    channel.queue_bind("billing.on_paid", "events", "shop.paid")
    channel.queue_bind("billing.on_paid", "events.known", "shop.paid")
    channel.queue_bind("billing.on_paid", "events.return", "#.@.shop.paid")
    channel.queue_bind("billing.on_paid", "billing.return", "#.@.billing.on_paid")


def upgraded(broker: Connection, options: TopologyOptions = LOW) -> None:
    """The service starts in this version, with a handler that it did not have before."""
    handlers = [Subscribed("on_paid", "shop.paid"), Subscribed("watch", "#")]
    declare(broker, topology("billing", handlers, options=options))


def seen(wire: Wire) -> Arrived:
    return Counter((queue, str(message.body)) for queue, message, _ in wire.arrived)


@pytest.mark.parametrize("rungs", ["classic", "quorum"])
def test_what_waits_on_old_rungs_comes_back_once_and_nothing_is_lost(old: Wire, broker: Connection, rungs: Any) -> None:
    old.send("billing.rung.2s", "1.0.1.0.1.@.billing.on_paid", "a retry of 2.625 s", mandatory=True)
    old.send("billing.rung.1s", "0.0.0.1.@.billing.on_paid", "a retry of 1 s", mandatory=True)
    old.send("billing.rung.250ms", "1.1.@.billing.on_paid", "a retry of 375 ms", mandatory=True)
    old.send("events.rung.2s", "0.0.0.1.1.@.shop.paid", "an event in 3 s", mandatory=True)
    upgraded(broker, TopologyOptions(longest_delay=LOW.longest_delay, rungs=rungs))
    old.send("billing.rung.4s", "1.0.0.0.0.1.@.billing.on_paid", "an old process retries", mandatory=True)
    old.send("events.rung.500ms", "1.0.1.@.shop.paid", "an old process delays", mandatory=True)
    old.listen("billing.on_paid", "billing.watch")
    old.wait(8, PATIENCE)
    old.quiet(1)
    assert seen(old) == {
        ("billing.on_paid", "a retry of 2.625 s"): 1,
        ("billing.on_paid", "a retry of 1 s"): 1,
        ("billing.on_paid", "a retry of 375 ms"): 1,
        ("billing.on_paid", "an event in 3 s"): 1,
        ("billing.watch", "an event in 3 s"): 1,
        ("billing.on_paid", "an old process retries"): 1,
        ("billing.on_paid", "an old process delays"): 1,
        ("billing.watch", "an old process delays"): 1,
    }


@pytest.mark.parametrize("rungs", ["classic", "quorum"])
def test_what_an_old_queue_rejects_goes_by_the_shared_ladder_and_comes_back_once(
    old: Wire, broker: Connection, rungs: Any
) -> None:
    upgraded(broker, TopologyOptions(longest_delay=LOW.longest_delay, rungs=rungs))
    ways: list[list[str]] = []

    def handle(message: Any) -> None:
        ways.append([one["queue"] for one in message.headers.get("x-death", [])])
        if len(ways) == 1:
            message.channel.basic_reject(message.delivery_tag, requeue=False)
        else:
            message.channel.basic_ack(message.delivery_tag)

    old.listen("billing.on_paid", handle=handle)
    old.send("events", "shop.paid", "rejected once")
    old.wait(2, PATIENCE)
    old.quiet(1.5)
    assert ways == [[], [f"ladder:{rungs}.1s", "billing.on_paid"]]


def test_a_service_may_change_the_type_of_its_rungs_and_gets_each_message_once(old: Wire, broker: Connection) -> None:
    for rungs in ("quorum", "classic", "quorum"):
        upgraded(broker, TopologyOptions(longest_delay=LOW.longest_delay, rungs=rungs))
    refused: list[str] = []

    def handle(message: Any) -> None:
        if not refused:
            refused.append(message.body)
            message.channel.basic_reject(message.delivery_tag, requeue=False)
        else:
            message.channel.basic_ack(message.delivery_tag)

    old.listen("billing.on_paid", handle=handle)
    old.send("events", "shop.paid", "rejected once")
    old.wait(2, PATIENCE)
    old.quiet(1.5)
    assert seen(old) == {("billing.on_paid", "rejected once"): 2}


def test_old_rungs_are_kept_while_they_hold_messages_and_removed_once_empty(
    held: Wire, broker: Connection, connect: Callable[..., Connection], url: str
) -> None:
    upgraded(broker)
    held.send("billing.rung.4s", "0.0.0.0.0.1.@.billing.on_paid", "on its way", mandatory=True)
    counts = {one.name: one.messages for one in find(broker, ["billing"]) if one.kind == "queue"}
    assert (counts["billing.rung.4s"], counts["events.rung.4s"], len(counts)) == (1, 0, 12)
    removed, kept = remove(broker, ["billing"])
    assert {one.name for one in removed} == {f"events.rung.{label}" for label, _ in STEPS} | {"events.return"}
    assert kept[0].text() == "queue billing.rung.4s (1 message on the way back)"
    assert {one.name for one in kept} == {f"billing.rung.{label}" for label, _ in STEPS} | {"billing.return"}
    let_go(held, "billing")
    held.listen("billing.on_paid")
    held.wait(1, PATIENCE)
    removed, kept = remove(broker, ["billing"])
    assert (len(removed), kept) == (len(STEPS) + len(STEPS) - 1 + 1, [])
    assert find(broker, ["billing"]) == []
    assert remove(broker, ["billing"]) == ([], [])
    # A process of the earlier version that has not ended is refused, and not robbed of its message.
    late = Wire(connect(url))
    with pytest.raises(amqp.exceptions.NotFound):
        late.send("events.rung.1s", "0.0.0.1.@.shop.paid", "too late", mandatory=True)
    # All goes on by the shared ladder.
    held.send(*LOW.ladder().retry(0.25, "billing.on_paid"), "a retry", mandatory=True)
    held.send(*LOW.ladder().later(0.25, "shop.paid"), "an event", mandatory=True)
    held.wait(3, PATIENCE)
    assert seen(held) == {
        ("billing.on_paid", "on its way"): 1,
        ("billing.on_paid", "a retry"): 1,
        ("billing.on_paid", "an event"): 1,
    }


def test_a_service_is_not_cleared_away_before_the_shared_ladder_is_there(old: Wire, broker: Connection) -> None:
    from restante.core.errors import TopologyMismatch

    with pytest.raises(TopologyMismatch, match=r"binding billing\.rung\.1s → ladder:quorum\.1s"):
        remove(broker, ["billing"])
    assert len(find(broker, ["billing"])) == 2 * (2 * len(STEPS) + 1) - 1


def test_the_command_line_names_what_is_left_over_and_removes_it(
    held: Wire, broker: Connection, url: str, tmp_path: Path
) -> None:
    cli = Cli(None, tmp_path)
    try:
        words = ("--broker", url, "--service", "billing")
        declared = cli.inside("rabbitmq", "declare", *words, "--subscription", "on_paid=shop.paid")
        assert (declared.code, "left over: queue billing.rung.4s\n" in declared.out) == (0, True)
        assert "restante rabbitmq clean" in declared.err
        checked = cli.inside("rabbitmq", "check", *words, "--json")
        assert (checked.code, checked.json["missing"]) == (0, [])
        assert "exchange events.return" in checked.json["left_over"]
        held.send("events.rung.4s", "0.0.0.0.0.1.@.shop.paid", "later", mandatory=True)
        looked = cli.inside("rabbitmq", "clean", *words, "--dry-run")
        assert (looked.code, "kept: queue events.rung.4s (1 message on the way back)\n" in looked.out) == (0, True)
        early = cli.inside("rabbitmq", "clean", *words)
        assert (early.code, "run it again later" in early.err) == (1, True)
        let_go(held, "events")
        held.listen("billing.on_paid")
        held.wait(1, PATIENCE)
        last = cli.inside("rabbitmq", "clean", *words, "--json")
        assert (last.code, last.json["kept"]) == (0, [])
        assert "exchange events.return" in last.json["removed"]
        assert cli.inside("rabbitmq", "clean", *words).code == 0
        assert cli.inside("rabbitmq", "check", *words, "--json").json == {"missing": [], "left_over": []}
        assert "--rungs must be classic or quorum" in cli.inside("rabbitmq", "clean", *words, "--rungs", "lazy").err
    finally:
        cli.close()
