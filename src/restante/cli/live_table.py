"""The live table of queues and states, for a terminal, a plain log or a program.

On failure it says that the server is away and goes on when it is back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from restante import Admin, JournalEntry, JournalEvent, RestanteError, State
from restante.cli import render
from restante.cli.session import Session
from restante.core.inspector import Counts

#: Samples of a sparkline, one per look.
TREND_SAMPLES = 16
#: Lines of the journal below the table.
RECENT = 8
#: Seconds between two looks: on a terminal, and where lines only add up.
LIVE_PAUSE, PLAIN_PAUSE = 1.0, 2.0
#: Columns from which the rates and then the trend of done messages find room.
RATES_WIDTH, TREND_WIDTH = 110, 130
#: Lines the board needs besides one per queue.
_FRAME = RECENT + 7
_LEVELS = "▁▂▃▄▅▆▇█"
_FAILED = (JournalEvent.NACKED, JournalEvent.BURIED, JournalEvent.EXPIRED)


def sparkline(values: deque[float]) -> str:
    """The values as a row of bars, the highest filling the line."""
    top = max(values, default=0.0)
    if top <= 0:
        return _LEVELS[0] * len(values)
    return "".join(_LEVELS[min(7, int(value / top * 7.999))] for value in values)


@dataclass
class QueueRates:
    """One queue's movement between looks."""

    counts: Counts
    sent: float = 0.0
    done: float = 0.0
    failed: float = 0.0
    history: deque[float] = field(default_factory=lambda: deque([0.0] * TREND_SAMPLES, maxlen=TREND_SAMPLES))

    def update(self, counts: Counts) -> None:
        """Takes the next look."""
        seconds = (counts.at - self.counts.at).total_seconds()
        if seconds <= 0:
            return
        before, now = self.counts.totals, counts.totals

        def rate(*events: JournalEvent) -> float:
            return max(0.0, sum(now[event.value] - before[event.value] for event in events) / seconds)

        self.sent, self.done, self.failed = rate(JournalEvent.SENT), rate(JournalEvent.ACKED), rate(*_FAILED)
        self.history.append(self.done)
        self.counts = counts


class LiveTable:
    """Looks at a server and draws what it sees."""

    def __init__(self, admin: Admin, title: str, hint: str = "") -> None:
        self._admin = admin
        self._title = title
        self._hint = hint
        self._rates: dict[str, QueueRates] = {}
        self._recent: list[JournalEntry] = []
        self._away = ""

    def refresh(self) -> None:
        """One look at every queue; a lost server is shown, not raised."""
        try:
            rows = self._admin.all_counts()
            recent = [
                entry for row in rows for entry in self._admin.journal(row.queue, limit=RECENT, newest_first=True)
            ]
        except RestanteError as error:
            self._away = str(error)
            return
        self._away = ""
        for gone in self._rates.keys() - {row.queue for row in rows}:
            del self._rates[gone]
        for row in rows:
            self._rates.setdefault(row.queue, QueueRates(row)).update(row)
        self._recent = sorted(recent, key=lambda entry: (entry.at, entry.position))[-RECENT:]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        rows = [
            {
                "queue": name,
                **{state.value: getattr(one.counts, state.value) for state in State},
                "sent_per_second": round(one.sent, 2),
                "done_per_second": round(one.done, 2),
                "failed_per_second": round(one.failed, 2),
                "waited_seconds": one.counts.waited,
                "paused": one.counts.paused,
            }
            for name, one in self._rates.items()
        ]
        return {"at": render.utcnow().isoformat(), "away": self._away or None, "queues": rows}

    def render(self, width: int, height: int = 0) -> RenderableType:
        """The whole board; with a height, the queues in most trouble that fit."""
        queues = list(self._rates.values())
        left_out = 0
        if height and len(queues) > max(1, height - _FRAME):
            queues.sort(key=lambda one: (-one.counts.dead, -one.counts.retrying, -one.counts.ready))
            room = max(1, height - _FRAME)
            left_out = len(queues) - room
            queues = sorted(queues[:room], key=lambda one: one.counts.queue)
        parts: list[RenderableType] = [Text.assemble((self._title, "bold"), (f"  {time.strftime('%H:%M:%S')}", "dim"))]
        if self._away:
            parts.append(Text(f"● the server is away: {self._away}", style="bold red"))
        parts += ["", self._table(queues, width)]
        if left_out:
            parts.append(Text(f"… and {left_out} more queues", style="dim"))
        if self._recent:
            parts += ["", *(render.journal_line(entry) for entry in self._recent)]
        if self._hint:
            parts += ["", Text(self._hint, style="dim")]
        return Group(*parts)

    def _table(self, queues: list[QueueRates], width: int) -> Table:
        states = [state.value for state in State]
        rates = ("sent/s", "done/s", "failed/s") if width >= RATES_WIDTH else ()
        trend = ("trend",) if width >= TREND_WIDTH else ()
        made = render.table(
            "queue", *states, "oldest", *rates, *trend, "", right=(*states, "oldest", *rates), shrinking=("queue",)
        )
        for column, state in zip(made.columns[1:], State, strict=False):
            column.header = render.state_label(state)
        for one in queues:
            counts = one.counts
            failed = Text(f"{one.failed:.1f}", style=render.COLOURS[State.DEAD] if one.failed else "dim")
            made.add_row(
                render.cell(counts.queue, "bold"),
                *(render.count_cell(getattr(counts, state.value), state) for state in State),
                render.format_duration(counts.waited) if counts.ready else "",
                *((f"{one.sent:.1f}", f"{one.done:.1f}", failed) if rates else ()),
                *((Text(sparkline(one.history), style=render.COLOURS[State.LEASED]),) if trend else ()),
                Text("paused" if counts.paused else "", style="bold yellow"),
            )
        return made


def watch(session: Session, table: LiveTable, stop: threading.Event, *, seconds: float | None = None) -> None:
    """Shows the board until stopped: redrawn on a terminal, printed again elsewhere, one JSON line per look."""
    deadline = time.monotonic() + seconds if seconds else float("inf")
    live = session.out.is_terminal and not session.json
    pause = LIVE_PAUSE if live else PLAIN_PAUSE

    def looks() -> Iterator[None]:
        while True:
            table.refresh()
            yield
            left = deadline - time.monotonic()
            if left <= 0 or stop.wait(min(pause, left)):
                return

    if live:
        with Live(console=session.out, auto_refresh=False, transient=False) as screen:
            for _ in looks():
                screen.update(table.render(*session.out.size), refresh=True)
        return
    for _ in looks():
        if session.json:
            session.emit(table.as_dict())
        else:
            session.out.print(table.render(session.out.width), "", crop=False)
