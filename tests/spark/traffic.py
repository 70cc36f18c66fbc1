"""Random traffic on real queues: every verb of consumers and operators, chosen by chance, so that journals hold it all.

Leases are short and run out; what another process took meanwhile, or lost, is nobody's fault and passed over.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from restante import Admin, Client, LeaseLost, MessageLeased, Queue, State, fixed
from restante.core.settings import QueueOptions

#: Seconds a lease of this traffic lasts: short enough that some run out while a test watches.
LEASE = 0.15
KINDS = ("", "order", "refund")


class Traffic:
    """Moves messages of some queues about."""

    def __init__(self, post: Client, seed: int, names: Sequence[str] = ("orders", "mail", "thumbnails")) -> None:
        self.chance = random.Random(seed)
        self.admin = Admin(post, operator="ada")
        options: QueueOptions = {"lease": LEASE, "max_attempts": 2, "retry": fixed(0.02)}
        self.queues = [post.queue(name, **options) for name in names]
        if len(self.queues) > 1:
            self.queues[-1].configure(keep_done=20)
        self._verbs: tuple[tuple[Callable[[Queue], object], int], ...] = (
            (self.send, 8),
            (self.work, 10),
            (self.hold, 2),
            (self.take_back, 1),
            (self.replay, 1),
            (self.delete, 1),
            (self.purge, 1),
            (self.move, 1),
            (self.edit, 1),
            (self.pause, 1),
        )

    def play(self, moves: int) -> None:
        """So many moves, one after the other."""
        verbs, weights = zip(*self._verbs, strict=True)
        for _ in range(moves):
            verb = self.chance.choices(verbs, weights)[0]
            verb(self.chance.choice(self.queues))

    def send(self, queue: Queue) -> None:
        count = self.chance.choice((1, 3, 20))
        delay = self.chance.choice((0, 0, 0, 0.05))
        queue.send_many([{"n": n} for n in range(count)], kind=self.chance.choice(KINDS), delay=delay)

    def work(self, queue: Queue) -> None:
        """Takes some messages and settles each in some way."""
        for message in queue.receive_many(self.chance.choice((1, 5, 20))):
            end = self.chance.choice(("ack", "ack", "ack", "ack", "nack", "bury", "release", "extend"))
            try:
                if end == "nack":
                    message.nack(error=ValueError("no"))
                elif end == "bury":
                    message.bury(error=KeyError("price"))
                else:
                    getattr(message, end)()
            except LeaseLost:
                pass  # the machine was busy for longer than the lease

    def take_back(self, queue: Queue) -> None:
        """Takes some messages; an operator takes one of them back and gives up the others."""
        for place, message in enumerate(queue.receive_many(3)):
            verb = self.admin.cancel if place else self.admin.revoke
            verb(queue.name, [message.id])

    def hold(self, queue: Queue) -> None:
        """Takes messages and forgets them: their leases run out."""
        queue.receive_many(3)

    def replay(self, queue: Queue) -> None:
        self.admin.replay(queue.name)

    def delete(self, queue: Queue) -> None:
        try:
            self.admin.delete(queue.name, self._some(queue))
        except MessageLeased:
            pass  # another process took one meanwhile

    def purge(self, queue: Queue) -> None:
        self.admin.purge(queue.name, [self.chance.choice((State.DEAD, State.DONE, State.RETRYING))])

    def move(self, queue: Queue) -> None:
        other = self.chance.choice(self.queues)
        if other is not queue:
            self.admin.move(queue.name, other.name, self._some(queue))

    def edit(self, queue: Queue) -> None:
        for message in self.admin.messages(queue.name, State.DEAD, limit=2).messages:
            self.admin.edit(queue.name, message.id, priority=self.chance.randrange(256))

    def pause(self, queue: Queue) -> None:
        self.admin.pause(queue.name)
        self.admin.resume(queue.name)

    def _some(self, queue: Queue) -> list[str]:
        """Ids of a few messages that nobody holds."""
        state = self.chance.choice((State.READY, State.SCHEDULED, State.DEAD))
        return [message.id for message in self.admin.messages(queue.name, state, limit=2).messages]


@contextmanager
def going_on(traffic: Traffic, *, pause: float = 0.01) -> Iterator[None]:
    """The traffic flows in a thread of its own while the block runs."""
    over = threading.Event()
    failures: list[Exception] = []

    def flow() -> None:
        while not over.is_set():
            try:
                traffic.play(1)
            except Exception as error:
                failures.append(error)
                return
            time.sleep(pause)

    thread = threading.Thread(target=flow, name="traffic", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
    assert not failures, failures
