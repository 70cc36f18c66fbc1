"""Commands that send, receive and consume messages; on failure `send` reports how many messages were sent."""

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
from restante.aio import AsyncQueue
from restante.cli import render
from restante.cli.arguments import QueueName, parse_duration, parse_json, parse_pair
from restante.cli.session import QUICK, Context, Session, WrongUsage
from restante.core.consume import stopping_by_signal
from restante.core.keywords import resembling
from restante.core.operations import MAX_BATCH

#: Messages sent by one call while reading standard input; more make Ctrl-C and the progress bar slow to react.
SEND_BATCH = 500
#: The most bytes of one read from standard input; a read returns as soon as some are available.
READ_SIZE = 1 << 16


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (send, receive, consume):
        app.command(rich_help_panel="Send and receive")(command)


def send(
    context: Context,
    queue: QueueName,
    payload: Annotated[
        str | None, typer.Argument(metavar="[PAYLOAD]", help="A JSON value. Default: one per line of standard input.")
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=255, help="The priority; higher values are received first.")] = 0,
    delay: Annotated[
        float, typer.Option(parser=parse_duration, metavar="TIME", help="Ready after 90, 250ms, 10m, 2h, 3d.")
    ] = 0.0,
    id: Annotated[str | None, typer.Option(help="The message id; sending the same id again stores nothing.")] = None,
    kind: Annotated[str, typer.Option(help="The kind of message.")] = "",
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; repeatable.")] = None,
    unique: Annotated[
        str | None, typer.Option(metavar="KEY", help="Store nothing while a message with this key waits.")
    ] = None,
    raw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Send the bytes of a file; - is standard input.")
    ] = None,
    content_type: Annotated[str | None, typer.Option(metavar="TYPE", help="The content type of --raw.")] = None,
    lease: Annotated[
        float | None, typer.Option(parser=parse_duration, metavar="TIME", help="A lease for this message.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", help="A limit of attempts for this message.")] = None,
    retry: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="A retry policy: fixed:1,5,30 or exponential:1:2:600:0.1."),
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
        "headers": dict(parse_pair(text, "--header") for text in header or ()) or None,
        "max_attempts": max_attempts,
        "retry": RetryPolicy.parse(retry) if retry else None,
    }
    if content_type is not None and raw is None:
        raise WrongUsage("--content-type needs --raw")
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
    """Sends each line as a message, in batches; at an invalid line it raises and reports how many were sent."""
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
                    # Lines before an invalid line are sent, so that the reported number says where to continue.
                    for message_id in opened.send_many(values, durability=durability, **options):
                        if session.json:
                            session.emit({"queue": queue, "id": message_id, "stored": message_id.stored})
                    sent += len(values)
                progress.update(bar, advance=sum(len(line) for _, line in lines), description=f"{sent:,} sent")
                if refusal is not None:
                    raise InvalidPayload(f"{refusal}; the {sent:,} messages before it were sent")
        except (KeyboardInterrupt, Unavailable, QueueFull):
            session.note(f"{sent:,} sent to {queue} before the interruption")
            raise
    if not sent:
        session.nothing("standard input has no messages")
    session.note(f"{sent:,} sent to {queue}")


def _values(lines: list[tuple[int, bytes]]) -> tuple[list[Any], InvalidPayload | None]:
    """The values up to the first line that is not JSON, and the error of that line."""
    values: list[Any] = []
    for number, line in lines:
        if line.strip():
            try:
                values.append(parse_json(line, f"line {number}"))
            except InvalidPayload as error:
                return values, error
    return values, None


def line_batches(stream: BufferedReader) -> Iterator[list[tuple[int, bytes]]]:
    """Iterates over batches of numbered lines as they arrive, without waiting for a full batch."""
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
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="At most N messages.")] = 1,
    timeout: Annotated[
        float, typer.Option(parser=parse_duration, metavar="TIME", help="How long to wait for the first message.")
    ] = 0.0,
    ack: Annotated[bool, typer.Option("--ack", help="Ack each message after it is printed.")] = False,
    lease: Annotated[
        float | None, typer.Option(parser=parse_duration, metavar="TIME", help="The lease of each message.")
    ] = None,
) -> None:
    """Receive messages. Without --ack they become ready again when their lease ends, with one attempt counted."""
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
        # Flushed before the ack, so that no message is lost if the reader of the pipe is gone.
        sys.stdout.flush()
        if ack:
            opened.ack_many(batch)
        got += len(batch)
    if not got:
        if session.admin.counts(queue).paused:
            session.nothing(f"{queue} is paused; to receive from it: restante resume {queue}")
        session.nothing(f"nothing to receive in {queue}")
    if not ack:
        session.note(f"not acked: ready in {queue} again in {render.format_duration(lease or opened.settings.lease)}")


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
        list[str],
        typer.Argument(metavar="MODULE:QUEUE…", help="Queue objects, or modules: all their queues with handlers."),
    ],
    concurrency: Annotated[
        int, typer.Option("-c", "--concurrency", min=1, help="How many handlers run at a time.")
    ] = 1,
    prefetch: Annotated[int, typer.Option(min=0, max=MAX_BATCH, help="The most messages received ahead.")] = 100,
    grace: Annotated[
        float, typer.Option(parser=parse_duration, metavar="TIME", help="How long a stop waits for running handlers.")
    ] = 30.0,
    stop_when_empty: Annotated[bool, typer.Option("--stop-when-empty", help="Exit when the queues are empty.")] = False,
) -> None:
    """Run the handlers of queues in a module of this directory.

    The first Ctrl-C or SIGTERM waits for running handlers and releases other messages; the second releases all.
    """
    session = context.obj
    if session.url is not None:
        os.environ["RESTANTE_URL"] = session.url
    elif session.directory is not None:
        os.environ.pop("RESTANTE_URL", None)
        os.environ["RESTANTE_DIRECTORY"] = session.directory
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr, level=logging.INFO)
    sys.path.insert(0, str(Path.cwd()))
    groups: dict[int, list[Queue | AsyncQueue]] = {}
    for queue in dict.fromkeys(queue for name in names for queue in find_queues(name)):
        groups.setdefault(id(queue.connection), []).append(queue)
    for url in {group[0].connection.url for group in groups.values()}:
        _check_server(url)
    # A consumer has one connection, so each client's queues get a consumer.
    consumers = [
        Consumer(group, concurrency=concurrency, prefetch=prefetch, grace=grace, stop_when_empty=stop_when_empty)
        for group in groups.values()
    ]

    def announce() -> None:
        for group in groups.values():
            names_ = ", ".join(queue.name for queue in group)
            server = group[0].connection.endpoint.shown
            session.note(f"consuming {names_} on {server} with concurrency {concurrency}; Ctrl-C to stop")

    try:
        run_all(consumers, announce)
    finally:
        handled, failed = sum(each.handled for each in consumers), sum(each.failed for each in consumers)
        if session.json:
            session.emit({"handled": handled, "failed": failed})
        session.note(f"stopped: {handled:,} handled, {failed:,} failed")


def _check_server(url: str) -> None:
    """Raises soon if the server is away; the consumers themselves would wait for it."""
    with restante.connect(url, **QUICK) as post:
        Admin(post).queues()


def find_queues(name: str) -> list[Queue | AsyncQueue]:
    """Returns the queues that `module:queue` or `module` names."""
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
        queues = [value for value in vars(module).values() if isinstance(value, Queue | AsyncQueue) and value.handlers]
        if not queues:
            raise WrongUsage(f"{module_name} has no queue with a handler: register one with @queue.handler")
        return queues
    value = module
    for part in path.split("."):
        if not hasattr(value, part):
            raise WrongUsage(f"{module_name} has no {path}")
        value = getattr(value, part)
    if not isinstance(value, Queue | AsyncQueue):
        raise WrongUsage(f"{name} is a {type(value).__name__}, not a queue opened by restante.connect().queue(…)")
    if not value.handlers:
        raise InvalidInput(f"{name} has no handler: register one with @{path}.handler")
    return [value]


def _error_with_line(error: Exception) -> str:
    """The error and the line that raised it, for one line of output instead of a traceback."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name} line {last.lineno})"


def run_all(consumers: list[Consumer], announce: Callable[[], None]) -> None:
    """Runs each consumer in a thread; a signal stops all of them, and so does the first failure.

    `announce` is called once signals are handled, before the first consumer starts.
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
    with stopping_by_signal(stop):
        announce()
        for thread in threads:
            thread.start()
        for _ in threads:
            # With a timeout, because on some systems an unbounded wait in the main thread blocks signals.
            while not ended.acquire(timeout=1.0):
                pass
    if failures:
        raise failures[0]
