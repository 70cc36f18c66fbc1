"""Commands that run for a while: up, demo, bench; on failure they end with an error and stop what they started."""

from __future__ import annotations

import logging
import resource
import threading
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn

from restante.cli import render
from restante.cli.live_table import LiveTable, watch
from restante.cli.session import Context, WrongUsage
from restante.core.consume import stopping_by_signal
from restante.core.settings import DEFAULT_HTTP_PORT

#: Log lines: time, level, logger, and a verb with key=value.
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
#: File descriptors that `up` requests; more than the server's connections, Redis and files can need.
DESCRIPTORS = 16_384


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (up, demo, bench):
        app.command(rich_help_panel="Run")(command)


def up(
    context: Context,
    host: Annotated[
        str, typer.Option(help="The address to listen on; other than this machine only with tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 uses a free one.")] = DEFAULT_HTTP_PORT,
    lake: Annotated[
        Path | None, typer.Option(help="The data pipeline's lake, whose report.html the Insights page shows.")
    ] = None,
    broker: Annotated[
        str | None, typer.Option(metavar="URL", help="The RabbitMQ whose archives the Topics page shows: amqp://…")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print one line with the address, and no table.")
    ] = False,
) -> None:
    """Serve the HTTP API and the dashboard, sweep every queue, and show the queues live, until Ctrl-C."""
    try:
        from restante.server import ServerSettings, Serving  # only this command needs its imports
    except ModuleNotFoundError as error:
        raise WrongUsage(f"the server needs {error.name}: pip install 'restante[server]'") from None
    if broker is not None and urlsplit(broker).scheme not in ("amqp", "amqps"):
        raise WrongUsage("--broker must be the URL of a RabbitMQ: amqp://…")
    session = context.obj
    admin = session.admin
    admin.queues()  # raises at once if the server is away
    shown = session.post.connection.endpoint.shown
    stop = threading.Event()
    _raise_descriptors()
    logging.basicConfig(level=logging.INFO if quiet else logging.ERROR, format=LOG_FORMAT)
    with (
        stopping_by_signal(stop.set),
        Serving(session.post.url, ServerSettings(host, port, lake=lake, broker=broker)) as serving,
    ):
        session.note(f"dashboard and API at {serving.address}, queues on {shown}; Ctrl-C to stop")
        if session.json:
            session.emit({"address": serving.address, "server": shown})
        if quiet:
            while not stop.wait(1.0):
                pass
        else:
            watch(session, LiveTable(admin, shown, f"{serving.address}      Ctrl-C to stop"), stop)


def _raise_descriptors() -> None:
    """Raises the limit of file descriptors as far as the system allows: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # the server limits its connections to the descriptors it has


def demo(
    context: Context,
    seconds: Annotated[float | None, typer.Option(min=1, help="Stop after this many seconds.")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help=f"The dashboard's port. Default: {DEFAULT_HTTP_PORT}, or a free one."),
    ] = None,
    insights: Annotated[bool, typer.Option(help="Let Spark refresh the Insights page, if it is installed.")] = True,
) -> None:
    """Run a sample shop on an embedded server, with the dashboard. Its messages pass through every state."""
    from restante.cli.demo import run  # only this command needs its imports

    run(context.obj, seconds, port, insights=insights)


def bench(
    context: Context,
    quick: Annotated[bool, typer.Option("--quick", help="Take at most a minute; less exact.")] = False,
) -> None:
    """Measure this server's sends, receives and latency beside the limit of Redis itself."""
    from restante import bench as benchmark  # only this command needs its imports

    session = context.obj
    session.admin.queues()  # raises at once if the server is away
    quiet = session.json or not session.err.is_terminal
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=session.err, disable=quiet) as progress:
        bar = progress.add_task("measuring")
        rows = benchmark.run(
            session.post.url, quick=quick, step=lambda text: progress.update(bar, description=escape(text))
        )
    if session.json:
        return session.emit({"results": [row.as_dict() for row in rows]})
    figures = ("value", "unit", "× limit", "server µs", "client µs")
    table = render.table("measure", *figures, right=("value", *figures[2:]))
    for row in rows:
        table.add_row(
            row.name, _figure(row.value), row.unit, _figure(row.ratio), _figure(row.server_us), _figure(row.client_us)
        )
    session.out.print(table)
    return None


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
