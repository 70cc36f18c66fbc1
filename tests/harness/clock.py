"""A wall clock that tests move by hand, for a real redis-server or a real Python process.

What stands still in a redis-server (seen on Redis 7.0, Valkey 9.1) while the clock is frozen: TIME, key
expiry, the deadlines of blocking commands and the once-a-second fsync of the append-only file.
By its source, but not tried, replication and cluster timeouts stand still too. What goes on:
the event loop, its cron, writes that wake a blocked client, and the watchdog of slow scripts,
because these use the monotonic clock.

A blocking command with a timeout therefore waits until the test advances the clock past the
timeout, and then answers at the next turn of the server's cron (within 1/hz). It never hangs
the server. Moving the clock back makes it wait longer by as much.

For a Python process prefer `offset` to a frozen time: the clock then still runs, shifted, as on
a machine whose clock is wrong.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.harness.requirements import require

#: The variable by which a child finds its clock file; the shim reads the same name.
CLOCK_VARIABLE: Final = "RESTANTE_CLOCK_FILE"

#: Milliseconds since the epoch at which a clock starts unless told: a round number far from
#: today, so that a value from the real clock is visible at once in a failing assertion.
START_MS: Final = 2_000_000_000_000

_SOURCE: Final = Path(__file__).with_name("frozen_clock.c")
_WORD: Final = 8
_SHOWN, _OFFSET = 0, 1


@functools.cache
def shim() -> Path:
    """The compiled shim, built once per content of its source and shared by all test runs."""
    source = _SOURCE.read_bytes()
    # The user's number in the name: another user's directory may not be writable for us.
    cache = Path(tempfile.gettempdir()) / f"restante-clock-{os.getuid()}"
    built = cache / f"frozen_clock-{hashlib.sha256(source).hexdigest()[:16]}.so"
    if built.exists():
        return built
    cache.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        fresh = Path(scratch) / built.name
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([require("gcc"), *flags, "-o", fresh, _SOURCE, "-ldl"], check=True, capture_output=True)
        # A rename is atomic: a parallel run sees the whole library or none.
        fresh.rename(built)
    return built


class FrozenClock:
    """A wall clock in a mapped file, shared with every child started with `env()`.

    It is either frozen at a time (the state it is born in) or, after `unfreeze` or `offset`,
    runs with the real clock plus an offset. `advance` and `back` work in both states.
    """

    def __init__(self, start_ms: int = START_MS) -> None:
        descriptor, name = tempfile.mkstemp(prefix="restante-clock-")
        self._path = Path(name)
        os.truncate(descriptor, 2 * _WORD)
        self._map = mmap.mmap(descriptor, 2 * _WORD)
        os.close(descriptor)
        # One aligned 8-byte store: a child never reads half of a new time.
        self._words = memoryview(self._map).cast("q")
        self.set(start_ms)

    def env(self) -> dict[str, str]:
        """The variables a child needs to live by this clock."""
        preloaded = [str(shim()), *os.environ.get("LD_PRELOAD", "").split()]
        return {"LD_PRELOAD": " ".join(preloaded), CLOCK_VARIABLE: str(self._path)}

    @property
    def frozen(self) -> bool:
        return self._words[_SHOWN] != 0

    @property
    def now_us(self) -> int:
        """Microseconds since the epoch, as the children see them."""
        return self._words[_SHOWN] or time.time_ns() // 1000 + self._words[_OFFSET]

    @property
    def now_ms(self) -> int:
        """Milliseconds since the epoch, as the children see them."""
        return self.now_us // 1000

    def set(self, ms: int) -> None:
        """Freeze the clock at this time."""
        if ms <= 0:
            raise ValueError(f"a frozen time is after the epoch, ms={ms}")
        self._words[_SHOWN] = ms * 1000

    def advance(self, seconds: float) -> None:
        """Move the clock forward, or back when negative; frozen stays frozen."""
        word = _SHOWN if self.frozen else _OFFSET
        moved = self._words[word] + round(seconds * 1_000_000)
        if word == _SHOWN and moved <= 0:
            raise ValueError(f"a frozen time is after the epoch, us={moved}")
        self._words[word] = moved

    def back(self, seconds: float) -> None:
        """Move the clock back."""
        self.advance(-seconds)

    def offset(self, seconds: float) -> None:
        """Let the clock run, this far from the real time."""
        self._words[_OFFSET] = round(seconds * 1_000_000)
        self._words[_SHOWN] = 0

    def unfreeze(self) -> None:
        """Let the clock run with the real time."""
        self.offset(0)

    def close(self) -> None:
        """Remove the file; children that have mapped it keep the last time."""
        self._words.release()
        self._map.close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
