"""Registers handlers of a queue, by kind; refuses a function that cannot handle a message with InvalidInput."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar

from restante.core.errors import InvalidInput, NoHandler
from restante.core.hooks import Hook, chain
from restante.core.keywords import LISTED, resembling
from restante.core.leased_message import AsyncLeasedMessage, Leased, LeasedMessage
from restante.core.message import Message
from restante.core.retry import seconds
from restante.core.settings import QueueSettings


class MessageHandler(Protocol):
    """A function or coroutine function that takes one received message; its return value is ignored."""

    def __call__(self, message: LeasedMessage, /) -> object: ...


class AsyncMessageHandler(Protocol):
    """A coroutine function that takes one received message of an `AsyncQueue`; its return value is ignored."""

    def __call__(self, message: AsyncLeasedMessage, /) -> Awaitable[object]: ...


class Registered:
    """A function that is registered with a handler of its own, such as a task; it cannot be another one."""


Handler = TypeVar("Handler", bound=MessageHandler)
#: What an `AsyncQueue` registers: a plain function, which runs in a thread, gets a message with blocking verbs.
AsyncHandler = TypeVar("AsyncHandler", bound=AsyncMessageHandler | MessageHandler)
#: The handlers of a queue by kind; None stands for every other kind.
Handlers = dict[str | None, Callable[[Any], Any]]


def register(handlers: Handlers, queue: str, function: Any, kind: str | None) -> Any:
    """Registers a function as the handler of a kind; without a function returns the decorator that does."""

    def add(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        check_handler(function, queue)
        claim(handlers, queue, kind, function)
        return function

    return add if function is None else add(function)


def claim(handlers: Handlers, queue: str, kind: str | None, handler: Callable[[Any], Any]) -> None:
    """Registers the handler of a kind, which may have one only."""
    if kind in handlers:
        raise InvalidInput(f"{queue} already has a handler for {kind or 'every kind'}: give this one another kind=")
    handlers[kind] = handler


def with_every_kind(handlers: Handlers, queue: str) -> Handlers:
    """The handlers of a consumer; if none takes every kind, also one that fails messages of unknown kinds.

    It is a coroutine where all others are: a consumer of coroutines has no threads for plain functions.
    """
    if None in handlers:
        return handlers

    def refuse(message: Message) -> NoReturn:
        raise unknown_kind(queue, message.kind, [kind for kind in handlers if kind is not None])

    async def refuse_async(message: Message) -> NoReturn:
        refuse(message)

    plain = any(not is_coroutine_function(handler) for handler in handlers.values())
    return {**handlers, None: refuse if plain else refuse_async}


def unknown_kind(queue: str, kind: str, known: Sequence[str]) -> NoHandler:
    """The error of a message that no handler of this consumer takes; a consumer with newer code may take it."""
    near = resembling(kind, known)
    asked = f": did you mean {near}?" if near else "."
    listed = ", ".join(sorted(known)[:LISTED])
    return NoHandler(
        f"no handler for kind {kind!r} in {queue}{asked} This consumer knows {listed}. Start a consumer that has the "
        "handler and replay the message, or send it again with a known kind"
    )


@dataclass(frozen=True, slots=True)
class Handling:
    """A registered handler inside its hooks, whether it is a coroutine function, and what else its caller must know."""

    function: Callable[[Any], Any]
    asynchronous: bool
    timeout: float | None = None
    soft_timeout: float | None = None
    #: Whether what it returns is the result of its message, as that of a task.
    returns: bool = False
    #: Whether it uses the message itself. A task that does not can be called with the message of either runner.
    takes_message: bool = True

    @classmethod
    def of(cls, function: Callable[[Any], Any], hooks: Sequence[Hook] = ()) -> Handling:
        asynchronous = is_coroutine_function(function)
        limits = (getattr(function, name, None) for name in ("timeout", "soft_timeout"))
        timeout, soft = (None if limit is None else seconds(limit, "timeout", least=0.001) for limit in limits)
        returns = getattr(function, "returns", False) is True
        takes = getattr(function, "takes_message", True) is not False
        return cls(chain(hooks, function, asynchronous=asynchronous), asynchronous, timeout, soft, returns, takes)

    def limits(self, message: Leased, settings: QueueSettings | None) -> tuple[float | None, float | None] | None:
        """Timeout and soft timeout of an attempt: the message's own, else the handler's, else the queue's."""
        timeout, soft = message.timeout or self.timeout, self.soft_timeout
        if settings is not None:
            timeout, soft = timeout or settings.timeout, soft or settings.soft_timeout
        return None if timeout is None and soft is None else (timeout, soft)

    def keeps(self, settings: QueueSettings, result: Any) -> bool:
        """Whether what the handler returned is to be kept with its message."""
        return result is not None and self.returns and settings.keep_done > 0

    def call(self, message: Leased) -> Any:
        """Runs a plain handler and returns its result; a coroutine that it returns would never run."""
        result = self.function(message)
        if result is not None and inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError("the handler returned a coroutine that nobody awaits: use async def")
        return result


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether calling it returns a coroutine; also for objects whose `__call__` is a coroutine function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def check_handler(function: Any, queue: str) -> None:
    """Refuses a function that cannot handle a message: it would nack every message, or ack it unhandled."""
    if not callable(function):
        raise InvalidInput(f"the handler of {queue} must be a function that takes a message, not {function!r}")
    name = getattr(function, "__qualname__", repr(function))
    if isinstance(function, Registered):
        raise InvalidInput(f"{name} is a task, which is registered already: remove @{queue}.handler")
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
