"""Controls: the same faults on other software must lose messages, else the checks would not see a loss of ours.

celery-redis-plus with two subscribers is not among them: it needs Python 3.13.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
import redis
from kombu import Connection
from rsmq import RedisSMQ  # type: ignore[import-untyped]  # it has no types
from rsmq.cmd.exceptions import RedisSMQException  # type: ignore[import-untyped]

from tests.faults.rows import missing
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import CHECKOUT
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer, call

#: A consumer on Kombu's own transport that is killed after Redis has handed a message out, before Kombu notes it.
KILLED = """
import os, signal, sys
from kombu import Connection
from kombu.transport.redis import QoS
QoS.append = lambda self, message, tag: os.kill(os.getpid(), signal.SIGKILL)
with Connection(sys.argv[1], transport_options={"visibility_timeout": 1}) as connection:
    connection.SimpleQueue("orders").get(timeout=60)
"""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


def fill(server: RedisServer) -> list[str]:
    """Ten messages by Kombu's own transport."""
    with Connection(server.url) as connection:
        queue = connection.SimpleQueue("orders")
        for number in range(10):
            queue.put(str(number))
    return [str(number) for number in range(10)]


def left(server: RedisServer) -> list[str]:
    """What another consumer gets, after everything that was taken and not acked has been restored."""
    found = []
    with Connection(server.url, transport_options={"visibility_timeout": 0}) as connection:
        queue = connection.SimpleQueue("orders")
        connection.default_channel.qos.restore_visible(num=1000)
        while call(server.client(), "LLEN", "orders"):
            message = queue.get(timeout=PATIENCE)
            found.append(str(message.payload))
            message.ack()
    return found


def test_kombus_own_transport_loses_a_message_when_its_consumer_is_killed(server: RedisServer) -> None:
    sent = fill(server)
    done = subprocess.run([sys.executable, "-c", KILLED, server.url], cwd=CHECKOUT, timeout=PATIENCE)
    assert done.returncode == -9
    assert missing(sent, left(server)) == 1


def test_kombus_own_transport_loses_a_message_whose_answer_is_cut(server: RedisServer) -> None:
    sent = fill(server)
    with FaultProxy(server.port) as proxy, Connection(proxy.url) as connection:
        proxy.cut_before_reply(1, matching=b"BRPOP")
        queue = connection.SimpleQueue("orders")
        try:
            queue.get(timeout=5).ack()
        except (OSError, *connection.connection_errors):
            pass
        assert proxy.counters.cut == 1
        found = left(server)
    assert missing(sent, found) >= 1


def test_pyrsmq_cannot_drain_a_queue_at_maxmemory(server: RedisServer) -> None:
    with closing(server.client()) as client:
        queue = RedisSMQ(client=client, qname="orders")
        queue.createQueue().execute()
        for number in range(600):
            queue.sendMessage(message=f"{number}" + "x" * 1000).execute()
        call(client, "CONFIG", "SET", "maxmemory", str(server.used_memory() - 200_000))
        with pytest.raises((redis.RedisError, RedisSMQException)):
            queue.receiveMessage().execute()
        assert call(client, "ZCARD", "rsmq:orders") == 600


def test_a_requeue_by_a_plain_pipeline_loses_a_message_at_maxmemory(server: RedisServer) -> None:
    with closing(server.client()) as client:
        client.zadd("leased", {f"m{number}": number for number in range(10)})
        client.set("ballast", "x" * 1_000_000)
        call(client, "CONFIG", "SET", "maxmemory", str(server.used_memory() - 200_000))
        pipeline = client.pipeline(transaction=False)
        pipeline.zrem("leased", "m0")
        pipeline.zadd("ready", {"m0": 1})
        with pytest.raises(redis.ResponseError, match="maxmemory"):
            pipeline.execute()
        kept = [name.decode() for key in ("leased", "ready") for name in call(client, "ZRANGE", key, 0, -1)]
    assert missing([f"m{number}" for number in range(10)], kept) == 1
