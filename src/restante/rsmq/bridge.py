"""Carries messages from an RSMQ queue into a native queue, or back, so that each arrives once, whoever is killed when.

On failure it pauses and goes on when the server is back; what it held comes again when its lease ends. A message
that the other side does not take stays where it is (RSMQ has nowhere to put it) or becomes dead (a native queue has).

**Into the native queue.** A message is received, which hides it for `lease` seconds, then sent and deleted by one
script. Killed before it, the message comes again; after it, it has gone over. In Redis Cluster the two queues lie on
different servers: there it is sent under its own id and deleted after that, and the native queue's dedup window is how
long after its ack a message is still known that a killed bridge had sent and not yet deleted.

**Back.** A message is leased, put into the RSMQ queue by a script that leaves a marker, then acked. Killed before the
ack, it comes again and is known by its marker: for `transfer.UNSETTLED` seconds.

**Not promised.** The order of RSMQ is by time of receipt and not strict; a bridge keeps no better one. Delays and
receive counts of an RSMQ message, and priority, kind and headers of a native one, stay behind. Two bridges in opposite
directions between the same two queues would carry everything in circles: give each direction queues of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from restante.core.call_retry import Plain, away
from restante.core.errors import InvalidInput, LeaseLost, NotFound, PayloadTooLarge, QueueFull, Unavailable, Unconfirmed
from restante.core.message import State
from restante.core.queue import Client, LeasedMessage
from restante.core.settings import whole
from restante.rsmq import inspector, transfer
from restante.rsmq.client import Rsmq, RsmqReceived
from restante.rsmq.keys import DEFAULT_NAMESPACE, bridge_key

log = logging.getLogger("restante")

#: Messages held at one time; more only means that more come late after a kill.
BATCH = 100
#: Seconds a message is held unless said otherwise: how late it is when the bridge is killed with it. Too short for a
#: batch, and the rest of it is carried by whoever receives it next.
LEASE = 30
#: The longest lease, as the protocol has it.
LONGEST = 9_999_999
#: Seconds between two looks at an empty RSMQ queue, which wakes nobody; seconds waited for a native one, which does.
IDLE, WAIT = 0.25, 1.0


@dataclass(slots=True)
class Bridged:
    """What a bridge did."""

    #: Messages that arrived on the other side.
    moved: int = 0
    #: Messages that had arrived before, and were only removed on this side.
    repeated: int = 0
    #: Messages the other side does not take; each is counted and logged once by one bridge.
    refused: int = 0

    def __bool__(self) -> bool:
        return bool(self.moved or self.repeated or self.refused)

    def add(self, other: Bridged) -> None:
        self.moved += other.moved
        self.repeated += other.repeated
        self.refused += other.refused


class Bridge:
    """Carries messages of the RSMQ queue `queue` into the native queue `to`; with `back`, from `to` into `queue`.

    With `decode` a text that is JSON arrives as the value it is. With `realtime` RSMQ's channel is told of what comes
    back. Several bridges may run side by side. Both queues lie on the post's server; the RSMQ queue must be there.
    """

    def __init__(
        self,
        post: Client,
        queue: str,
        to: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        back: bool = False,
        decode: bool = False,
        realtime: bool = False,
        lease: int = LEASE,
    ) -> None:
        self._post = post
        self._keys = inspector.keys_of(post, queue, namespace)
        self._namespace = namespace
        self._queue = post.queue(to)
        self._back = back
        self._decode = decode
        self._channel = f"{namespace}:rt:{queue}".encode() if realtime else b""
        self._lease = whole(lease, "lease", 1, LONGEST)
        self._rsmq = Rsmq(namespace=namespace, post=post)
        self._stop = threading.Event()
        # Refused before: RSMQ gives them out again whenever their lease has ended.
        self._left: set[str] = set()
        # Between two slots of a cluster there is no script that does both.
        self._apart = not post.connection.same_server(self._keys.due, self._queue.ref.keys["queue"])

    def run(self) -> Bridged:
        """Carries until `stop()` is called; returns what was done in all."""
        done = Bridged()
        failures = 0
        while not self._stop.is_set():
            try:
                one = self.run_once(WAIT)
                failures = 0
            except (Unavailable, Unconfirmed, QueueFull) as error:
                failures += 1
                log.warning("bridge paused queue=%s to=%s error=%s", self._keys.queue, self._queue.name, error)
                self._stop.wait(away(failures))
                continue
            done.add(one)
            if not one and not self._back:
                self._stop.wait(IDLE)
        return done

    def drain(self) -> Bridged:
        """Carries what can be received now, and ends when nothing is left that the other side takes."""
        done = Bridged()
        while not self._stop.is_set():
            one = self.run_once()
            done.add(one)
            if not one:
                break
        return done

    def stop(self) -> None:
        """Ends `run` after the messages it holds; may be called from a signal handler."""
        self._stop.set()

    def run_once(self, timeout: float = 0) -> Bridged:
        """Carries one batch; towards RSMQ it waits for the first message up to `timeout` seconds."""
        done = self._bring(timeout) if self._back else self._forward()
        if done:
            way = (self._queue.name, self._keys.queue) if self._back else (self._keys.queue, self._queue.name)
            counted = (done.moved, done.repeated, done.refused)
            log.info("bridged from=%s to=%s moved=%d repeated=%d refused=%d", *way, *counted)
        return done

    # -- into the native queue -----------------------------------------------------------------------------------

    def _forward(self) -> Bridged:
        done = Bridged()
        ref = self._queue.ref
        if not ref.opened:
            self._queue.ensure_open()
        for one in self._rsmq.receive_many(self._keys.queue, BATCH, vt=self._lease):
            try:
                stored = self._forward_apart(one) if self._apart else self._forward_at_once(one)
            except (InvalidInput, PayloadTooLarge) as error:
                if one.id not in self._left:
                    self._left.add(one.id)
                    log.error("bridge refused queue=%s id=%s error=%s", self._keys.queue, one.id, error)
                    done.refused += 1
                continue
            if stored is not None:
                done.moved += stored
                done.repeated += not stored
        return done

    def _forward_at_once(self, one: RsmqReceived) -> bool | None:
        payload = transfer.payload_of(one.raw, decode=self._decode)
        made = self._post.connection.run(transfer.forward(self._queue.ref, self._keys, one.id, payload, one.rc))
        return None if made is None else made.stored

    def _forward_apart(self, one: RsmqReceived) -> bool:
        payload = transfer.payload_of(one.raw, decode=self._decode)
        made = self._queue.send(payload, id=one.id, headers={"rsmq_queue": self._keys.queue})
        self._rsmq.delete_message(self._keys.queue, one.id)
        return made.stored

    # -- back ----------------------------------------------------------------------------------------------------

    def _bring(self, timeout: float) -> Bridged:
        # By this process's clock and from before the call, so that it ends before the server's lease does.
        until = time.monotonic() + self._lease
        held = self._queue.receive_many(BATCH, timeout, lease=self._lease)
        done = Bridged()
        settled: list[LeasedMessage] = []
        try:
            for message in held:
                # Whoever was stopped for longer than the lease must not begin: another may have finished.
                if time.monotonic() >= until:
                    break
                outcome = self._bring_one(message)
                if outcome == "refused":
                    done.refused += 1
                    continue
                settled.append(message)
                done.moved += outcome == "brought"
                done.repeated += outcome == "known"
        except NotFound:
            rest = held[len(settled) + done.refused :]
            self._queue.release_many(rest)
            raise
        finally:
            self._settle(settled)
        return done

    def _bring_one(self, message: LeasedMessage) -> str:
        id = transfer.id_of(message)
        try:
            text = transfer.text_of(message)
        except InvalidInput as error:
            return self._refuse(message, error)
        operation = transfer.bring(self._keys, self._namespace, id, text, channel=self._channel)
        outcome = self._post.connection.run(operation)
        if outcome == "missing":
            raise NotFound(f"the RSMQ queue {self._keys.queue} is gone: create it, then start the bridge again")
        if outcome == "long":
            return self._refuse(message, PayloadTooLarge(f"{self._keys.queue} takes no message of this length"))
        return outcome

    def _refuse(self, message: LeasedMessage, error: InvalidInput) -> str:
        log.error("bridge refused queue=%s id=%s error=%s", self._queue.name, message.id, error)
        try:
            message.bury(error=error)
        except LeaseLost:
            log.warning("lease lost queue=%s id=%s", self._queue.name, message.id)
        return "refused"

    def _settle(self, messages: list[LeasedMessage]) -> None:
        """Acks what has arrived; its markers are then needed for those alone who were stopped with it in hand."""
        if not messages:
            return
        lost: set[str] = set()
        try:
            self._queue.ack_many(messages)
        except LeaseLost as error:
            lost.update(error.ids)
            log.warning("lease lost before ack queue=%s ids=%s", self._queue.name, ",".join(error.ids[:10]))
        self._post.connection.run_all(list(self._expiring(messages, lost)))

    def _expiring(self, messages: list[LeasedMessage], lost: set[str]) -> Iterator[Plain]:
        for message in messages:
            if message.id not in lost:
                key = bridge_key(self._namespace, self._keys.queue, transfer.id_of(message))
                yield Plain(("EXPIRE", key, transfer.SETTLED), key)


def take_over(post: Client, queue: str, to: str, ids: Sequence[str], *, namespace: str = DEFAULT_NAMESPACE) -> int:
    """An operator's move of chosen messages into a native queue; returns how many went.

    What is scheduled or leased becomes ready there when it would have been here. One that is received or deleted
    while this looks at it stays. In Redis Cluster a kill between the two steps leaves a message in both queues.
    """
    keys = inspector.keys_of(post, queue, namespace)
    target = post.queue(to)
    apart = not post.connection.same_server(keys.due, target.ref.keys["queue"])
    moved = 0
    for id in ids:
        message = inspector.find(post, keys, id)
        if message is None:
            continue
        if not target.ref.opened:
            # Not before there is something for it: a target that gets nothing must not come into being.
            target.ensure_open()
        payload = transfer.payload_of(message.payload)
        due_at = None if message.state is State.READY else datetime.fromtimestamp(message.due_ms / 1000, UTC)
        if apart:
            target.send(payload, id=id, headers={"rsmq_queue": queue}, due_at=due_at)
            moved += Rsmq(namespace=namespace, post=post).delete_message(queue, id)
        else:
            operation = transfer.forward(target.ref, keys, id, payload, message.attempts, due_at=due_at)
            moved += post.connection.run(operation) is not None
    return moved
