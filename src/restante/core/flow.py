"""Flows: generators that yield operations and waits, which a driver performs.

A flow is written once and runs on the synchronous runner, on asyncio and in the HTTP server. When a step fails, its
error is raised in the flow, which may handle it and go on; otherwise it leaves the driver.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from restante.core.scripts import Operation

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """A step of a flow: wait until one of these markers is set or the time is over."""

    markers: list[bytes]
    seconds: float


Flow = Generator[Operation[Any] | Wait, Any, T]


def drive(flow: Generator[S, Any, T], perform: Callable[[S], Any]) -> T:
    """Performs each step of a flow and sends the answer back into it; returns what the flow returns."""
    try:
        step = next(flow)
        while True:
            try:
                answer = perform(step)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def drive_async(flow: Generator[S, Any, T], perform: Callable[[S], Awaitable[Any]]) -> T:
    """Awaits each step of a flow and sends the answer back into it; returns what the flow returns."""
    try:
        step = next(flow)
        while True:
            try:
                answer = await perform(step)
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
