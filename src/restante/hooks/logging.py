"""Puts queue, message id, kind and attempt on every log line of a handler: `client.add_hook(LogContext())`.

Works with structlog, where the program has imported it, and with the standard library by `ContextFilter`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from restante.core.message import Draft, Message
from restante.hooks.processing import Processing

#: The fields that the hook sets.
FIELDS: Final = ("queue", "message_id", "kind", "attempt")

_context: ContextVar[Mapping[str, Any]] = ContextVar("restante_log_context", default=MappingProxyType({}))


class LogContext(Processing):
    """The facts of the message around each handler.

    `carried` names further fields, such as a request id, that travel in the headers: a send takes them from the context
    of the sender, and the handler's context has them again.
    """

    def __init__(self, *carried: str) -> None:
        self._carried = carried

    def sending(self, queue: str, draft: Draft) -> Draft:
        known = {**_structlog_context(), **_context.get()} if self._carried else {}
        extra = {name: str(known[name]) for name in self._carried if name in known}
        return replace(draft, headers={**extra, **(draft.headers or {})}) if extra else draft

    def processing(self, message: Message) -> AbstractContextManager[None]:
        """The context around the handling of a message. In a loop: `with message, context.processing(message):`."""
        message.inside_hooks = True
        headers = message.headers if self._carried else {}
        values = (message.queue, message.id, message.kind, message.attempts)
        carried = {name: headers[name] for name in self._carried if name in headers}
        return log_context(**dict(zip(FIELDS, values, strict=True)), **carried)


@contextmanager
def log_context(**fields: Any) -> Iterator[None]:
    """Adds fields to the log lines of the block: `with log_context(user=42):`."""
    token = _context.set({**_context.get(), **fields})
    structlog = sys.modules.get("structlog.contextvars")
    bound = structlog.bound_contextvars(**fields) if structlog is not None else nullcontext()
    try:
        with bound:
            yield
    finally:
        _context.reset(token)


class ContextFilter(logging.Filter):
    """Sets the fields on each record of the handler it is added to, so that a format may name them.

    Outside a handler the four fields are empty. Other fields need a default: `Formatter(…, defaults={"user": ""})`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        for name in FIELDS:
            record.__dict__.setdefault(name, "")
        record.__dict__.update(_context.get())
        return True


def _structlog_context() -> Mapping[str, Any]:
    structlog = sys.modules.get("structlog.contextvars")
    return structlog.get_contextvars() if structlog is not None else {}
