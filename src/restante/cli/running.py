"""Commands that run for a while: up, demo, bench."""

from __future__ import annotations

import threading
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn

from restante import Sweeper
from restante.cli import texts
from restante.cli.board import Board, watch
from restante.cli.session import Context, stopping


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (up, demo, bench):
        app.command(rich_help_panel="Run")(command)


def up(
    context: Context,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No table, only the sweeper.")] = False,
) -> None:
    """Keep the server and its sweeper running and show queues and states, until Ctrl-C."""
    session = context.obj
    admin = session.admin
    admin.queues()  # a server that is not there ends this at once
    shown = session.post.connection.endpoint.shown
    sweeper = Sweeper(session.post)
    stop = threading.Event()
    with stopping(stop.set):
        thread = sweeper.start()
        try:
            if quiet:
                session.note(f"sweeping {shown}; Ctrl-C to stop")
                while not stop.wait(1.0):
                    pass
            else:
                watch(session, Board(admin, shown, "Ctrl-C to stop"), stop)
        finally:
            sweeper.stop()
            thread.join(5)


def demo(
    context: Context,
    seconds: Annotated[float | None, typer.Option(min=1, help="End after so many seconds.")] = None,
) -> None:
    """Run a sample shop on an embedded server: every state alive, in one table."""
    from restante.cli.demo import run  # the shop is for this command alone

    run(context.obj, seconds)


def bench(
    context: Context,
    quick: Annotated[bool, typer.Option("--quick", help="A minute at most; rougher numbers.")] = False,
) -> None:
    """Measure this server: sends, receives, latency, beside Redis' own limit."""
    from restante import bench as measuring  # what it imports is for this command alone

    session = context.obj
    session.admin.queues()  # a server that is not there ends this at once
    quiet = session.json or not session.err.is_terminal
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=session.err, disable=quiet) as progress:
        bar = progress.add_task("measuring")
        rows = measuring.run(
            session.post.url, quick=quick, step=lambda text: progress.update(bar, description=escape(text))
        )
    if session.json:
        return session.emit({"results": [row.as_dict() for row in rows]})
    figures = ("value", "unit", "× limit", "server µs", "client µs")
    made = texts.table("measure", *figures, right=("value", *figures[2:]))
    for row in rows:
        made.add_row(
            row.name, _figure(row.value), row.unit, _figure(row.ratio), _figure(row.server_us), _figure(row.client_us)
        )
    session.out.print(made)
    return None


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
