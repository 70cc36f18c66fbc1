"""Restante: a reliable message queue and event bus for Python. Mail that waits until it is signed for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from restante import aio
    from restante.bus.app import Bus
    from restante.connecting import connect
    from restante.core.admin import Admin
    from restante.core.consumer import Consumer
    from restante.core.errors import (
        BatchFailed,
        CallFailed,
        CallTimeout,
        Corrupt,
        Declined,
        Held,
        InvalidInput,
        InvalidName,
        InvalidPayload,
        JournalLost,
        LeaseLost,
        Mismatch,
        NoHandler,
        NotFound,
        NotReady,
        PayloadTooLarge,
        QueueFull,
        ReadOnly,
        RestanteError,
        Unavailable,
        Unconfirmed,
        Unroutable,
        UnsafeServer,
    )
    from restante.core.journal import JournalEntry, Position
    from restante.core.message import Draft, Event, Message, MessageId, State
    from restante.core.queue import LeasedMessage, Post, Queue
    from restante.core.retry import RetryPolicy, exponential, fixed, no_retry
    from restante.core.settings import ClientSettings, QueueSettings
    from restante.core.sweeper import Sweeper

#: Where each name lives. They are imported when first used: a service on RabbitMQ needs no client of Redis, one that
#: only publishes needs no Celery, and neither waits for what it does not need.
_HOMES = {
    "restante": "aio",
    "restante.bus.app": "Bus",
    "restante.connecting": "connect",
    "restante.core.admin": "Admin",
    "restante.core.consumer": "Consumer",
    "restante.core.errors": (
        "BatchFailed CallFailed CallTimeout Corrupt Declined Held InvalidInput InvalidName InvalidPayload JournalLost "
        "LeaseLost Mismatch NoHandler NotFound NotReady PayloadTooLarge QueueFull ReadOnly RestanteError "
        "Unavailable Unconfirmed Unroutable UnsafeServer"
    ),
    "restante.core.journal": "JournalEntry Position",
    "restante.core.message": "Draft Event Message MessageId State",
    "restante.core.queue": "LeasedMessage Post Queue",
    "restante.core.retry": "RetryPolicy exponential fixed no_retry",
    "restante.core.settings": "ClientSettings QueueSettings",
    "restante.core.sweeper": "Sweeper",
}

__all__ = [
    "Admin",
    "BatchFailed",
    "Bus",
    "CallFailed",
    "CallTimeout",
    "ClientSettings",
    "Consumer",
    "Corrupt",
    "Declined",
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
    "Mismatch",
    "NoHandler",
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
    "Unroutable",
    "UnsafeServer",
    "aio",
    "connect",
    "exponential",
    "fixed",
    "no_retry",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names.split():
            module = importlib.import_module(f"{home}.{name}" if home == __name__ else home)
            found = globals()[name] = module if home == __name__ else getattr(module, name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
