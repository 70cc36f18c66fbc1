"""Every error Restante raises; the docstring is the default message and names the remedy.

RestanteError
├── InvalidInput (also ValueError)      bad input, refused before anything is stored
│   ├── InvalidName
│   ├── InvalidPayload
│   └── PayloadTooLarge
├── QueueFull                           the queue or the server has no room
├── LeaseLost                           the message is no longer yours
│   └── AlreadySettled                  this consumer has given its verdict before
├── NotFound                            no such message, queue or task
├── MessageLeased                       a consumer holds the message now
├── InUse                               another process uses the queue, the lease journal or the lake
├── Unavailable                         the server cannot be reached or does not answer
│   ├── AccessDenied                    it refuses the login, a command or a key; a socket or directory is closed to us
│   ├── NotReady                        it is loading its data or waiting for its cluster
│   └── ReadOnly                        it refuses writes
├── Unconfirmed                         a send whose outcome cannot be known
├── BatchFailed                         some events of a batch were not published
├── Unroutable                          nobody has subscribed to a topic
├── NoHandler                           nobody answers a call
├── CallTimeout                         a call was not answered in time
├── CallFailed                          a call's handler failed
├── Declined                            a call's handler said no, with data
├── TopologyMismatch                            the broker has an object that differs from the one asked for
├── MissingExtra (also ImportError)     a part of Restante is used whose packages are not installed
├── UnsafeServer                        the server would lose messages as configured
├── JournalLost                         lines of a journal are gone that a reader had not seen
└── Corrupt                             stored data is not what was written
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RestanteError(Exception):
    """Something went wrong in Restante."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


class InvalidInput(RestanteError, ValueError):
    """The input is not valid; nothing was stored. Correct the named argument and send again."""


class InvalidName(InvalidInput):
    """A name has 1 to 200 characters of letters, digits and ._:@/+- and does not start with a dash."""


class InvalidPayload(InvalidInput):
    """A payload is any JSON value (no NaN, no lone surrogates, string keys) or bytes. Convert it first."""


class PayloadTooLarge(InvalidInput):
    """The payload is larger than the queue's max_payload. Send a reference to it, or raise the limit."""


class QueueFull(RestanteError):
    """The queue has no room; nothing was stored. Consume or replay what waits, or raise the limit, then send again."""


class LeaseLost(RestanteError):
    """The lease on this message has ended, so ack, nack, bury, release and extend have no effect any more.

    A lease is the right to work on a message until a moment on the Redis server's clock. It ends when
    that moment passes without `extend()` (the handler took longer than the lease and renewal did not
    reach the server, or the process was stopped), or when the message was settled already. By then the
    message may be in another consumer's hands, or done: what this consumer did may be done twice.
    Nothing is lost. What to do: let this delivery go without further side effects, make the
    handler's effects idempotent by `message.id`, and if it happens often give the queue a longer
    `lease` or let `consume()` renew it.
    """

    def __init__(self, message: str | None = None, *, ids: Sequence[str] = ()) -> None:
        super().__init__(
            message
            or f"the lease on {', '.join(ids) or 'the message'} has ended: this call had no effect; "
            "give the queue a longer lease or extend() in time"
        )
        #: The messages whose lease was lost.
        self.ids = tuple(ids)


class AlreadySettled(LeaseLost):
    """This consumer has already settled the message, so a second verdict has no effect. Give one verdict per delivery.

    It is a `LeaseLost`, because a verdict ends the lease. No other consumer is involved, and a longer lease would not
    help: look for the place in the handler that settles the message first.
    """

    def __init__(self, message: str | None = None, *, ids: Sequence[str] = (), verdict: str = "settled") -> None:
        super().__init__(
            message
            or f"{', '.join(ids) or 'the message'} was already {verdict} by this consumer: this call had no effect; "
            "give one verdict per delivery",
            ids=ids,
        )
        #: What was decided: acked, nacked, buried, released, or settled where that is not known.
        self.verdict = verdict


class NotFound(RestanteError):
    """There is no such message, queue or task. Check the id and the queue's name with `restante ls`."""


class MessageLeased(RestanteError):
    """A consumer holds this message now. Wait for its lease to end, or stop the consumer, then try again."""


class InUse(RestanteError):
    """Another process uses this now: a queue, a lease journal or a lake. Stop it, or wait until it has ended."""


class Unavailable(RestanteError):
    """The Redis server cannot be reached. Check the URL, that the server runs, and the network between."""


class AccessDenied(Unavailable):
    """The Redis server, its socket or its directory refuses access. Check user and password in the URL, and the ACL."""


class NotReady(Unavailable):
    """The Redis server is up but not ready (loading its data, or its cluster is incomplete). Wait for it."""


class ReadOnly(Unavailable):
    """The Redis server refuses writes. It is a replica, its disk is full, or too few replicas follow it."""


class Unconfirmed(RestanteError):
    """The message may or may not be stored: the server's answer never came. Send again with the same id."""

    def __init__(self, message: str | None = None, *, ids: Sequence[str] = ()) -> None:
        super().__init__(
            message
            or f"no confirmation for {', '.join(ids[:3])}{' …' if len(ids) > 3 else ''}: sending again "
            "with the same id is safe and stores one message"
        )
        #: The messages in doubt, in the order they were sent.
        self.ids = tuple(ids)


class BatchFailed(RestanteError):
    """Some events of a batch were not published. `failures` names each; publish those again with the same id."""

    def __init__(self, message: str | None = None, *, failures: Sequence[tuple[str, str, Exception]] = ()) -> None:
        first = "; ".join(f"{topic} {id}: {error}" for id, topic, error in failures[:3])
        super().__init__(
            message
            or f"{len(failures)} events of the batch were not published: {first}{' …' if len(failures) > 3 else ''}"
        )
        #: The id, the topic and the error of each event that was not published, in the order of the batch.
        self.failures = tuple(failures)

    @property
    def ids(self) -> tuple[str, ...]:
        """The events that were not published, in the order of the batch."""
        return tuple(id for id, _, _ in self.failures)


class Unroutable(RestanteError):
    """Nobody has subscribed to this topic; nothing was sent. Start the service that listens, or check the spelling."""


class NoHandler(RestanteError):
    """No service answers calls of this topic. Start the service that does, or check the spelling."""


class CallTimeout(RestanteError):
    """The call was not answered in time; what has not begun is not begun any more. Call again, or wait longer."""


class CallFailed(RestanteError):
    """The call's handler failed: its own error is in the text. Call again once it is mended."""

    def __init__(self, message: str | None = None, *, error_class: str = "") -> None:
        super().__init__(message)
        #: The class of the handler's error.
        self.error_class = error_class


class Declined(RestanteError):
    """The handler of a call said no. What it has to say is in `data`; this is an answer, not a failure."""

    def __init__(self, data: Any = None, message: str | None = None) -> None:
        super().__init__(message or f"declined: {data!r}")
        #: What the handler gave: any JSON value, or the error model that the event's class declares.
        self.data = data


class TopologyMismatch(RestanteError):
    """The broker has an object of this name that differs. Use the same options, or delete it once it is empty."""


class MissingExtra(RestanteError, ModuleNotFoundError):
    """This part of Restante needs packages that are not installed. Install the extra that brings them."""

    def __init__(self, message: str | None = None, *, name: str | None = None) -> None:
        super().__init__(message)
        #: The module that was not found, as in `ImportError`.
        self.name = name


class UnsafeServer(RestanteError):
    """The Redis server would lose messages as it is configured. Run `restante doctor` for each remedy."""


class Corrupt(RestanteError):
    """Stored data is not what was written. Run `restante doctor`, and restore the key from a backup."""


class JournalLost(RestanteError):
    """Lines of the journal are gone that this reader had not read. Read on with failOnDataLoss=false, or start anew."""
