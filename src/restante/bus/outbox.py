"""A transactional outbox for SQLAlchemy: writes an event in the user's transaction, and publishes it after the commit.

A relay that dies between publishing and removing a row publishes it again under the same id, which subscriptions handle
once. While the broker is away the rows wait, in order. A row that cannot be published is set aside with its error, and
the rows behind it are published.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Never, Protocol, Unpack

import orjson

from restante.core.extras import needs_extra

with needs_extra("outbox", "the outbox"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Connection,
        DateTime,
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

from restante.bus.broker import SendOptions
from restante.bus.client import BusClient, Topic, prepare_publish
from restante.bus.envelope import Envelope, Malformed
from restante.bus.options import PublishOptions
from restante.core.errors import InvalidInput, RestanteError, Unroutable
from restante.core.keywords import check_keywords

log = logging.getLogger("restante")

#: Rows published in one transaction. More hold their locks longer.
BATCH = 100
#: Seconds between two reads of an empty outbox.
EVERY = 0.5
#: Characters of an error that are kept with a row.
LONGEST_ERROR = 2000
#: The columns of an event.
_COLUMNS = ("id", "envelope", "data", "options")
#: Errors that a row or its topic causes. All others are the broker's, and the rows wait for it.
_ROW_ERRORS = (InvalidInput, Malformed, Unroutable, ValueError, TypeError, KeyError, AttributeError)


@dataclass(frozen=True, slots=True)
class SetAside:
    """A row that could not be published, with its error."""

    id: str
    topic: str
    error_class: str
    error: str
    set_aside_at: datetime


class Executes(Protocol):
    """A Session or a Connection of SQLAlchemy."""

    def execute(self, statement: Any, parameters: Any = ...) -> Any: ...


class Outbox:
    """Events that wait in a table of the user's own database.

    `client` is a `Bus` or a `BusClient`. Several relays may run: on PostgreSQL and MySQL they share the rows, elsewhere
    they take turns.
    """

    def __init__(
        self, client: Any, *, name: str = "restante_outbox", metadata: MetaData | None = None, **unknown: Never
    ) -> None:
        check_keywords(unknown, ("name", "metadata"), "Outbox")
        self._client: BusClient = getattr(client, "client", client)
        metadata = metadata if metadata is not None else MetaData()
        # SQLite increments this type alone.
        number = BigInteger().with_variant(Integer, "sqlite")
        #: For migrations: the table, in the metadata that was given.
        self.table = Table(
            name,
            metadata,
            Column("number", number, primary_key=True, autoincrement=True),
            Column("id", String(200), nullable=False, unique=True),
            Column("envelope", Text, nullable=False),
            Column("data", Text, nullable=False),
            Column("options", Text, nullable=False),
        )
        #: For migrations too: rows that could not be published. A relay that needs the table creates it.
        self.aside_table = Table(
            f"{name}_aside",
            metadata,
            # Not the row's number in the other table: databases reuse numbers of removed rows.
            Column("number", number, primary_key=True, autoincrement=True),
            Column("id", String(200), nullable=False),
            Column("envelope", Text, nullable=False),
            Column("data", Text, nullable=False),
            Column("options", Text, nullable=False),
            Column("error_class", String(200), nullable=False),
            Column("error", Text, nullable=False),
            Column("set_aside_at", DateTime(timezone=True), nullable=False),
        )

    def create(self, engine: Engine) -> None:
        """Creates the tables that are missing; projects with migrations create them there."""
        self.table.create(engine, checkfirst=True)
        self.aside_table.create(engine, checkfirst=True)

    def publish(self, session: Executes, topic: Topic, data: Any = None, **options: Unpack[PublishOptions]) -> str:
        """Writes an event in the session's transaction and returns its id; the relay publishes it after the commit."""
        outgoing, send_options = prepare_publish(topic, data, self._client.source, options)
        row = {
            "id": outgoing.envelope.id,
            "envelope": orjson.dumps(outgoing.envelope.attributes()).decode(),
            "data": outgoing.text.decode(),
            "options": orjson.dumps(
                [send_options.delay, send_options.priority, send_options.expires, send_options.unrouted]
            ).decode(),
        }
        session.execute(sql_insert(self.table).values(**row))
        return outgoing.envelope.id

    def waiting(self, session: Executes) -> int:
        """The number of events that wait to be published."""
        return int(session.execute(select(sql.count()).select_from(self.table)).scalar_one())

    def relay(self, engine: Engine) -> int:
        """Publishes one batch of rows in the order they were written; returns how many.

        A row that cannot be published is set aside. If the broker is away its error is raised, after the rows published
        before are removed.
        """
        away: RestanteError | None = None
        bad: list[tuple[Any, Exception]] = []
        done: list[int] = []
        with engine.begin() as connection:
            rows = connection.execute(
                select(self.table).order_by(self.table.c.number).limit(BATCH).with_for_update(skip_locked=True)
            ).all()
            for row in rows:
                try:
                    send_options = SendOptions(*orjson.loads(row.options))
                    self._client.forward(Envelope.read(orjson.loads(row.envelope)), row.data.encode(), send_options)
                except _ROW_ERRORS as error:
                    bad.append((row, error))
                except RestanteError as error:
                    away = error
                    break
                else:
                    done.append(row.number)
            self._set_aside(connection, bad)
            self._remove(connection, [*done, *(row.number for row, _ in bad)])
        if away is not None:
            raise away
        return len(done)

    def _set_aside(self, connection: Connection, bad: list[tuple[Any, Exception]]) -> None:
        if bad:
            self.aside_table.create(connection, checkfirst=True)
        for row, error in bad:
            log.error("outbox set aside id=%s error=%s: %s", row.id, type(error).__name__, error)
            kept = {name: getattr(row, name) for name in _COLUMNS}
            connection.execute(
                sql_insert(self.aside_table).values(
                    **kept,
                    error_class=type(error).__name__,
                    error=str(error)[:LONGEST_ERROR],
                    set_aside_at=datetime.now(UTC),
                )
            )

    def _remove(self, connection: Connection, numbers: list[int]) -> None:
        if numbers:
            connection.execute(delete(self.table).where(self.table.c.number.in_(numbers)))

    def aside(self, session: Executes) -> list[SetAside]:
        """The rows that could not be published, with their errors, oldest first."""
        rows = session.execute(select(self.aside_table).order_by(self.aside_table.c.number)).all()
        return [
            SetAside(row.id, _topic(row.envelope), row.error_class, row.error, _aware(row.set_aside_at)) for row in rows
        ]

    def retry(self, session: Executes, ids: Collection[str] | None = None) -> int:
        """Puts rows that were set aside behind the waiting ones, all or those with these ids; returns how many."""
        rows = self._chosen(session, ids)
        for row in rows:
            kept = {name: getattr(row, name) for name in _COLUMNS}
            session.execute(delete(self.table).where(self.table.c.id == row.id))  # written again meanwhile
            session.execute(sql_insert(self.table).values(**kept))
        self._forget(session, rows)
        return len(rows)

    def discard(self, session: Executes, ids: Collection[str]) -> int:
        """Removes rows that were set aside, by their ids; returns how many."""
        rows = self._chosen(session, ids)
        self._forget(session, rows)
        return len(rows)

    def _chosen(self, session: Executes, ids: Collection[str] | None) -> list[Any]:
        if isinstance(ids, str):
            raise InvalidInput("ids is a list of ids, not a single id: give [id]")
        wanted = select(self.aside_table).order_by(self.aside_table.c.number)
        if ids is not None:
            wanted = wanted.where(self.aside_table.c.id.in_(list(ids)))
        return list(session.execute(wanted).all())

    def _forget(self, session: Executes, rows: list[Any]) -> None:
        for row in rows:
            session.execute(delete(self.aside_table).where(self.aside_table.c.number == row.number))

    def run(self, engine: Engine, stop: threading.Event | None = None) -> None:
        """Publishes rows as they are written, until `stop` is set."""
        stop = stop or threading.Event()
        while not stop.is_set():
            try:
                count = self.relay(engine)
            except RestanteError as error:
                log.warning("outbox waits error=%s", error)
                count = 0
            if count < BATCH:
                stop.wait(EVERY)


def _topic(envelope: str) -> str:
    """The topic of a row, empty if the row cannot be read."""
    try:
        return str(orjson.loads(envelope)["type"])
    except (ValueError, TypeError, KeyError):
        return ""


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
