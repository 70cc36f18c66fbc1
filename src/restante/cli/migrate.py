"""The command migrate-celery: moves messages from Kombu's Redis transport or celery-redis-plus to Restante, or back."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from restante.cli.session import Code, Context, Session, WrongUsage
from restante.core.consume import stopping_by_signal
from restante.core.errors import InvalidInput

if TYPE_CHECKING:
    from restante.celery.migration import Migration, Moved, SourceCounts


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command("migrate-celery", rich_help_panel="Operate")(migrate_celery)


def migrate_celery(
    context: Context,
    source: Annotated[
        str, typer.Option("--from", metavar="URL", help="The application's Redis: redis://host:port/db.")
    ],
    target: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="The broker, restante://…. Default: the server of --url.")
    ] = None,
    queues: Annotated[
        str, typer.Option(metavar="NAMES", help="Queues, separated by commas. Default: all known queues.")
    ] = "",
    unacked: Annotated[
        bool,
        typer.Option(
            "--unacked", help="Also messages that workers hold. Stop the workers first, or these tasks run twice."
        ),
    ] = False,
    back: Annotated[bool, typer.Option("--back", help="Move from Restante's queues into Kombu's.")] = False,
    invert: Annotated[
        bool | None,
        typer.Option("--invert-priorities/--keep-priorities", help="Keep the order of priorities, or their numbers."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --back: kombu or celery-redis-plus. Default: the layout of the source."
        ),
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="The source's global_keyprefix.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Move waiting messages from the Redis queues of Celery or celery-redis-plus here, or back."""
    try:
        from kombu import Connection

        from restante.celery.migration import Migration
    except ModuleNotFoundError:
        raise InvalidInput("migrate-celery needs Celery: pip install 'restante[celery]'") from None

    session = context.obj
    broker = target or session.post.url
    if not broker.startswith(("restante", "redis", "rediss", "unix")):
        raise WrongUsage(f"--to must be a broker URL such as restante://localhost:6379/0, not {broker}")
    with Connection(broker, transport=None if broker.startswith("restante") else "restante") as connection:
        work = Migration(source, connection.transport, prefix=prefix, invert=invert)
        try:
            names = [name.strip() for name in queues.split(",") if name.strip()]
            if layout is not None and not back:
                raise WrongUsage("--layout needs --back: a move to Restante detects the layout")
            if back:
                _move_back(session, work, names, unacked, yes, layout)
            else:
                _move_here(session, work, names, unacked, yes)
        finally:
            work.close()


def _move_here(session: Session, work: Migration, names: list[str], unacked: bool, yes: bool) -> None:
    found = work.look(names or None)
    _show_source(session, found)
    total = found.total + (found.unacked if unacked else 0)
    if not total:
        session.nothing("no messages wait at the source")
    work.check(found)
    session.confirm(f"Move {total:,} messages?", yes=yes, needed=unacked)
    before = {queue: work.waiting_here(queue) for queue in found.waiting}
    with _Progress(session, total) as (advance, stop):
        moved = work.move(list(found.waiting), advance, stop)
        held = work.move_unacked(lambda count: advance(moved.messages + count), stop) if unacked else None
    after = sum(work.waiting_here(queue) - before[queue] for queue in before)
    _report(session, moved, held, work.look(names or None), after)


def _move_back(
    session: Session, work: Migration, names: list[str], unacked: bool, yes: bool, layout: str | None
) -> None:
    if unacked:
        raise WrongUsage(
            "--unacked does not work with --back: messages that Restante's workers hold return by themselves"
        )
    layout = work.layout(layout)
    chosen = names or work.queues_here()
    counts = {name: work.waiting_here(name) for name in chosen}
    total = sum(counts.values())
    if not total:
        session.nothing("no messages wait in Restante's queues")
    session.confirm(f"Move {total:,} messages out of {', '.join(chosen[:5])} to {layout}?", yes=yes, needed=True)
    with _Progress(session, total) as (advance, stop):
        moved = work.back(chosen, advance, stop, layout=layout)
    _report(session, moved, None, None, 0)


def _show_source(session: Session, found: SourceCounts) -> None:
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


def _report(session: Session, moved: Moved, held: Moved | None, left: SourceCounts | None, arrived: int) -> None:
    report: dict[str, Any] = {
        "moved": moved.messages,
        "unacked": held.unacked if held else 0,
        "left": [*moved.left, *(held.left if held else [])],
        "still_waiting": left.total if left else 0,
        "waiting_here_since": arrived,
    }
    if session.json:
        session.emit(report)
    else:
        session.note(f"{moved.messages + report['unacked']:,} messages moved")
        if report["left"]:
            session.note(f"{len(report['left'])} could not be read and are in the keys restante-migration:*:left")
    if report["left"] or report["still_waiting"]:
        raise typer.Exit(Code.NOTHING)


class _Progress:
    """A progress bar, and the event that a signal sets."""

    def __init__(self, session: Session, total: int) -> None:
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("moving"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=session.err,
            disable=session.json or not session.err.is_terminal,
        )
        self._task = self._progress.add_task("moving", total=total)
        self._stop = threading.Event()
        self._signals = stopping_by_signal(self._stop.set)

    def __enter__(self) -> tuple[Any, Any]:
        self._signals.__enter__()
        self._progress.__enter__()
        return lambda count: self._progress.update(self._task, completed=count), self._stop.is_set

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)
        self._signals.__exit__(*error)
