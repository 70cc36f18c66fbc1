"""How many messages a consumer holds ahead, by how long its handlers take."""

from __future__ import annotations

from restante.core.operations import MAX_BATCH

#: Seconds of work a consumer may hold beyond what is running; more would keep messages from idle consumers.
BUFFERED_WORK = 0.1
#: Seconds of handling above which an ack travels at once: waiting for the next receive would invite doubles.
SLOW_HANDLER = 0.005


class Prefetch:
    """How long handlers take, as a moving average, and what follows for batches and acks."""

    def __init__(self, concurrency: int, prefetch: int) -> None:
        self._concurrency = concurrency
        self._prefetch = prefetch
        #: Seconds; the first guess keeps a consumer from hoarding before it knows.
        self.seconds = BUFFERED_WORK

    def note(self, seconds: float, count: int = 1) -> None:
        weight = min(0.5, 0.1 * count)
        self.seconds += (max(seconds / count, 1e-7) - self.seconds) * weight

    @property
    def room(self) -> int:
        """Messages to hold in all: those running and a little work ahead."""
        ahead = int(BUFFERED_WORK / self.seconds * self._concurrency)
        return min(MAX_BATCH, self._concurrency + min(self._prefetch, ahead))

    @property
    def low(self) -> int:
        """Messages held below which more are fetched."""
        return max(self._concurrency - 1, self.room // 2 - 1)

    @property
    def chunk(self) -> int:
        """Messages handed to a worker at once; one unless they are quick."""
        return max(1, min(50, int(0.005 / self.seconds)))

    @property
    def quick(self) -> bool:
        return self.seconds < SLOW_HANDLER
