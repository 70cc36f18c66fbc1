"""What operations need to know of a queue: its keys, its settings as last read, and its consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from restante.core.keys import QueueKeys
from restante.core.message import Draft
from restante.core.settings import QueueSettings


class QueueRef:
    """The facts of a queue that operations need: its keys, its last known settings, and the consumer."""

    __slots__ = (
        "begun",
        "consumer",
        "given",
        "keys",
        "look_at",
        "make",
        "name",
        "noted",
        "opened",
        "pending",
        "presence",
        "read_ahead",
        "scheduled",
        "seen",
        "sending",
        "settings",
        "task_schedules",
        "together",
    )

    def __init__(self, name: str, consumer: str, make: Callable[..., Any]) -> None:
        self.keys = QueueKeys(name)
        self.name = name
        self.consumer = consumer
        #: Creates a received message from its parts.
        self.make = make
        #: Settings to write to the queue hash before the next call.
        self.pending: dict[str, str] = {}
        #: The settings that this client's program gave with the queue; `reopen` writes them again.
        self.given: dict[str, str] = {}
        self.settings = QueueSettings()
        self.opened = False
        #: Whether a send of this client was the first of the queue.
        self.begun = False
        self.seen = 0.0
        self.presence = b""
        #: What hooks do to each message that is sent: empty for most queues, which costs a send nothing.
        self.sending: tuple[Callable[[str, Draft], Draft], ...] = ()
        #: What calls have put into the outbox of the queue, for `batch_calls.carrying`: empty without batches.
        self.noted: deque[bytes] = deque()
        #: Whether all queues are on one server, so that one call may use the keys of two of them.
        self.together = False
        #: Whether the queue has schedules, and when to look next whether one is due, by time.monotonic().
        self.scheduled = False
        self.look_at = 0.0
        #: The schedules that are due then.
        self.read_ahead: Sequence[Any] = ()
        #: Schedules of the queue's tasks, by name, which a consumer stores when it starts.
        self.task_schedules: dict[str, Any] = {}

    def give(self, fields: dict[str, str]) -> None:
        """Adds settings that the next call writes."""
        self.given.update(fields)
        self.pending.update(fields)
        self.opened = False

    def reopen(self) -> None:
        """Lets the next call register the queue and write its settings again: its server was emptied."""
        self.pending = dict(self.given)
        self.opened = self.begun = False
        self.seen = 0.0

    def first_again(self) -> None:
        """Notes that a send was the queue's first. A second time means the queue was dropped: register it again."""
        self.opened = self.opened and not self.begun
        self.begun = True
