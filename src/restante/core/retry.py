"""Retry policies: values that decide how long a failed message waits, or that it is dead."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from restante.core.errors import InvalidInput

#: Seconds; the longest delay of a policy (ten years). A longer delay is more likely a typo than intended.
LONGEST_DELAY = 10 * 365 * 86400.0


def seconds(value: float | timedelta, name: str, *, least: float = 0.0) -> float:
    """Converts a duration into seconds; raises InvalidInput with its name if it is not finite or out of range."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InvalidInput(f"{name} must be a number of seconds or a timedelta, not {value!r}")
    if not least <= number <= LONGEST_DELAY:  # NaN fails both comparisons
        raise InvalidInput(f"{name} must be between {least:g} and {LONGEST_DELAY:g} seconds, not {value!r}")
    return float(number)


def valid_retry(retry: Any) -> RetryPolicy:
    """Returns `retry` if it is a policy; raises InvalidInput otherwise."""
    if not isinstance(retry, RetryPolicy):
        raise InvalidInput(f"retry must be a RetryPolicy such as restante.exponential(1), not {retry!r}")
    return retry


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a failed message waits before its next attempt.

    If `delays` is set, it lists the delays. Otherwise the delay grows from `base` by `factor` up to `cap`, and
    `jitter` varies it by that share in both directions, so that messages that failed together do not return together.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 600.0
    jitter: float = 0.1
    delays: tuple[float, ...] | None = None

    @staticmethod
    def exponential(
        base: float | timedelta = 1.0,
        *,
        factor: float = 2.0,
        cap: float | timedelta = 600.0,
        jitter: float = 0.1,
    ) -> RetryPolicy:
        """A policy whose delay grows from `base` by `factor` up to `cap` seconds, varied by the share `jitter`."""
        if not 1 <= factor <= 1000:
            raise InvalidInput(f"factor must be between 1 and 1000, not {factor!r}")
        if not 0 <= jitter <= 1:
            raise InvalidInput(f"jitter must be between 0 and 1, not {jitter!r}")
        return RetryPolicy(seconds(base, "base"), float(factor), seconds(cap, "cap"), float(jitter))

    @staticmethod
    def fixed(*delays: float | timedelta) -> RetryPolicy:
        """A policy with these delays in turn; after the last one the message is dead."""
        return RetryPolicy(delays=tuple(seconds(delay, "delay") for delay in delays))

    @staticmethod
    def none() -> RetryPolicy:
        """A policy without retries: the first failure makes the message dead."""
        return RetryPolicy(delays=())

    def next(self, attempts: int) -> float | None:
        """Returns the seconds to wait after this many attempts, or None if the message is dead."""
        if self.delays is not None:
            return self.delays[attempts - 1] if attempts <= len(self.delays) else None
        try:
            grown = self.base * self.factor ** (attempts - 1)
        except OverflowError:  # larger than any cap, unless the base is 0
            grown = self.cap if self.base else 0.0
        delay = min(self.cap, grown)
        return min(LONGEST_DELAY, delay * (1 + self.jitter * (2 * random.random() - 1)))

    def text(self) -> str:
        """The policy as text, as Redis stores it."""
        if self.delays is not None:
            return "fixed:" + ",".join(repr(delay) for delay in self.delays)
        return f"exponential:{self.base!r}:{self.factor!r}:{self.cap!r}:{self.jitter!r}"

    @classmethod
    def parse(cls, text: str) -> RetryPolicy:
        """Parses the result of `text()`."""
        name, _, rest = text.partition(":")
        try:
            if name == "fixed":
                return cls.fixed(*(float(part) for part in rest.split(",") if part))
            if name == "exponential":
                base, factor, cap, jitter = (float(part) for part in rest.split(":"))
                return cls.exponential(base, factor=factor, cap=cap, jitter=jitter)
        except (ValueError, OverflowError):
            pass
        raise InvalidInput(f"not a retry policy: {text!r}; use exponential:BASE:FACTOR:CAP:JITTER or fixed:1,5,30")


#: The policies by their short names: the same functions.
exponential, fixed, no_retry = RetryPolicy.exponential, RetryPolicy.fixed, RetryPolicy.none
