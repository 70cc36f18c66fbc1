"""Commands that move messages: send, receive, consume."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

import restante
from restante import (
    Admin,
    Consumer,
    InvalidInput,
    InvalidPayload,
    LeasedMessage,
    Queue,
    QueueFull,
    RestanteError,
    RetryPolicy,
    Unavailable,
)
from restante.cli import render
from restante.cli.arguments import QueueName, parse_duration, parse_json, parse_pair
from restante.cli.session import QUICK, Context, Session, WrongUsage, stopping
from restante.core.keywords import resembling
from restante.core.operations import MAX_BATCH

#: Messages sent by one call while reading standard input; larger ones make Ctrl-C and the bar sluggish.
SEND_BATCH = 500
#: Bytes read from standard input at once; only what is there already is waited for.
READ_SIZE = 1 << 16


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (send, receive, consume):
        app.command(rich_help_panel="Send and receive")(command)


def send(
    context: Context,
    queue: QueueName,
    payload: Annotated[
        str | None, typer.Argument(metavar="[PAYLOAD]", help="A JSON value; without it one per line of standard input.")
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=255, help="High first.")] = 0,
    delay: Annotated[
        float, typer.Option(parser=parse_duration, metavar="TIME", help="Ready after 90, 250ms, 10m, 2h, 3d.")
    ] = 0.0,
    id: Annotated[str | None, typer.Option(help="The message's id; the same id again stores nothing.")] = None,
    kind: Annotated[str, typer.Option(help="What the message is.")] = "",
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; may be repeated.")] = None,
    unique: Annotated[
        str | None, typer.Option(metavar="KEY", help="Store nothing while a message with this key waits.")
    ] = None,
    raw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Send the file's bytes; - is standard input.")
    ] = None,
    content_type: Annotated[str | None, typer.Option(metavar="TYPE", help="What the bytes of --raw are.")] = None,
    lease: Annotated[float | None, typer.Option(parser=parse_duration, metavar="TIME", help="Its own lease.")] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", help="Its own limit of attempts.")] = None,
    retry: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="Its own retry policy: fixed:1,5,30 or exponential:1:2:600:0.1."),
    ] = None,
    durability: Annotated[str | None, typer.Option(metavar="LEVEL", help="memory, disk or replica:n.")] = None,
) -> None:
    """Send one message, or one per line of standard input (NDJSON)."""
    session = context.obj
    options: dict[str, Any] = {
        "priority": priority,
        "delay": delay,
        "kind": kind,
        "unique": unique,
        "lease": lease,
        "headers": dict(parse_pair(one, "--header") for one in header or ()) or None,
        "max_attempts": max_attempts,
        "retry": RetryPolicy.parse(retry) if retry else None,
    }
    if content_type is not None and raw is None:
        raise WrongUsage("--content-type belongs to --raw")
    if raw is not None:
        if payload is not None:
            raise WrongUsage("give PAYLOAD or --raw, not both")
        value: Any = _read_bytes(raw)
        options["content_type"] = content_type
    elif payload is not None and payload != "-":
        value = parse_json(payload, "the payload")
    else:
        if id is not None or unique is not None:
            raise WrongUsage("--id and --unique are for one message, not for every line of standard input")
        if sys.stdin.isatty():
            raise WrongUsage("give PAYLOAD, or lines of JSON on standard input")
        return send_lines(session, queue, cast(BufferedReader, sys.stdin.buffer), options, durability)
    return _send_one(session, queue, value, id, durability, options)


def _send_one(
    session: Session, queue: str, value: Any, id: str | None, durability: str | None, options: dict[str, Any]
) -> None:
    near = resembling(queue, known) if queue not in (known := session.admin.queues()) else None
    message_id = session.post.queue(queue).send(value, id=id, durability=durability, **options)
    if session.json:
        return session.emit({"queue": queue, "id": message_id, "stored": message_id.stored})
    session.out.print(Text(message_id))
    if not message_id.stored:
        session.note("nothing stored: a message with this id or unique key is there already")
    if near is not None:
        session.note(f"{queue} is a new queue; a queue named {near} exists too")
    return None


def _read_bytes(path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise WrongUsage(f"cannot read {path}: {error.strerror}") from None


def send_lines(
    session: Session, queue: str, stream: BufferedReader, options: dict[str, Any], durability: str | None
) -> None:
    """Every line as a message, in batches; a bad line ends it and says what was sent before."""
    opened = session.post.queue(queue)
    sent = 0
    size = os.fstat(stream.fileno()).st_size or None
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    quiet = session.json or not session.err.is_terminal
    with Progress(*columns, console=session.err, transient=True, disable=quiet) as progress:
        bar = progress.add_task("sending", total=size)
        try:
            for lines in line_batches(stream):
                values, refusal = _values(lines)
                if values:
                    # What came before a bad line is sent, so that the number said is where to go on.
                    for made in opened.send_many(values, durability=durability, **options):
                        if session.json:
                            session.emit({"queue": queue, "id": made, "stored": made.stored})
                    sent += len(values)
                progress.update(bar, advance=sum(len(line) for _, line in lines), description=f"{sent:,} sent")
                if refusal is not None:
                    raise InvalidPayload(f"{refusal}; the {sent:,} before it were sent")
        except (KeyboardInterrupt, Unavailable, QueueFull):
            session.note(f"{sent:,} sent to {queue} before the end")
            raise
    if not sent:
        session.nothing("standard input held no messages")
    session.note(f"{sent:,} sent to {queue}")


def _values(lines: list[tuple[int, bytes]]) -> tuple[list[Any], InvalidPayload | None]:
    """The values up to the first line that is not JSON, and the complaint about that one."""
    values: list[Any] = []
    for number, line in lines:
        if line.strip():
            try:
                values.append(parse_json(line, f"line {number}"))
            except InvalidPayload as error:
                return values, error
    return values, None


def line_batches(stream: BufferedReader) -> Iterator[list[tuple[int, bytes]]]:
    """Lines as they come: a slow source is not made to wait for a full batch."""
    number, rest = 0, b""
    while chunk := stream.read1(READ_SIZE):
        *lines, rest = (rest + chunk).split(b"\n")
        for start in range(0, len(lines), SEND_BATCH):
            part = lines[start : start + SEND_BATCH]
            yield [(number + place, line) for place, line in enumerate(part, 1)]
            number += len(part)
    if rest:
        yield [(number + 1, rest)]


def receive(
    context: Context,
    queue: QueueName,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="At most so many.")] = 1,
    timeout: Annotated[
        float, typer.Option(parser=parse_duration, metavar="TIME", help="Wait so long for the first.")
    ] = 0.0,
    ack: Annotated[bool, typer.Option("--ack", help="Ack each after it was printed.")] = False,
    lease: Annotated[float | None, typer.Option(parser=parse_duration, metavar="TIME", help="Hold it so long.")] = None,
) -> None:
    """Receive messages; without --ack they return when their lease ends, with one attempt counted."""
    session = context.obj
    opened = session.post.queue(session.existing(queue))
    got = 0
    deadline = time.monotonic() + timeout
    while got < count:
        wait = 0.0 if got else max(0.0, deadline - time.monotonic())
        batch = opened.receive_many(min(count - got, MAX_BATCH), wait, lease=lease)
        if not batch:
            break
        for message in batch:
            _print_received(session, message)
        # Printed first: should the reader be gone, the messages are not lost.
        sys.stdout.flush()
        if ack:
            opened.ack_many(batch)
        got += len(batch)
    if not got:
        if session.admin.counts(queue).paused:
            session.nothing(f"{queue} is paused: nothing is received until restante resume {queue}")
        session.nothing(f"nothing to receive in {queue}")
    if not ack:
        session.note(f"not acked: back in {queue} in {render.format_duration(lease or opened.settings.lease)}")


def _print_received(session: Session, message: LeasedMessage) -> None:
    if session.json:
        return session.emit(render.message_dict(message))
    head = Text(message.id, style="bold")
    about = f"  {message.kind}  priority={message.priority}  attempts={message.attempts}"
    session.out.print(head.append(about, style="dim"))
    session.out.print(render.payload(message))
    return None


def consume(
    context: Context,
    names: Annotated[
        list[str], typer.Argument(metavar="MODULE:QUEUE…", help="Queue objects, or modules for all with handlers.")
    ],
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="Handlers at a time.")] = 1,
    prefetch: Annotated[int, typer.Option(min=0, max=MAX_BATCH, help="Messages taken ahead at most.")] = 100,
    grace: Annotated[
        float, typer.Option(parser=parse_duration, metavar="TIME", help="How long a stop waits for what runs.")
    ] = 30.0,
    stop_when_empty: Annotated[bool, typer.Option("--stop-when-empty", help="End when nothing is left.")] = False,
) -> None:
    """Run the handlers of queues in a module of this directory.

    The first Ctrl-C or SIGTERM finishes what runs and hands back the rest; the second hands back everything.
    """
    session = context.obj
    if session.url is not None:
        os.environ["RESTANTE_URL"] = session.url
    elif session.directory is not None:
        os.environ.pop("RESTANTE_URL", None)
        os.environ["RESTANTE_DIRECTORY"] = session.directory
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr, level=logging.INFO)
    sys.path.insert(0, str(Path.cwd()))
    groups: dict[int, list[Queue]] = {}
    for queue in dict.fromkeys(found for name in names for found in find_queues(name)):
        groups.setdefault(id(queue.connection), []).append(queue)
    for url in {group[0].connection.url for group in groups.values()}:
        _check_server(url)
    # A consumer has one connection: queues of different posts get one each.
    made = [
        Consumer(group, concurrency=concurrency, prefetch=prefetch, grace=grace, stop_when_empty=stop_when_empty)
        for group in groups.values()
    ]

    def announce() -> None:
        for group in groups.values():
            names_ = ", ".join(queue.name for queue in group)
            server = group[0].connection.endpoint.shown
            session.note(f"consuming {names_} on {server} with concurrency {concurrency}; Ctrl-C to stop")

    try:
        run_all(made, announce)
    finally:
        handled, failed = sum(one.handled for one in made), sum(one.failed for one in made)
        if session.json:
            session.emit({"handled": handled, "failed": failed})
        session.note(f"stopped: {handled:,} handled, {failed:,} failed")


def _check_server(url: str) -> None:
    """Fails soon where the consumers themselves would wait for the server."""
    with restante.connect(url, **QUICK) as post:
        Admin(post).queues()


def find_queues(name: str) -> list[Queue]:
    """The queues meant by `module:queue` or `module`."""
    module_name, _, path = name.partition(":")
    try:
        module: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise WrongUsage(f"no module {module_name} in this directory or installed") from None
        raise WrongUsage(f"importing {module_name} failed: {_error_with_line(error)}") from None
    except RestanteError:
        raise
    except Exception as error:
        raise WrongUsage(f"importing {module_name} failed: {_error_with_line(error)}") from None
    if not path:
        found = [value for value in vars(module).values() if isinstance(value, Queue) and value.handlers]
        if not found:
            raise WrongUsage(f"{module_name} has no queue with a handler: register one with @queue.handler")
        return found
    value = module
    for part in path.split("."):
        if not hasattr(value, part):
            raise WrongUsage(f"{module_name} has no {path}")
        value = getattr(value, part)
    if not isinstance(value, Queue):
        raise WrongUsage(f"{name} is a {type(value).__name__}, not a queue opened by restante.connect().queue(…)")
    if not value.handlers:
        raise InvalidInput(f"{name} has no handler: register one with @{path}.handler")
    return [value]


def _error_with_line(error: Exception) -> str:
    """The error and the line it came from; the traceback itself is more than a command line says."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name} line {last.lineno})"


def run_all(consumers: list[Consumer], announce: Callable[[], None]) -> None:
    """Runs each in a thread of its own, with signals to all; the first that fails stops the others.

    `announce` is called once signals are obeyed, before the first consumer starts.
    """
    failures: list[BaseException] = []
    ended = threading.Semaphore(0)

    def stop() -> None:
        for consumer in consumers:
            consumer.stop()

    def serve(consumer: Consumer) -> None:
        try:
            consumer.run()
        except BaseException as error:
            failures.append(error)
            stop()
        finally:
            ended.release()

    threads = [threading.Thread(target=serve, args=(one,), name="restante-consumer", daemon=True) for one in consumers]
    with stopping(stop):
        announce()
        for thread in threads:
            thread.start()
        for _ in threads:
            # With a timeout, since an unbounded wait in the main thread keeps signals out on some systems.
            while not ended.acquire(timeout=1.0):
                pass
    if failures:
        raise failures[0]
