"""Waits that end at a condition, and bounds of time that only `make chaos` and `make long` assert.

`make test` runs on busy machines, so no test in it fails because something took long: a wait ends when its condition
holds, and its deadline, `PATIENCE`, is there only so that a hang ends with a message. A test that states a bound of
time is marked `timed` and measures with `at_most`: `make test` asserts its outcome, the other two run it again and
assert the bound too.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

T = TypeVar("T")

#: Seconds any wait may last before the test fails; shorter fails on a busy machine, longer only delays the message.
PATIENCE: Final = float(os.environ.get("RESTANTE_PATIENCE", "600"))

#: Seconds between two looks at a condition; longer only slows the tests.
POLL: Final = 0.02

#: Whether bounds of time are asserted; `make chaos` and `make long` set the variable.
ASSERTED: Final = os.environ.get("RESTANTE_BOUNDS") == "1"

#: What bounds of time are multiplied by on a machine that is slower than usual; tests/chaos measures it.
SLOWER: Final = float(os.environ.get("RESTANTE_SLOWER", "1"))

#: Whether the running test is marked `timed`; tests/conftest.py keeps it.
timed: bool = False


def wait_until(condition: Callable[[], T], what: object = "", *, timeout: float = PATIENCE, poll: float = POLL) -> T:
    """The first true value of `condition`; fails with `what`, called if it can be, when it takes too long."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise _late(what, timeout)
        time.sleep(poll)
    return found


async def wait_until_async(condition: Callable[[], T], what: object = "", *, timeout: float = PATIENCE) -> T:
    """The same for a coroutine: other tasks go on between two looks."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise _late(what, timeout)
        await asyncio.sleep(POLL)
    return found


@contextmanager
def at_most(seconds: float, what: str = "") -> Iterator[None]:
    """States that the block takes no longer; asserted where `ASSERTED`."""
    begun = time.monotonic()
    yield
    took_at_most(time.monotonic() - begun, seconds, what)


def took_at_most(took: float, seconds: float, what: str = "") -> None:
    """States that something measured took no longer; asserted where `ASSERTED`."""
    # Without the mark `make long` would not run the test, and the bound would never be asserted.
    assert timed, "a test that states a bound of time is marked pytest.mark.timed"
    if ASSERTED:
        allowed = seconds * SLOWER
        assert took <= allowed, f"{what or 'it'} took {took:.3f} s, allowed are {allowed:g} s"


def _late(what: object, timeout: float) -> AssertionError:
    return AssertionError(f"not within {timeout:g} s: {what() if callable(what) else what}")
