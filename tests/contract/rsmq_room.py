"""An RSMQ queue spoken to as the contract speaks to any queue: the protocol's words end here, as at the room's door.

What the protocol has not (tokens, priorities, parts of a second, verdicts other than success) is not imitated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from restante import Client
from restante.core.errors import InvalidInput
from restante.core.stored import decode_json, encode_json
from restante.rsmq import inspector
from restante.rsmq.client import Rsmq
from restante.rsmq.errors import QueueExists

#: What the protocol and the calls beyond it can do.
RSMQ_CAN: Final = frozenset({"batch", "delay"})


class Leased:
    """A received message; nothing but its id stands for it."""

    content_type = "application/json"

    def __init__(self, queue: RsmqQueue, one: Any) -> None:
        self._queue, self.id, self.attempts = queue, one.id, one.rc
        self.payload = decode_json(one.raw)
        self.sent_at = datetime.fromtimestamp(one.sent / 1000, UTC)

    def ack(self) -> None:
        self._queue.client.delete_message(self._queue.name, self.id)

    def extend(self, *, lease: int) -> None:
        self._queue.client.change_message_visibility(self._queue.name, self.id, lease)


class RsmqQueue:
    """A queue of the default namespace."""

    def __init__(self, client: Rsmq, name: str, lease: int = 30) -> None:
        self.client, self.name = client, name
        try:
            client.create_queue(name, vt=lease)
        except QueueExists:
            pass

    def send(self, payload: Any, *, delay: int = 0) -> str:
        return self.client.send_message(self.name, encode_json(payload)[0].decode(), delay=delay)

    def send_many(self, payloads: Sequence[Any]) -> list[str]:
        return self.client.send_many(self.name, [encode_json(payload)[0].decode() for payload in payloads])

    def receive(self, timeout: float = 0, *, lease: int | None = None) -> Leased | None:
        if timeout:
            raise InvalidInput("a wait is looked for once a second, which the contract calls no wait")
        got = self.client.receive_message(self.name, vt=lease)
        return None if got is None else Leased(self, got)

    def receive_many(self, count: int, *, lease: int | None = None) -> list[Leased]:
        return [Leased(self, one) for one in self.client.receive_many(self.name, count, vt=lease)]


class RsmqPost:
    """A client from which queues are opened."""

    def __init__(self, url: str) -> None:
        self._client = Rsmq(url)

    def queue(self, name: str, **options: Any) -> RsmqQueue:
        return RsmqQueue(self._client, name, **options)

    def close(self) -> None:
        self._client.close()


def rsmq_client(url: str) -> Callable[..., Any]:
    """How a room of RSMQ queues opens clients."""
    return lambda: RsmqPost(url)


def rsmq_states(post: Client) -> Callable[[str], dict[str, int]]:
    """How many messages each state holds, as `restante ls` and the dashboard tell it."""
    return lambda queue: dict(Counter(message.state.value for message in inspector.page(post, queue).messages))
