"""Gold tables made up for tests of the report, and for looking at it: `python -m tests.spark.sample_gold FOLDER`.

A shop's day in eight queues, each with a trouble of its own, played minute by minute so that the tables agree with one
another: what waits is what was sent and has not gone.
"""

from __future__ import annotations

import math
import random
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from restante.spark import schemas
from restante.spark.schemas import Table

#: The end of the sample day.
END = datetime(2025, 11, 15, 9, 30, tzinfo=UTC)
#: An error class as an attacker might choose it.
HOSTILE = "<script>document.title='owned'</script>"
Row = dict[str, Any]


def put(lake: Path, table: Table, rows: list[Row], dt: str | None = None, name: str = "part-0") -> None:
    """Writes rows as a file of a gold table, under a date where the table has dates; absent columns are null."""
    put_arrow(lake, table, pa.Table.from_pylist(rows, schema=table.arrow()), dt, name)


def put_arrow(lake: Path, table: Table, rows: pa.Table, dt: str | None = None, name: str = "part-0") -> None:
    folder = lake / "gold" / table.name / (f"dt={dt}" if dt else "")
    folder.mkdir(parents=True, exist_ok=True)
    # Spark's own way to write timestamps, the harder one to read.
    pq.write_table(rows, folder / f"{name}.parquet", use_deprecated_int96_timestamps=True)


#: Where hand-made rows begin, their date and the date before.
NOON = datetime(2025, 3, 1, 12, 0, tzinfo=UTC)
DAY = "2025-03-01"
EVE = "2025-02-28"


def at(minute: int) -> datetime:
    return NOON + timedelta(minutes=minute)


def events(minute: int, queue: str = "orders", **counts: int) -> Row:
    """A row of the throughput table; what is not named is none."""
    zeros = dict.fromkeys((*schemas.COUNTED, "died", "waiting_delta", "dead_delta"), 0)
    return {"queue": queue, "minute": at(minute), **zeros, **counts}


def times(minute: int, messages: int, p50: float, p95: float, p99: float, kind: str = "k") -> Row:
    """A row of the latency table, the same for wait, run and total."""
    row: Row = {"queue": "orders", "kind": kind, "minute": at(minute), "messages": messages}
    for word in ("wait", "run", "total"):
        row |= {f"{word}_p50_seconds": p50, f"{word}_p95_seconds": p95, f"{word}_p99_seconds": p99}
    return row


def failed(minute: int, nacked: int, expired: int = 0, queue: str = "orders", error: str = "Boom") -> Row:
    return {
        "queue": queue,
        "kind": "k",
        "error_class": error,
        "minute": at(minute),
        "nacked": nacked,
        "expired": expired,
        "worst_attempts": 1 + minute,
    }


@dataclass
class Character:
    """How a queue behaves; functions of x, the part of the day that has passed."""

    name: str
    sent: float
    capacity: float
    run: float
    kinds: tuple[str, ...]
    errors: tuple[str, ...] = ("TimeoutError",)
    fails: float = 0.004
    overdue: float = 0.001
    dies: float = 0.1
    consumers: int = 2
    #: (from x, to x, what, factor)
    troubles: tuple[tuple[float, float, str, float], ...] = ()

    def now(self, what: str, x: float) -> float:
        value = float(getattr(self, what))
        for begin, end, which, factor in self.troubles:
            if which == what and begin <= x < end:
                value *= factor
        return value


SHOP = (
    Character(
        "emails",
        90,
        150,
        0.21,
        ("welcome", "receipt"),
        ("SmtpTimeout", "SmtpRefused", HOSTILE),
        0.01,
        dies=0.06,
        consumers=3,
        troubles=((0.31, 0.36, "fails", 70.0), (0.975, 1.0, "fails", 85.0)),
    ),
    Character(
        "thumbnails",
        40,
        46,
        3.4,
        ("resize",),
        ("MemoryError", "DecodeError"),
        0.01,
        0.012,
        0.3,
        4,
        ((0.86, 1.0, "capacity", 0.55), (0.9, 1.0, "overdue", 12.0)),
    ),
    Character("orders", 120, 260, 0.045, ("placed", "paid", "shipped"), ("StockConflict",), 0.006, consumers=4),
    Character(
        "webhooks@partners",
        22,
        60,
        0.9,
        ("call",),
        ("HTTPError 502", "ConnectTimeout"),
        0.08,
        0.004,
        0.09,
        2,
        ((0.55, 0.62, "fails", 9.0),),
    ),
    Character("invoices", 14, 40, 0.6, ("render",), consumers=1),
    Character(
        "reports/nightly",
        3,
        30,
        11.0,
        ("build",),
        overdue=0.01,
        consumers=2,
        troubles=((0.93, 0.96, "sent", 60.0),),
    ),
    Character("search-index", 200, 420, 0.02, ("upsert", "remove"), fails=0.0005, consumers=2),
    Character("audit.log", 60, 300, 0.008, ("line",), fails=0.0, overdue=0.0, consumers=1),
)


@dataclass
class Played:
    """Rows of every table by date (None where a table has no dates)."""

    rows: dict[Table, dict[str | None, list[Row]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, table: Table, dt: str | None, **values: Any) -> None:
        self.rows[table][dt].append(values)

    def halved(self, table: Table, minute: datetime, keys: Row, **counts: float) -> None:
        """A minute's counts under its date; shortly after midnight in part under the date before."""
        day = minute.date()
        if minute.hour == 0 and minute.minute < 30:
            earlier = {name: type(count)(count // 3) for name, count in counts.items()}
            self.add(table, str(day - timedelta(days=1)), **keys, **earlier)
            counts = {name: count - earlier[name] for name, count in counts.items()}
        self.add(table, str(day), **keys, **counts)

    def write(self, lake: Path) -> None:
        for table, dates in self.rows.items():
            for dt, rows in dates.items():
                put(lake, table, rows, dt)


def some(chance: random.Random, of: int, likely: float) -> int:
    """How many of so many, each as likely: near enough, and quicker than to ask each."""
    middle = of * likely
    return max(0, min(of, round(middle + chance.random() - 0.5 + chance.gauss(0, 1) * math.sqrt(middle) * 0.8)))


def play(who: Character, played: Played, chance: random.Random, minutes: int, end: datetime) -> None:
    """Plays a queue's day."""
    waiting = dead = 0
    hours: dict[datetime, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    causes: dict[tuple[str, str, str], list[datetime]] = defaultdict(list)
    recent: list[tuple[int, int]] = []
    for number in range(minutes):
        x = number / minutes
        minute = end - timedelta(minutes=minutes - number)
        day = 0.65 + 0.35 * math.sin((minute.hour * 60 + minute.minute) / 1440 * 2 * math.pi - 2)
        sent = max(0, round(who.now("sent", x) * day * chance.gauss(1, 0.12)))
        taken = min(waiting + sent, round(who.now("capacity", x) * chance.gauss(1, 0.05)))
        nacked = some(chance, taken, who.now("fails", x))
        expired = some(chance, taken - nacked, who.now("overdue", x))
        acked = taken - nacked - expired
        died = some(chance, nacked, who.dies)
        replayed = dead // 2 if number == minutes // 2 else 0
        waiting += sent - acked - died + replayed
        dead += died - replayed
        recent.append((sent + replayed, acked + died))
        hour = hours[minute.replace(minute=0)]
        for name, count in (("sent", sent), ("acked", acked), ("dead", died - replayed)):
            hour[name] += count
        keys = {"queue": who.name, "minute": minute}
        played.halved(
            schemas.THROUGHPUT,
            minute,
            keys,
            sent=sent,
            received=taken,
            acked=acked,
            nacked=nacked,
            buried=0,
            released=0,
            extended=expired * 2,
            promoted=nacked,
            expired=expired,
            replayed=replayed,
            deleted=0,
            revoked=0,
            cancelled=0,
            purged=0,
            died=died,
            waiting_delta=sent - acked - died + replayed,
            dead_delta=died - replayed,
        )
        played.halved(schemas.OVERDUE, minute, keys, received=taken, extended=expired * 2, expired=expired)
        played.add(schemas.BACKLOG, None, **keys, waiting=waiting, dead=dead)
        if nacked or expired:
            error = who.errors[min(len(who.errors) - 1, int(chance.expovariate(1.6)))]
            played.halved(
                schemas.RETRIES,
                minute,
                {**keys, "kind": who.kinds[0], "error_class": error, "worst_attempts": 5},
                nacked=nacked,
                expired=expired,
            )
            if died:
                causes[who.kinds[0], error, "nacked"] += [minute] * died
        _times(who, played, chance, keys, acked, waiting)
        _consume(who, played, chance, keys, acked, nacked + expired)
    _settle(who, played, end, hours, causes, waiting, recent)


def _times(who: Character, played: Played, chance: random.Random, keys: Row, acked: int, waiting: int) -> None:
    minute: datetime = keys["minute"]
    for place, kind in enumerate(who.kinds):
        messages = acked // len(who.kinds)
        if not messages:
            continue
        run = who.run * (1 + place / 2) * chance.gauss(1, 0.1)
        wait = (0.004 + max(0, waiting - 5) / max(acked, 1) * 60) * chance.gauss(1, 0.1)
        row: Row = {"kind": kind, "messages": messages}
        for word, middle in (("wait", max(wait, 0.002)), ("run", run), ("total", max(wait, 0.002) + run)):
            for name, factor in (("p50", 1.0), ("p95", 2.4 + chance.random()), ("p99", 5 + 3 * chance.random())):
                row[f"{word}_{name}_seconds"] = middle * factor
        played.add(schemas.LATENCY, str(minute.date()), **keys, **row)


def _consume(who: Character, played: Played, chance: random.Random, keys: Row, acked: int, failed: int) -> None:
    for number in range(who.consumers):
        share = (acked // who.consumers, failed // who.consumers + (number < failed % who.consumers))
        if sum(share):
            busy = sum(share) * who.run * chance.gauss(1, 0.1)
            consumer = {"consumer": f"{who.name.partition('@')[0].partition('/')[0]}-{number + 1}@host-{number % 2}"}
            counts = {"leases": sum(share), "acked": share[0], "failed": share[1], "busy_seconds": busy}
            played.halved(schemas.CONSUMERS, keys["minute"], {**keys, **consumer}, **counts)


def _settle(
    who: Character,
    played: Played,
    end: datetime,
    hours: dict[datetime, dict[str, int]],
    causes: dict[tuple[str, str, str], list[datetime]],
    waiting: int,
    recent: list[tuple[int, int]],
) -> None:
    """What is known at the end: causes, audit, drain."""
    for (kind, error, event), deaths in causes.items():
        by_date = defaultdict(list)
        for at in deaths:
            by_date[str(at.date())].append(at)
        for dt, times in by_date.items():
            played.add(
                schemas.CAUSES,
                dt,
                queue=who.name,
                kind=kind,
                error_class=error,
                event=event,
                dead=len(times),
                first_at=times[0],
                last_at=times[-1],
                example_id=f"01JC{abs(len(times) * 7919):07d}{dt[-2:]}",
            )
    for hour, counts in hours.items():
        # The sample does not follow single messages: what did not die is acked as far as it can be, the rest waits.
        dead = max(0, min(counts["dead"], counts["sent"]))
        acked = min(counts["acked"], counts["sent"] - dead)
        played.add(
            schemas.AUDIT,
            str(hour.date()),
            queue=who.name,
            incarnation=1,
            hour=hour,
            sent=counts["sent"],
            acked=acked,
            dead=dead,
            expired=0,
            deleted=0,
            cancelled=0,
            waiting=counts["sent"] - dead - acked,
            unsent=0,
        )
    arrival = sum(came for came, _ in recent[-15:]) / 900
    settle = sum(went for _, went in recent[-15:]) / 900
    played.add(
        schemas.DRAIN,
        None,
        queue=who.name,
        at=end,
        waiting=waiting,
        arrival_per_second=arrival,
        settle_per_second=settle,
        drain_seconds=0.0 if waiting == 0 else waiting / (settle - arrival) if settle > arrival else None,
    )


def sample_day(lake: Path, *, minutes: int = 1440, shop: tuple[Character, ...] = SHOP, end: datetime = END) -> None:
    """The shop's last minutes before the end."""
    played = Played()
    for place, who in enumerate(shop):
        play(who, played, random.Random(place), minutes, end)
    played.write(lake)


def lose(lake: Path, queue: str, count: int) -> None:
    """Takes messages out of the audit, as if their fate were unknown."""
    for file in sorted((lake / "gold" / "audit").rglob("*.parquet")):
        rows = pq.read_table(file, schema=schemas.AUDIT.arrow(), partitioning=None).to_pylist()
        for row in rows:
            if row["queue"] == queue and row["acked"] >= count:
                row["acked"] -= count
                put_arrow(
                    lake, schemas.AUDIT, pa.Table.from_pylist(rows, schema=schemas.AUDIT.arrow()), file.parent.name[3:]
                )
                return


def huge(lake: Path, *, days: int = 30, queues: int = 20) -> None:
    """A month of many queues: one queue's day, repeated under other names and on other days."""
    played = Played()
    who = Character(
        "q",
        30,
        36,
        0.8,
        ("first",),
        ("TimeoutError", "ValueError"),
        0.05,
        0.01,
        0.05,
        1,
        ((0.3, 0.32, "fails", 14.0), (0.5, 0.51, "capacity", 0.3)),
    )
    play(who, played, random.Random(1), 1440, END)
    for table, dates in played.rows.items():
        for dt, rows in dates.items():
            day = _named(pa.Table.from_pylist(rows, schema=table.arrow()), queues)
            for back in range(1 if table is schemas.DRAIN else days):
                earlier = timedelta(days=back)
                date = str(datetime.fromisoformat(dt).date() - earlier) if dt else None
                put_arrow(lake, table, _shifted(day, earlier), date, f"part-{back}")


def _named(rows: pa.Table, queues: int) -> pa.Table:
    """The rows once for each of many queues, with consumers of their own."""
    parts = []
    for number in range(queues):
        part = rows
        for column in {"queue", "consumer"} & set(rows.column_names):
            names = pa.array([f"{one}-{number:02d}" for one in rows[column].to_pylist()], pa.string())
            part = part.set_column(part.schema.get_field_index(column), column, names)
        parts.append(part)
    return pa.concat_tables(parts)


def _shifted(rows: pa.Table, earlier: timedelta) -> pa.Table:
    for place, column in enumerate(rows.schema):
        if column.type == schemas.INSTANT:
            moved = pc.subtract(rows[column.name], pa.scalar(earlier, pa.duration("us")))
            rows = rows.set_column(place, column.name, moved)
    return rows


if __name__ == "__main__":
    sample_day(Path(sys.argv[1]))
    lose(Path(sys.argv[1]), "webhooks@partners", 3)
