"""Restante: a reliable message queue for Python on Redis. Mail that waits until it is signed for."""

from restante import aio
from restante.connecting import connect
from restante.core.admin import Admin
from restante.core.consumer import Consumer
from restante.core.errors import (
    Corrupt,
    Held,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    JournalLost,
    LeaseLost,
    NotFound,
    NotReady,
    PayloadTooLarge,
    QueueFull,
    ReadOnly,
    RestanteError,
    Unavailable,
    Unconfirmed,
    UnsafeServer,
)
from restante.core.journal import JournalEntry, Position
from restante.core.message import Draft, Event, Message, MessageId, State
from restante.core.queue import LeasedMessage, Post, Queue
from restante.core.retry import RetryPolicy, exponential, fixed, no_retry
from restante.core.settings import ClientSettings, QueueSettings
from restante.core.sweeper import Sweeper

__all__ = [
    "Admin",
    "ClientSettings",
    "Consumer",
    "Corrupt",
    "Draft",
    "Event",
    "Held",
    "InvalidInput",
    "InvalidName",
    "InvalidPayload",
    "JournalEntry",
    "JournalLost",
    "LeaseLost",
    "LeasedMessage",
    "Message",
    "MessageId",
    "NotFound",
    "NotReady",
    "PayloadTooLarge",
    "Position",
    "Post",
    "Queue",
    "QueueFull",
    "QueueSettings",
    "ReadOnly",
    "RestanteError",
    "RetryPolicy",
    "State",
    "Sweeper",
    "Unavailable",
    "Unconfirmed",
    "UnsafeServer",
    "aio",
    "connect",
    "exponential",
    "fixed",
    "no_retry",
]
