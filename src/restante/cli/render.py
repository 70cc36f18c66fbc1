"""Renders durations, times, states, messages and tables for people, and as dictionaries for `--json`."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, JustifyMethod, RenderableType
from rich.json import JSON
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from restante import JournalEntry, Message, QueueSettings, State
from restante.core.inspector import Counts
from restante.core.message import Attempt, iso
from restante.core.message import Progress as HandlerProgress
from restante.core.settings import DURATIONS
from restante.rsmq.inspector import RsmqCounts
from restante.rsmq.reader import RsmqMessage

#: The colour of each state, as in the dashboard; the word is always shown beside it.
COLOURS = {
    State.SCHEDULED: "#818cf8",
    State.READY: "#3b82f6",
    State.LEASED: "#10b981",
    State.RETRYING: "#f59e0b",
    State.DEAD: "#f43f5e",
    State.DONE: "#9ca3af",
}
#: Characters of a payload or an error in a table row.
PREVIEW = 60


def format_duration(seconds: float) -> str:
    """A short form of a duration: 350 ms, 12 s, 4 m 10 s, 3 h 5 m, 2 d 4 h."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, below, least in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name} {rest} {least}" if rest else f"{whole // size} {name}"
    return f"{whole} s"


def format_time(at: datetime | None) -> str:
    """A time in this machine's time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if at else ""


def progress(console: Console, *, quiet: bool) -> Progress:
    """A bar with a count and the elapsed time, shown only to a person."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


def state_label(state: State | str) -> Text:
    """A state as a coloured dot and its word."""
    if state not in set(State):
        return Text(f"○ {state}", style="dim")
    return Text.assemble(("● ", COLOURS[State(state)]), State(state).value)


def count_cell(count: int, state: State) -> Text:
    """A count in its state's colour; a dim dot for zero."""
    return Text(f"{count:,}", style=COLOURS[state]) if count else Text("·", style="dim")


def table(*columns: str, right: tuple[str, ...] = (), shrinking: tuple[str, ...] = ()) -> Table:
    """An empty table; on a narrow terminal only the shrinking columns are cut."""
    grid = Table(header_style="dim", box=None, pad_edge=False)
    grid.padding = (0, 2, 0, 0)
    for name in columns:
        justify: JustifyMethod = "right" if name in right else "left"
        grid.add_column(name, justify=justify, no_wrap=name not in shrinking, overflow="ellipsis")
    return grid


def cell(text: str, style: str = "") -> Text:
    """A cell of a shrinking column: cut to the width, not wrapped."""
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def key_values(rows: dict[str, RenderableType]) -> Table:
    """A table of names and values, one pair per line."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(name, value)
    return grid


def one_line(text: str, width: int = PREVIEW) -> str:
    """The text on one line, cut to the width, without control characters that could affect the terminal."""
    cut = "".join(ch if ch.isprintable() else " " for ch in text[: width + 1])
    return cut[: width - 1] + "…" if len(text) > width else cut


def settings_rows(settings: QueueSettings) -> dict[str, RenderableType]:
    """A queue's effective settings, one per line."""
    hidden = ("paused", "version")  # the counts show `paused`; `version` only matters to clients
    return {
        name: Text(f"{value:g} s" if name in DURATIONS else str(value))
        for name, value in settings.as_dict().items()
        if value is not None and name not in hidden
    }


def queues_table(rows: list[Counts]) -> Table:
    """A table of queues with their counts per state."""
    names = [state.value for state in State]
    rendered = table("queue", *names, "oldest", "", right=(*names, "oldest"), shrinking=("queue",))
    for column, state in zip(rendered.columns[1:], State, strict=False):
        column.header = state_label(state)
    for row in rows:
        flags = Text()
        if row.paused:
            flags.append("paused ", style="bold yellow")
        if row.overdue:
            flags.append(f"{row.overdue} overdue", style="yellow")
        rendered.add_row(
            cell(row.queue, "bold"),
            *(count_cell(getattr(row, state.value), state) for state in State),
            format_duration(row.waited) if row.ready else "",
            flags,
        )
    return rendered


def payload_bytes(message: Message) -> bytes:
    """The stored payload; on a page of messages possibly only its start."""
    try:
        return message.stored.body
    except IndexError:
        return b""  # the headers alone fill what a page shows


def is_whole(message: Message) -> bool:
    return message.stored.whole


def payload_preview(message: Message) -> str:
    """The start of the payload on one line."""
    return one_line(payload_bytes(message)[: 4 * PREVIEW].decode("utf-8", "replace"))


def payload(message: Message) -> RenderableType:
    """The payload for people: JSON highlighted, text unchanged, anything else as its size and first bytes."""
    body = payload_bytes(message)
    if not isinstance(message.payload, bytes):
        return JSON(body.decode(), indent=2)
    try:
        return Text(body.decode())
    except UnicodeDecodeError:
        return Text(f"{len(body)} bytes of {message.content_type}: {body[:32].hex(' ')}{' …' if body[32:] else ''}")


def json_value(value: Any) -> RenderableType:
    """A JSON value for people."""
    return JSON(json.dumps(value, ensure_ascii=False), indent=2)


def progress_text(progress: HandlerProgress | None) -> str:
    """How far a handler is: "40 %  reading pages"."""
    return f"{int(progress.fraction * 100)} %  {one_line(progress.step)}".rstrip() if progress else ""


def timing(message: Message, now: datetime) -> str:
    """The time that matters in the message's state: its age, due time or lease."""
    if message.state is State.LEASED and message.lease_expires_at:
        left = (message.lease_expires_at - now).total_seconds()
        return f"lease {format_duration(left)}" if left >= 0 else f"overdue {format_duration(-left)}"
    if message.due_at:
        left = (message.due_at - now).total_seconds()
        return f"due in {format_duration(left)}" if left >= 0 else f"due {format_duration(-left)} ago"
    if message.settled_at:
        return f"{message.state} {format_duration((now - message.settled_at).total_seconds())}"
    return f"sent {format_duration((now - message.sent_at).total_seconds())} ago"


def messages_table(messages: list[Message], now: datetime, max_attempts: int) -> Table:
    """A table of messages in one state."""
    rendered = table(
        "id",
        "kind",
        "prio",
        "attempts",
        "when",
        "last error",
        "payload",
        right=("prio", "attempts"),
        shrinking=("kind", "last error", "payload"),
    )
    for message in messages:
        last = message.history[-1] if message.history else None
        rendered.add_row(
            Text(message.id, style="bold"),
            cell(message.kind),
            str(message.priority),
            f"{message.attempts} / {message.max_attempts or max_attempts}",
            timing(message, now),
            cell(error_summary(last), COLOURS[State.DEAD]),
            cell(payload_preview(message), "dim"),
        )
    return rendered


def rsmq_table(rows: list[RsmqCounts]) -> Table:
    """A table of RSMQ queues."""
    rendered = table(
        "RSMQ queue",
        "messages",
        "hidden",
        "sent",
        "received",
        "lease",
        "delay",
        "largest payload",
        right=("messages", "hidden", "sent", "received"),
        shrinking=("RSMQ queue",),
    )
    for row in rows:
        largest = "no limit" if row.max_payload_bytes is None else f"{row.max_payload_bytes:,} bytes"
        rendered.add_row(
            cell(row.queue, "bold"),
            count_cell(row.messages, State.READY),
            count_cell(row.hidden, State.LEASED),
            f"{row.sent:,}",
            f"{row.received:,}",
            format_duration(row.lease_seconds),
            format_duration(row.delay_seconds) if row.delay_seconds else "",
            largest,
        )
    return rendered


def rsmq_timing(message: RsmqMessage, now_ms: int) -> str:
    """How long until an RSMQ message can be received, or how long it has waited."""
    left = (message.due_ms - now_ms) / 1000
    if message.state is State.READY:
        return f"waited {format_duration(max(0.0, -left))}"
    return f"{'lease' if message.state is State.LEASED else 'due in'} {format_duration(max(0.0, left))}"


def rsmq_messages_table(messages: list[RsmqMessage], now_ms: int) -> Table:
    """A table of messages of an RSMQ queue."""
    rendered = table(
        "id",
        "state",
        "when",
        "attempts",
        "first received",
        "size",
        "payload",
        right=("attempts", "size"),
        shrinking=("payload",),
    )
    for message in messages:
        rendered.add_row(
            Text(message.id, style="bold"),
            state_label(message.state),
            rsmq_timing(message, now_ms),
            str(message.attempts),
            format_time(_instant(message.first_received_ms)),
            f"{len(message.payload):,}",
            cell(one_line(message.payload[: 4 * PREVIEW].decode(errors="replace")), "dim"),
        )
    return rendered


def error_summary(attempt: Attempt | None) -> str:
    """The last line of an attempt's error, or its class."""
    if attempt is None:
        return ""
    lines = attempt.error.strip().splitlines()
    return one_line(lines[-1] if lines else attempt.error_class or attempt.event.value)


def _instant(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)


def rsmq_dict(row: RsmqCounts) -> dict[str, Any]:
    """An RSMQ queue for `--json`."""
    return {
        "queue": row.queue,
        "namespace": row.namespace,
        "messages": row.messages,
        "hidden": row.hidden,
        "sent": row.sent,
        "received": row.received,
        "lease_seconds": row.lease_seconds,
        "delay_seconds": row.delay_seconds,
        "max_payload_bytes": row.max_payload_bytes,
        "created_at": iso(_instant(row.created_ms)),
        "modified_at": iso(_instant(row.modified_ms)),
    }


def rsmq_message_dict(message: RsmqMessage) -> dict[str, Any]:
    """A message of an RSMQ queue for `--json`; a payload that is not text is base64."""
    document: dict[str, Any] = {
        "id": message.id,
        "state": message.state.value,
        "due_at": iso(_instant(message.due_ms)),
        "attempts": message.attempts,
        "first_received_at": iso(_instant(message.first_received_ms)),
        "sent_at": iso(_instant(message.sent_ms)),
        "size": len(message.payload),
    }
    try:
        return document | {"payload": message.payload.decode()}
    except UnicodeDecodeError:
        return document | {"payload_base64": base64.b64encode(message.payload).decode()}


def message_dict(message: Message) -> dict[str, Any]:
    """A message for `--json`; bytes as base64, and an incomplete payload as its start."""
    document: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "state": message.state.value,
        "kind": message.kind,
        "priority": message.priority,
        "attempts": message.attempts,
        "max_attempts": message.max_attempts,
        "replays": message.replays,
        "size": message.size,
        "consumer": message.consumer,
        "unique": message.unique,
        "sent_at": iso(message.sent_at),
        "due_at": iso(message.due_at),
        "received_at": iso(message.received_at),
        "lease_expires_at": iso(message.lease_expires_at),
        "settled_at": iso(message.settled_at),
    }
    if message.lease_token:
        document["lease_token"] = message.lease_token
    if not is_whole(message):
        document["payload_start"] = payload_bytes(message).decode("utf-8", "replace")
    else:
        document |= {"headers": message.headers, "content_type": message.content_type}
        if isinstance(message.payload, bytes):
            document["payload_base64"] = base64.b64encode(message.payload).decode()
        else:
            document["payload"] = message.payload
    if message.last_progress is not None:
        document["progress"] = message.last_progress.as_dict()
    if message.result is not None:
        document["result"] = message.result
    document["history"] = [attempt.as_dict() for attempt in message.history]
    return document


def journal_line(entry: JournalEntry) -> Text:
    """A journal entry as one line."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(entry.at.astimezone().strftime("%H:%M:%S.%f")[:-3], style="dim")
    line.append(f"  {entry.queue:<12} ", style="bold")
    colour = COLOURS[State(entry.state)] if entry.state in set(State) else "dim"
    line.append(f"{entry.event.value:<10}", style=colour)
    if entry.message_id:  # an event of the whole queue has no state
        line.append(f" → {entry.state:<9} ", style="dim")
        line.append(entry.message_id)
    for name, value in (
        ("kind", entry.kind),
        ("attempts", entry.attempts if entry.attempts else ""),
        ("consumer", entry.consumer),
        ("error", entry.error_class),
        ("", one_line(entry.detail)),
    ):
        if value:
            line.append(f"  {name}={value}" if name else f"  {value}", style="dim")
    return line


def utcnow() -> datetime:
    return datetime.now(UTC)
