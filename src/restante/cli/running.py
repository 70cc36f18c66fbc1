"""Commands that run for a while: up, demo, bench."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer
from rich.text import Text

from restante import NotFound, Sweeper
from restante.cli import texts
from restante.cli.board import Board, watch
from restante.cli.session import Code, Context, stopping


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
    session = context.obj
    try:
        from restante import bench as measuring  # type: ignore[attr-defined]
    except ImportError:
        raise NotFound("this installation has no benchmark: install a release that carries restante.bench") from None
    rows: list[dict[str, Any]] = measuring.run(session.post.url, quick)
    if session.json:
        return session.emit({"results": rows})
    if not rows:
        raise typer.Exit(Code.NOTHING)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    made = texts.table(*columns, right=tuple(columns[1:]))
    for row in rows:
        made.add_row(*(_cell(row.get(name)) for name in columns))
    session.out.print(made)
    return None


def _cell(value: Any) -> Text:
    if isinstance(value, float):
        return Text(f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}")
    return Text("" if value is None else f"{value:,}" if isinstance(value, int) else str(value))
