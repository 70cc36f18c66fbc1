"""Commands that change nothing: ls, show, journal, consumers, doctor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from restante import Admin, JournalEntry, Position, RestanteError, State
from restante.cli import render
from restante.cli.arguments import OptionalQueueName, QueueName, complete_queue
from restante.cli.session import Code, Context, Session, WrongUsage, stopping
from restante.core.doctor import examine
from restante.rsmq import inspector as rsmq
from restante.rsmq.keys import DEFAULT_NAMESPACE

#: Seconds between two looks while following the journal.
FOLLOW_PAUSE = 0.2
#: Seconds a server may be away before following ends; less would end at every restart of it.
FOLLOW_AWAY = 30.0
#: Entries of one queue's journal read by one call.
FOLLOW_BATCH = 1000
_LEVELS = {"ok": "green", "notice": "cyan", "warning": "yellow", "danger": "bold red"}


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (ls, show, journal, consumers, doctor):
        app.command(rich_help_panel="Look")(command)


def ls(
    context: Context,
    queue: OptionalQueueName = None,
    state: Annotated[State | None, typer.Option(help="List the messages in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Messages on a page.")] = 20,
    after: Annotated[str | None, typer.Option(metavar="PLACE", help="Continue where the page before said so.")] = None,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first.")] = False,
    neighbours: Annotated[bool, typer.Option("--rsmq", help="RSMQ queues, or the messages of one.")] = False,
    namespace: Annotated[
        str, typer.Option("--ns", metavar="NAMESPACE", help="With --rsmq: where its clients keep their queues.")
    ] = DEFAULT_NAMESPACE,
) -> None:
    """Queues and their counts, one queue, or the messages of a state."""
    session = context.obj
    if neighbours:
        if state is not None or newest:
            raise WrongUsage("RSMQ queues have no states to choose and one order: leave out --state and --newest")
        if queue is None:
            return list_rsmq_queues(session, namespace)
        return list_rsmq_messages(session, queue, namespace, limit, after)
    if queue is None:
        return list_queues(session)
    session.existing(queue)
    if state is None:
        return show_queue(session, queue)
    page = session.admin.messages(queue, state, limit=limit, after=after, newest_first=newest)
    if session.json:
        found = [render.message_dict(message) for message in page.messages]
        session.emit({"queue": queue, "state": state.value, "messages": found, "next": page.next})
    elif page.messages:
        counts = session.admin.counts(queue)
        session.out.print(render.messages_table(page.messages, counts.at, counts.settings.max_attempts))
        if page.next:
            session.note(f"more: restante ls {queue} --state {state.value} --after '{page.next}'")
    if not page.messages:
        session.nothing(f"no {state.value} messages in {queue}")
    return None


def list_queues(session: Session) -> None:
    """Every queue with its counts, and the RSMQ queues beside them."""
    rows = session.admin.all_counts()
    others = rsmq.neighbours(session.post)
    if session.json:
        session.emit({"queues": [row.as_dict() for row in rows], "rsmq": [render.rsmq_dict(one) for one in others]})
    else:
        if rows:
            session.out.print(render.queues_table(rows))
        if rows and others:
            session.out.print()
        if others:
            session.out.print(render.rsmq_table(others))
    if not rows and not others:
        session.nothing("no queues yet: restante send QUEUE '{\"hello\": 1}'")


def list_rsmq_queues(session: Session, namespace: str) -> None:
    """The RSMQ queues of a namespace."""
    found = rsmq.every_count(session.post, namespace)
    if session.json:
        session.emit({"namespace": namespace, "rsmq": [render.rsmq_dict(one) for one in found]})
    elif found:
        session.out.print(render.rsmq_table(found))
    if not found:
        session.nothing(f"no RSMQ queues in the namespace {namespace}")


def list_rsmq_messages(session: Session, queue: str, namespace: str, limit: int, after: str | None) -> None:
    """The messages of an RSMQ queue by when they can be received next."""
    page = rsmq.page(session.post, queue, namespace, limit=min(limit, rsmq.LONGEST_PAGE), after=after)
    if session.json:
        found = [render.rsmq_message_dict(message) for message in page.messages]
        session.emit({"queue": queue, "namespace": namespace, "messages": found, "next": page.next})
    elif page.messages:
        session.out.print(render.rsmq_messages_table(page.messages, page.now_ms))
        if page.next:
            where = "" if namespace == DEFAULT_NAMESPACE else f" --ns '{namespace}'"
            session.note(f"more: restante ls {queue} --rsmq{where} --after '{page.next}'")
    if not page.messages:
        session.nothing(f"no messages in the RSMQ queue {queue}")


def show_queue(session: Session, queue: str) -> None:
    """One queue: counts, totals since it began, settings."""
    row = session.admin.counts(queue)
    if session.json:
        return session.emit(row.as_dict())
    session.out.print(render.queues_table([row]))
    totals = "  ".join(f"{name} {count:,}" for name, count in row.totals.items() if count)
    session.out.print()
    session.out.print(render.key_values({"since the start": totals or "nothing", **render.settings_rows(row.settings)}))
    return None


def show(context: Context, queue: QueueName, id: Annotated[str, typer.Argument(help="The message's id.")]) -> None:
    """One message: its payload and one row per attempt."""
    session = context.obj
    message = session.admin.show(session.existing(queue), id)
    if session.json:
        return session.emit(render.message_dict(message))
    counts = session.admin.counts(queue)
    rows: dict[str, RenderableType] = {
        "queue": queue,
        "state": Text.assemble(render.state_label(message.state), f"  {render.timing(message, counts.at)}"),
        "kind": message.kind,
        "priority": str(message.priority),
        "attempts": f"{message.attempts} / {message.max_attempts or counts.settings.max_attempts}",
        "replays": str(message.replays or ""),
        "sent": render.format_time(message.sent_at),
        "consumer": message.consumer,
        "unique": message.unique or "",
        "headers": Text("  ".join(f"{name}={value}" for name, value in message.headers.items())),
        "content": f"{message.content_type}, {message.size:,} bytes",
    }
    session.out.print(Text(message.id, style="bold"))
    session.out.print(render.key_values({name: value for name, value in rows.items() if value}))
    session.out.print(Panel.fit(render.payload(message), title="payload", title_align="left", border_style="dim"))
    if message.history:
        attempts = render.table(
            "attempt",
            "received",
            "took",
            "event",
            "consumer",
            "error",
            right=("attempt", "took"),
            shrinking=("consumer", "error"),
        )
        for one in message.history:
            took = render.format_duration((one.ended_at - one.received_at).total_seconds()) if one.received_at else ""
            attempts.add_row(
                str(one.attempt),
                render.format_time(one.received_at),
                took,
                one.event.value,
                render.cell(one.consumer),
                Text(f"{one.error_class}: {render.error_summary(one)}" if one.error else one.error_class),
            )
        session.out.print(attempts)
        last = message.history[-1]
        if message.state is State.DEAD and "\n" in last.error.strip():
            text = Text("\n".join(render.one_line(line, 400) for line in last.error.strip().splitlines()))
            session.out.print(Panel.fit(text, title=f"error of attempt {last.attempt}", title_align="left"))
    return None


def journal(
    context: Context,
    queues: Annotated[
        list[str] | None, typer.Argument(help="Queues; all when none is named.", autocompletion=complete_queue)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as entries are written.")] = False,
    count: Annotated[int, typer.Option("-n", "--count", min=0, max=100_000, help="The newest so many.")] = 20,
) -> None:
    """What happened, oldest first."""
    session = context.obj
    stop = threading.Event()
    for name in queues or ():
        session.existing(name)
    seen = 0
    with stopping(stop.set):
        for entry in newest_then_more(session.admin, tuple(queues or ()), count, follow, stop):
            seen += 1
            if session.json:
                session.emit(entry.as_dict())
            else:
                session.out.print(render.journal_line(entry), soft_wrap=not session.out.is_terminal)
    if not seen and not follow:
        session.nothing("the journal is empty")


def newest_then_more(
    admin: Admin, queues: tuple[str, ...], count: int, follow: bool, stop: threading.Event
) -> Iterator[JournalEntry]:
    """The newest entries of all queues in order of time, then new ones; queues made meanwhile are included."""
    places: dict[str, Position] = {}
    found: list[JournalEntry] = []
    for name in queues or admin.queues():
        entries = admin.journal(name, limit=max(1, count), newest_first=True)
        places[name] = entries[0].position if entries else Position(0)
        found += entries
    found.sort(key=lambda entry: (entry.at, entry.queue, entry.position))
    yield from found[-count:] if count else ()
    failing_since = 0.0
    while follow and not stop.is_set():
        fresh: list[JournalEntry] = []
        try:
            for name in queues or admin.queues():
                entries = admin.journal(name, after=places.get(name, Position(0)), limit=FOLLOW_BATCH)
                if entries:
                    places[name] = entries[-1].position
                    fresh += entries
            failing_since = 0.0
        except RestanteError:
            # A server that restarts is waited for; one that stays away is an error.
            failing_since = failing_since or time.monotonic()
            if time.monotonic() - failing_since > FOLLOW_AWAY:
                raise
        yield from sorted(fresh, key=lambda entry: (entry.at, entry.queue, entry.position))
        if not fresh:
            stop.wait(FOLLOW_PAUSE)


def consumers(context: Context) -> None:
    """Who takes messages, seen within the last minute."""
    session = context.obj
    found = session.admin.consumers()
    if session.json:
        session.emit({"consumers": [render.consumer_dict(one) for one in found]})
    elif found:
        now = render.utcnow()
        made = render.table(
            "consumer",
            "queues",
            "concurrency",
            "host",
            "pid",
            "seen",
            right=("concurrency", "pid"),
            shrinking=("queues", "host"),
        )
        for one in found:
            made.add_row(
                Text(one.name, style="bold"),
                render.cell(", ".join(one.queues)),
                str(one.concurrency),
                render.cell(one.host),
                str(one.pid),
                f"{render.format_duration(max(0.0, (now - one.last_seen).total_seconds()))} ago",
            )
        session.out.print(made)
    if not found:
        session.nothing("no consumer was seen within the last minute")


def doctor(context: Context) -> None:
    """What on this server could lose or stall messages, each with its remedy."""
    session = context.obj
    # A server that evicts is what the doctor is for; any other command refuses it.
    findings = examine(session.connect(allow_eviction=True))
    if session.json:
        session.emit({"findings": [finding.as_dict() for finding in findings]})
    else:
        made = render.table("level", "what", "found", "remedy")
        made.columns[2].no_wrap = made.columns[3].no_wrap = False
        made.columns[2].overflow = made.columns[3].overflow = "fold"
        for finding in findings:
            level = Text(f"● {finding.level}", style=_LEVELS[finding.level])
            made.add_row(level, finding.what, Text(finding.found), Text(finding.remedy))
        session.out.print(made)
    if any(finding.level == "danger" for finding in findings):
        raise typer.Exit(Code.DANGER)
