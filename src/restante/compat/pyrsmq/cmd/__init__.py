"""PyRSMQ's commands, built by keywords or chained setters; on failure `execute()` raises or returns False."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from restante.compat.pyrsmq.cmd.exceptions import (
    InvalidParameterValue,
    NoMessageInQueue,
    QueueAlreadyExists,
    QueueDoesNotExist,
    RedisSMQException,
)
from restante.core.errors import RestanteError
from restante.rsmq.calls import RsmqReceived
from restante.rsmq.client import Rsmq
from restante.rsmq.errors import BadParameter, MissingParameter

if TYPE_CHECKING:
    from restante.compat.pyrsmq.rsmq import RedisSMQ

__all__ = [
    "ChangeMessageVisibilityCommand",
    "Command",
    "CreateQueueCommand",
    "DeleteMessageCommand",
    "DeleteQueueCommand",
    "GetQueueAttributesCommand",
    "InvalidParameterValue",
    "ListQueuesCommand",
    "NoMessageInQueue",
    "PopMessageCommand",
    "QueueAlreadyExists",
    "QueueDoesNotExist",
    "ReceiveMessageCommand",
    "RedisSMQException",
    "SendMessageCommand",
    "SetQueueAttributesCommand",
]

log = logging.getLogger("restante")


def _as_dict(message: RsmqReceived) -> dict[str, Any]:
    return {"id": message.id, "message": message.message, "rc": message.rc, "ts": message.fr, "fr": message.fr}


class Command:
    """A call under construction: setters return the command, `execute()` runs it."""

    #: The parameters of this command, besides `quiet`.
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
        """Sets whether this command raises, regardless of its parent."""
        self._raises = enabled is not False
        return self

    def ready(self) -> bool:
        """Whether all required parameters are set."""
        return all(self._given.get(name) is not None for name in self.takes if name in ("qname", "message", "id"))

    def execute(self) -> Any:
        """Runs the call."""
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
        return self._given.get("qname")  # type: ignore[return-value]  # the call refuses None

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
                raise BadParameter("a message of bytes must be UTF-8, else Node cannot read it") from None
        elif not isinstance(message, str):
            try:
                message = json.dumps(message)
            except (TypeError, ValueError) as error:
                raise BadParameter(f"the message cannot be written as JSON: {error}") from None
        return rsmq.send_message(self._queue, message, **self._some("delay"))


class ReceiveMessageCommand(Command):
    takes = ("qname", "vt")

    def _call(self, rsmq: Rsmq) -> dict[str, Any]:
        message = rsmq.receive_message(self._queue, **self._some("vt"))
        if message is None:
            raise NoMessageInQueue(self._queue)
        return _as_dict(message)


class PopMessageCommand(Command):
    def _call(self, rsmq: Rsmq) -> dict[str, Any]:
        message = rsmq.pop_message(self._queue)
        if message is None:
            raise NoMessageInQueue(self._queue)
        return _as_dict(message)


class DeleteMessageCommand(Command):
    takes = ("qname", "id")

    def _call(self, rsmq: Rsmq) -> bool:
        return rsmq.delete_message(self._queue, self._id) == 1


class ChangeMessageVisibilityCommand(Command):
    takes = ("qname", "id", "vt")

    def _call(self, rsmq: Rsmq) -> bool:
        vt = self._given.get("vt")
        if vt is None:  # as in PyRSMQ: the queue's vt
            vt = rsmq.get_queue_attributes(self._queue).vt
        if not rsmq.change_message_visibility(self._queue, self._id, vt):
            raise NoMessageInQueue(self._queue)
        return True
