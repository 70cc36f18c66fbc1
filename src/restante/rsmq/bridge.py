"""Moves messages from an RSMQ queue into a native queue, or back. Each arrives once, even if the bridge is killed.

On failure it pauses and resumes when the server is back. Messages it held are received again when their lease ends. If
the target refuses a message, it stays in the RSMQ queue, or becomes dead if it came from a native queue.

**Into the native queue.** The bridge receives a message, which hides it for `lease` seconds. One script then sends it
to the native queue and deletes it from the RSMQ queue. If the bridge is killed before the script runs, the message is
received again. In Redis Cluster the two queues are on different servers. There the bridge sends the message under its
own id and then deletes it. If it is killed between the two steps, the native queue recognises the id while the message
is there and for its dedup window after the ack.

**Back.** The bridge leases a message, puts it into the RSMQ queue by a script that also sets a marker, then acks it.
If the bridge is killed before the ack, it receives the message again and recognises it by its marker, for
`transfer.UNSETTLED` seconds.

**Not promised.** RSMQ orders messages by time of receipt, not strictly, and the bridge keeps no better order. Delays
and receive counts of an RSMQ message, and priority, kind and headers of a native message, are not transferred. Two
bridges in opposite directions between the same two queues move every message in circles: use separate queues for each
direction.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from restante.core.call_retry import away
from restante.core.errors import InvalidInput, NotFound, PayloadTooLarge, QueueFull, Unavailable, Unconfirmed
from restante.core.holder import LeaseHolder
from restante.core.message import State
from restante.core.queue import Client, LeasedMessage
from restante.core.scripts import Command
from restante.core.settings import whole
from restante.rsmq import inspector, transfer
from restante.rsmq.client import Rsmq, RsmqReceived
from restante.rsmq.keys import DEFAULT_NAMESPACE, bridge_key

log = logging.getLogger("restante")

#: Messages held at one time; a larger batch only delays more messages after a kill.
BATCH = 100
#: Default lease in seconds: how late a message is when the bridge is killed while it holds it. Too short for a batch,
#: and the next receiver moves the rest of it.
LEASE = 30
#: Seconds; the longest lease of the protocol.
LONGEST = 9_999_999
#: Seconds between two polls of an empty RSMQ queue, which wakes no reader; seconds of one blocking wait for a native
#: queue, which does.
IDLE, WAIT = 0.25, 1.0


@dataclass(slots=True)
class Bridged:
    """How many messages a bridge handled, by outcome."""

    #: Messages stored in the target queue.
    moved: int = 0
    #: Messages that the target had already, and that were only removed from the source.
    repeated: int = 0
    #: Messages that the target refused; a bridge counts and logs each of them once.
    refused: int = 0

    def __bool__(self) -> bool:
        return bool(self.moved or self.repeated or self.refused)

    def add(self, other: Bridged) -> None:
        self.moved += other.moved
        self.repeated += other.repeated
        self.refused += other.refused


class Bridge:
    """Moves messages of the RSMQ queue `queue` into the native queue `to`; with `back`, from `to` into `queue`.

    With `decode` a text that is JSON arrives as its value. With `realtime` the bridge announces messages it moves back
    on RSMQ's channel. Several bridges may run side by side. Both queues are on the server of `post`; the RSMQ queue
    must exist.
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
        # Without renewal: a batch that takes longer than its lease is left to the next receiver.
        self._holder = LeaseHolder(post.connection)
        self._stop = threading.Event()
        # RSMQ delivers refused messages again whenever their lease ends; each is counted and logged once.
        self._refused_ids: set[str] = set()
        # No script can change keys in two slots of a cluster.
        self._apart = not post.connection.same_server(self._keys.due, self._queue.ref.keys["queue"])

    def run(self) -> Bridged:
        """Moves messages until `stop()` is called; returns the totals."""
        total = Bridged()
        failures = 0
        while not self._stop.is_set():
            try:
                batch = self.run_once(WAIT)
                failures = 0
            except (Unavailable, Unconfirmed, QueueFull) as error:
                failures += 1
                log.warning("bridge paused queue=%s to=%s error=%s", self._keys.queue, self._queue.name, error)
                self._stop.wait(away(failures))
                continue
            total.add(batch)
            if not batch and not self._back:
                self._stop.wait(IDLE)
        return total

    def drain(self) -> Bridged:
        """Moves the messages that can be received now; returns when the target accepts none of the rest."""
        total = Bridged()
        while not self._stop.is_set():
            batch = self.run_once()
            total.add(batch)
            if not batch:
                break
        return total

    def stop(self) -> None:
        """Ends `run` after the batch in progress; may be called from a signal handler."""
        self._stop.set()

    def run_once(self, timeout: float = 0) -> Bridged:
        """Moves one batch. Towards RSMQ it waits up to `timeout` seconds for the first message."""
        done = self._bring(timeout) if self._back else self._forward()
        if done:
            route = (self._queue.name, self._keys.queue) if self._back else (self._keys.queue, self._queue.name)
            counts = (done.moved, done.repeated, done.refused)
            log.info("bridged from=%s to=%s moved=%d repeated=%d refused=%d", *route, *counts)
        return done

    # -- into the native queue -----------------------------------------------------------------------------------

    def _forward(self) -> Bridged:
        done = Bridged()
        ref = self._queue.ref
        if not ref.opened:
            self._queue.ensure_open()
        for message in self._rsmq.receive_many(self._keys.queue, BATCH, vt=self._lease):
            try:
                stored = self._forward_in_two_steps(message) if self._apart else self._forward_at_once(message)
            except (InvalidInput, PayloadTooLarge) as error:
                if message.id not in self._refused_ids:
                    self._refused_ids.add(message.id)
                    log.error("bridge refused queue=%s id=%s error=%s", self._keys.queue, message.id, error)
                    done.refused += 1
                continue
            if stored is not None:
                done.moved += stored
                done.repeated += not stored
        return done

    def _forward_at_once(self, message: RsmqReceived) -> bool | None:
        payload = transfer.payload_of(message.raw, decode=self._decode)
        operation = transfer.forward(self._queue.ref, self._keys, message.id, payload, message.rc)
        sent = self._post.connection.run(operation)
        return None if sent is None else sent.stored

    def _forward_in_two_steps(self, message: RsmqReceived) -> bool:
        payload = transfer.payload_of(message.raw, decode=self._decode)
        sent = self._queue.send(payload, id=message.id, headers={"rsmq_queue": self._keys.queue})
        self._rsmq.delete_message(self._keys.queue, message.id)
        return sent.stored

    # -- back ----------------------------------------------------------------------------------------------------

    def _bring(self, timeout: float) -> Bridged:
        self._ack()
        # Measured on this process's clock from before the call, so it ends before the lease on the server does.
        until = time.monotonic() + self._lease
        got, _ = self._holder.receive(self._queue, BATCH, timeout=timeout, lease=self._lease)
        held = got.messages if got else []
        done = Bridged()
        try:
            for place, message in enumerate(held):
                # A process that was stopped for longer than the lease must not start a message: another may have
                # finished it.
                if time.monotonic() >= until:
                    break
                try:
                    outcome = self._bring_one(message)
                except NotFound:
                    self._holder.release(self._queue, held[place:])
                    raise
                if outcome == "refused":
                    done.refused += 1
                    continue
                self._holder.queue_ack(message)
                done.moved += outcome == "brought"
                done.repeated += outcome == "known"
        finally:
            self._ack()
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
            raise NotFound(
                f"the RSMQ queue {self._keys.queue} does not exist any more: create it, then start the bridge again"
            )
        if outcome == "long":
            return self._refuse(
                message, PayloadTooLarge(f"the message is longer than the maxsize of {self._keys.queue}")
            )
        return outcome

    def _refuse(self, message: LeasedMessage, error: InvalidInput) -> str:
        log.error("bridge refused queue=%s id=%s error=%s", self._queue.name, message.id, error)
        self._holder.bury(message, error=error)
        return "refused"

    def _ack(self) -> None:
        """Acks the messages that arrived and shortens the life of their markers.

        After the ack only a bridge that was stopped while it held the message still needs the marker. Acks that fail
        wait for the next batch.
        """
        acked = self._holder.flush(self._queue)
        keys = [bridge_key(self._namespace, self._keys.queue, transfer.id_of(message)) for message in acked]
        self._post.connection.run_all([Command(("EXPIRE", key, transfer.SETTLED), key) for key in keys])


def take_over(post: Client, queue: str, to: str, ids: Sequence[str], *, namespace: str = DEFAULT_NAMESPACE) -> int:
    """Moves the messages with these ids into a native queue, for an operator; returns how many were moved.

    A scheduled or leased message becomes ready there when it would have become ready here. A message that is received
    or deleted meanwhile is not moved. In Redis Cluster a kill between the two steps leaves a message in both queues.
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
            # Opening creates the queue, so it is opened only when there is a message for it.
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
