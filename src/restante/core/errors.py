"""The errors that Restante raises. A docstring is the default message of its class and names the remedy.

RestanteError
├── InvalidInput (also ValueError)      bad input, refused before anything is stored
│   ├── InvalidArguments                the arguments of a task
│   ├── InvalidName
│   ├── InvalidPayload
│   └── PayloadTooLarge
├── QueueFull                           the queue or the server has no room
├── LeaseLost                           the lease on the message has ended
│   ├── AlreadySettled                  this consumer has already settled the message
│   └── MessageCancelled                the message was given up while this consumer held it
├── TimeLimit                           a handler ran longer than the timeout of its message
│   └── SoftTimeLimit                   raised inside a handler before that, so that it can end by itself
├── NotFound                            no such message, queue or task
│   └── NoResult                        the message has ended and no result was kept
├── MessageDead                         the message is dead, so it has no result
├── ResultTimeout (also TimeoutError)   the message has not ended in time
├── MessageLeased                       a consumer holds the message now
├── InUse                               another process uses the queue, the lease journal or the lake
├── Unavailable                         the server cannot be reached or does not answer
│   ├── AccessDenied                    it refuses the login, a command or a key, or a socket or directory denies access
│   ├── NotReady                        it is loading its data or waiting for its cluster
│   └── ReadOnly                        it refuses writes
├── Unconfirmed                         a send whose outcome is unknown
├── BatchEnded                          a batch that has ended takes no more messages
├── BatchFailed                         some events of a batch were not published
├── Unroutable                          no service has subscribed to the topic
├── NoHandler                           no service answers calls of the topic, or no handler takes the kind
├── CallTimeout                         a call was not answered in time
├── CallFailed                          a call's handler failed
├── Declined                            the handler of a call declined it and returned data
├── TopologyMismatch                    the broker has an object of this name with other options
├── MissingExtra (also ImportError)     a part of Restante needs packages that are not installed
├── UnsafeServer                        the server is configured so that it would lose messages
├── JournalLost                         journal lines were removed before a reader had read them
└── Corrupt                             stored data was changed or damaged
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RestanteError(Exception):
    """The root of all errors of Restante."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


class InvalidInput(RestanteError, ValueError):
    """The input is not valid; nothing was stored. Correct the named argument and send again."""


class InvalidArguments(InvalidInput):
    """The arguments do not fit the function of the task. Correct the named argument; a payload, and send it again."""


class InvalidName(InvalidInput):
    """A name has 1 to 200 characters of letters, digits and ._:@/+- and does not start with a dash."""


class InvalidPayload(InvalidInput):
    """A payload must be bytes or a JSON value with string keys, no NaN and no lone surrogates. Convert it first."""


class PayloadTooLarge(InvalidInput):
    """The payload is larger than the queue's max_payload. Send a reference to it, or raise the limit."""


class QueueFull(RestanteError):
    """The queue is full; nothing was stored. Consume or replay its messages or raise the limit, then send again."""


class LeaseLost(RestanteError):
    """The lease on this message has ended, so ack, nack, bury, release and extend have no effect any more.

    A lease is the right to work on a message until a time on the Redis server's clock. It ends when that
    time passes without `extend()` (the handler took longer than the lease and the renewal did not reach
    the server, or the process was suspended), or when the message was already settled. Another consumer
    may then have the message, or have finished it, so the work of this consumer may be done twice. No
    message is lost. What to do: stop this delivery without further side effects, make the handler
    idempotent by `message.id`, and if this happens often give the queue a longer `lease` or let
    `consume()` renew it.
    """

    def __init__(self, message: str | None = None, *, ids: Sequence[str] = ()) -> None:
        super().__init__(
            message
            or f"the lease on {', '.join(ids) or 'the message'} has ended: this call had no effect; "
            "give the queue a longer lease or extend() in time"
        )
        #: The ids of the messages whose lease was lost.
        self.ids = tuple(ids)


class AlreadySettled(LeaseLost):
    """This consumer has already settled the message, so a second verdict has no effect. Give one verdict per delivery.

    It is a `LeaseLost` because a verdict ends the lease. No other consumer is involved, and a longer lease does not
    help: find the place in the handler that settles the message first.
    """

    def __init__(self, message: str | None = None, *, ids: Sequence[str] = (), verdict: str = "settled") -> None:
        super().__init__(
            message
            or f"{', '.join(ids) or 'the message'} was already {verdict} by this consumer: this call had no effect; "
            "give one verdict per delivery",
            ids=ids,
        )
        #: The first verdict: acked, nacked, buried, released, or settled if it is not known.
        self.verdict = verdict


class MessageCancelled(LeaseLost):
    """The message was cancelled while this consumer held it, so this call has no effect. End the handler.

    It is a `LeaseLost` because a cancel ends the lease. The message is gone: no other consumer gets it.
    """

    def __init__(self, message: str | None = None, *, ids: Sequence[str] = ()) -> None:
        super().__init__(
            message or f"{', '.join(ids) or 'the message'} was cancelled: this call had no effect; end the handler",
            ids=ids,
        )


class TimeLimit(RestanteError):
    """The handler ran longer than its timeout, so the attempt failed. Give it a longer timeout, or make it quicker."""

    def __init__(self, message: str | None = None, *, seconds: float | None = None) -> None:
        given = f"the handler ran longer than its timeout of {seconds:g} s" if seconds is not None else None
        super().__init__(message or given)
        #: The timeout in seconds, if it is known.
        self.seconds = seconds


class SoftTimeLimit(TimeLimit):
    """The handler ran longer than its soft_timeout. Clean up and return or raise: it is stopped at its timeout."""


class NotFound(RestanteError):
    """The message, queue or task does not exist. Check the id and the queue's name with `restante ls`."""


class NoResult(NotFound):
    """The message has ended and its result was not kept. Set the queue's `keep_done`, before the message is acked."""


class MessageDead(RestanteError):
    """The message is dead, so it has no result; the text shows its last error. Fix the cause, then replay it."""

    def __init__(self, message: str | None = None, *, error_class: str = "", error: str = "") -> None:
        super().__init__(message)
        #: The class of the last attempt's error, and its text with the traceback.
        self.error_class = error_class
        self.error = error


class ResultTimeout(RestanteError, TimeoutError):
    """The message has not ended in time; it is not affected. Wait longer, or look at its state and progress."""


class MessageLeased(RestanteError):
    """A consumer holds a lease on this message. Wait until the lease ends or stop the consumer, then try again."""


class InUse(RestanteError):
    """Another process uses this queue, lease journal or lake. Stop that process, or wait until it has ended."""


class Unavailable(RestanteError):
    """The Redis server cannot be reached. Check the URL, the network, and that the server runs."""


class AccessDenied(Unavailable):
    """The Redis server, its socket or its directory refuses access. Check user and password in the URL, and the ACL."""


class NotReady(Unavailable):
    """The Redis server is up but not ready (loading its data, or its cluster is incomplete). Wait for it."""


class ReadOnly(Unavailable):
    """The Redis server refuses writes. It is a replica, its disk is full, or too few replicas follow it."""


class Unconfirmed(RestanteError):
    """The message may or may not be stored: the server's reply was lost. Send again with the same id."""

    def __init__(self, message: str | None = None, *, ids: Sequence[str] = ()) -> None:
        super().__init__(
            message
            or f"no confirmation for {', '.join(ids[:3])}{' …' if len(ids) > 3 else ''}: sending again "
            "with the same id is safe and stores one message"
        )
        #: The ids of the messages in doubt, in the order they were sent.
        self.ids = tuple(ids)


class BatchEnded(RestanteError):
    """The batch has ended or was cancelled, so nothing was sent. Open another batch, or send without one."""


class BatchFailed(RestanteError):
    """Some events of a batch were not published. `failures` lists them; publish them again with the same ids."""

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
        """The ids of the events that were not published, in the order of the batch."""
        return tuple(id for id, _, _ in self.failures)


class Unroutable(RestanteError):
    """No service has subscribed to this topic; nothing was sent. Start the service, or check the spelling."""


class NoHandler(RestanteError):
    """No service answers calls of this topic, or no handler takes this kind. Start one, or check the spelling."""


class CallTimeout(RestanteError):
    """The call was not answered in time; if its handler has not started, it never will. Call again, or wait longer."""


class CallFailed(RestanteError):
    """The call's handler failed; the message shows its error. Fix the handler, then call again."""

    def __init__(self, message: str | None = None, *, error_class: str = "") -> None:
        super().__init__(message)
        #: The class of the handler's error.
        self.error_class = error_class


class Declined(RestanteError):
    """The handler of a call declined it and returned `data`. This is an answer, not a failure."""

    def __init__(self, data: Any = None, message: str | None = None) -> None:
        super().__init__(message or f"declined: {data!r}")
        #: The handler's data: any JSON value, or the error model that the event's class declares.
        self.data = data


class TopologyMismatch(RestanteError):
    """The broker has an object of this name with other options. Use the same options, or delete it once it is empty."""


class MissingExtra(RestanteError, ModuleNotFoundError):
    """This part of Restante needs packages that are not installed. Install the extra that brings them."""

    def __init__(self, message: str | None = None, *, name: str | None = None) -> None:
        super().__init__(message)
        #: The module that was not found, as in `ImportError`.
        self.name = name


class UnsafeServer(RestanteError):
    """The Redis server is configured so that it would lose messages. Run `restante doctor` for the remedies."""


class Corrupt(RestanteError):
    """Stored data was changed or damaged. Run `restante doctor`, and restore the key from a backup."""


class JournalLost(RestanteError):
    """Journal lines were removed before this reader read them. Continue with failOnDataLoss=false, or start again."""
