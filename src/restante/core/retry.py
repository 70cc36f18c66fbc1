"""Retry policies are values: given the attempts made, when to try again, or that it is over."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

from restante.core.errors import InvalidInput

#: Seconds; the longest delay a policy may ask for (ten years). Beyond it a typing slip is likelier than a wish.
LONGEST_DELAY = 10 * 365 * 86400.0


def seconds(value: float | timedelta, name: str, *, least: float = 0.0) -> float:
    """The duration as seconds, refused with its name when it is not a finite number in range."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InvalidInput(f"{name} must be a number of seconds or a timedelta, not {value!r}")
    if not least <= number <= LONGEST_DELAY:  # NaN fails both comparisons
        raise InvalidInput(f"{name} must be between {least:g} and {LONGEST_DELAY:g} seconds, not {value!r}")
    return float(number)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a failed message waits before its next attempt.

    `delays` is the plain list; when it is empty the delay grows from `base` by `factor` up to `cap`,
    and `jitter` spreads it by that share either way so that failures of one moment do not return in one.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 600.0
    jitter: float = 0.1
    delays: tuple[float, ...] | None = None

    def next(self, attempts: int) -> float | None:
        """Seconds to wait after this many attempts, or None when the message is dead."""
        if self.delays is not None:
            return self.delays[attempts - 1] if attempts <= len(self.delays) else None
        try:
            grown = self.base * self.factor ** (attempts - 1)
        except OverflowError:  # larger than any cap, unless it grows from nothing
            grown = self.cap if self.base else 0.0
        delay = min(self.cap, grown)
        return min(LONGEST_DELAY, delay * (1 + self.jitter * (2 * random.random() - 1)))

    def text(self) -> str:
        """The form kept in Redis."""
        if self.delays is not None:
            return "fixed:" + ",".join(repr(delay) for delay in self.delays)
        return f"exponential:{self.base!r}:{self.factor!r}:{self.cap!r}:{self.jitter!r}"

    @classmethod
    def parse(cls, text: str) -> RetryPolicy:
        """Reads `text()` back."""
        name, _, rest = text.partition(":")
        try:
            if name == "fixed":
                return fixed(*(float(part) for part in rest.split(",") if part))
            if name == "exponential":
                base, factor, cap, jitter = (float(part) for part in rest.split(":"))
                return exponential(base, factor=factor, cap=cap, jitter=jitter)
        except (ValueError, OverflowError):
            pass
        raise InvalidInput(f"not a retry policy: {text!r}; use exponential:BASE:FACTOR:CAP:JITTER or fixed:1,5,30")


def exponential(
    base: float | timedelta = 1.0,
    *,
    factor: float = 2.0,
    cap: float | timedelta = 600.0,
    jitter: float = 0.1,
) -> RetryPolicy:
    """Delays that grow from `base` by `factor` up to `cap` seconds, spread by `jitter` (a share, 0 to 1)."""
    if not 1 <= factor <= 1000:
        raise InvalidInput(f"factor must be between 1 and 1000, not {factor!r}")
    if not 0 <= jitter <= 1:
        raise InvalidInput(f"jitter must be between 0 and 1, not {jitter!r}")
    return RetryPolicy(seconds(base, "base"), float(factor), seconds(cap, "cap"), float(jitter))


def fixed(*delays: float | timedelta) -> RetryPolicy:
    """These delays one after the other, then dead."""
    return RetryPolicy(delays=tuple(seconds(delay, "delay") for delay in delays))


def no_retry() -> RetryPolicy:
    """The first failure is the last."""
    return RetryPolicy(delays=())
