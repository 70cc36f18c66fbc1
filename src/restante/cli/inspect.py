"""Commands that change nothing: ls, show, result, journal, consumers, doctor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from restante import Admin, JournalEntry, Position, RestanteError, ResultTimeout, State
from restante.cli import render
from restante.cli.arguments import OptionalQueueName, QueueName, complete_queue, parse_duration
from restante.cli.session import Code, Context, Session, WrongUsage
from restante.core.consume import stopping_by_signal
from restante.core.doctor import examine
from restante.rsmq import inspector as rsmq
from restante.rsmq.keys import DEFAULT_NAMESPACE

#: Seconds between two polls while following the journal.
FOLLOW_PAUSE = 0.2
#: Seconds a server may be away before following ends; shorter, and every restart of the server ends it.
FOLLOW_AWAY = 30.0
#: Journal entries of one queue read by one call.
FOLLOW_BATCH = 1000
_LEVELS = {"ok": "green", "notice": "cyan", "warning": "yellow", "danger": "bold red"}


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (ls, show, result, journal, consumers, doctor):
        app.command(rich_help_panel="Look")(command)


def ls(
    context: Context,
    queue: OptionalQueueName = None,
    state: Annotated[State | None, typer.Option(help="List the messages in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Messages per page.")] = 20,
    after: Annotated[str | None, typer.Option(metavar="PLACE", help="Continue after the previous page.")] = None,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first.")] = False,
    rsmq_queues: Annotated[bool, typer.Option("--rsmq", help="List RSMQ queues, or the messages of one.")] = False,
    namespace: Annotated[
        str, typer.Option("--ns", metavar="NAMESPACE", help="With --rsmq: the namespace of the queues.")
    ] = DEFAULT_NAMESPACE,
) -> None:
    """List the queues and their counts, one queue, or its messages in a state."""
    session = context.obj
    if rsmq_queues:
        if state is not None or newest:
            raise WrongUsage("--state and --newest do not work with --rsmq: RSMQ has no states to select and one order")
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
        messages = [render.message_dict(message) for message in page.messages]
        session.emit({"queue": queue, "state": state.value, "messages": messages, "next": page.next})
    elif page.messages:
        counts = session.admin.counts(queue)
        session.out.print(render.messages_table(page.messages, counts.at, counts.settings.max_attempts))
        if page.next:
            session.note(f"more: restante ls {queue} --state {state.value} --after '{page.next}'")
    if not page.messages:
        session.nothing(f"no {state.value} messages in {queue}")
    return None


def list_queues(session: Session) -> None:
    """Lists every queue with its counts, and the RSMQ queues of the default namespace."""
    rows = session.admin.all_counts()
    others = rsmq.default_namespace_counts(session.post)
    if session.json:
        session.emit({"queues": [row.as_dict() for row in rows], "rsmq": [render.rsmq_dict(row) for row in others]})
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
    """Lists the RSMQ queues of a namespace."""
    rows = rsmq.all_counts(session.post, namespace)
    if session.json:
        session.emit({"namespace": namespace, "rsmq": [render.rsmq_dict(row) for row in rows]})
    elif rows:
        session.out.print(render.rsmq_table(rows))
    if not rows:
        session.nothing(f"no RSMQ queues in the namespace {namespace}")


def list_rsmq_messages(session: Session, queue: str, namespace: str, limit: int, after: str | None) -> None:
    """Lists the messages of an RSMQ queue by when they can be received next."""
    page = rsmq.page(session.post, queue, namespace, limit=min(limit, rsmq.LONGEST_PAGE), after=after)
    if session.json:
        messages = [render.rsmq_message_dict(message) for message in page.messages]
        session.emit({"queue": queue, "namespace": namespace, "messages": messages, "next": page.next})
    elif page.messages:
        session.out.print(render.rsmq_messages_table(page.messages, page.now_ms))
        if page.next:
            where = "" if namespace == DEFAULT_NAMESPACE else f" --ns '{namespace}'"
            session.note(f"more: restante ls {queue} --rsmq{where} --after '{page.next}'")
    if not page.messages:
        session.nothing(f"no messages in the RSMQ queue {queue}")


def show_queue(session: Session, queue: str) -> None:
    """Shows the counts, totals and settings of a queue."""
    row = session.admin.counts(queue)
    if session.json:
        return session.emit(row.as_dict())
    session.out.print(render.queues_table([row]))
    totals = "  ".join(f"{name} {count:,}" for name, count in row.totals.items() if count)
    session.out.print()
    session.out.print(render.key_values({"since the start": totals or "nothing", **render.settings_rows(row.settings)}))
    return None


def show(context: Context, queue: QueueName, id: Annotated[str, typer.Argument(help="The message's id.")]) -> None:
    """Show a message: its payload, progress or result, and one row per attempt."""
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
        "progress": render.progress_text(message.last_progress),
        "unique": message.unique or "",
        "headers": Text("  ".join(f"{name}={value}" for name, value in message.headers.items())),
        "content": f"{message.content_type}, {message.size:,} bytes",
    }
    session.out.print(Text(message.id, style="bold"))
    session.out.print(render.key_values({name: value for name, value in rows.items() if value}))
    session.out.print(Panel.fit(render.payload(message), title="payload", title_align="left", border_style="dim"))
    if message.result is not None:
        result = render.json_value(message.result)
        session.out.print(Panel.fit(result, title="result", title_align="left", border_style="dim"))
    if message.history:
        columns = ("attempt", "received", "took", "event", "consumer", "error")
        attempts = render.table(*columns, right=("attempt", "took"), shrinking=("consumer", "error"))
        for attempt in message.history:
            took = (
                render.format_duration((attempt.ended_at - attempt.received_at).total_seconds())
                if attempt.received_at
                else ""
            )
            attempts.add_row(
                str(attempt.attempt),
                render.format_time(attempt.received_at),
                took,
                attempt.event.value,
                render.cell(attempt.consumer),
                Text(
                    f"{attempt.error_class}: {render.error_summary(attempt)}" if attempt.error else attempt.error_class
                ),
            )
        session.out.print(attempts)
        last = message.history[-1]
        if "\n" in last.error.strip():
            text = Text("\n".join(render.one_line(line, 400) for line in last.error.strip().splitlines()))
            session.out.print(Panel.fit(text, title=f"error of attempt {last.attempt}", title_align="left"))
    return None


def result(
    context: Context,
    queue: QueueName,
    id: Annotated[str, typer.Argument(help="The message's id.")],
    wait: Annotated[
        float, typer.Option(parser=parse_duration, metavar="TIME", help="How long to wait for the message's end.")
    ] = 0.0,
) -> None:
    """Print the result of a message as JSON. Exit code 1 if it has not ended or has no result, 4 if it is dead."""
    session = context.obj
    handle = session.post.queue(session.existing(queue)).handle(id)
    try:
        value = handle.result(timeout=wait)
    except ResultTimeout:
        found = handle.status()
        if not found.ended:
            state = found.state.value if found.state else "gone"
            progress = f" ({render.progress_text(found.progress)})" if found.progress else ""
            raise ResultTimeout(f"{id} is {state}{progress} and has not ended: wait with --wait 60") from None
        value = handle.result(timeout=0)
    if session.json:
        session.emit({"queue": queue, "id": id, "state": State.DONE.value, "result": value})
    elif session.out.is_terminal:
        session.out.print(render.json_value(value))
    else:
        session.emit(value)


def journal(
    context: Context,
    queues: Annotated[
        list[str] | None, typer.Argument(help="The queues. Default: all.", autocompletion=complete_queue)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new entries and print them.")] = False,
    count: Annotated[int, typer.Option("-n", "--count", min=0, max=100_000, help="How many entries.")] = 20,
) -> None:
    """Show the newest journal entries, oldest first."""
    session = context.obj
    stop = threading.Event()
    for name in queues or ():
        session.existing(name)
    seen = 0
    with stopping_by_signal(stop.set):
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
    """Iterates over the newest entries by time, then over new entries, including those of queues created meanwhile."""
    places: dict[str, Position] = {}
    newest: list[JournalEntry] = []
    for name in queues or admin.queues():
        entries = admin.journal(name, limit=max(1, count), newest_first=True)
        places[name] = entries[0].position if entries else Position(0)
        newest += entries
    newest.sort(key=lambda entry: (entry.at, entry.queue, entry.position))
    yield from newest[-count:] if count else ()
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
            # Waits for a server that restarts; raises if it stays away.
            failing_since = failing_since or time.monotonic()
            if time.monotonic() - failing_since > FOLLOW_AWAY:
                raise
        yield from sorted(fresh, key=lambda entry: (entry.at, entry.queue, entry.position))
        if not fresh:
            stop.wait(FOLLOW_PAUSE)


def consumers(context: Context) -> None:
    """Who takes messages, seen within the last minute."""
    session = context.obj
    alive = session.admin.consumers()
    if session.json:
        session.emit({"consumers": [consumer.as_dict() for consumer in alive]})
    elif alive:
        now = render.utcnow()
        columns = ("consumer", "queues", "concurrency", "hung", "host", "pid", "seen")
        table = render.table(*columns, right=("concurrency", "hung", "pid"), shrinking=("queues", "host"))
        for consumer in alive:
            table.add_row(
                Text(consumer.name, style="bold"),
                render.cell(", ".join(consumer.queues)),
                str(consumer.concurrency),
                Text(str(consumer.hung), style="bold red") if consumer.hung else "",
                render.cell(consumer.host),
                str(consumer.pid),
                _ago(now, consumer.last_seen),
            )
            for process in consumer.processes:
                table.add_row(
                    Text(f"  {process.name}", style="dim"),
                    "",
                    str(process.concurrency),
                    Text(str(process.hung), style="bold red") if process.hung else "",
                    "",
                    str(process.pid),
                    _ago(now, process.last_seen),
                )
        session.out.print(table)
    if not alive:
        session.nothing("no consumer was seen within the last minute")


def _ago(now: datetime, moment: datetime) -> str:
    return f"{render.format_duration(max(0.0, (now - moment).total_seconds()))} ago"


def doctor(context: Context) -> None:
    """Show what on this server could lose or stall messages, with a remedy for each."""
    session = context.obj
    # Other commands refuse a server that evicts keys; the doctor must be able to report it.
    findings = examine(session.connect(allow_eviction=True))
    if session.json:
        session.emit({"findings": [finding.as_dict() for finding in findings]})
    else:
        table = render.table("level", "what", "found", "remedy")
        table.columns[2].no_wrap = table.columns[3].no_wrap = False
        table.columns[2].overflow = table.columns[3].overflow = "fold"
        for finding in findings:
            level = Text(f"● {finding.level}", style=_LEVELS[finding.level])
            table.add_row(level, finding.what, Text(finding.found), Text(finding.remedy))
        session.out.print(table)
    if any(finding.level == "danger" for finding in findings):
        raise typer.Exit(Code.DANGER)
