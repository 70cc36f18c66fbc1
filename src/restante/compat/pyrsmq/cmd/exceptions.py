"""PyRSMQ's names of the protocol's errors."""

from __future__ import annotations

from restante.rsmq.errors import BadParameter, QueueExists, QueueNotFound, RsmqError

__all__ = [
    "InvalidParameterValue",
    "NoMessageInQueue",
    "QueueAlreadyExists",
    "QueueDoesNotExist",
    "RedisSMQException",
]

RedisSMQException = RsmqError
InvalidParameterValue = BadParameter
QueueAlreadyExists = QueueExists
QueueDoesNotExist = QueueNotFound


class NoMessageInQueue(RsmqError):
    """The queue has no message that can be received now, or no message with this id."""

    name = "noMessageInQueue"

    def __init__(self, queue: str = "") -> None:
        super().__init__(f"Queue '{queue}' has no messages waiting")
