"""Decides how many messages a consumer prefetches, from the duration of its handlers."""

from __future__ import annotations

from restante.core.errors import InvalidInput
from restante.core.operations import MAX_BATCH

#: Seconds of work that a consumer may prefetch; more would keep messages from idle consumers.
BUFFERED_WORK = 0.1
#: Duration of a handler above which acks are sent at once: an ack that waited for the next receive could come too late.
SLOW_HANDLER = 0.005


class Prefetch:
    """The average duration of handlers, and the batch sizes and the timing of acks that follow from it."""

    def __init__(self, concurrency: int, prefetch: int) -> None:
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or not 0 <= prefetch <= MAX_BATCH:
            raise InvalidInput(f"prefetch must be a whole number from 0 to {MAX_BATCH}, not {prefetch!r}")
        self._concurrency = concurrency
        self._prefetch = prefetch
        #: Moving average in seconds; the initial value keeps a new consumer from prefetching too much.
        self.seconds = BUFFERED_WORK

    def note(self, seconds: float, count: int = 1) -> None:
        weight = min(0.5, 0.1 * count)
        self.seconds += (max(seconds / count, 1e-7) - self.seconds) * weight

    @property
    def room(self) -> int:
        """Messages to hold in all: the running ones and some prefetched ones."""
        ahead = int(BUFFERED_WORK / self.seconds * self._concurrency)
        return min(MAX_BATCH, self._concurrency + min(self._prefetch, ahead))

    @property
    def low(self) -> int:
        """Fetch more when fewer messages than this are held."""
        return max(self._concurrency - 1, self.room // 2 - 1)

    @property
    def chunk(self) -> int:
        """Messages passed to a worker at once; one unless handlers are quick."""
        return max(1, min(50, int(0.005 / self.seconds)))

    @property
    def quick(self) -> bool:
        return self.seconds < SLOW_HANDLER
