"""Makes a topology so on a broker, and says what differs. Nothing is deleted, and nothing that differs is used.

A broker that cannot be reached or refuses the login raises Unavailable. An object that exists with other arguments,
that the user has no right to, or that is missing raises TopologyMismatch. Both name the remedy, neither a password.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from restante.core.errors import InvalidInput, MissingExtra, TopologyMismatch, Unavailable
from restante.rabbitmq.topology import Binding, Exchange, Queue, Topology

try:
    import amqp
    from kombu import Connection
except ModuleNotFoundError as missing:
    raise MissingExtra("Kombu is not installed: pip install 'restante[rabbitmq]'", name=missing.name) from missing

log = logging.getLogger("restante")

#: Failures told in one error. More are of the same cause, as a rule: other options, or a missing right.
TOLD = 5
#: Seconds between tries to declare where RabbitMQ fails inside (541): a busy node may not start a quorum queue in the
#: time that it gives itself.
PAUSES = (0.5, 0.5, 1.0, 2.0)
#: AMQP's codes for a missing object, a missing right, and a difference.
NOT_FOUND, ACCESS_REFUSED, PRECONDITION_FAILED = 404, 403, 406

_VALUE = r"(?:the value )?'(.*?)'(?: of type '\w+')?|(none)"
_DIFFERS = re.compile(
    rf"inequivalent arg '(.+?)' for .*: received (?:{_VALUE}) but current is (?:{_VALUE})$", re.DOTALL
)
_REFUSED = re.compile(r"(?:(configure|write|read) )?access to (queue|exchange) '(.+?)' in vhost", re.DOTALL)

Object = Exchange | Queue | Binding


class _BrokerFailed(Unavailable):
    """RabbitMQ could not do what it was asked and closed the connection; another try may succeed."""


def declare(connection: Connection, topology: Topology) -> None:
    """Declares everything there is not yet, and thereby proves that what there is already is the same."""
    for pause in PAUSES:
        try:
            return _declare_all(connection, topology)
        except _BrokerFailed as error:
            log.warning("declaring again service=%s seconds=%g error=%s", topology.service, pause, error)
            time.sleep(pause)
    return _declare_all(connection, topology)


def _declare_all(connection: Connection, topology: Topology) -> None:
    with Channels(connection) as broker:
        for objects in (topology.exchanges, topology.queues, topology.bindings):
            failed = [text for one in objects if (text := broker.declare(one)) is not None]
            if failed:
                more = f" (and {len(failed) - TOLD} more)" if len(failed) > TOLD else ""
                raise TopologyMismatch("; ".join(failed[:TOLD]) + more)
        for one in topology.old_bindings:
            if not broker.has(Exchange(one.source, "topic")):
                break  # They have one source: no earlier version was here, or it is cleared away.
            broker.declare(one)
        # Last, so that what is rejected meanwhile goes both ways and not nowhere.
        for one in topology.unbound:
            broker.unbind(one)


def verify(connection: Connection, topology: Topology) -> list[str]:
    """What is missing, such as `queue billing.on_paid`. Declares nothing.

    AMQP has no question for bindings and arguments: those are proved by `declare` alone.
    """
    with Channels(connection) as broker:
        objects: list[Exchange | Queue] = [*topology.exchanges, *topology.queues]
        return [_named(one) for one in objects if not broker.has(one)]


def counts(connection: Connection, names: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """Messages that are ready and consumers of each queue; None where there is no such queue."""
    with Channels(connection) as broker:
        return {name: broker.counts(name) for name in names}


class Channels:
    """Channels of one connection: a failure closes a channel, and the next question opens another."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel: Any = None

    def __enter__(self) -> Channels:
        connection = self._connection
        if connection.transport.driver_type != "amqp":
            raise InvalidInput(
                f"the broker's URL must begin with amqp:// or amqps://, not {connection.transport_cls}://"
            )
        with self._reaching():
            # Kombu would try again after seconds, and for as long as it takes: whoever starts a service wants to know.
            connection.ensure_connection(errback=_raise, reraise_as_library_errors=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._channel is not None and self._channel.is_open:
            try:
                self._channel.close()
            except (OSError, amqp.AMQPError):
                pass  # The connection is gone, and the channel with it.

    def declare(self, one: Object) -> str | None:
        """What is wrong with an object, or None."""
        try:
            self._ask(lambda channel: _declare(channel, one))
        except amqp.ChannelError as error:
            return self._complaint(one, error)
        return None

    def has(self, one: Exchange | Queue) -> bool:
        return self._known(one, lambda channel: _declare(channel, one, passive=True)) is not None

    def counts(self, name: str) -> tuple[int, int] | None:
        found = self._known(Queue(name), lambda channel: _declare(channel, Queue(name), passive=True))
        return None if found is None else (found.message_count, found.consumer_count)

    def unbind(self, one: Binding) -> None:
        """Takes a binding away; RabbitMQ does not mind one that is not there."""
        self._settled(one, lambda channel: _unbind(channel, one))

    def delete_queue(self, name: str) -> bool:
        """Deletes a queue that is empty and has no consumer; says whether it is gone."""
        try:
            self._ask(lambda channel: channel.queue_delete(name, if_unused=True, if_empty=True))
        except amqp.PreconditionFailed:
            return False
        except amqp.ChannelError as error:
            raise TopologyMismatch(self._complaint(Queue(name), error)) from None
        return True

    def delete_exchange(self, name: str) -> None:
        """Deletes an exchange with its bindings."""
        self._settled(Exchange(name, "topic"), lambda channel: channel.exchange_delete(name))

    def _settled(self, one: Object, verb: Callable[[Any], Any]) -> None:
        try:
            self._ask(verb)
        except amqp.ChannelError as error:
            raise TopologyMismatch(self._complaint(one, error)) from None

    def _known(self, one: Object, question: Callable[[Any], Any]) -> Any:
        """The answer to a question about an object, None if there is no such object."""
        try:
            return self._ask(question) or True
        except amqp.ChannelError as error:
            if error.reply_code == NOT_FOUND:
                return None
            raise TopologyMismatch(self._complaint(one, error)) from None

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        with self._reaching():
            if self._channel is None or not self._channel.is_open:
                self._channel = self._connection.channel()
            return question(self._channel)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Turns the loss or the refusal of a connection into Unavailable."""
        try:
            yield
        except amqp.ChannelError as error:
            # A refused login has the class of a refused object, and no method.
            if self._channel is not None:
                raise
            raise Unavailable(f"{self._place()} refuses the login of {self._user()}: {_said(error)}") from None
        except amqp.NotAllowed as error:
            where = self._connection.virtual_host or "/"
            raise Unavailable(
                f"{self._place()} does not let {self._user()} into the virtual host {where}: {_said(error)}; create "
                f"it by `rabbitmqctl add_vhost {where}`, and allow it by "
                f"`rabbitmqctl set_permissions -p {where} {self._user()} '.*' '.*' '.*'`"
            ) from None
        except amqp.InternalError as error:
            raise _BrokerFailed(
                f"RabbitMQ at {self._place()} failed: {_said(error)}; its log says why; try again when it is less "
                "busy, and restart it if its log names rabbit_fifo_dlx_sup"
            ) from None
        except (OSError, amqp.AMQPError) as error:
            raise Unavailable(
                f"RabbitMQ at {self._place()} cannot be reached: {_said(error)}; check the URL, that the broker runs, "
                "and the network between"
            ) from None

    def _place(self) -> str:
        return f"{self._connection.hostname or 'localhost'}:{self._connection.port or self._connection.default_port}"

    def _user(self) -> str:
        return str(self._connection.userid or "guest")

    def _complaint(self, one: Object, error: Any) -> str:
        if error.reply_code == PRECONDITION_FAILED:
            return _difference(one, error)
        if error.reply_code == ACCESS_REFUSED:
            return self._missing_right(one, error)
        return f"{_named(one)} cannot be declared: {_said(error)}; declare what it names first"

    def _missing_right(self, one: Object, error: Any) -> str:
        found = _REFUSED.search(error.reply_text)
        if found is None:
            return f"{_named(one)} is refused: {_said(error)}"
        told, kind, name = found.groups()
        where = self._connection.virtual_host or "/"
        return (
            f"user {self._user()} may not {told or _right(one, name)} {kind} {name}, which declaring {_named(one)} "
            f"needs: grant it by `rabbitmqctl set_permissions -p {where} {self._user()} CONFIGURE WRITE READ`"
        )


def _raise(error: BaseException, interval: float) -> None:
    raise error


def _declare(channel: Any, one: Object, *, passive: bool = False) -> Any:
    match one:
        case Exchange():
            return channel.exchange_declare(
                one.name,
                one.type,
                passive=passive,
                durable=one.durable,
                auto_delete=False,
                arguments=dict(one.arguments),
            )
        case Queue():
            return channel.queue_declare(
                one.name, passive=passive, durable=True, auto_delete=False, arguments=dict(one.arguments)
            )
        case Binding():
            bind = channel.exchange_bind if one.to_exchange else channel.queue_bind
            return bind(one.target, one.source, one.key)


def _unbind(channel: Any, one: Binding) -> Any:
    unbind = channel.exchange_unbind if one.to_exchange else channel.queue_unbind
    return unbind(one.target, one.source, one.key)


def _named(one: Object) -> str:
    match one:
        case Exchange():
            return f"exchange {one.name}"
        case Queue():
            return f"queue {one.name}"
        case Binding():
            return f"binding {one.source} → {one.target} by {one.key!r}"


def _difference(one: Object, error: Any) -> str:
    found = _DIFFERS.search(error.reply_text)
    if found is None:
        rung = isinstance(one, Queue) and any(name == "x-dead-letter-strategy" for name, _ in one.arguments)
        remedy = "; quorum rungs need RabbitMQ 3.10 or newer: use rungs='classic' before" if rung else ""
        return f"{_named(one)} cannot be as asked for: {_said(error)}{remedy}"
    argument, *values = found.groups()
    wanted, there = values[0] or values[1], values[2] or values[3]
    if isinstance(one, Queue):
        remedy = f"delete it once it is empty by `rabbitmqctl delete_queue {one.name}`"
    else:
        # rabbitmqctl has no word for exchanges.
        remedy = "delete it once nobody publishes to it"
    return f"{_named(one)} has {argument} {there}, wanted is {wanted}: use the same options, or {remedy}"


def _right(one: Object, refused: str) -> str:
    """The right that was missing on an object; where RabbitMQ does not name it, it follows from the verb."""
    if isinstance(one, Binding):
        return "write" if refused == one.target else "read"
    if refused != one.name:
        return "write"
    # Naming an exchange for dead letters or alternates takes the right to read besides.
    refers = any(name in ("alternate-exchange", "x-dead-letter-exchange") for name, _ in one.arguments)
    return "configure or read" if refers else "configure"


def _said(error: Any) -> str:
    """What the broker or the system said, on one line."""
    return " ".join(str(getattr(error, "reply_text", None) or getattr(error, "strerror", None) or error).split())
