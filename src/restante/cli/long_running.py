"""Commands that run for a while: up, demo, bench."""

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
from restante.cli.session import Context, WrongUsage, stopping
from restante.core.settings import DEFAULT_HTTP_PORT

#: Lines of the log: when, how bad, and a verb with key=value.
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
#: Descriptors that `up` asks for; more than the server's connections, Redis and files can need.
DESCRIPTORS = 16_384


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (up, demo, bench):
        app.command(rich_help_panel="Run")(command)


def up(
    context: Context,
    host: Annotated[str, typer.Option(help="Where to listen; beyond this machine only with tokens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = DEFAULT_HTTP_PORT,
    lake: Annotated[
        Path | None, typer.Option(help="The data pipeline's lake, whose report.html the Insights page shows.")
    ] = None,
    broker: Annotated[
        str | None, typer.Option(metavar="URL", help="The RabbitMQ whose archives the Topics page shows: amqp://…")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No table; one line with the address.")] = False,
) -> None:
    """Serve the HTTP API and the dashboard, sweep every queue, and show them here, until Ctrl-C."""
    try:
        from restante.server import ServerSettings, Serving  # what it imports is for this command alone
    except ModuleNotFoundError as error:
        raise WrongUsage(f"the server needs {error.name}: pip install 'restante[server]'") from None
    if broker is not None and urlsplit(broker).scheme not in ("amqp", "amqps"):
        raise WrongUsage("--broker names the RabbitMQ whose archives are shown: amqp://…")
    session = context.obj
    admin = session.admin
    admin.queues()  # a server that is not there ends this at once
    shown = session.post.connection.endpoint.shown
    stop = threading.Event()
    _raise_descriptors()
    logging.basicConfig(level=logging.INFO if quiet else logging.ERROR, format=LOG_FORMAT)
    with stopping(stop.set), Serving(session.post.url, ServerSettings(host, port, lake=lake, broker=broker)) as serving:
        session.note(f"dashboard and API at {serving.address}, queues on {shown}; Ctrl-C to stop")
        if session.json:
            session.emit({"address": serving.address, "server": shown})
        if quiet:
            while not stop.wait(1.0):
                pass
        else:
            watch(session, LiveTable(admin, shown, f"{serving.address}      Ctrl-C to stop"), stop)


def _raise_descriptors() -> None:
    """Takes as many descriptors as the system lets this process have: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            pass  # fewer connections then; the server counts what it has


def demo(
    context: Context,
    seconds: Annotated[float | None, typer.Option(min=1, help="End after so many seconds.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help=f"Of the dashboard; else {DEFAULT_HTTP_PORT}, or a free one.")
    ] = None,
    insights: Annotated[bool, typer.Option(help="Let Spark refresh the Insights page, where it is installed.")] = True,
) -> None:
    """Run a sample shop on an embedded server, with the dashboard: every state alive."""
    from restante.cli.demo import run  # the shop is for this command alone

    run(context.obj, seconds, port, insights=insights)


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
    made = render.table("measure", *figures, right=("value", *figures[2:]))
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
