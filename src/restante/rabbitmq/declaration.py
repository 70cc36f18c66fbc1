"""Declares a topology on a broker, and reports differences. It deletes nothing, and uses nothing that differs.

If the broker cannot be reached or refuses the login, it raises Unavailable. If an object has other arguments, is
missing, or the user has no right to it, it raises TopologyMismatch. Both name the remedy, neither a password.
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

#: Failures listed in one error. More usually have the same cause: other options, or a missing right.
MAX_LISTED = 5
#: Seconds between attempts to declare after an internal error of RabbitMQ (541): a busy node may not start a quorum
#: queue within its own time limit.
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
    """RabbitMQ had an internal error and closed the connection; another attempt may succeed."""


def declare(connection: Connection, topology: Topology) -> None:
    """Declares a topology; objects that exist already are thereby proved equal."""
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
            failed = [text for item in objects if (text := broker.declare(item)) is not None]
            if failed:
                more = f" (and {len(failed) - MAX_LISTED} more)" if len(failed) > MAX_LISTED else ""
                raise TopologyMismatch("; ".join(failed[:MAX_LISTED]) + more)
        for item in topology.old_bindings:
            if not broker.has(Exchange(item.source, "topic")):
                break  # They have one source: no earlier version was here, or its objects are removed.
            broker.declare(item)
        # Last, so that messages that are rejected meanwhile take both ways rather than none.
        for item in topology.unbound:
            broker.unbind(item)


def verify(connection: Connection, topology: Topology) -> list[str]:
    """Lists missing exchanges and queues, such as `queue billing.on_paid`. Declares nothing.

    AMQP cannot ask for bindings and arguments: only `declare` checks those.
    """
    with Channels(connection) as broker:
        objects: list[Exchange | Queue] = [*topology.exchanges, *topology.queues]
        return [_description(item) for item in objects if not broker.has(item)]


def counts(connection: Connection, names: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """Ready messages and consumers of each queue; None if there is no such queue."""
    with Channels(connection) as broker:
        return {name: broker.counts(name) for name in names}


class Channels:
    """Requests over one connection. AMQP closes a channel on failure; the next request opens another."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._channel: Any = None

    def __enter__(self) -> Channels:
        connection = self._connection
        if connection.transport.driver_type != "amqp":
            raise InvalidInput(
                f"the broker's URL must begin with amqp:// or amqps://, not {connection.transport_cls}://"
            )
        with self._as_unavailable():
            # Kombu would retry without end: an operator who starts a service needs the error at once.
            connection.ensure_connection(errback=_raise, reraise_as_library_errors=False)
        return self

    def __exit__(self, *_: object) -> None:
        if self._channel is not None and self._channel.is_open:
            try:
                self._channel.close()
            except (OSError, amqp.AMQPError):
                pass  # The connection is lost, and the channel with it.

    def declare(self, item: Object) -> str | None:
        """Declares an object; returns why it failed, None if it did not."""
        try:
            self._request(lambda channel: _declare(channel, item))
        except amqp.ChannelError as error:
            return self._explanation(item, error)
        return None

    def has(self, item: Exchange | Queue) -> bool:
        return self._if_exists(item, lambda channel: _declare(channel, item, passive=True)) is not None

    def counts(self, name: str) -> tuple[int, int] | None:
        queue = self._if_exists(Queue(name), lambda channel: _declare(channel, Queue(name), passive=True))
        return None if queue is None else (queue.message_count, queue.consumer_count)

    def unbind(self, item: Binding) -> None:
        """Removes a binding; a missing one is no error for RabbitMQ."""
        self._run(item, lambda channel: _unbind(channel, item))

    def delete_queue(self, name: str) -> bool:
        """Deletes a queue if it is empty and has no consumer; returns whether it is gone."""
        try:
            self._request(lambda channel: channel.queue_delete(name, if_unused=True, if_empty=True))
        except amqp.PreconditionFailed:
            return False
        except amqp.ChannelError as error:
            raise TopologyMismatch(self._explanation(Queue(name), error)) from None
        return True

    def delete_exchange(self, name: str) -> None:
        """Deletes an exchange with its bindings."""
        self._run(Exchange(name, "topic"), lambda channel: channel.exchange_delete(name))

    def _run(self, item: Object, verb: Callable[[Any], Any]) -> None:
        try:
            self._request(verb)
        except amqp.ChannelError as error:
            raise TopologyMismatch(self._explanation(item, error)) from None

    def _if_exists(self, item: Object, question: Callable[[Any], Any]) -> Any:
        """The answer to a request about an object, None if there is no such object."""
        try:
            return self._request(question) or True
        except amqp.ChannelError as error:
            if error.reply_code == NOT_FOUND:
                return None
            raise TopologyMismatch(self._explanation(item, error)) from None

    def _request(self, question: Callable[[Any], Any]) -> Any:
        with self._as_unavailable():
            if self._channel is None or not self._channel.is_open:
                self._channel = self._connection.channel()
            return question(self._channel)

    @contextmanager
    def _as_unavailable(self) -> Iterator[None]:
        """Raises Unavailable if the connection is lost or refused."""
        try:
            yield
        except amqp.ChannelError as error:
            # A refused login has the same class as a refused object; then there is no channel yet.
            if self._channel is not None:
                raise
            raise Unavailable(f"{self._place()} refuses the login of {self._user()}: {_error_text(error)}") from None
        except amqp.NotAllowed as error:
            where = self._connection.virtual_host or "/"
            raise Unavailable(
                f"{self._place()} does not let {self._user()} into the virtual host {where}: {_error_text(error)}; "
                f"create it by `rabbitmqctl add_vhost {where}`, and allow it by "
                f"`rabbitmqctl set_permissions -p {where} {self._user()} '.*' '.*' '.*'`"
            ) from None
        except amqp.InternalError as error:
            raise _BrokerFailed(
                f"RabbitMQ at {self._place()} failed: {_error_text(error)}; its log says why; try again when it is "
                "less busy, and restart it if its log names rabbit_fifo_dlx_sup"
            ) from None
        except (OSError, amqp.AMQPError) as error:
            raise Unavailable(
                f"RabbitMQ at {self._place()} cannot be reached: {_error_text(error)}; check the URL, that the broker "
                "runs, and the network between"
            ) from None

    def _place(self) -> str:
        return f"{self._connection.hostname or 'localhost'}:{self._connection.port or self._connection.default_port}"

    def _user(self) -> str:
        return str(self._connection.userid or "guest")

    def _explanation(self, item: Object, error: Any) -> str:
        if error.reply_code == PRECONDITION_FAILED:
            return _difference(item, error)
        if error.reply_code == ACCESS_REFUSED:
            return self._missing_right(item, error)
        return f"{_description(item)} cannot be declared: {_error_text(error)}; declare what it names first"

    def _missing_right(self, item: Object, error: Any) -> str:
        match = _REFUSED.search(error.reply_text)
        if match is None:
            return f"{_description(item)} is refused: {_error_text(error)}"
        right, kind, name = match.groups()
        where = self._connection.virtual_host or "/"
        return (
            f"user {self._user()} may not {right or _right(item, name)} {kind} {name}, which declaring "
            f"{_description(item)} needs: grant it by "
            f"`rabbitmqctl set_permissions -p {where} {self._user()} CONFIGURE WRITE READ`"
        )


def _raise(error: BaseException, interval: float) -> None:
    raise error


def _declare(channel: Any, item: Object, *, passive: bool = False) -> Any:
    match item:
        case Exchange():
            return channel.exchange_declare(
                item.name,
                item.type,
                passive=passive,
                durable=item.durable,
                auto_delete=False,
                arguments=dict(item.arguments),
            )
        case Queue():
            return channel.queue_declare(
                item.name, passive=passive, durable=True, auto_delete=False, arguments=dict(item.arguments)
            )
        case Binding():
            bind = channel.exchange_bind if item.to_exchange else channel.queue_bind
            return bind(item.target, item.source, item.key)


def _unbind(channel: Any, item: Binding) -> Any:
    unbind = channel.exchange_unbind if item.to_exchange else channel.queue_unbind
    return unbind(item.target, item.source, item.key)


def _description(item: Object) -> str:
    match item:
        case Exchange():
            return f"exchange {item.name}"
        case Queue():
            return f"queue {item.name}"
        case Binding():
            return f"binding {item.source} → {item.target} by {item.key!r}"


def _difference(item: Object, error: Any) -> str:
    match = _DIFFERS.search(error.reply_text)
    if match is None:
        rung = isinstance(item, Queue) and any(name == "x-dead-letter-strategy" for name, _ in item.arguments)
        remedy = "; quorum rungs need RabbitMQ 3.10 or newer: use rungs='classic' before" if rung else ""
        return f"{_description(item)} cannot be declared: {_error_text(error)}{remedy}"
    argument, *values = match.groups()
    wanted, there = values[0] or values[1], values[2] or values[3]
    if isinstance(item, Queue):
        remedy = f"delete it once it is empty by `rabbitmqctl delete_queue {item.name}`"
    else:
        # rabbitmqctl has no command for exchanges.
        remedy = "delete it once no service publishes to it"
    return f"{_description(item)} has {argument} {there}, wanted is {wanted}: use the same options, or {remedy}"


def _right(item: Object, refused: str) -> str:
    """The right that declaring an object lacked, where RabbitMQ does not name it."""
    if isinstance(item, Binding):
        return "write" if refused == item.target else "read"
    if refused != item.name:
        return "write"
    # An argument that names an exchange, for dead letters or as an alternate, also needs the right to read.
    refers = any(name in ("alternate-exchange", "x-dead-letter-exchange") for name, _ in item.arguments)
    return "configure or read" if refers else "configure"


def _error_text(error: Any) -> str:
    """The error text of the broker or the system, on one line."""
    return " ".join(str(getattr(error, "reply_text", None) or getattr(error, "strerror", None) or error).split())
