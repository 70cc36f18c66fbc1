"""RSMQ in PyRSMQ's words, for programs written for it: `from restante.rsmq.facade import RedisSMQ`.

Commands are built by keywords or by chained setters and run by `execute()`. On failure it raises, or with exceptions
off logs and returns False. What PyRSMQ does by mistake is not done here: a queue's maxsize is 65536 by default and is
kept, unknown keywords and bad values raise, an empty message is a message, deleting a message that was never received
succeeds, setting attributes of a missing queue makes none, and realtime is published. docs/guide/rsmq.md lists all.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

from restante.core.errors import RestanteError
from restante.rsmq.calls import RsmqReceived
from restante.rsmq.checks import DEFAULT_VT
from restante.rsmq.client import LOOK_EVERY, Rsmq
from restante.rsmq.consuming import RsmqConsumer
from restante.rsmq.errors import BadParameter, MissingParameter, QueueExists, QueueNotFound, RsmqError

__all__ = [
    "InvalidParameterValue",
    "NoMessageInQueue",
    "QueueAlreadyExists",
    "QueueDoesNotExist",
    "RedisSMQ",
    "RedisSMQConsumer",
    "RedisSMQConsumerThread",
    "RedisSMQException",
]

log = logging.getLogger("restante")

#: PyRSMQ's names of the protocol's errors.
RedisSMQException = RsmqError
InvalidParameterValue = BadParameter
QueueAlreadyExists = QueueExists
QueueDoesNotExist = QueueNotFound

#: Seconds PyRSMQ's consumer waits when the queue is empty. Ours wakes earlier for what becomes due.
EMPTY_QUEUE_DELAY = 2.0


class NoMessageInQueue(RsmqError):
    """The queue has no message that can be received now, or none of this id."""

    name = "noMessageInQueue"

    def __init__(self, queue: str = "") -> None:
        super().__init__(f"Queue '{queue}' has no messages waiting")


def _told(message: RsmqReceived) -> dict[str, Any]:
    return {"id": message.id, "message": message.message, "rc": message.rc, "ts": message.fr, "fr": message.fr}


class Command:
    """One call being built: setters by name, each returning the command, then `execute()`."""

    #: What this command takes, besides `quiet`.
    takes: ClassVar[tuple[str, ...]] = ("qname",)

    def __init__(self, parent: RedisSMQ, **given: Any) -> None:
        self.parent = parent
        self._given: dict[str, Any] = {}
        self._raises: bool | None = None
        for name, value in given.items():
            self._set(name, value)

    def _set(self, name: str, value: Any) -> Command:
        if name not in (*self.takes, "quiet"):
            raise BadParameter(f"{type(self).__name__} has no parameter {name}: it takes {', '.join(self.takes)}")
        self._given[name] = value
        return self

    def qname(self, value: str) -> Command:
        return self._set("qname", value)

    def message(self, value: Any) -> Command:
        return self._set("message", value)

    def id(self, value: str | bytes) -> Command:
        return self._set("id", value)

    def vt(self, value: int) -> Command:
        return self._set("vt", value)

    def delay(self, value: int) -> Command:
        return self._set("delay", value)

    def maxsize(self, value: int) -> Command:
        return self._set("maxsize", value)

    def encode(self, value: bool = True) -> Command:
        return self._set("encode", value)

    def quiet(self, value: bool = True) -> Command:
        return self._set("quiet", value)

    def exceptions(self, enabled: bool = True) -> Command:
        """Whether this command raises, whatever its parent does."""
        self._raises = enabled is not False
        return self

    def ready(self) -> bool:
        """Whether the parameters that must be given are."""
        return all(self._given.get(name) is not None for name in self.takes if name in ("qname", "message", "id"))

    def execute(self) -> Any:
        """Makes the call."""
        raises = self.parent.options["exceptions"] if self._raises is None else self._raises
        try:
            return self._call(self.parent.rsmq)
        except RestanteError as error:
            if raises:
                raise
            if not self._given.get("quiet"):
                log.warning("failed command=%s error=%s: %s", type(self).__name__, type(error).__name__, error)
            return False

    def _call(self, rsmq: Rsmq) -> Any:
        raise NotImplementedError

    @property
    def _queue(self) -> str:
        return self._given.get("qname")  # type: ignore[return-value]  # a missing one is refused by the call

    @property
    def _id(self) -> str:
        id = self._given.get("id")
        return id.decode("ascii", "replace") if isinstance(id, bytes) else id  # type: ignore[return-value]  # as above

    def _some(self, *names: str) -> dict[str, Any]:
        return {name: self._given[name] for name in names if self._given.get(name) is not None}


class CreateQueueCommand(Command):
    takes = ("qname", "vt", "delay", "maxsize")

    def _call(self, rsmq: Rsmq) -> bool:
        return rsmq.create_queue(self._queue, **self._some("vt", "delay", "maxsize")) == 1


class DeleteQueueCommand(Command):
    def _call(self, rsmq: Rsmq) -> bool:
        return rsmq.delete_queue(self._queue) == 1


class ListQueuesCommand(Command):
    def _call(self, rsmq: Rsmq) -> set[str]:
        return set(rsmq.list_queues())


class GetQueueAttributesCommand(Command):
    def _call(self, rsmq: Rsmq) -> dict[str, Any]:
        return asdict(rsmq.get_queue_attributes(self._queue))


class SetQueueAttributesCommand(Command):
    takes = ("qname", "vt", "delay", "maxsize")

    def _call(self, rsmq: Rsmq) -> dict[str, Any]:
        return asdict(rsmq.set_queue_attributes(self._queue, **self._some("vt", "delay", "maxsize")))


class SendMessageCommand(Command):
    takes = ("qname", "message", "delay", "encode")

    def _call(self, rsmq: Rsmq) -> str:
        message = self._given.get("message")
        if message is None:
            raise MissingParameter("message")
        if isinstance(message, bytes):
            try:
                message = message.decode()
            except UnicodeDecodeError:
                raise BadParameter("a message of bytes must be UTF-8: Node could not read it otherwise") from None
        elif not isinstance(message, str):
            try:
                message = json.dumps(message)
            except (TypeError, ValueError) as error:
                raise BadParameter(f"the message cannot be written as JSON: {error}") from None
        return rsmq.send_message(self._queue, message, **self._some("delay"))


class ReceiveMessageCommand(Command):
    takes = ("qname", "vt")

    def _call(self, rsmq: Rsmq) -> dict[str, Any]:
        found = rsmq.receive_message(self._queue, **self._some("vt"))
        if found is None:
            raise NoMessageInQueue(self._queue)
        return _told(found)


class PopMessageCommand(Command):
    def _call(self, rsmq: Rsmq) -> dict[str, Any]:
        found = rsmq.pop_message(self._queue)
        if found is None:
            raise NoMessageInQueue(self._queue)
        return _told(found)


class DeleteMessageCommand(Command):
    takes = ("qname", "id")

    def _call(self, rsmq: Rsmq) -> bool:
        return rsmq.delete_message(self._queue, self._id) == 1


class ChangeMessageVisibilityCommand(Command):
    takes = ("qname", "id", "vt")

    def _call(self, rsmq: Rsmq) -> bool:
        vt = self._given.get("vt")
        if vt is None:  # PyRSMQ takes the queue's
            vt = rsmq.get_queue_attributes(self._queue).vt
        if not rsmq.change_message_visibility(self._queue, self._id, vt):
            raise NoMessageInQueue(self._queue)
        return True


def _url(client: Any, host: str, port: str | int, options: dict[str, Any]) -> str:
    """The server that a redis-py client, or PyRSMQ's own arguments, mean."""
    told = {"host": host, "port": port, **options} if client is None else dict(client.connection_pool.connection_kwargs)
    if client is None and isinstance(found := told.get("url"), str):
        return found
    login = ""
    if told.get("password") is not None:
        login = f"{quote(str(told.get('username') or ''), '')}:{quote(str(told['password']), '')}@"
    database = int(told.get("db") or 0)
    if path := told.get("path") or told.get("unix_socket_path"):
        return f"unix://{login}{path}?{urlencode({'db': database})}"
    kind = "" if client is None else client.connection_pool.connection_class.__name__
    scheme = "rediss" if told.get("ssl") or "SSL" in kind else "redis"
    kept = {key: told[key] for key in ("ssl_cert_reqs", "ssl_ca_certs") if scheme == "rediss" and told.get(key)}
    query = f"?{urlencode(kept)}" if kept else ""
    return f"{scheme}://{login}{told.get('host') or 'localhost'}:{told.get('port') or 6379}/{database}{query}"


class RedisSMQ:
    """PyRSMQ's class over this client.

    Of a `client` given, the address and login are taken; connections are this client's own. Keywords besides `ns`,
    `realtime` and `exceptions` become defaults of every command that takes them, such as `qname`.
    """

    def __init__(
        self,
        client: Any = None,
        host: str = "127.0.0.1",
        port: str | int = 6379,
        options: dict[str, Any] | None = None,
        *,
        ns: str = "rsmq",
        realtime: bool = False,
        exceptions: bool = True,
        **defaults: Any,
    ) -> None:
        self.options: dict[str, Any] = {"ns": ns, "realtime": realtime, "exceptions": exceptions}
        self._address: tuple[Any, str, str | int, dict[str, Any]] = (client, host, port, options or {})
        self._defaults = {name: value for name, value in defaults.items() if value is not None}
        known = {name for kind in Command.__subclasses__() for name in kind.takes} | {"quiet"}
        if unknown := sorted(set(self._defaults) - known):
            raise BadParameter(f"RedisSMQ has no parameter {', '.join(unknown)}")
        self._rsmq: Rsmq | None = None

    @property
    def rsmq(self) -> Rsmq:
        """The client behind it, connected when first used."""
        if self._rsmq is None:
            self._rsmq = Rsmq(_url(*self._address), namespace=self.options["ns"], realtime=self.options["realtime"])
        return self._rsmq

    def exceptions(self, enabled: bool = True) -> RedisSMQ:
        """Whether commands raise, or return False."""
        self.options["exceptions"] = enabled is True
        return self

    def setClient(self, client: Any) -> RedisSMQ:  # noqa: N802 (PyRSMQ's name)
        """Another server, as a redis-py client knows it."""
        self.quit()
        self._address = (client, *self._address[1:])
        return self

    def _command(self, kind: type[Command], given: dict[str, Any]) -> Any:
        defaults = {name: value for name, value in self._defaults.items() if name in (*kind.takes, "quiet")}
        return kind(self, **defaults | given)

    def createQueue(self, **given: Any) -> CreateQueueCommand:  # noqa: N802 (PyRSMQ's names, here and below)
        return self._command(CreateQueueCommand, given)  # type: ignore[no-any-return]

    def deleteQueue(self, **given: Any) -> DeleteQueueCommand:  # noqa: N802
        return self._command(DeleteQueueCommand, given)  # type: ignore[no-any-return]

    def listQueues(self, **given: Any) -> ListQueuesCommand:  # noqa: N802
        return self._command(ListQueuesCommand, given)  # type: ignore[no-any-return]

    def getQueueAttributes(self, **given: Any) -> GetQueueAttributesCommand:  # noqa: N802
        return self._command(GetQueueAttributesCommand, given)  # type: ignore[no-any-return]

    def setQueueAttributes(self, **given: Any) -> SetQueueAttributesCommand:  # noqa: N802
        return self._command(SetQueueAttributesCommand, given)  # type: ignore[no-any-return]

    def sendMessage(self, **given: Any) -> SendMessageCommand:  # noqa: N802
        return self._command(SendMessageCommand, given)  # type: ignore[no-any-return]

    def receiveMessage(self, **given: Any) -> ReceiveMessageCommand:  # noqa: N802
        return self._command(ReceiveMessageCommand, given)  # type: ignore[no-any-return]

    def popMessage(self, **given: Any) -> PopMessageCommand:  # noqa: N802
        return self._command(PopMessageCommand, given)  # type: ignore[no-any-return]

    def deleteMessage(self, **given: Any) -> DeleteMessageCommand:  # noqa: N802
        return self._command(DeleteMessageCommand, given)  # type: ignore[no-any-return]

    def changeMessageVisibility(self, **given: Any) -> ChangeMessageVisibilityCommand:  # noqa: N802
        return self._command(ChangeMessageVisibilityCommand, given)  # type: ignore[no-any-return]

    def quit(self) -> None:
        """Closes the connections; a later call opens them again."""
        if self._rsmq is not None:
            self._rsmq.close()
            self._rsmq = None


class _Declined(Exception):
    """The processor returned something false: the message is to be tried again."""


class RedisSMQConsumer:
    """PyRSMQ's consumer: `processor(id, message, rc, ts)` returns whether the message is done.

    What it declines, and what it raises at, can be received again after `retry_delay` seconds. The message stays
    hidden while the processor works and no longer: extension ends also when it raises. The queue is made if missing.
    """

    def __init__(
        self,
        qname: str,
        processor: Callable[..., Any],
        *,
        retry_delay: int = 0,
        empty_queue_delay: float = EMPTY_QUEUE_DELAY,
        decode: bool = True,
        trace: bool = False,
        vt: int | None = None,
        **rsmq_params: Any,
    ) -> None:
        self.qname = qname
        self.processor = processor
        self.decode = decode
        self.trace = trace
        self.smq = RedisSMQ(qname=qname, **rsmq_params)
        self._finished = threading.Event()
        self._consumer: RsmqConsumer = self.smq.rsmq.consume(
            qname, self._process, vt=vt, retry_delay=retry_delay, look_every=empty_queue_delay or LOOK_EVERY
        )

    def _process(self, message: RsmqReceived) -> None:
        body: Any = message.message
        if self.decode:
            try:
                body = json.loads(body)
            except ValueError:
                pass  # not JSON: as it is, as PyRSMQ does
        if self.trace:
            log.debug("received queue=%s id=%s rc=%d", self.qname, message.id, message.rc)
        if not self.processor(id=message.id, message=body, rc=message.rc, ts=message.fr):
            raise _Declined("the processor did not say that it is done")

    def run(self) -> None:
        """Serves until stopped, or until SIGTERM or SIGINT where it runs in the main thread."""
        try:
            self.smq.createQueue(vt=DEFAULT_VT, quiet=True).exceptions(False).execute()
            self._consumer.run()
        finally:
            self.smq.quit()
            self._finished.set()

    def stop(self, wait: float | None = None) -> bool:
        """Ends it after the message at hand; waits for that up to `wait` seconds, and says whether it has ended."""
        self._consumer.stop()
        return self._finished.wait(wait or 0)


class RedisSMQConsumerThread(RedisSMQConsumer, threading.Thread):
    """The same as a daemon thread: `start()` and `stop()`."""

    def __init__(self, qname: str, processor: Callable[..., Any], **params: Any) -> None:
        threading.Thread.__init__(self, name=f"RedisSMQConsumer:{qname}", daemon=True)
        RedisSMQConsumer.__init__(self, qname, processor, **params)
