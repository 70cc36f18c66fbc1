"""Commands for batches: batch ls, show, cancel, resume."""

from __future__ import annotations

from typing import Annotated

import typer

from restante import BatchStatus
from restante.cli import render
from restante.cli.arguments import OptionalQueueName
from restante.cli.session import Context
from restante.core.batch import COUNTS

#: Cells of a bar that shows how much of a batch has ended.
BAR = 20

BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="The batch: its home queue, a slash and its id.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
batch = typer.Typer(name="batch", no_args_is_help=True, help="Batches: messages with one message at their end.")


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for name, command in (("ls", ls), ("show", show), ("cancel", cancel), ("resume", resume)):
        batch.command(name)(command)
    app.add_typer(batch, rich_help_panel="Operate")


def bar(status: BatchStatus) -> str:
    """How much of a batch has ended."""
    filled = int(status.fraction * BAR)
    return "█" * filled + "░" * (BAR - filled) + f" {status.fraction:4.0%}"


def ls(
    context: Context,
    home: OptionalQueueName = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="Those that have ended, instead of those that have not.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Batches at most.")] = 20,
) -> None:
    """List the batches that have not ended, of one home queue or of all; the newest first."""
    session = context.obj
    found = session.admin.batches(home and session.existing(home), ended=ended, limit=limit)
    if session.json:
        session.emit({"batches": [status.as_dict() for status in found]})
    elif found:
        table = render.table(
            "batch", "title", "state", "progress", "pending", "dead", "age", right=("pending", "dead", "age")
        )
        for one in found:
            age = render.format_duration(one.age)
            table.add_row(one.id, one.title, one.state, bar(one), f"{one.pending:,}", f"{one.dead:,}", age)
        session.out.print(table)
    if not found:
        session.nothing("no batches have ended" if ended else "no batches run")


def show(context: Context, id: BatchId) -> None:
    """Show how far a batch is, and the first messages of it that did not succeed."""
    session = context.obj
    status = session.admin.batch(id)
    if session.json:
        return session.emit(status.as_dict())
    rows = {
        "batch": status.id,
        "title": status.title or "–",
        "state": status.state,
        "progress": bar(status),
        "part of": status.parent or "–",
        "created": render.format_time(status.created_at),
        "sealed": render.format_time(status.sealed_at),
        "ended": render.format_time(status.ended_at),
        "age": render.format_duration(status.age),
        **{name: f"{getattr(status, name):,}" for name in COUNTS},
    }
    session.out.print(render.key_values({name: render.cell(text) for name, text in rows.items()}))
    if status.failed:
        table = render.table("message", "queue", "ended", "error")
        for one in status.failed:
            table.add_row(one.id, one.queue, one.ended, one.error)
        session.out.print(table)
    if status.state == "open":
        session.note(f"its producer may have died: restante batch resume {status.id}, or restante batch cancel")
    return None


def cancel(context: Context, id: BatchId, yes: Yes = False) -> None:
    """Give a batch up with all its messages, also those that run; no message of its end is sent."""
    session = context.obj
    pending = session.admin.batch(id).pending
    session.confirm(f"Cancel {pending:,} messages of {id}?", yes=yes, needed=True)
    count = session.admin.cancel_batch(id)
    if session.json:
        return session.emit({"batch": id, "cancelled": count})
    session.note(f"{count:,} cancelled")
    return None


def resume(context: Context, id: BatchId) -> None:
    """Seal a batch whose producer died, without what was not sent; in a running one, count what is lost."""
    session = context.obj
    count = session.admin.resume_batch(id)
    if session.json:
        return session.emit({"batch": id, "missing": count, "state": session.admin.batch(id).state})
    session.note(f"{count:,} messages were nowhere; {id} is {session.admin.batch(id).state}")
    return None
