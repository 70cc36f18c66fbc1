"""Queues on which all happens that can happen: random verbs through the real core, and what its journal says then."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from restante import Client
from restante.core.admin import Admin
from restante.core.errors import InvalidInput, LeaseLost, MessageLeased, NotFound
from restante.core.journal import JournalEntry, Position
from restante.core.journal_reader import JournalReader, Place
from restante.core.message import Draft, JournalEvent
from restante.core.queue import LeasedMessage
from restante.core.retry import fixed
from restante.core.sweeper import Sweeper
from restante.spark.schemas import JOURNAL

Row = dict[str, Any]
KINDS = ("", "invoice", "mail")
#: Characters that a reader of tab separated text must leave alone.
AWKWARD = "said \"no\", \\t 'so' ünï"


class Überlauf(Exception):
    """An error whose class name is not ASCII."""


class BusyQueues:
    """Random verbs on some queues, by a seed."""

    def __init__(self, post: Client, names: Sequence[str], seed: int) -> None:
        self.post = post
        self.admin = Admin(post, operator="op")
        self.names = tuple(names)
        self.random = random.Random(seed)
        self._held: list[LeasedMessage] = []
        self._sent: list[tuple[str, str]] = []
        for name in names:
            post.queue(name, max_attempts=2, keep_done=3, dedup=0.001)

    def run(self, steps: int) -> None:
        verbs: list[tuple[Callable[[str], None], int]] = [
            (self._send, 6),
            (self._send_many, 3),
            (self._receive, 6),
            (self._settle, 8),
            (self._extend, 1),
            (self._sweep, 1),
            (self._remove, 2),
            (self._edit, 1),
            (self._move, 1),
            (self._replay, 1),
            (self._take_back, 2),
            (self._configure, 1),
        ]
        for _ in range(steps):
            (verb,) = self.random.choices([verb for verb, _ in verbs], [weight for _, weight in verbs])
            try:
                verb(self.random.choice(self.names))
            except (MessageLeased, InvalidInput, LeaseLost, NotFound):
                pass  # a verb that came too late: the journal says nothing of it
        for name in self.names:
            self.admin.resume(name)

    def _draft(self) -> Draft:
        payload: Any = self.random.choice(({"n": self.random.random()}, b"\x00\tbytes\n\xff", "text", None, [1, 2]))
        return Draft(
            payload,
            priority=self.random.choice((0, 0, 7, 255)),
            kind=self.random.choice(KINDS),
            delay=self.random.choice((0, 0, 0, 0.001, 60)),
            headers=self.random.choice((None, {"trace": AWKWARD})),
            id=f"id-{self.random.randrange(200)}" if self.random.random() < 0.3 else None,
            retry=self.random.choice((None, fixed(0), fixed(0.001, 60))),
        )

    def _send(self, queue: str) -> None:
        self._sent += [(queue, id) for id in self.post.queue(queue).send_many([self._draft()])]

    def _send_many(self, queue: str) -> None:
        drafts = [self._draft() for _ in range(self.random.randrange(2, 12))]
        self._sent += [(queue, id) for id in self.post.queue(queue).send_many(drafts)]

    def _receive(self, queue: str) -> None:
        lease = self.random.choice((0.001, 30, 30))
        self._held += self.post.queue(queue).receive_many(self.random.randrange(1, 6), lease=lease)

    def _settle(self, _: str) -> None:
        if not self._held:
            return
        message = self._held.pop(self.random.randrange(len(self._held)))
        verb: Callable[[], object] = self.random.choice(
            (
                message.ack,
                lambda: message.nack(error=Überlauf(AWKWARD)),
                lambda: message.nack(delay=0, error="plain"),
                lambda: message.bury(error=ValueError(AWKWARD)),
                message.release,
                lambda: message.release(delay=60),
            )
        )
        verb()

    def _take_back(self, _: str) -> None:
        if self._held:
            message = self.random.choice(self._held)
            verb = self.random.choice((self.admin.revoke, self.admin.cancel))
            verb(message.queue, [message.id])

    def _extend(self, _: str) -> None:
        if self._held:
            self.random.choice(self._held).extend(lease=60)

    def _sweep(self, queue: str) -> None:
        Sweeper(self.post, (queue,)).run_once()

    def _some(self, queue: str) -> list[str]:
        ids = [id for name, id in self._sent if name == queue]
        return self.random.sample(ids, min(len(ids), 3))

    def _remove(self, queue: str) -> None:
        if self.random.random() < 0.2:
            self.admin.purge(queue, [self.random.choice(("ready", "scheduled", "retrying", "dead", "done"))])
        else:
            self.admin.delete(queue, self._some(queue), detail=self.random.choice(("", AWKWARD)))

    def _edit(self, queue: str) -> None:
        for id in self._some(queue)[:1]:
            self.admin.edit(queue, id, payload={"edited": AWKWARD}, priority=self.random.randrange(256))

    def _move(self, queue: str) -> None:
        target = self.random.choice([name for name in self.names if name != queue] or [queue])
        self.admin.move(queue, target, self._some(queue))

    def _replay(self, queue: str) -> None:
        self.admin.replay(queue)

    def _configure(self, queue: str) -> None:
        chosen = self.random.randrange(3)
        if chosen == 0:
            self.admin.configure(queue, max_attempts=self.random.randrange(1, 4))
        else:
            (self.admin.pause if chosen == 1 else self.admin.resume)(queue)


#: What `run` of some hundred steps brings about, in some seed or other.
HAPPENS = frozenset(event.value for event in JournalEvent)


def entries(post: Client, queue: str, after: int = 0) -> list[JournalEntry]:
    """The journal by core."""
    return Admin(post).journal(queue, after=Position(after), limit=10_000_000)


def place(post: Client, queue: str) -> Place:
    found = JournalReader(post).place(queue)
    assert found is not None
    return found


def rows(post: Client, *queues: str) -> list[Row]:
    """The journals by core as rows of the table, without what a journal of payloads adds."""
    made = []
    for queue in queues:
        incarnation = place(post, queue).incarnation
        for entry in entries(post, queue):
            row = {item.name: getattr(entry, item.name) for item in fields(entry)}
            made.append(
                {**row, "incarnation": incarnation, "position": entry.position.sequence, "event": entry.event.value}
            )
    return made


def facts(found: Sequence[Row]) -> list[Row]:
    """Rows of the table without what a journal of payloads adds, in the order of `rows`."""
    names = [name for name in JOURNAL.names if name not in ("payload", "headers", "content_type")]
    ordered = sorted(found, key=lambda row: (row["queue"], row["position"]))
    return [{name: row[name] for name in names} for row in ordered]
