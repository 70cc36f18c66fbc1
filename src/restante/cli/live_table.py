"""Shows a live table of queues and states on a terminal, in a plain log or as JSON.

On failure it shows that the server is away and continues when it is back.
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

#: Samples of a sparkline, one per refresh.
TREND_SAMPLES = 16
#: Journal entries below the table.
RECENT = 8
#: Seconds between two refreshes: on a terminal, and in a plain log, where each adds lines.
LIVE_PAUSE, PLAIN_PAUSE = 1.0, 2.0
#: Terminal widths from which the rates, and then the trend of done messages, are shown.
RATES_WIDTH, TREND_WIDTH = 110, 130
#: Lines of the table besides those of the queues.
_FRAME = RECENT + 7
_LEVELS = "▁▂▃▄▅▆▇█"
_FAILED = (JournalEvent.NACKED, JournalEvent.BURIED, JournalEvent.EXPIRED)


def sparkline(values: deque[float]) -> str:
    """The values as a row of bars; the highest value has the full height."""
    top = max(values, default=0.0)
    if top <= 0:
        return _LEVELS[0] * len(values)
    return "".join(_LEVELS[min(7, int(value / top * 7.999))] for value in values)


@dataclass
class QueueRates:
    """A queue's counts and its rates between two refreshes."""

    counts: Counts
    sent: float = 0.0
    done: float = 0.0
    failed: float = 0.0
    history: deque[float] = field(default_factory=lambda: deque([0.0] * TREND_SAMPLES, maxlen=TREND_SAMPLES))

    def update(self, counts: Counts) -> None:
        """Computes the rates from the previous counts to these."""
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
    """Reads the counts of every queue and renders them as a table."""

    def __init__(self, admin: Admin, title: str, hint: str = "") -> None:
        self._admin = admin
        self._title = title
        self._hint = hint
        self._rates: dict[str, QueueRates] = {}
        self._recent: list[JournalEntry] = []
        self._away = ""

    def refresh(self) -> None:
        """Reads the counts and the newest journal entries; a lost server is shown, not raised."""
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
        """The table for `--json`."""
        rows = [
            {
                "queue": name,
                **{state.value: getattr(queue.counts, state.value) for state in State},
                "sent_per_second": round(queue.sent, 2),
                "done_per_second": round(queue.done, 2),
                "failed_per_second": round(queue.failed, 2),
                "waited_seconds": queue.counts.waited,
                "paused": queue.counts.paused,
            }
            for name, queue in self._rates.items()
        ]
        return {"at": render.utcnow().isoformat(), "away": self._away or None, "queues": rows}

    def render(self, width: int, height: int = 0) -> RenderableType:
        """The table; with a height, the queues with the most dead and retrying messages that fit."""
        queues = list(self._rates.values())
        left_out = 0
        if height and len(queues) > max(1, height - _FRAME):
            queues.sort(key=lambda queue: (-queue.counts.dead, -queue.counts.retrying, -queue.counts.ready))
            room = max(1, height - _FRAME)
            left_out = len(queues) - room
            queues = sorted(queues[:room], key=lambda queue: queue.counts.queue)
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
        rendered = render.table(
            "queue", *states, "oldest", *rates, *trend, "", right=(*states, "oldest", *rates), shrinking=("queue",)
        )
        for column, state in zip(rendered.columns[1:], State, strict=False):
            column.header = render.state_label(state)
        for queue in queues:
            counts = queue.counts
            failed = Text(f"{queue.failed:.1f}", style=render.COLOURS[State.DEAD] if queue.failed else "dim")
            rendered.add_row(
                render.cell(counts.queue, "bold"),
                *(render.count_cell(getattr(counts, state.value), state) for state in State),
                render.format_duration(counts.waited) if counts.ready else "",
                *((f"{queue.sent:.1f}", f"{queue.done:.1f}", failed) if rates else ()),
                *((Text(sparkline(queue.history), style=render.COLOURS[State.LEASED]),) if trend else ()),
                Text("paused" if counts.paused else "", style="bold yellow"),
            )
        return rendered


def watch(session: Session, table: LiveTable, stop: threading.Event, *, seconds: float | None = None) -> None:
    """Shows the table until stopped: redraws it on a terminal, prints it again elsewhere, or prints JSON lines."""
    deadline = time.monotonic() + seconds if seconds else float("inf")
    live = session.out.is_terminal and not session.json
    pause = LIVE_PAUSE if live else PLAIN_PAUSE

    def refreshes() -> Iterator[None]:
        while True:
            table.refresh()
            yield
            left = deadline - time.monotonic()
            if left <= 0 or stop.wait(min(pause, left)):
                return

    if live:
        with Live(console=session.out, auto_refresh=False, transient=False) as screen:
            for _ in refreshes():
                screen.update(table.render(*session.out.size), refresh=True)
        return
    for _ in refreshes():
        if session.json:
            session.emit(table.as_dict())
        else:
            session.out.print(table.render(session.out.width), "", crop=False)
