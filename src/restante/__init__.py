"""Restante: a reliable message queue and event bus for Python. Mail that waits until it is signed for."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from restante import aio
    from restante.bus.app import Bus
    from restante.connecting import connect
    from restante.core.admin import Admin
    from restante.core.batch import Batch, BatchFailure, BatchHandle, BatchStatus
    from restante.core.consumer import Consumer
    from restante.core.errors import (
        AccessDenied,
        AlreadySettled,
        BatchEnded,
        BatchFailed,
        CallFailed,
        CallTimeout,
        Corrupt,
        Declined,
        InUse,
        InvalidArguments,
        InvalidInput,
        InvalidName,
        InvalidPayload,
        JournalLost,
        LeaseLost,
        MessageCancelled,
        MessageDead,
        MessageLeased,
        MissingExtra,
        NoHandler,
        NoResult,
        NotFound,
        NotReady,
        PayloadTooLarge,
        QueueFull,
        ReadOnly,
        RestanteError,
        ResultTimeout,
        SoftTimeLimit,
        TimeLimit,
        TopologyMismatch,
        Unavailable,
        Unconfirmed,
        Unroutable,
        UnsafeServer,
    )
    from restante.core.handle import Handle
    from restante.core.hooks import Hook
    from restante.core.journal import JournalEntry, Position
    from restante.core.message import Draft, JournalEvent, Message, MessageId, Progress, State
    from restante.core.queue import Client, LeasedMessage, Queue
    from restante.core.retry import RetryPolicy, exponential, fixed, no_retry
    from restante.core.schedule import Schedule
    from restante.core.settings import ClientSettings, QueueSettings
    from restante.core.sweeper import Sweeper
    from restante.core.task import Task
    from restante.core.ticks import Timing, cron, every

#: The module of each name. A module is imported when its name is first used: a service on RabbitMQ needs no Redis
#: client, a service that only publishes needs no Celery, and neither waits for imports that it does not need.
_HOMES = {
    "restante": "aio",
    "restante.bus.app": "Bus",
    "restante.connecting": "connect",
    "restante.core.admin": "Admin",
    "restante.core.batch": "Batch BatchFailure BatchHandle BatchStatus",
    "restante.core.consumer": "Consumer",
    "restante.core.errors": (
        "AccessDenied AlreadySettled BatchEnded BatchFailed CallFailed CallTimeout Corrupt Declined InUse "
        "InvalidArguments InvalidInput InvalidName InvalidPayload JournalLost LeaseLost MessageCancelled MessageDead "
        "MessageLeased MissingExtra NoHandler NoResult NotFound NotReady PayloadTooLarge QueueFull ReadOnly "
        "RestanteError ResultTimeout SoftTimeLimit TimeLimit TopologyMismatch Unavailable Unconfirmed Unroutable "
        "UnsafeServer"
    ),
    "restante.core.hooks": "Hook",
    "restante.core.journal": "JournalEntry Position",
    "restante.core.handle": "Handle",
    "restante.core.message": "Draft JournalEvent Message MessageId Progress State",
    "restante.core.queue": "LeasedMessage Client Queue",
    "restante.core.retry": "RetryPolicy exponential fixed no_retry",
    "restante.core.schedule": "Schedule",
    "restante.core.settings": "ClientSettings QueueSettings",
    "restante.core.sweeper": "Sweeper",
    "restante.core.task": "Task",
    "restante.core.ticks": "Timing cron every",
}

__all__ = [
    "AccessDenied",
    "Admin",
    "AlreadySettled",
    "Batch",
    "BatchEnded",
    "BatchFailed",
    "BatchFailure",
    "BatchHandle",
    "BatchStatus",
    "Bus",
    "CallFailed",
    "CallTimeout",
    "Client",
    "ClientSettings",
    "Consumer",
    "Corrupt",
    "Declined",
    "Draft",
    "Handle",
    "Hook",
    "InUse",
    "InvalidArguments",
    "InvalidInput",
    "InvalidName",
    "InvalidPayload",
    "JournalEntry",
    "JournalEvent",
    "JournalLost",
    "LeaseLost",
    "LeasedMessage",
    "Message",
    "MessageCancelled",
    "MessageDead",
    "MessageId",
    "MessageLeased",
    "MissingExtra",
    "NoHandler",
    "NoResult",
    "NotFound",
    "NotReady",
    "PayloadTooLarge",
    "Position",
    "Progress",
    "Queue",
    "QueueFull",
    "QueueSettings",
    "ReadOnly",
    "RestanteError",
    "ResultTimeout",
    "RetryPolicy",
    "Schedule",
    "SoftTimeLimit",
    "State",
    "Sweeper",
    "Task",
    "TimeLimit",
    "Timing",
    "TopologyMismatch",
    "Unavailable",
    "Unconfirmed",
    "Unroutable",
    "UnsafeServer",
    "aio",
    "connect",
    "cron",
    "every",
    "exponential",
    "fixed",
    "no_retry",
]


def _imported(name: str) -> Any:
    if not name.startswith("restante.bus"):
        return importlib.import_module(name)
    from restante.core.extras import needs_extra

    with needs_extra("bus", "restante.Bus"):
        return importlib.import_module(name)


# Hidden from type checkers, for which every misspelt name would be Any.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "Post":
            warnings.warn("restante.Post is now restante.Client", DeprecationWarning, stacklevel=2)
            name = "Client"
        for home, names in _HOMES.items():
            if name in names.split():
                module = _imported(f"{home}.{name}" if home == __name__ else home)
                value = globals()[name] = module if home == __name__ else getattr(module, name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
