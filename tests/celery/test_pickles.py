"""A pickle runs code when it is loaded: if an application does not accept pickles, none is loaded."""

from __future__ import annotations

import pickle
from pathlib import Path

from kombu import Connection, Consumer, Producer, Queue

from restante import Admin
from tests.celery.test_kombu import drain


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._path,)


def test_a_pickle_is_not_opened_where_it_is_not_accepted(connection: Connection, admin: Admin, tmp_path: Path) -> None:
    trap = tmp_path / "opened"
    queue = Queue("orders")
    Producer(connection).publish(
        pickle.dumps(Trap(trap)),
        routing_key="orders",
        content_type="application/x-python-serialize",
        content_encoding="binary",
        declare=[queue],
    )
    got: list[object] = []
    consumer = Consumer(
        connection.channel(),
        [queue],
        callbacks=[lambda body, message: got.append(body)],
        accept=["json"],
        on_decode_error=lambda message, error: message.ack(),
    )
    consumer.consume()
    drain(connection)
    assert (got, trap.exists(), admin.counts("orders").dead) == ([], False, 1)
    pickle.loads(pickle.dumps(Trap(trap)))
    assert trap.exists(), "the trap works where it is opened"
