"""A shared rate limit: the senders of one job together send at most so many messages per second."""

from __future__ import annotations

from restante.core.names import valid_name
from restante.core.queue import Queue
from restante.core.scripts import Argument, Script, ScriptCall

THROTTLE = Script("throttle", "queue journal")


def throttle(queue: Queue, name: str, microseconds_each: int, count: int, slack: int) -> int:
    """Reserves `count` sends under a name; returns the microseconds to wait before them."""
    ref = queue.ref
    keys = ref.keys.group(THROTTLE.keys)
    args: list[Argument] = [valid_name(name, "pace"), microseconds_each, count, slack]
    return queue.connection.run(ScriptCall(THROTTLE, keys, args, int, ref.name))


def forget_throttle(queue: Queue, name: str) -> None:
    """Removes the rate limit of a finished job."""
    key = queue.ref.keys["queue"]
    queue.connection.command("HDEL", key, f"pace:{valid_name(name, 'pace')}", key=key)
