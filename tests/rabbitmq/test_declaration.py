"""Declaring a topology: again is fine, a difference is loud, and every failure names its remedy and no password."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import amqp
import pytest
from kombu import Connection

from restante.core.errors import InvalidInput, TopologyMismatch, Unavailable
from restante.rabbitmq import Subscribed, TopologyOptions, declaration, shared, topology
from restante.rabbitmq.declaration import counts, declare, verify
from restante.rabbitmq.topology import Queue
from tests.cli.conftest import Cli
from tests.harness.deadlines import at_most
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import HOST, closed_port
from tests.rabbitmq.conftest import LOW, Wire

Connect = Callable[..., Connection]


@pytest.fixture(scope="module")
def strangers(server: RabbitServer) -> tuple[str, str]:
    """The URLs of a user without any right, and of one that may touch what begins with x."""
    return server.user("nobody", "hush"), server.user("few", "hush", ("^x", "^x", "^x"))


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(None, tmp_path)
    yield made
    made.close()


@pytest.mark.timed
def test_declaring_is_quick_and_can_be_done_again(connection: Connection, service: str) -> None:
    made = topology(service, [Subscribed("on_paid", "shop.paid")], ["shop.price.get"])
    with at_most(2):
        declare(connection, made)
    declare(connection, made)
    assert verify(connection, made) == []


@pytest.mark.parametrize("failures", [1, 100])
def test_a_broker_that_fails_inside_is_asked_again_and_not_for_ever(
    connection: Connection, service: str, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a busy RabbitMQ does that cannot start a quorum queue in its time: it closes the connection with 541."""
    left, really = failures, declaration._declare

    def failing(channel: Any, one: Any, **told: Any) -> Any:
        nonlocal left
        if left and isinstance(one, Queue):
            left -= 1
            channel.connection.close()
            raise amqp.InternalError("INTERNAL_ERROR")
        return really(channel, one, **told)

    monkeypatch.setattr(declaration, "_declare", failing)
    monkeypatch.setattr(declaration, "PAUSES", (0.0, 0.0))
    made = topology(service, [Subscribed("on_paid", "shop.paid")], options=LOW)
    if failures == 1:
        declare(connection, made)
        assert verify(connection, made) == []
    else:
        with pytest.raises(Unavailable, match=r"RabbitMQ at .* failed: INTERNAL_ERROR; its log says why"):
            declare(connection, made)


def test_checking_names_what_is_missing_and_declares_nothing(connection: Connection, service: str) -> None:
    declare(connection, shared(LOW))
    made = topology(service, [Subscribed("on_paid", "shop.paid")], options=LOW)
    missing = verify(connection, made)
    assert f"exchange {service}.rung.1s" in missing
    assert f"queue {service}.on_paid" in missing
    assert all(service in name for name in missing)
    assert verify(connection, made) == missing
    declare(connection, made)
    assert verify(connection, made) == []


def test_a_queue_that_differs_is_loud_and_the_remedy_works(
    connection: Connection, server: RabbitServer, service: str
) -> None:
    made = topology(service, [Subscribed("on_paid", "a")], options=LOW)
    channel = connection.channel()
    channel.queue_declare(f"{service}.archive", durable=True, auto_delete=False, arguments={"x-message-ttl": 5})
    channel.queue_declare(f"{service}.on_paid", durable=False, auto_delete=False)
    with pytest.raises(TopologyMismatch) as caught:
        declare(connection, made)
    told = str(caught.value)
    assert f"queue {service}.archive has x-message-ttl 5, wanted is 604800000" in told
    assert f"queue {service}.on_paid has durable false, wanted is true" in told
    assert f"`rabbitmqctl delete_queue {service}.archive`" in told
    for name in ("archive", "on_paid"):
        server.control("delete_queue", f"{service}.{name}")
    declare(connection, made)


def test_arguments_that_one_side_has_not_at_all_are_named(connection: Connection, service: str) -> None:
    channel = connection.channel()
    channel.queue_declare(f"{service}.archive", durable=True, auto_delete=False)
    with pytest.raises(TopologyMismatch, match="has x-message-ttl none, wanted is 604800000"):
        declare(connection, topology(service, options=LOW))


def test_an_exchange_that_differs_is_loud(connection: Connection, service: str) -> None:
    connection.channel().exchange_declare(f"{service}.rung.1s", "fanout", durable=True, auto_delete=False)
    with pytest.raises(
        TopologyMismatch, match=f"exchange {service}.rung.1s has type fanout, wanted is topic: use the same"
    ):
        declare(connection, topology(service, options=LOW))


def test_many_differences_are_told_in_few_words(connection: Connection, service: str) -> None:
    made = topology(service, [Subscribed(f"on_{number}", "a") for number in range(8)], options=LOW)
    declare(connection, made)
    other = TopologyOptions(queue_type="quorum", longest_delay=LOW.longest_delay)
    with pytest.raises(TopologyMismatch, match=r"on_0 has .*\(and 3 more\)"):
        declare(connection, topology(service, [Subscribed(f"on_{number}", "a") for number in range(8)], options=other))


def test_a_missing_right_is_named_with_its_object(
    strangers: tuple[str, str], connection: Connection, connect: Connect, service: str
) -> None:
    made = topology(service, [Subscribed("on_paid", "a")], options=LOW)
    with pytest.raises(
        TopologyMismatch, match=r"user few may not configure exchange events\.unrouted.*set_permissions -p /"
    ):
        declare(connect(strangers[1]), made)
    mine = topology(f"x{service}", [Subscribed("on_paid", "a")], options=LOW)
    declare(connection, mine)
    bindings = [one for one in mine.bindings if one.source == "events"]
    with pytest.raises(
        TopologyMismatch, match="user few may not read exchange events, which declaring binding events → x"
    ):
        declare(connect(strangers[1]), type(mine)("x", bindings=tuple(bindings)))


def test_a_user_without_any_right_is_told_how_to_get_in(strangers: tuple[str, str], connect: Connect) -> None:
    with pytest.raises(Unavailable, match=r"does not let nobody into the virtual host /.*set_permissions") as caught:
        declare(connect(strangers[0]), shared(LOW))
    assert "hush" not in str(caught.value)


def test_a_wrong_password_is_not_shown(server: RabbitServer, connect: Connect) -> None:
    for user in ("guest", "stranger"):
        url = server.url.replace("guest:guest", f"{user}:opensesame")
        with pytest.raises(Unavailable, match=f"{HOST}:{server.port} refuses the login of {user}") as caught:
            declare(connect(url), shared(LOW))
        assert "opensesame" not in repr(caught.value)
        assert caught.value.__suppress_context__


@pytest.mark.timed
def test_a_broker_that_is_not_there_is_unavailable_at_once(connect: Connect) -> None:
    port = closed_port()
    for ask in (
        lambda connection: declare(connection, shared(LOW)),
        lambda connection: verify(connection, shared(LOW)),
        lambda connection: counts(connection, ["a"]),
    ):
        with (
            at_most(0.3),
            pytest.raises(Unavailable, match=f"RabbitMQ at {HOST}:{port} cannot be reached: .*refused") as caught,
        ):
            ask(connect(f"amqp://guest:opensesame@{HOST}:{port}//"))
        assert "opensesame" not in str(caught.value)


def test_a_virtual_host_that_is_not_there_is_unavailable(server: RabbitServer, connect: Connect) -> None:
    with pytest.raises(Unavailable, match="rabbitmqctl add_vhost nowhere"):
        declare(connect(server.url.removesuffix("/") + "nowhere"), shared(LOW))


def test_another_kind_of_broker_is_refused(connect: Connect) -> None:
    with pytest.raises(InvalidInput, match=r"must begin with amqp://"):
        declare(connect("memory://"), shared(LOW))


def test_a_full_archive_refuses_and_keeps_what_it_has(connection: Connection, service: str, wire: Wire) -> None:
    options = TopologyOptions(archive_length=2, longest_delay=LOW.longest_delay)
    declare(connection, topology(service, options=options))
    for body in ("first", "second"):
        wire.send("", f"{service}.archive", body, mandatory=True)
    with pytest.raises(amqp.exceptions.MessageNacked):
        wire.send("", f"{service}.archive", "third", mandatory=True)
    assert [message.body for message in wire.take(f"{service}.archive")] == ["first", "second"]


def test_calls_reach_one_of_those_that_answer_or_all_of_them(connection: Connection, service: str, wire: Wire) -> None:
    topic = f"shop.{service}.get"
    for name in (service, f"{service}-b"):
        declare(connection, topology(name, answered=[topic], options=LOW))
    wire.send("calls", topic, mandatory=True)
    wire.send("calls.all", topic, mandatory=True)
    wire.send("calls", f"{topic}.nobody", mandatory=True)
    assert wire.returned == [f"{topic}.nobody"]
    names = [f"call:{topic}", f"{service}.calls", f"{service}-b.calls"]
    assert counts(connection, names) == dict.fromkeys(names, (1, 0))


def test_the_command_line_shows_checks_and_declares(cli: Cli, server: RabbitServer, service: str) -> None:
    words = ("--service", service, "--subscription", "on_paid=shop.paid", "--answer", "shop.price.get", "--no-archive")
    shown = cli.inside("rabbitmq", "topology", *words)
    assert shown.code == 0
    assert "rung      ladder:quorum.65536s" in shown.out
    assert f"shop.paid → {service}.on_paid" in shown.out
    told = cli.inside("rabbitmq", "topology", *words, "--longest-delay", "2s", "--queue-type", "quorum", "--json").json
    assert told["service"] == service
    assert {one["name"] for one in told["queues"]} >= {f"{service}.on_paid", f"{service}.calls", "ladder:quorum.2s"}
    at = ("--broker", server.url)
    missing = cli.inside("rabbitmq", "check", *at, *words)
    assert (missing.code, f"missing: queue {service}.on_paid\n" in missing.out) == (1, True)
    assert f"queue {service}.calls" in cli.inside("rabbitmq", "check", *at, *words, "--json").json["missing"]
    assert cli.inside("rabbitmq", "declare", *at, *words).code == 0
    assert cli.inside("rabbitmq", "declare", *at, *words, "--json").json["declared"]["queues"] == 25
    assert cli.inside("rabbitmq", "check", *at, *words).code == 0
    differs = cli.inside("rabbitmq", "declare", *at, *words, "--queue-type", "quorum")
    assert (differs.code, f"queue {service}.on_paid has" in differs.error) == (4, True)


def test_the_command_line_refuses_what_it_cannot_understand(cli: Cli) -> None:
    ask = ("rabbitmq", "topology", "--service", "billing")
    assert "write --subscription" in cli.inside(*ask, "--subscription", "shop.paid").error
    assert "classic or quorum" in cli.inside(*ask, "--queue-type", "stream").error
    assert cli.inside("rabbitmq", "topology", "--service", "events").code == 4
    wrong = cli.inside("rabbitmq", "check", "--broker", "redis://:opensesame@here", "--service", "billing")
    assert (wrong.code, "opensesame" in wrong.err) == (2, False)
    gone = cli.inside(
        "rabbitmq", "check", "--broker", f"amqp://u:opensesame@{HOST}:{closed_port()}//", "--service", "billing"
    )
    assert (gone.code, "opensesame" in gone.err) == (3, False)
