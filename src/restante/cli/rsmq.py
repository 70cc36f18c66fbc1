"""Commands for RSMQ queues and their messages: `restante rsmq …`. The program `rsmqctl` is in `rsmqctl.py`.

JSON on standard output. On failure one line on standard error: an error of the protocol ends with code 1, wrong usage
and an unreachable server as everywhere. That no message is there is an answer, `null`, and no failure.
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

from restante.cli.session import Code, Context, Session
from restante.rsmq.calls import RsmqReceived
from restante.rsmq.client import Rsmq
from restante.rsmq.errors import RsmqError
from restante.rsmq.keys import DEFAULT_NAMESPACE

#: Options of the group that take a value; like the others they may also stand behind the command.
_VALUED = ("-r", "--redis-url", "--ns")
_FLAGS = ("-v", "--verbose")
#: Options of commands that take a value, which may look like an option: a message may be "-v".
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
    """Takes the group's own options wherever they stand."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        front: list[str] = []
        rest: list[str] = []
        words = iter(args)
        for word in words:
            if word == "--":
                rest += [word, *words]
            elif word in _FLAGS or word.startswith(("--redis-url=", "--ns=")):
                front.append(word)
            elif word in _VALUED:
                front += [word, *([value] if (value := next(words, None)) is not None else [])]
            elif word in _OTHERS:
                rest += [word, *([value] if (value := next(words, None)) is not None else [])]
            else:
                rest.append(word)
        return super().parse_args(ctx, front + rest)


rsmq = typer.Typer(name="rsmq", cls=_OptionsAnywhere, no_args_is_help=True, rich_markup_mode="rich")
queue = typer.Typer(name="queue", no_args_is_help=True, help="Queues: list, create, describe, delete, set.")
message = typer.Typer(name="message", no_args_is_help=True, help="Messages: send, receive, pop, delete, visibility.")

Name = Annotated[str, typer.Option("--name", "-n", help="The queue.")]
Id = Annotated[str, typer.Option("--id", "-i", help="The message's id.")]
Vt = Annotated[int | None, typer.Option("--vt", "-t", help="Seconds a received message is hidden; else the queue's.")]
SetVt = Annotated[int | None, typer.Option("--vt", "-t", help="Seconds a received message is hidden.")]
SetDelay = Annotated[int | None, typer.Option("--delay", "-d", help="Seconds until a new message can be received.")]
SetMaxsize = Annotated[int | None, typer.Option("--maxsize", "-m", help="1024 to 65536 characters, or -1: any.")]


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
        typer.Option("--redis-url", "-r", metavar="URL", help="The server; else --url, else [bold]REDIS_URL[/]."),
    ] = None,
    ns: Annotated[str, typer.Option("--ns", metavar="NAME", help="The namespace.")] = DEFAULT_NAMESPACE,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is asked of which server.")] = False,
) -> None:
    """RSMQ queues, as Node's rsmq and PyRSMQ have them on the same server. JSON on standard output."""
    context.meta["rsmq"] = {"redis_url": redis_url, "ns": ns, "verbose": verbose}


@contextmanager
def connected(context: Context) -> Iterator[Rsmq]:
    """The client that the options mean; the protocol's errors end the command with code 1."""
    session: Session = context.obj
    told = context.meta["rsmq"]
    url = told["redis_url"]
    if url is None and session.url is None and session.directory is None:
        url = os.environ.get("REDIS_URL") or None
    if url is not None:
        session.use(url)
    post = session.post
    began = time.monotonic()
    try:
        yield Rsmq(namespace=told["ns"], post=post)
    except RsmqError as error:
        from restante.cli.entry import print_error  # which imports this module

        print_error(error.name, str(error), json=session.json)
        raise typer.Exit(Code.NOTHING) from None
    finally:
        if told["verbose"]:
            took = (time.monotonic() - began) * 1000
            print(f"{post.connection.endpoint.shown} ns={told['ns']} {took:.1f} ms", file=sys.stderr)


def _message(found: RsmqReceived | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"id": found.id, "message": found.message, "rc": found.rc, "fr": found.fr, "sent": found.sent}


def list_(context: Context) -> None:
    """List the queues."""
    with connected(context) as client:
        context.obj.emit(client.list_queues())


def create(
    context: Context,
    name: Name,
    vt: Annotated[int, typer.Option("--vt", "-t", help="Seconds a received message is hidden.")] = 30,
    delay: Annotated[int, typer.Option("--delay", "-d", help="Seconds until a new message can be received.")] = 0,
    maxsize: Annotated[int, typer.Option("--maxsize", "-m", help="1024 to 65536 characters, or -1: any.")] = 65536,
) -> None:
    """Make a queue."""
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
    """Change at least one setting of a queue, and show what holds now."""
    with connected(context) as client:
        context.obj.emit(asdict(client.set_queue_attributes(name, vt=vt, delay=delay, maxsize=maxsize)))


def send(
    context: Context,
    name: Name,
    message: Annotated[str, typer.Option("--message", "-m", help="The message.")],
    delay: Annotated[
        int | None, typer.Option("--delay", "-d", help="Seconds until it can be received; else the queue's.")
    ] = None,
) -> None:
    """Send a message and show its id."""
    with connected(context) as client:
        context.obj.emit(client.send_message(name, message, delay=delay))


def receive(context: Context, name: Name, vt: Vt = None) -> None:
    """Receive the next message, hidden from others for a time; null where there is none."""
    with connected(context) as client:
        context.obj.emit(_message(client.receive_message(name, vt=vt)))


def pop(context: Context, name: Name) -> None:
    """Receive the next message and delete it; null where there is none."""
    with connected(context) as client:
        context.obj.emit(_message(client.pop_message(name)))


def delete(context: Context, name: Name, id: Id) -> None:
    """Delete a message: 1, or 0 where there is none."""
    with connected(context) as client:
        context.obj.emit(client.delete_message(name, id))


def visibility(
    context: Context,
    name: Name,
    id: Id,
    vt: Annotated[int, typer.Option("--vt", "-t", help="Seconds it is hidden from now on; 0 shows it at once.")],
) -> None:
    """Change how long a message stays hidden: 1, or 0 where there is none."""
    with connected(context) as client:
        context.obj.emit(client.change_message_visibility(name, id, vt))
