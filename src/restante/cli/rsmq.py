"""Commands for RSMQ queues and their messages: `restante rsmq …`. The program `rsmqctl` is in `rsmqctl.py`.

They print JSON on standard output; a missing message is `null`, not a failure. On failure they print one line on
standard error: protocol errors end with code 1, other errors with the codes of all commands.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from restante.cli.options import options_first
from restante.cli.session import Code, Context, Session
from restante.rsmq.calls import RsmqReceived
from restante.rsmq.client import Rsmq
from restante.rsmq.errors import RsmqError
from restante.rsmq.keys import DEFAULT_NAMESPACE

#: Options of the group that take a value; like the global options they may also follow the command.
_VALUED = ("-r", "--redis-url", "--ns")
_FLAGS = ("-v", "--verbose")
#: Options of commands that take a value. The value may look like an option: a message may be "-v".
_OTHERS = (
    "-n",
    "--name",
    "-i",
    "--id",
    "-m",
    "--message",
    "--maxsize",
    "-d",
    "--delay",
    "-t",
    "--vt",
)


class _OptionsAnywhere(TyperGroup):
    """A group whose own options may stand before or after the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, options_first(args, flags=_FLAGS, valued=_VALUED, others=_OTHERS))


rsmq = typer.Typer(name="rsmq", cls=_OptionsAnywhere, no_args_is_help=True, rich_markup_mode="rich")
queue = typer.Typer(name="queue", no_args_is_help=True, help="Queues: list, create, describe, delete, set.")
message = typer.Typer(name="message", no_args_is_help=True, help="Messages: send, receive, pop, delete, visibility.")

Name = Annotated[str, typer.Option("--name", "-n", help="The queue.")]
Id = Annotated[str, typer.Option("--id", "-i", help="The message's id.")]
Vt = Annotated[
    int | None, typer.Option("--vt", "-t", help="Seconds to hide the received message. Default: the queue's vt.")
]
SetVt = Annotated[int | None, typer.Option("--vt", "-t", help="Seconds a received message is hidden.")]
SetDelay = Annotated[int | None, typer.Option("--delay", "-d", help="Seconds until a new message can be received.")]
SetMaxsize = Annotated[
    int | None, typer.Option("--maxsize", "-m", help="1024 to 65536 characters, or -1 for no limit.")
]


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    queues: dict[str, Callable[..., None]] = {
        "list": list_,
        "create": create,
        "describe": describe,
        "delete": delete_queue,
        "set": set_,
    }
    messages: dict[str, Callable[..., None]] = {
        "send": send,
        "receive": receive,
        "pop": pop,
        "delete": delete,
        "visibility": visibility,
    }
    for group, commands in ((queue, queues), (message, messages)):
        for name, command in commands.items():
            group.command(name)(command)
    rsmq.callback()(globals_)
    rsmq.add_typer(queue)
    rsmq.add_typer(message)
    app.add_typer(rsmq, rich_help_panel="Operate")


def globals_(
    context: Context,
    redis_url: Annotated[
        str | None,
        typer.Option("--redis-url", "-r", metavar="URL", help="The server. Default: --url, else [bold]REDIS_URL[/]."),
    ] = None,
    ns: Annotated[str, typer.Option("--ns", metavar="NAME", help="The namespace.")] = DEFAULT_NAMESPACE,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show which server was used, and how long it took.")
    ] = False,
) -> None:
    """RSMQ queues, shared with Node's rsmq and PyRSMQ. Prints JSON."""
    context.meta["rsmq"] = {"redis_url": redis_url, "ns": ns, "verbose": verbose}


@contextmanager
def connected(context: Context) -> Iterator[Rsmq]:
    """The client for these options; protocol errors end the command with code 1."""
    session: Session = context.obj
    options = context.meta["rsmq"]
    url = options["redis_url"]
    if url is None and session.url is None and session.directory is None:
        url = os.environ.get("REDIS_URL") or None
    if url is not None:
        session.use(url)
    post = session.post
    began = time.monotonic()
    try:
        yield Rsmq(namespace=options["ns"], post=post)
    except RsmqError as error:
        from restante.cli.entry import print_error  # which imports this module

        print_error(error.name, str(error), json=session.json)
        raise typer.Exit(Code.NOTHING) from None
    finally:
        if options["verbose"]:
            took = (time.monotonic() - began) * 1000
            print(f"{post.connection.endpoint.shown} ns={options['ns']} {took:.1f} ms", file=sys.stderr)


def _message(message: RsmqReceived | None) -> dict[str, Any] | None:
    if message is None:
        return None
    return {"id": message.id, "message": message.message, "rc": message.rc, "fr": message.fr, "sent": message.sent}


def list_(context: Context) -> None:
    """List the queues."""
    with connected(context) as client:
        context.obj.emit(client.list_queues())


def create(
    context: Context,
    name: Name,
    vt: Annotated[int, typer.Option("--vt", "-t", help="Seconds a received message is hidden.")] = 30,
    delay: Annotated[int, typer.Option("--delay", "-d", help="Seconds until a new message can be received.")] = 0,
    maxsize: Annotated[
        int, typer.Option("--maxsize", "-m", help="1024 to 65536 characters, or -1 for no limit.")
    ] = 65536,
) -> None:
    """Create a queue."""
    with connected(context) as client:
        context.obj.emit(client.create_queue(name, vt=vt, delay=delay, maxsize=maxsize))


def describe(context: Context, name: Name) -> None:
    """Show a queue's settings, totals and counts."""
    with connected(context) as client:
        context.obj.emit(asdict(client.get_queue_attributes(name)))


def delete_queue(context: Context, name: Name) -> None:
    """Delete a queue and every message in it."""
    with connected(context) as client:
        context.obj.emit(client.delete_queue(name))


def set_(context: Context, name: Name, vt: SetVt = None, delay: SetDelay = None, maxsize: SetMaxsize = None) -> None:
    """Change at least one setting of a queue, and show its attributes."""
    with connected(context) as client:
        context.obj.emit(asdict(client.set_queue_attributes(name, vt=vt, delay=delay, maxsize=maxsize)))


def send(
    context: Context,
    name: Name,
    message: Annotated[str, typer.Option("--message", "-m", help="The message.")],
    delay: Annotated[
        int | None, typer.Option("--delay", "-d", help="Seconds until it can be received. Default: the queue's delay.")
    ] = None,
) -> None:
    """Send a message and show its id."""
    with connected(context) as client:
        context.obj.emit(client.send_message(name, message, delay=delay))


def receive(context: Context, name: Name, vt: Vt = None) -> None:
    """Receive the next message and hide it from others for a time; null if there is none."""
    with connected(context) as client:
        context.obj.emit(_message(client.receive_message(name, vt=vt)))


def pop(context: Context, name: Name) -> None:
    """Receive the next message and delete it; null if there is none."""
    with connected(context) as client:
        context.obj.emit(_message(client.pop_message(name)))


def delete(context: Context, name: Name, id: Id) -> None:
    """Delete a message; prints 1, or 0 if it does not exist."""
    with connected(context) as client:
        context.obj.emit(client.delete_message(name, id))


def visibility(
    context: Context,
    name: Name,
    id: Id,
    vt: Annotated[int, typer.Option("--vt", "-t", help="Seconds to hide it from now on; 0 shows it at once.")],
) -> None:
    """Change how long a message stays hidden; prints 1, or 0 if it does not exist."""
    with connected(context) as client:
        context.obj.emit(client.change_message_visibility(name, id, vt))
