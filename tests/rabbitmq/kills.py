"""A broker that is killed while messages climb down the ladder: what comes out, for tests and benchmarks."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import amqp
from kombu import Connection

from restante.rabbitmq import Subscribed, TopologyOptions, topology
from restante.rabbitmq.declaration import declare
from restante.rabbitmq.ladder import RungType
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import HOST

QUEUE = "billing.on_paid"
#: Seconds the node lives between two kills, at least and at most: long enough to move messages, and never idle.
LIFE = (0.5, 2.5)
#: Seconds of delays per kill, so that messages are on the way at each of them.
SPAN = 4.0
#: Seconds after which a message that has not come is lost. RabbitMQ repeats a move between quorum rungs that got no
#: answer after minutes, and one between classic rungs never.
PATIENCE: dict[RungType, float] = {"quorum": 240.0, "classic": 45.0}
#: Messages published before their confirms are awaited.
WINDOW = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came out of the ladder."""

    sent: int
    kills: int
    lost: int
    #: Messages that came more than once.
    doubled: int


def killed_while_climbing(
    server: RabbitServer, rungs: RungType, count: int, kills: int, seed: int = 1, say: Callable[[str], None] = print
) -> Outcome:
    """Puts messages on the ladder of a node of one's own, kills and starts it again and again, and counts."""
    choose = random.Random(seed)
    options = TopologyOptions(rungs=rungs, longest_delay=600)
    with Connection(server.url) as connection:
        declare(connection, topology("billing", [Subscribed("on_paid", "shop.paid")], options=options))
    server.write_down()
    ladder = options.ladder()
    delays = [choose.uniform(1.0, 4.0 + SPAN * kills) for _ in range(count)]
    _publish(server, [(str(number), *ladder.retry(delay, QUEUE)) for number, delay in enumerate(delays)])
    for number in range(kills):
        time.sleep(choose.uniform(*LIFE))
        server.kill()
        server.start()
        say(f"{rungs}: killed {number + 1} of {kills} times, {_waiting(server)} of {count} have come back")
    arrived = _drain(server, count, PATIENCE[rungs])
    return Outcome(count, kills, count - len(arrived), sum(1 for times in arrived.values() if times > 1))


def _connection(server: RabbitServer) -> amqp.Connection:
    made = amqp.Connection(f"{HOST}:{server.port}", "guest", "guest")
    made.connect()
    return made


def _publish(server: RabbitServer, messages: list[tuple[str, str, str]]) -> None:
    with _connection(server) as connection:
        channel = connection.channel()
        channel.confirm_select()
        open_tags: set[int] = set()

        def confirmed(tag: int, multiple: bool) -> None:
            open_tags.difference_update([one for one in open_tags if one <= tag] if multiple else [tag])

        channel.events["basic_ack"].add(confirmed)
        for tag, (body, exchange, key) in enumerate(messages, 1):
            open_tags.add(tag)
            channel.basic_publish(amqp.Message(body, delivery_mode=2), exchange, key, mandatory=True)
            while len(open_tags) >= WINDOW:
                connection.drain_events(timeout=60)
        while open_tags:
            connection.drain_events(timeout=60)


def _waiting(server: RabbitServer) -> int:
    with _connection(server) as connection:
        return int(connection.channel().queue_declare(QUEUE, passive=True).message_count)


def _drain(server: RabbitServer, count: int, patience: float) -> Counter[str]:
    """Takes what arrives, until all have come, or nothing has for long."""
    arrived: Counter[str] = Counter()
    with _connection(server) as connection:
        channel = connection.channel()
        channel.basic_qos(0, WINDOW, False)

        def taken(message: Any) -> None:
            arrived[str(message.body)] += 1
            channel.basic_ack(message.delivery_tag)

        channel.basic_consume(QUEUE, callback=taken)
        last, came = time.monotonic(), 0
        while len(arrived) < count and time.monotonic() - last < patience:
            try:
                connection.drain_events(timeout=5)
            except TimeoutError:
                pass
            if len(arrived) > came:
                last, came = time.monotonic(), len(arrived)
    return arrived
