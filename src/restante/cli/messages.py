"""Commands that send and receive messages; on failure `send` reports how many messages were sent."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from restante import (
    InvalidPayload,
    LeasedMessage,
    QueueFull,
    RetryPolicy,
    Unavailable,
)
from restante.cli import render
from restante.cli.arguments import QueueName, parse_duration, parse_json, parse_pair
from restante.cli.session import Context, Session, WrongUsage
from restante.core.keywords import resembling
from restante.core.operations import MAX_BATCH

#: Messages sent by one call while reading standard input; more make Ctrl-C and the progress bar slow to react.
SEND_BATCH = 500
#: The most bytes of one read from standard input; a read returns as soon as some are available.
READ_SIZE = 1 << 16


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (send, receive):
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
    timeout: Annotated[
        float | None, typer.Option(parser=parse_duration, metavar="TIME", help="A time limit for its handler.")
    ] = None,
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
        "timeout": timeout,
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
        _check_lines(id, unique)
        return send_lines(session, queue, cast(BufferedReader, sys.stdin.buffer), options, durability)
    return _send_one(session, queue, value, id, durability, options)


def _check_lines(id: str | None, unique: str | None) -> None:
    """Refuses to send the lines of standard input if there are none, or with options for one message."""
    if id is not None or unique is not None:
        raise WrongUsage("--id and --unique are for one message, not for every line of standard input")
    if sys.stdin.isatty():
        raise WrongUsage("give PAYLOAD, or lines of JSON on standard input")


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
