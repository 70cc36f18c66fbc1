"""Runs handlers outside a `Consumer`: in the caller's thread or task, inside hooks and under time limits.

On failure: an error of a handler is raised to the caller, who holds the message. So is `TimeLimit`, once a handler that
has passed its limit has ended: a thread of the program's own cannot be replaced while it hangs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, overload

from restante.core.errors import InvalidInput, TimeLimit
from restante.core.handlers import (
    AsyncHandler,
    Handler,
    Handlers,
    Handling,
    register,
    unknown_kind,
)
from restante.core.hooks import Hook, distinct
from restante.core.keywords import known_keywords
from restante.core.leased_message import AsyncLeasedMessage, Leased, LeasedMessage
from restante.core.settings import QueueSettings
from restante.core.time_limit import Abandoned, HandlerStopped, TimeLimits, Watch
from restante.core.tracebacks import place

log = logging.getLogger("restante")

Limits = tuple[float | None, float | None]


class TimedCalls:
    """Calls handlers under their time limits; an attempt that has passed its timeout fails with TimeLimit."""

    def __init__(self, interrupt: Callable[[threading.Thread], None] | None = None) -> None:
        self._limits = TimeLimits(self._hangs, interrupt=interrupt)
        #: The errors of handlers that hang, by lease token.
        self._errors: dict[str, TimeLimit] = {}

    def call(self, handling: Handling, message: Leased, limits: Limits | None) -> Any:
        """Runs a plain handler in this thread and returns its result."""
        if limits is None:
            return handling.call(message)
        message.limits = limits
        try:
            return self._limits.around(message, partial(handling.call, message))
        except (Abandoned, HandlerStopped):
            raise self._error(message) from None

    async def call_async(self, handling: Handling, message: Leased, limits: Limits | None) -> Any:
        """Runs a coroutine handler in this task and returns its result."""
        if limits is None:
            return await handling.function(message)
        message.limits = limits
        try:
            return await self._limits.around_async(message, partial(handling.function, message))
        except (Abandoned, HandlerStopped):
            raise self._error(message) from None

    def close(self) -> None:
        """Ends the watching thread."""
        self._limits.close()

    def _hangs(self, watch: Watch, error: TimeLimit) -> None:
        message = watch.message
        self._errors[message.lease_token] = error
        log.error(
            "hung queue=%s id=%s attempt=%d at=%s timeout=%g: it runs in a thread of the program, which waits for it",
            message.queue,
            message.id,
            message.attempts,
            place(error) or "-",
            watch.limit,
        )

    def _error(self, message: Leased) -> TimeLimit:
        return self._errors.pop(message.lease_token, None) or TimeLimit(seconds=message.limits[0])


class _Shared:
    """The watching thread of this process for all queues: a fork has none and starts its own."""

    _made: tuple[int, TimedCalls] | None = None

    @classmethod
    def calls(cls) -> TimedCalls:
        made, pid = cls._made, os.getpid()
        if made is None or made[0] != pid:
            made = cls._made = (pid, TimedCalls())
        return made[1]


class HandlerRunner:
    """The handlers of a queue inside the hooks that it has now."""

    def __init__(self, queue: str, handlers: Handlers, hooks: Sequence[Hook]) -> None:
        if not handlers:
            raise InvalidInput(f"{queue} has no handler: register one with @{queue}.handler or @{queue}.task")
        self._name = queue
        self._handlings = {kind: Handling.of(function, hooks) for kind, function in handlers.items()}

    def handling(self, message: Leased) -> Handling:
        """The handler of the message's kind; raises NoHandler if there is none."""
        if message.queue != self._name:
            raise InvalidInput(f"{message.id} is a message of {message.queue}, not of {self._name}")
        message.ran = True
        handling = self._handlings.get(message.kind) or self._handlings.get(None)
        if handling is None:
            raise unknown_kind(self._name, message.kind, [kind for kind in self._handlings if kind is not None])
        return handling

    def run(self, message: LeasedMessage, settings: QueueSettings | None) -> Any:
        """Runs the handler; a coroutine on an event loop of this call."""
        handling = self.handling(message)
        limits = handling.limits(message, settings)
        if not handling.asynchronous:
            return _Shared.calls().call(handling, message, limits)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(_Shared.calls().call_async(handling, message, limits))
        raise InvalidInput(
            f"the handler of {message.kind or 'this message'} is a coroutine function, and an event loop runs in this "
            "thread: open the queue with restante.aio.connect() or restante.http.aio.connect() and await run_handler"
        )

    async def run_async(self, message: AsyncLeasedMessage, settings: QueueSettings | None) -> Any:
        """Awaits the handler; a plain one runs in a thread."""
        handling = self.handling(message)
        limits = handling.limits(message, settings)
        if handling.asynchronous:
            return await _Shared.calls().call_async(handling, message, limits)
        if handling.takes_message:
            raise InvalidInput(
                f"the handler of {message.kind or 'this message'} is a plain function that takes the message, whose "
                "verbs are awaited here: make it async def"
            )
        return await asyncio.to_thread(_Shared.calls().call, handling, message, limits)


class _Running:
    """The part that `HandlerMethods` and `AsyncHandlerMethods` share."""

    handlers: Handlers
    #: The runner of the last call, with what it was made of.
    _runner: tuple[tuple[Hook, ...], int, HandlerRunner] | None = None

    def _current(self: Any) -> HandlerRunner:
        hooks, count = distinct(self.hooks), len(self.handlers)
        made = self._runner
        if made is None or made[0] != hooks or made[1] != count:
            made = self._runner = (hooks, count, HandlerRunner(self.name, self.handlers, hooks))
        runner: HandlerRunner = made[2]
        return runner

    def _known_settings(self: Any) -> QueueSettings | None:
        """The settings of the queue as far as this program knows them: over HTTP it does not."""
        settings: QueueSettings | None = getattr(self.ref, "settings", None)
        return settings


class HandlerMethods(_Running):
    """The methods of a `Queue` that register and run handlers."""

    @overload
    def handler(self, function: Handler) -> Handler: ...

    @overload
    def handler(self, *, kind: str | None = None) -> Callable[[Handler], Handler]: ...

    @known_keywords
    def handler(self: Any, function: Any = None, *, kind: str | None = None) -> Any:
        """Registers a handler for the queue's messages, or for one kind of them; `restante consume` runs it."""
        return register(self.handlers, self.name, function, kind)

    def run_handler(self, message: LeasedMessage) -> Any:
        """Runs the handler of a received message and returns its result, for loops of your own.

        `with message: message.ack(result=orders.run_handler(message))`. It runs here and now, inside the `around` of
        hooks and under the time limits of message, task and queue. What it raises is raised, `NoHandler` if there is no
        handler of this kind. The message is not settled.
        """
        return self._current().run(message, self._known_settings())


class AsyncHandlerMethods(_Running):
    """The methods of an `AsyncQueue` that register and run handlers."""

    @overload
    def handler(self, function: AsyncHandler) -> AsyncHandler: ...

    @overload
    def handler(self, *, kind: str | None = None) -> Callable[[AsyncHandler], AsyncHandler]: ...

    @known_keywords
    def handler(self: Any, function: Any = None, *, kind: str | None = None) -> Any:
        """Registers a handler for the queue's messages, or for one kind of them; `restante consume` runs it.

        A coroutine function gets an `AsyncLeasedMessage`, a plain function runs in a thread and gets a `LeasedMessage`.
        """
        return register(self.handlers, self.name, function, kind)

    async def run_handler(self, message: AsyncLeasedMessage) -> Any:
        """Runs the handler of a received message and returns its result, as `Queue.run_handler` does.

        A coroutine function runs in this task, the plain function of a task in a thread.
        """
        return await self._current().run_async(message, self._known_settings())
