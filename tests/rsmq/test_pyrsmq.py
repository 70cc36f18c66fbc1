"""The API of PyRSMQ: both forms of a command, exceptions on and off, its consumers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from restante.compat.pyrsmq import (
    InvalidParameterValue,
    NoMessageInQueue,
    QueueAlreadyExists,
    QueueDoesNotExist,
    RedisSMQ,
    RedisSMQConsumer,
    RedisSMQConsumerThread,
    RedisSMQException,
)
from restante.rsmq import MessageNotString, MissingParameter, Rsmq
from tests.harness.deadlines import PATIENCE, wait_until
from tests.rsmq.clients import Pyrsmq
from tests.rsmq.conftest import Bench


@pytest.fixture
def queue(debian: Bench) -> Iterator[RedisSMQ]:
    """PyRSMQ's class with a default queue."""
    made = RedisSMQ(host="127.0.0.1", port=str(debian.server.port), qname="orders")
    yield made
    made.quit()


def test_the_builder_and_the_keyword_form_are_the_same(queue: RedisSMQ) -> None:
    assert queue.createQueue().qname("orders").vt(20).delay(0).maxsize(2048).execute() is True
    assert queue.createQueue(qname="other", vt=20, delay=0, maxsize=2048).execute() is True
    one, other = (queue.getQueueAttributes(qname=name).execute() for name in ("orders", "other"))
    assert {**one, "created": 0, "modified": 0} == {**other, "created": 0, "modified": 0}
    assert (one["vt"], one["maxsize"], one["msgs"]) == (20, 2048, 0)
    assert queue.listQueues().execute() == {"orders", "other"}
    id = queue.sendMessage().message("hello").execute()
    got = queue.receiveMessage(vt=10).execute()
    assert (got["id"], got["message"], got["rc"], got["ts"]) == (id, "hello", 1, got["fr"])
    assert queue.changeMessageVisibility().id(id).vt(0).execute() is True
    assert queue.deleteMessage(id=id.encode()).execute() is True
    assert queue.deleteMessage(id=id).execute() is False
    assert queue.setQueueAttributes(qname="other").vt(5).execute()["vt"] == 5
    assert queue.deleteQueue(qname="other").execute() is True


def test_a_setter_for_what_a_command_has_not_raises(queue: RedisSMQ) -> None:
    with pytest.raises(InvalidParameterValue, match="no parameter vt"):
        queue.popMessage().vt(5)
    with pytest.raises(InvalidParameterValue, match="no parameter body"):
        queue.sendMessage(body="a")


def test_errors_have_both_names(queue: RedisSMQ) -> None:
    with pytest.raises(QueueDoesNotExist):
        queue.popMessage().execute()
    queue.createQueue().execute()
    with pytest.raises(QueueAlreadyExists):
        queue.createQueue().execute()
    with pytest.raises(NoMessageInQueue, match="no messages waiting"):
        queue.receiveMessage().execute()
    with pytest.raises(NoMessageInQueue):
        queue.changeMessageVisibility(id="x" * 32, vt=1).execute()
    with pytest.raises(MissingParameter):
        queue.sendMessage().execute()
    assert not queue.sendMessage().ready()
    assert queue.sendMessage(message="").ready()
    for kind in (QueueDoesNotExist, QueueAlreadyExists, NoMessageInQueue, InvalidParameterValue):
        assert issubclass(kind, RedisSMQException)


def test_exceptions_can_be_off_for_a_command_or_for_all(queue: RedisSMQ, caplog: pytest.LogCaptureFixture) -> None:
    assert queue.popMessage().exceptions(False).execute() is False
    assert "error=QueueNotFound" in caplog.text
    caplog.clear()
    queue.exceptions(False)
    assert queue.receiveMessage(quiet=True).execute() is False
    assert caplog.text == ""
    with pytest.raises(QueueDoesNotExist):
        queue.popMessage().exceptions(True).execute()


@pytest.mark.parametrize(("message", "stored"), [({"a": [1]}, '{"a": [1]}'), (7, "7"), (b"bytes", "bytes"), ("x", "x")])
def test_what_is_no_string_is_stored_as_json(queue: RedisSMQ, debian: Bench, message: Any, stored: str) -> None:
    queue.createQueue().execute()
    id = queue.sendMessage(message=message, encode=True).execute()
    assert debian.client.hget("rsmq:orders:Q", id) == stored.encode()


def test_what_cannot_be_written_is_refused(queue: RedisSMQ) -> None:
    queue.createQueue().execute()
    for message in (object(), b"\xff"):
        with pytest.raises(InvalidParameterValue):
            queue.sendMessage(message=message).execute()
    with pytest.raises(MessageNotString):
        queue.sendMessage(message="\ud800").execute()


def test_the_address_of_a_redis_client_is_taken(debian: Bench) -> None:
    url = f"{debian.server.url}/3"
    with redis.Redis.from_url(url) as client:
        queue = RedisSMQ(client, ns="shop")
        queue.createQueue(qname="orders").execute()
        assert client.exists("shop:orders:Q")
        theirs = Pyrsmq(client, "shop")
        id = queue.sendMessage(qname="orders", message="a").execute()
        assert theirs.receive("orders") == id
        queue.quit()
        assert queue.setClient(debian.client).listQueues().execute() == set(), "a later call opens another"
        queue.quit()


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"password": "p@ss/word", "db": 2}, "redis://:p%40ss%2Fword@localhost:6379/2"),
        ({"username": "me", "password": "x", "ssl": True}, "rediss://me:x@localhost:6379/0"),
        ({"unix_socket_path": "/run/redis.sock"}, "unix:///run/redis.sock?db=0"),
    ],
)
def test_options_of_redis_py_become_a_url(options: dict[str, Any], url: str) -> None:
    from restante.compat.pyrsmq.rsmq import _url

    assert _url(None, "localhost", 6379, options) == url
    if "ssl" not in options:
        assert _url(redis.Redis(**options), "", 0, {}) == url


def test_a_consumer_thread_makes_the_queue_decodes_and_tries_again(debian: Bench) -> None:
    debian.clock.unfreeze()
    seen: list[tuple[Any, int]] = []

    def processor(id: str, message: Any, rc: int, ts: int) -> bool:
        seen.append((message, rc))
        return not (message == "again" and rc == 1)

    thread = RedisSMQConsumerThread("orders", processor, client=debian.client, empty_queue_delay=0.05)
    thread.start()
    with Rsmq(post=debian.post) as client:
        wait_until(lambda: client.list_queues() == ["orders"])
        client.send_message("orders", '{"total": 3}')
        client.send_message("orders", "again")
        wait_until(lambda: client.get_queue_attributes("orders").msgs == 0)
    assert thread.stop(wait=PATIENCE) is True
    thread.join(PATIENCE)
    assert sorted(seen, key=str) == sorted([({"total": 3}, 1), ("again", 1), ("again", 2)], key=str)


def test_a_consumer_in_this_thread_is_stopped_from_another(debian: Bench) -> None:
    debian.clock.unfreeze()
    seen: list[str] = []

    def processor(message: str, **_: Any) -> bool:
        seen.append(message)
        timer.start()
        return True

    consumer = RedisSMQConsumer("orders", processor, client=debian.client, decode=False, vt=5, empty_queue_delay=0.05)
    timer = threading.Timer(0.1, consumer.stop)
    consumer.smq.createQueue().execute()
    consumer.smq.sendMessage(message="7").execute()
    consumer.run()
    timer.join()
    assert seen == ["7"]
    with pytest.raises(InvalidParameterValue):
        RedisSMQConsumer("orders", processor, client=debian.client, prefetch=3)


def test_every_module_its_documents_import_from_is_there() -> None:
    from restante.compat import pyrsmq
    from restante.compat.pyrsmq import cmd, consumer, rsmq
    from restante.compat.pyrsmq.cmd import exceptions

    assert rsmq.RedisSMQ is pyrsmq.RedisSMQ
    assert consumer.RedisSMQConsumerThread is pyrsmq.RedisSMQConsumerThread
    for name in exceptions.__all__:
        assert getattr(cmd, name) is getattr(exceptions, name) is getattr(pyrsmq, name)
