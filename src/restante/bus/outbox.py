"""A transactional outbox for SQLAlchemy: an event is written in the user's transaction and published after it.

Either both happen or neither. A relay that dies between publishing and noting it publishes again under the same id,
which subscriptions handle once. On a broker that is away the rows wait, in order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

import orjson

from restante.core.extras import needs_extra

with needs_extra("outbox", "the outbox"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        Engine,
        Integer,
        MetaData,
        String,
        Table,
        Text,
        delete,
        select,
    )
    from sqlalchemy import func as sql
    from sqlalchemy import insert as sql_insert

from restante.bus.broker import Nobody, Sending
from restante.bus.client import Client, Topic, say
from restante.bus.envelope import Envelope
from restante.core.errors import RestanteError

log = logging.getLogger("restante")

#: Rows published by one transaction. More hold their locks longer.
BATCH = 100
#: Seconds between two looks at an empty outbox.
EVERY = 0.5


class Executes(Protocol):
    """A Session or a Connection of SQLAlchemy."""

    def execute(self, statement: Any, parameters: Any = ...) -> Any: ...


class Outbox:
    """Events that wait in a table of the user's own database.

    `client` is a `Bus` or a `Client`. Several relays may run: on PostgreSQL and MySQL they share the rows, elsewhere
    they take turns.
    """

    def __init__(self, client: Any, *, name: str = "restante_outbox", metadata: MetaData | None = None) -> None:
        self._client: Client = getattr(client, "client", client)
        #: For migrations: the table, in the metadata that was given.
        self.table = Table(
            name,
            metadata if metadata is not None else MetaData(),
            # SQLite counts by itself in this type alone.
            Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            Column("id", String(200), nullable=False, unique=True),
            Column("envelope", Text, nullable=False),
            Column("data", Text, nullable=False),
            Column("options", Text, nullable=False),
        )

    def create(self, engine: Engine) -> None:
        """Makes the table where it is missing; projects with migrations make it there."""
        self.table.create(engine, checkfirst=True)

    def publish(
        self, session: Executes, topic: Topic, data: Any = None, *, id: str | None = None,
        delay: float | timedelta = 0, priority: int = 0, expires: float | timedelta | None = None,
        headers: Mapping[str, Any] | None = None, nobody: Nobody = "keep",
    ) -> str:  # fmt: skip
        """Writes an event in the session's transaction and returns its id; it is published if that commits."""
        how = Sending.checked(delay, priority, expires, nobody)
        said = say(topic, data, self._client.source, id=id, headers=headers, expires=how.lifetime)
        row = {
            "id": said.envelope.id,
            "envelope": orjson.dumps(said.envelope.attributes()).decode(),
            "data": said.text.decode(),
            "options": orjson.dumps([how.delay, how.priority, how.expires, how.nobody]).decode(),
        }
        session.execute(sql_insert(self.table).values(**row))
        return said.envelope.id

    def waiting(self, session: Executes) -> int:
        """How many events wait to be published."""
        return int(session.execute(select(sql.count()).select_from(self.table)).scalar_one())

    def relay(self, engine: Engine) -> int:
        """Publishes one batch in the order it was written; says how many."""
        with engine.begin() as connection:
            rows = connection.execute(
                select(self.table).order_by(self.table.c.number).limit(BATCH).with_for_update(skip_locked=True)
            ).all()
            done: list[int] = []
            try:
                for row in rows:
                    how = Sending(*orjson.loads(row.options))
                    self._client.forward(Envelope.read(orjson.loads(row.envelope)), row.data.encode(), how)
                    done.append(row.number)
            finally:
                # Also what went before a failure is published, and must not wait for the rest.
                self._remove(connection, done)
        return len(done)

    def _remove(self, connection: Connection, numbers: list[int]) -> None:
        if numbers:
            connection.execute(delete(self.table).where(self.table.c.number.in_(numbers)))

    def run(self, engine: Engine, stop: threading.Event | None = None) -> None:
        """Publishes what is written, until told to stop."""
        stop = stop or threading.Event()
        while not stop.is_set():
            try:
                count = self.relay(engine)
            except RestanteError as error:
                log.warning("outbox waits error=%s", error)
                count = 0
            if count < BATCH:
                stop.wait(EVERY)
