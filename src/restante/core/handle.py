"""A message that was sent, by its id: its state, progress and result, and its cancellation; synchronous and asyncio.

Nothing tells a waiting `result()` that the message has ended, so that an ack pays nothing for those who wait: it looks
again and again, soon at first and then every `LONGEST_PAUSE` seconds. On failure it raises the error of its call.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from restante.core.attempts import Status, parse_status
from restante.core.errors import InvalidInput, MessageDead, NoResult, ResultTimeout
from restante.core.message import ENDED, Progress, State
from restante.core.names import valid_name
from restante.core.operator_verbs import cancel_many
from restante.core.queue_ref import QueueRef
from restante.core.scripts import Script, ScriptCall

STATUS = Script(
    "status", "queue journal deliveries history ready scheduled retrying leased dead done acked acked_before"
)

#: Seconds between the first two looks, the factor by which the pause grows, and the longest pause. Shorter ones cost
#: the server more for each waiting program, longer ones let a result wait.
FIRST_PAUSE, GROWTH, LONGEST_PAUSE = 0.01, 1.5, 0.25


def status(ref: QueueRef, /, id: str) -> ScriptCall[Status]:
    """Reads where a message is: its state, attempts, progress, result and last error, without its payload."""
    keys = ref.keys.group(STATUS.keys)
    return ScriptCall(STATUS, keys, [valid_name(id, "message id")], lambda reply: parse_status(*reply), ref.name)


def cancel(ref: QueueRef, /, id: str) -> ScriptCall[bool]:
    """Gives a message up; returns False if it has ended already.

    A waiting message is removed at once. A leased one is removed too: its handler learns by `message.cancelled`, and
    its verdict raises `LeaseLost`. The journal names this client's consumer name as the author.
    """
    call = cancel_many(ref, [valid_name(id, "message id")], operator=ref.consumer, detail="")
    return ScriptCall(
        call.script, call.keys, call.args, lambda reply: call.parse(reply)[0] not in (None, *ENDED), ref.name
    )


class _Handle:
    """The part that `Handle` and `AsyncHandle` share."""

    def __init__(self, queue: Any, id: str) -> None:
        self.queue = queue
        self.id = valid_name(id, "message id")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} queue={self.queue.name}>"

    def _outcome(self, found: Status) -> Any:
        """The result of a message that has ended, or the error that says why there is none."""
        name = self.queue.name
        if found.state is State.DONE:
            return found.result
        if found.state is State.DEAD:
            last = (found.error.strip().splitlines() or [found.error_class])[-1]
            raise MessageDead(
                f"{self.id} is dead after {found.attempts} attempts, the last error is {last}; "
                f"fix the cause, then replay it with restante replay {name}",
                error_class=found.error_class,
                error=found.error,
            )
        if found.acked:
            raise NoResult(
                f"{self.id} was acked and {name} did not keep its result: set keep_done, or raise it if newer results "
                "have displaced this one"
            )
        raise NoResult(
            f"{name} has no message {self.id}: it was never sent, or was acked, cancelled or deleted; see the journal"
        )


class _Pauses:
    """When `result()` looks again."""

    def __init__(self, id: str, timeout: float | None) -> None:
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= 1e9
        ):
            raise InvalidInput(f"timeout must be a number of seconds from 0, or None, not {timeout!r}")
        self._id, self._timeout, self._pause = id, timeout, FIRST_PAUSE
        self._until = None if timeout is None else time.monotonic() + timeout

    @property
    def left(self) -> float:
        """Seconds that remain."""
        return 1e9 if self._until is None else max(0.0, self._until - time.monotonic())

    def next(self, found: Status) -> float:
        """Seconds until the next look; raises ResultTimeout if none is left."""
        left = self.left
        if left <= 0:
            state = found.state.value if found.state else "gone"
            raise ResultTimeout(f"{self._id} is {state} and has not ended within {self._timeout} s: wait longer")
        pause, self._pause = self._pause, min(self._pause * GROWTH, LONGEST_PAUSE)
        return min(pause, left)


class Handle(_Handle):
    """A message that was sent, by its id: `queue.handle(id)`. Each property is one call to the server."""

    def status(self, wait: float = 0) -> Status:
        """All that the properties show, read by one call. Over HTTP it waits up to `wait` seconds for the end."""
        found: Status = self.queue.status(self.id)
        return found

    @property
    def state(self) -> State | None:
        """The message's state; None if it has ended and was not kept, or was never sent."""
        return self.status().state

    @property
    def progress(self) -> Progress | None:
        """How far the handler is, if it runs and has noted it with `message.progress`."""
        return self.status().progress

    def result(self, timeout: float | None = None) -> Any:
        """Waits until the message is done and returns its result; None if it was acked without one.

        The queue must have `keep_done`. Raises `MessageDead` with the last error if the message is dead, `NoResult` if
        it has ended and was not kept, and `ResultTimeout` if it has not ended within `timeout` seconds.
        """
        pauses = _Pauses(self.id, timeout)
        while True:
            found = self.status(pauses.left)
            if found.ended:
                return self._outcome(found)
            time.sleep(pauses.next(found))

    def cancel(self) -> bool:
        """Gives the message up, also while a handler runs it; returns False if it has ended already."""
        gone: bool = self.queue.cancel(self.id)
        return gone


class AsyncHandle(_Handle):
    """A `Handle` for asyncio: state and progress are methods, because no property waits for a server."""

    async def status(self, wait: float = 0) -> Status:
        """All that the other methods show, read by one call. Over HTTP it waits up to `wait` seconds for the end."""
        found: Status = await self.queue.status(self.id)
        return found

    async def state(self) -> State | None:
        """The message's state; None if it has ended and was not kept, or was never sent."""
        return (await self.status()).state

    async def progress(self) -> Progress | None:
        """How far the handler is, if it runs and has noted it with `message.progress`."""
        return (await self.status()).progress

    async def result(self, timeout: float | None = None) -> Any:
        """Waits until the message is done and returns its result, as `Handle.result` does."""
        pauses = _Pauses(self.id, timeout)
        while True:
            found = await self.status(pauses.left)
            if found.ended:
                return self._outcome(found)
            await asyncio.sleep(pauses.next(found))

    async def cancel(self) -> bool:
        """Gives the message up, also while a handler runs it; returns False if it has ended already."""
        gone: bool = await self.queue.cancel(self.id)
        return gone
