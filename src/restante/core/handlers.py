"""Registers handlers of a queue, by kind; refuses a function that cannot handle a message with InvalidInput."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from restante.core.errors import InvalidInput
from restante.core.leased_message import AsyncLeasedMessage, LeasedMessage


class MessageHandler(Protocol):
    """A function or coroutine function that takes one received message; its return value is ignored."""

    def __call__(self, message: LeasedMessage, /) -> object: ...


class AsyncMessageHandler(Protocol):
    """A coroutine function that takes one received message of an `AsyncQueue`; its return value is ignored."""

    def __call__(self, message: AsyncLeasedMessage, /) -> Awaitable[object]: ...


Handler = TypeVar("Handler", bound=MessageHandler)
#: What an `AsyncQueue` registers: a plain function, which runs in a thread, gets a message with blocking verbs.
AsyncHandler = TypeVar("AsyncHandler", bound=AsyncMessageHandler | MessageHandler)
#: The handlers of a queue by kind; None stands for every other kind.
Handlers = dict[str | None, Callable[[Any], Any]]


def register(handlers: Handlers, queue: str, function: Any, kind: str | None) -> Any:
    """Registers a function as the handler of a kind; without a function returns the decorator that does."""

    def add(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        check_handler(function, queue)
        if kind in handlers:
            raise InvalidInput(f"{queue} already has a handler for {kind or 'every kind'}")
        handlers[kind] = function
        return function

    return add if function is None else add(function)


def check_handler(function: Any, queue: str) -> None:
    """Refuses a function that cannot handle a message: it would nack every message, or ack it unhandled."""
    if not callable(function):
        raise InvalidInput(f"the handler of {queue} must be a function that takes a message, not {function!r}")
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"the handler {name} of {queue} has a yield, so calling it runs nothing: remove the yield")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise InvalidInput(
            f"the handler {name} of {queue} must take one argument, the message: {error}; write def {name}(message)"
        ) from None
    except ValueError:
        pass  # a builtin without a readable signature
