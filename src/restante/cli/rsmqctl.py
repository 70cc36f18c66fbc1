"""The program `rsmqctl`: RSMQ queues and messages with the options, output and exit codes of PyPI's `rsmqctl`.

Exit code 0 is success, also if a queue has no message to receive. On failure it prints the line that the other program
prints, and below it the reason, on standard error, and ends with code 1; usage errors end with 2, as in every program
built on click. `restante rsmq` does the same with Restante's own options.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

import restante
from restante.cli.session import QUICK, Code
from restante.core.errors import RestanteError
from restante.rsmq.calls import RsmqReceived
from restante.rsmq.client import Rsmq
from restante.rsmq.errors import QueueExists, QueueNotFound

#: The server if neither `-r` nor REDIS_URL is given.
LOCAL = "redis://localhost:6379"
#: The maxsize of a new queue: one less than the protocol's default, as in the other program.
MAXSIZE = 65535

app = typer.Typer(name="rsmqctl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
queue = typer.Typer(name="queue", no_args_is_help=True, help="List, create, describe and delete queues.")
message = typer.Typer(name="message", no_args_is_help=True, help="Send, receive, pop, delete and hide messages.")
app.add_typer(queue)
app.add_typer(message)

Name = Annotated[str, typer.Option("--name", "-n", metavar="TEXT", help="The queue.")]
Id = Annotated[str, typer.Option("--message-id", "-i", metavar="TEXT", help="The message's ID.")]


@app.callback()
def server(
    context: typer.Context,
    redis_url: Annotated[
        str, typer.Option("--redis-url", "-r", envvar="REDIS_URL", metavar="TEXT", help="The URL of the Redis server.")
    ] = LOCAL,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")] = False,
) -> None:
    """Manage RSMQ queues and messages."""
    context.obj = {"url": redis_url, "verbose": verbose}


@contextmanager
def _connected(context: typer.Context, name: str, failure: str) -> Iterator[Rsmq]:
    """The client. Errors print `failure`, or the line for a queue that is missing or exists already."""
    try:
        with restante.connect(context.obj["url"], **QUICK) as post:
            yield Rsmq(post=post)
    except QueueNotFound:
        _fail(context, f"No such queue: {name}")
    except QueueExists:
        _fail(context, f"Queue already exists: {name}")
    except RestanteError as error:
        _fail(context, failure, str(error))


def _fail(context: typer.Context, *lines: str) -> None:
    if context.obj["verbose"] and sys.exc_info()[0] is not None:
        traceback.print_exc()
    print(*lines, sep="\n", file=sys.stderr)
    raise typer.Exit(Code.NOTHING)


def _print(name: str, message: RsmqReceived | None) -> None:
    if message is None:
        print(f"No messages on queue: {name}")
    else:
        print(json.dumps({"id": message.id, "message": message.message, "rc": message.rc, "ts": message.fr}))


@queue.command("list")
def list_(context: typer.Context) -> None:
    """Print the names of all queues as JSON."""
    with _connected(context, "", "Failed to list queues") as client:
        print(json.dumps(client.list_queues()))


@queue.command()
def describe(context: typer.Context, name: Name) -> None:
    """Print the attributes of a queue as JSON."""
    with _connected(context, name, f"Failed to describe queue: {name}") as client:
        attributes = client.get_queue_attributes(name)
    # The other program is built on PyRSMQ, where these two are floats.
    document: dict[str, Any] = {"vt": float(attributes.vt), "delay": float(attributes.delay)}
    for field in ("maxsize", "totalrecv", "totalsent", "created", "modified", "msgs", "hiddenmsgs"):
        document[field] = getattr(attributes, field)
    print(json.dumps(document))


@queue.command()
def create(
    context: typer.Context,
    name: Name,
    visibility_timeout: Annotated[
        int, typer.Option("--visibility-timeout", "-t", help="Seconds a received message is hidden.")
    ] = 30,
    delay: Annotated[int, typer.Option("--delay", "-d", help="Seconds until a new message can be received.")] = 0,
    maxsize: Annotated[
        int, typer.Option("--maxsize", "-m", help="1024 to 65536 characters, or -1 for no limit.")
    ] = MAXSIZE,
) -> None:
    """Create a queue. Prints nothing."""
    with _connected(context, name, f"Failed to create queue: {name}") as client:
        client.create_queue(name, vt=visibility_timeout, delay=delay, maxsize=maxsize)


def delete_queue(context: typer.Context, name: Name) -> None:
    """Delete a queue and its messages. Prints nothing."""
    with _connected(context, name, f"Failed to delete queue: {name}") as client:
        client.delete_queue(name)


@message.command()
def send(
    context: typer.Context,
    name: Name,
    message: Annotated[str, typer.Option("--message", "-m", metavar="TEXT", help="The text of the message.")],
    delay: Annotated[
        int | None, typer.Option("--delay", "-d", help="Seconds until it can be received. Default: the queue's delay.")
    ] = None,
) -> None:
    """Send a message and print its ID."""
    with _connected(context, name, f"Failed to send message: {message}") as client:
        print(client.send_message(name, message, delay=delay))


@message.command()
def receive(
    context: typer.Context,
    name: Name,
    visibility_timeout: Annotated[
        int | None,
        typer.Option("--visibility-timeout", "-t", help="Seconds to hide it. Default: the queue's visibility timeout."),
    ] = None,
) -> None:
    """Receive the next message, hide it, and print it as JSON."""
    with _connected(context, name, f"Failed to receive from queue: {name}") as client:
        _print(name, client.receive_message(name, vt=visibility_timeout))


@message.command()
def pop(context: typer.Context, name: Name) -> None:
    """Receive the next message, delete it, and print it as JSON."""
    with _connected(context, name, f"Failed to pop from queue: {name}") as client:
        _print(name, client.pop_message(name))


def delete_message(context: typer.Context, name: Name, id: Id) -> None:
    """Delete a message. Prints nothing."""
    failure = f"Failed to delete message ID: {id}"
    with _connected(context, name, failure) as client:
        # The protocol's delete does not report a missing queue; this command must.
        client.get_queue_attributes(name)
        deleted = client.delete_message(name, id)
    if not deleted:
        _fail(context, failure)


@message.command()
def visibility(
    context: typer.Context,
    name: Name,
    id: Id,
    visibility_timeout: Annotated[
        int, typer.Option("--visibility-timeout", "-t", help="Seconds to hide it from now on; 0 shows it at once.")
    ],
) -> None:
    """Change how long a message stays hidden."""
    failure = f"Failed to change visibility timeout for message ID: {id}"
    with _connected(context, name, failure) as client:
        changed = client.change_message_visibility(name, id, visibility_timeout)
    if not changed:
        _fail(context, failure)
    print(f"Message ID: {id} visibility timeout set to {visibility_timeout}s")


_DELETIONS: tuple[tuple[typer.Typer, Callable[..., None]], ...] = ((queue, delete_queue), (message, delete_message))
for _group, _command in _DELETIONS:
    _group.command("delete")(_command)


def run(args: Sequence[str]) -> int:
    """Runs one command; returns the exit code."""
    try:
        app(args=list(args), prog_name="rsmqctl")
    except SystemExit as ended:
        return int(ended.code or 0)
    return Code.OK


def main() -> None:
    """The entry point of `rsmqctl`."""
    sys.exit(run(sys.argv[1:]))
