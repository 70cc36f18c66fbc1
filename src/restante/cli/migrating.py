"""Moves an application from Kombu's own Redis transport, or from celery-redis-plus, to Restante, and back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from restante.cli.session import Code, Context, Session, WrongUsage, stopping
from restante.core.errors import InvalidInput

if TYPE_CHECKING:
    from restante.celery.migration import Migration, Moved, SourceCounts


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command("migrate-celery", rich_help_panel="Operating")(migrate_celery)


def migrate_celery(
    context: Context,
    source: Annotated[str, typer.Option("--from", metavar="URL", help="Its Redis: redis://host:port/db.")],
    target: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="The broker URL, restante://…; else the server of --url.")
    ] = None,
    queues: Annotated[str, typer.Option(metavar="NAMES", help="Queues, separated by commas; else all it knows.")] = "",
    unacked: Annotated[
        bool, typer.Option("--unacked", help="Also what workers hold: stop them first, or it runs twice.")
    ] = False,
    back: Annotated[bool, typer.Option("--back", help="The other way: from Restante's queues into Kombu's.")] = False,
    invert: Annotated[
        bool | None,
        typer.Option("--invert-priorities/--keep-priorities", help="Keep the order of priorities, or their numbers."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --back: kombu or celery-redis-plus; else what the source was."),
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="The source's global_keyprefix.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Move what waits in the Redis queues of Celery or celery-redis-plus here, or back."""
    try:
        from kombu import Connection

        from restante.celery.migration import Migration
    except ModuleNotFoundError:
        raise InvalidInput("moving a Celery application needs Celery: pip install 'restante[celery]'") from None

    session = context.obj
    broker = target or session.post.url
    if not broker.startswith(("restante", "redis", "rediss", "unix")):
        raise WrongUsage(f"--to is a broker URL such as restante://localhost:6379/0, not {broker}")
    with Connection(broker, transport=None if broker.startswith("restante") else "restante") as connection:
        work = Migration(source, connection.transport, prefix=prefix, invert=invert)
        try:
            names = [name.strip() for name in queues.split(",") if name.strip()]
            if layout is not None and not back:
                raise WrongUsage("--layout goes with --back: a move here finds out by itself")
            if back:
                _back(session, work, names, unacked, yes, layout)
            else:
                _there(session, work, names, unacked, yes)
        finally:
            work.close()


def _there(session: Session, work: Migration, names: list[str], unacked: bool, yes: bool) -> None:
    found = work.look(names or None)
    _show(session, found)
    total = found.total + (found.unacked if unacked else 0)
    if not total:
        session.nothing("nothing waits there")
    work.check(found)
    session.confirm(f"Move {total:,} messages?", yes=yes, needed=unacked)
    before = {queue: work.waiting_here(queue) for queue in found.waiting}
    with _bar(session, total) as (advance, stop):
        moved = work.move(list(found.waiting), advance, stop)
        held = work.move_unacked(lambda count: advance(moved.messages + count), stop) if unacked else None
    after = sum(work.waiting_here(queue) - before[queue] for queue in before)
    _end(session, moved, held, work.look(names or None), after)


def _back(session: Session, work: Migration, names: list[str], unacked: bool, yes: bool, layout: str | None) -> None:
    if unacked:
        raise WrongUsage("--unacked goes with a move here: what is held by workers of Restante comes back by itself")
    layout = work.layout(layout)
    chosen = names or work.queues_here()
    counts = {name: work.waiting_here(name) for name in chosen}
    total = sum(counts.values())
    if not total:
        session.nothing("nothing waits here")
    session.confirm(f"Move {total:,} messages out of {', '.join(chosen[:5])} to {layout}?", yes=yes, needed=True)
    with _bar(session, total) as (advance, stop):
        moved = work.back(chosen, advance, stop, layout=layout)
    _end(session, moved, None, None, 0)


def _show(session: Session, found: SourceCounts) -> None:
    if session.json:
        return
    table = Table(title="waiting at the source", title_justify="left")
    table.add_column("queue")
    table.add_column("messages", justify="right")
    for queue, count in found.waiting.items():
        table.add_row(queue, f"{count:,}")
    if found.unacked:
        table.add_row("held by workers (--unacked)", f"{found.unacked:,}")
    session.out.print(table)


def _end(session: Session, moved: Moved, held: Moved | None, left: SourceCounts | None, arrived: int) -> None:
    report: dict[str, Any] = {
        "moved": moved.messages, "unacked": held.unacked if held else 0,
        "left": [*moved.left, *(held.left if held else [])],
        "still_waiting": left.total if left else 0, "waiting_here_since": arrived,
    }  # fmt: skip
    if session.json:
        session.emit(report)
    else:
        session.note(f"{moved.messages + report['unacked']:,} messages moved")
        if report["left"]:
            session.note(f"{len(report['left'])} could not be read and lie under restante-migration:*:left")
    if report["left"] or report["still_waiting"]:
        raise typer.Exit(Code.NOTHING)


class _bar:  # noqa: N801 - used like a function
    """A progress bar and what a signal stops."""

    def __init__(self, session: Session, total: int) -> None:
        self._progress = Progress(
            SpinnerColumn(), TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=session.err, disable=session.json or not session.err.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("moving", total=total)
        self._stop = threading.Event()
        self._signals = stopping(self._stop.set)

    def __enter__(self) -> tuple[Any, Any]:
        self._signals.__enter__()
        self._progress.__enter__()
        return lambda count: self._progress.update(self._task, completed=count), self._stop.is_set

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)
        self._signals.__exit__(*error)
