"""A consumer as a process of its own, told by one JSON argument what to do; it says on stdout what it does.

Lines: `up`, `start <id> <attempts> <monotonic>`, `end <id> <attempts> <monotonic>`, `lost <id> <verb>`, `over`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import restante
from restante import LeaseLost


def say(*words: object) -> None:
    # One write per line: two threads' print() calls could mix.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def burn(seconds: float) -> None:
    """Keeps a processor and the interpreter busy."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(200))


def spans(told: dict[str, Any]) -> Iterator[float]:
    """How long to work: `seconds`, or pieces until the file `until` exists."""
    if "until" not in told:
        yield told.get("seconds", 0.0)
        return
    while not os.path.exists(told["until"]):
        yield 0.05


def handler(told: dict[str, Any]) -> Callable[[Any], Any]:
    """The handler asked for."""
    kind = told["handler"]

    def plain(message: Any) -> None:
        say("start", message.id, message.attempts, time.monotonic())
        if kind == "exit" or (kind == "exit on" and message.payload == told["payload"]):
            os._exit(9)
        if kind == "raise" or (kind == "raise on" and message.payload == told["payload"]):
            raise ValueError(f"poison {message.payload}")
        for seconds in spans(told):
            if kind == "burn":
                burn(seconds)
            else:
                time.sleep(seconds)
        say("end", message.id, message.attempts, time.monotonic())

    async def coroutine(message: Any) -> None:
        say("start", message.id, message.attempts, time.monotonic())
        for seconds in spans(told):
            if kind == "async block":
                burn(seconds)
            else:
                await asyncio.sleep(seconds)
        say("end", message.id, message.attempts, time.monotonic())

    return coroutine if kind.startswith("async") else plain


def zombie(queue: Any, told: dict[str, Any]) -> None:
    """Takes messages, is stopped by the test for longer than the lease, then tries to settle them."""
    taken = queue.receive_many(told["count"], 10)
    for message in taken:
        say("start", message.id, message.attempts, time.monotonic())
    until = time.monotonic() + told["seconds"]
    while time.monotonic() < until:
        time.sleep(0.01)
    verbs = ("ack", "nack", "bury", "release", "extend")
    for place, message in enumerate(taken):
        verb = verbs[place % len(verbs)]
        try:
            getattr(message, verb)()
            say("accepted", message.id, verb)
        except LeaseLost:
            say("lost", message.id, verb)


def main() -> None:
    logging.basicConfig(level=logging.WARNING)
    told = json.loads(sys.argv[1])
    post = restante.connect(told["url"], **told.get("client", {}))
    queue = post.queue(told["queue"])
    if told["handler"] == "zombie":
        zombie(queue, told)
    elif told["handler"] == "iterate":
        say("up")
        for message in queue.consume():
            with message:
                say("start", message.id, message.attempts, time.monotonic())
                for seconds in spans(told):
                    time.sleep(seconds)
                say("end", message.id, message.attempts, time.monotonic())
    else:
        queue.handler(handler(told))
        consumer = restante.Consumer(
            [queue],
            concurrency=told.get("concurrency", 1),
            prefetch=told.get("prefetch", 20),
            grace=told.get("grace", 10),
        )
        say("up")
        consumer.run()
    say("over")


if __name__ == "__main__":
    main()
