"""A random walk over batches, beside a pure model of them: what the server counts must be what happened.

Carriers die before they carry, carry twice, and carry what another has carried long ago. A batch ends once, not before
the last of its messages, and its counts are those of the model as soon as all outboxes are empty.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import restante
from restante import Admin, Draft, State
from restante.core import batch_calls as calls
from restante.core import operations as ops
from restante.core.batch_calls import ANNOUNCED, BatchName
from restante.core.errors import BatchEnded
from restante.core.keys import QueueKeys
from restante.core.message import ENDED, new_id
from restante.core.operator_verbs import cancel_many, revoke
from restante.core.queue import run_flow
from restante.core.queue_ref import QueueRef
from tests.core.bench import Bench

WORK: Final = ("work-1", "work-2")
HOMES: Final = ("home-1", "home-2")
#: Seconds after which a lease of the walk has ended.
LEASE: Final = 30
#: Words of the model for how a message may have ended, as the server counts them.
ENDINGS: Final = ("acked", "dead", "cancelled", "deleted", "purged", "lapsed")


@dataclass
class Known:
    """What the model knows of a batch: how each of its messages is, and what must have been sent."""

    parent: str | None
    alarms: bool
    members: dict[str, str] = field(default_factory=dict)
    sealed: bool = False
    ended: bool = False
    had_dead: bool = False
    #: Whether its end was the first dead member of its parent.
    was_first_dead: bool = False


class Walk:
    """The queues, and the model beside them."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.client = restante.connect(bench.server.url, consumer="walker")
        self.admin = Admin(self.client, operator="op", audited=False)
        for name in (*WORK, *HOMES):
            self.client.queue(name, max_attempts=2, retry=restante.fixed(1), lease=LEASE).ensure_open()
        self.batches: dict[str, Known] = {}
        #: Message → its batch.
        self.batch_of: dict[str, str] = {}
        self.held: list[Any] = []
        #: What a carrier read before it fell asleep.
        self.stale: list[tuple[str, list[bytes]]] = []

    def close(self) -> None:
        self.client.close()

    # -- what happens --------------------------------------------------------------------------------------------

    def play(self, steps: int) -> None:
        """Takes steps and looks after each few of them whether all is as it should be."""
        verbs = (self.open, self.take, self.take, self.settle, self.settle, self.settle, self.settle, self.operate)
        more = (self.add, self.announce, self.let_leases_end, self.fall_asleep, self.wake_up, self.read_ends)
        for number in range(steps):
            self.random.choice((*verbs, *more))()
            self.look()
            if number % 10 == 9:
                self.carry_all()
                self.compare()

    def tell(self) -> None:
        """What a walk meets too rarely: an outbox and nothing else due, a late carrier of a move, an unsealed batch."""
        here, there, home = (self.client.queue(name, max_attempts=1) for name in ("here", "there", "home-3"))
        with self.client.batch(home.name, on_complete=1) as batch:
            batch.send(here, 1)
        self._die_after_ack(here)
        self.bench.clock.advance(1)
        here.receive()
        assert self.admin.batch(batch.id).state == "complete", "an outbox alone wakes nobody"
        try:
            batch.send(here, 2)
        except BatchEnded:
            pass
        else:
            raise AssertionError("a batch took a message after its end")
        self._move_late(here, there)
        self._die_late(here, there)
        self._end_before_seal(here)
        self._replay_after_end(here)
        self._carry_twice(here)

    def _die_after_ack(self, queue: Any) -> None:
        ref = QueueRef(queue.name, "dying", Draft)
        self.client.connection.run(ops.ack_many(ref, [queue.receive()]))

    def _move_late(self, here: Any, there: Any) -> None:
        with self.client.batch("home-3") as batch:
            id = batch.send(here, 1)
        key = here.ref.keys["outbox"]
        self.admin._carry = lambda queue: None  # type: ignore[method-assign]  # it dies
        self.admin.move(here.name, there.name, [id])
        entries = self.client.connection.command("ZRANGE", key, 0, -1, key=key)
        there.receive().bury()
        run_flow(self.client.connection, calls.carry(here.name, entries, False))
        del self.admin._carry
        assert self.admin.batch(batch.id).dead == 1, "a late carrier of a move brought a dead message back"

    def _die_late(self, here: Any, there: Any) -> None:
        with self.client.batch("home-3", on_dead="alarm") as batch:
            id = batch.send(here, 1)
        key = here.ref.keys["outbox"]
        self.client.connection.run(ops.bury_many(QueueRef(here.name, "dying", Draft), [here.receive()]))
        entries = self.client.connection.command("ZRANGE", key, 0, -1, key=key)
        self.admin.move(here.name, there.name, [id])
        self.admin.replay(there.name, ids=[id])
        run_flow(self.client.connection, calls.carry(here.name, entries, False))
        status = self.admin.batch(batch.id)
        assert (status.dead, status.pending) == (0, 1), "what a queue said before a move was counted after it"
        self.admin.move(there.name, here.name, [id])
        run_flow(self.client.connection, calls.carry(here.name, entries, False))
        assert self.admin.batch(batch.id).pending == 1, "what a queue said before a message came back was counted again"
        here.receive().ack()
        assert self.admin.batch(batch.id).state == "complete"

    def _end_before_seal(self, queue: Any) -> None:
        name = BatchName("home-3", "unsealed")
        fields: dict[str, Any] = {"title": "", "parent": "", "keep_ms": 60_000}
        self.client.connection.run(calls.opening(name, "n", fields))
        id = new_id()
        self.client.connection.run(calls.adding(name, [(queue.name, id)]))
        entry = ops.entry_in_batch(queue.ref, Draft(1, id=id), str(name))
        self.client.connection.run(ops.send_entries(queue.ref, [entry]))
        queue.receive().ack()
        status = self.admin.batch(str(name))
        found = (status.state, status.pending, status.done, status.ended_at)
        assert found == ("open", 0, 1, None), "a batch ended before it was sealed"
        self.client.connection.run(calls.sealing(name, "seal"))
        assert self.admin.batch(str(name)).state == "complete", "a batch did not end when it was sealed"

    def _replay_after_end(self, queue: Any) -> None:
        home = self.client.queue("home-3")
        with self.client.batch(home.name, on_complete="once") as batch:
            id = batch.send(queue, 1)
        queue.receive().bury()
        while message := home.receive():
            message.ack()
        self.admin.replay(queue.name, ids=[id])
        queue.receive().ack()
        assert home.receive() is None, "a batch ended twice"
        assert self.admin.batch(batch.id).done == 1

    def _carry_twice(self, queue: Any) -> None:
        with self.client.batch("home-3") as batch:
            id, _ = batch.send_many(queue, [1, 2])
        ref, key = QueueRef(queue.name, "dying", Draft), queue.ref.keys["outbox"]
        self.client.connection.run(ops.bury_many(ref, [queue.receive()]))
        entries = self.client.connection.command("ZRANGE", key, 0, -1, key=key)
        self.admin.replay(queue.name, ids=[id])
        run_flow(self.client.connection, calls.carry(queue.name, entries, False))
        status = self.admin.batch(batch.id)
        assert (status.dead, status.pending) == (0, 2), "an entry was counted twice"

    def read_ends(self) -> None:
        """The messages that batches sent are read, and are gone."""
        for name in HOMES:
            home = self.client.queue(name)
            while message := home.receive():
                message.ack()

    def _queue(self) -> Any:
        return self.client.queue(self.random.choice(WORK))

    def open(self) -> None:
        running = [id for id, known in self.batches.items() if not known.ended and known.sealed]
        parent = self.random.choice([None, *running[:2]])
        alarms = self.random.random() < 0.7
        batch = self.client.batch(
            self.random.choice(HOMES), on_complete="end", on_dead="alarm" if alarms else None, parent=parent
        )
        known = Known(parent, alarms)
        sent: list[Any] = []
        try:
            with batch:
                for _ in range(self.random.randrange(5)):
                    expires = 5 if self.random.random() < 0.1 else None
                    sent.append(batch.send(self._queue(), 1, expires=expires))
        except BatchEnded:
            # The model knows of the end of the parent before the server does, never after it.
            assert parent is not None
            assert self.batches[parent].ended
            return
        known.members = {str(id): "pending" for id in sent}
        known.sealed = True
        self.batches[batch.id] = known
        self.batch_of.update({str(id): batch.id for id in sent})
        if parent is not None:
            self.batches[parent].members[batch.id] = "pending"
        self.note_ends()

    def take(self) -> None:
        queue = self._queue()
        self.held += queue.receive_many(self.random.randint(1, 3))

    def settle(self) -> None:
        """A verdict, after which the consumer may die before it has carried anything."""
        if not self.held:
            return
        message = self.held.pop(self.random.randrange(len(self.held)))
        queue = self.client.queue(message.queue)
        ref = QueueRef(message.queue, "dying", Draft) if self.random.random() < 0.4 else queue.ref
        ref.settings = queue.settings
        verb = self.random.choice(
            ("ack", "ack", "ack", "ride", "result", "nack", "bury", "release", "cancel", "revoke")
        )
        try:
            if verb == "ride":
                got = self.client.connection.run(ops.receive(ref, 0, acks=[message]))
                verb = "" if got.lost else "ack"
            elif verb == "result":
                self.client.connection.run(ops.ack_result(ref, message, 1))
                verb = "ack"
            elif verb == "nack":
                (state,) = self.client.connection.run(ops.nack_many(ref, [message], error="E"))
                verb = "bury" if state is State.DEAD else ""
            elif verb == "cancel":
                (before,) = self.client.connection.run(cancel_many(ref, [message.id], operator="op", detail=""))
                verb = "" if before in (None, *ENDED) else "cancel"
            elif verb == "revoke":
                self.client.connection.run(revoke(ref, [message.id], operator="op", detail=""))
            else:
                call = {"ack": ops.ack_many, "bury": ops.bury_many, "release": ops.release_many}[verb]
                self.client.connection.run(call(ref, [message]))
        except restante.LeaseLost:
            return
        self.became(message.id, {"ack": "acked", "bury": "dead", "cancel": "cancelled"}.get(verb, ""))
        if ref is queue.ref:
            run_flow(self.client.connection, calls.carrying(ref, self.random.random() < 0.5))

    def operate(self) -> None:
        name = self.random.choice(WORK)
        waiting = [m.id for s in (State.READY, State.RETRYING) for m in self.admin.walk(name, s) if m.batch_id]
        dead = [message.id for message in self.admin.walk(name, State.DEAD) if message.batch_id]
        verb = self.random.choice(("delete", "cancel", "purge", "replay", "move", "move"))
        if verb == "purge":
            ready = [message.id for message in self.admin.walk(name, State.READY)]
            self.admin.purge(name, [State.READY])
            for id in ready:
                self.became(id, "purged")
        elif verb == "replay" and dead:
            self.admin.replay(name, ids=dead[:2])
            for id in dead[:2]:
                self.became(id, "pending")
        elif verb == "move" and (waiting or dead):
            id = self.random.choice(waiting + dead)
            if self.admin.move(name, WORK[name == WORK[0]], [id]):
                self.became(id, "pending")
        elif verb in ("delete", "cancel") and waiting:
            id = self.random.choice(waiting)
            getattr(self.admin, verb)(name, [id])
            self.became(id, "deleted" if verb == "delete" else "cancelled")

    def add(self) -> None:
        """A handler adds to its batch."""
        for message in self.held:
            known = self.batches.get(message.batch_id or "")
            if known is None or known.ended or known.members.get(message.id) != "pending":
                continue
            id = message.batch.send(self._queue(), 2)
            known.members[str(id)] = "pending"
            self.batch_of[str(id)] = message.batch_id
            return

    def announce(self) -> None:
        """A handler dies between announcing a message and sending it."""
        running = [id for id, known in self.batches.items() if not known.ended]
        if running:
            try:
                name = BatchName.parse(self.random.choice(running))
                self.client.connection.run(calls.adding(name, [(WORK[0], new_id())]))
            except BatchEnded:
                raise AssertionError("a batch that has messages has ended") from None

    def let_leases_end(self) -> None:
        self.bench.clock.advance(LEASE + 1)
        for name in WORK:
            self.client.connection.run(ops.receive(QueueRef(name, "sweeper", Draft), 0))
            for message in self.admin.walk(name, State.DEAD):
                if message.batch_id and message.history[-1].event.value == "expired":
                    self.became(message.id, "dead")

    def fall_asleep(self) -> None:
        for name in (*WORK, *HOMES):
            key = QueueKeys(name)["outbox"]
            entries = self.client.connection.command("ZRANGE", key, 0, -1, key=key)
            ended = [entry for entry in entries if b"\tannounced\t" not in entry]
            if ended:
                self.stale.append((name, ended))

    def wake_up(self) -> None:
        if self.stale:
            name, entries = self.random.choice(self.stale)
            run_flow(self.client.connection, calls.carry(name, entries, self.random.random() < 0.5))

    # -- the model -----------------------------------------------------------------------------------------------

    def became(self, id: str, state: str) -> None:
        """A message has ended in this way, or is waited for again."""
        batch = self.batch_of.get(id)
        if batch is None or not state:
            return
        known = self.batches[batch]
        if known.members[id] in ("pending", "dead"):
            known.members[id] = state
            if state == "pending":
                self.waits_again(batch)
        known.had_dead |= state == "dead"
        self.note_ends()

    def note_ends(self) -> None:
        """Batches whose last message has ended: they may end now, and so the batches that they are a part of."""
        for id, known in reversed(self.batches.items()):
            if known.sealed and not known.ended and "pending" not in known.members.values():
                known.ended = True
                if known.parent is not None:
                    dead = "dead" in known.members.values()
                    parent = self.batches[known.parent]
                    parent.members[id] = "dead" if dead else "acked"
                    known.was_first_dead = dead and not parent.had_dead
                    parent.had_dead |= dead

    def waits_again(self, batch: str) -> None:
        """A message was replayed before the server had counted the last end: the batch has not ended after all."""
        known = self.batches[batch]
        if not known.ended or self.admin.batch(batch).ended_at is not None:
            return
        known.ended = False
        if known.parent is not None:
            parent = self.batches[known.parent]
            parent.members[batch] = "pending"
            if known.was_first_dead:
                parent.had_dead = known.was_first_dead = False
            self.waits_again(known.parent)

    # -- what must be --------------------------------------------------------------------------------------------

    def lapse(self) -> None:
        """Messages that the last receives removed because they had expired."""
        for name in WORK:
            for entry in self.admin.journal(name, limit=1_000_000):
                if entry.error_class == "Lapsed":
                    self.became(entry.message_id, "lapsed")

    def ends(self) -> Counter[tuple[str, str]]:
        """How often each batch sent which message."""
        lines = [entry for home in HOMES for entry in self.admin.journal(home, limit=1_000_000)]
        told = [entry.detail.partition(" of batch ") for entry in lines if entry.event.value == "sent"]
        return Counter((event, batch) for event, _, batch in told if batch)

    def look(self) -> None:
        """No batch has ended too early, or twice."""
        self.lapse()
        for (event, batch), count in self.ends().items():
            if batch not in self.batches:
                continue
            assert count == 1, f"{batch} sent {event} {count} times"
            if event == "complete":
                assert self.batches[batch].ended, f"{batch} has ended before its messages"
            else:
                assert self.batches[batch].had_dead, f"{batch} told of a dead message that it has not"

    def carry_all(self) -> None:
        """Time passes, and sweepers look at every queue until no outbox holds anything."""
        for _ in range(30):
            self.bench.clock.advance(ANNOUNCED + 1)
            for name in (*WORK, *HOMES):
                queue = self.client.queue(name)
                self.client.connection.run(ops.receive(queue.ref, 0))
                run_flow(self.client.connection, calls.carrying(queue.ref, True))
            self.let_leases_end()
            keys = [QueueKeys(name)["outbox"] for name in (*WORK, *HOMES)]
            if not any(self.client.connection.command("ZCARD", key, key=key) for key in keys):
                return
        raise AssertionError("what is in an outbox is not carried")

    def compare(self) -> None:
        """What the server counted is what happened."""
        self.look()
        ends = self.ends()
        for id, known in self.batches.items():
            status = self.admin.batch(id)
            states = Counter(known.members.values())
            told = {"acked": status.done, **{word: getattr(status, word) for word in ENDINGS[1:]}}
            assert told == {word: states[word] for word in ENDINGS}, f"{id}: {told} instead of {states}"
            assert (status.pending, status.total) == (states["pending"], len(known.members)), f"{id}: {states}"
            assert (status.state == "complete") == known.ended, f"{id} is {status.state}: {states}"
            assert ends["complete", id] == known.ended
            assert ends["dead", id] == (known.alarms and known.had_dead)
