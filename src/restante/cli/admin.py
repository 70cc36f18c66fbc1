"""Operator commands: replay, delete, purge, revoke, cancel, drop, pause, resume, move, edit, configure."""

from __future__ import annotations

import os
import platform
import threading
from typing import Annotated, Any

import typer

from restante import InUse, MessageLeased, QueueSettings, RetryPolicy, State
from restante.cli import render
from restante.cli.arguments import QueueName, complete_queue, parse_duration, parse_json, parse_pair
from restante.cli.session import Context, Session, WrongUsage
from restante.core.admin import ReplayTask
from restante.core.consume import stopping_by_signal
from restante.core.inspector import ConsumerInfo
from restante.core.settings import DURATIONS

Ids = Annotated[list[str], typer.Argument(metavar="IDS…", help="The message ids.")]
Create = Annotated[bool, typer.Option("--create", help="Create the queue even if its name resembles another.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (replay, delete, purge, revoke, cancel, drop, pause, resume, move, edit, configure):
        app.command(rich_help_panel="Operate")(command)


def replay(
    context: Context,
    queue: QueueName,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[IDS…]", help="Only these messages.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only messages of this kind.")] = None,
    error: Annotated[str | None, typer.Option(metavar="CLASS", help="Only those that died of this error.")] = None,
    rate: Annotated[float | None, typer.Option(metavar="N", help="At most N messages per second.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")] = False,
    task: Annotated[str | None, typer.Option(metavar="ID", help="Continue an interrupted replay.")] = None,
    yes: Yes = False,
) -> None:
    """Make dead messages ready again, with their attempts reset. Ctrl-C stops it and prints how to continue."""
    session = context.obj
    admin = session.admin
    session.existing(queue)
    if task is not None and (ids or kind or error):
        raise WrongUsage("--task continues with its own filter: leave out ids, --kind and --error")
    chosen: dict[str, Any] = {"ids": ids or None, "kind": kind, "error_class": error}
    if not dry_run:
        count = _matching(session, queue, task, chosen)
        session.confirm(f"Replay {count:,} dead messages of {queue}?", yes=yes, needed=False)
    stop = threading.Event()
    with stopping_by_signal(stop.set), render.progress(session.err, quiet=session.json) as progress:
        bar = progress.add_task("replaying")

        def moved(work: ReplayTask) -> None:
            progress.update(bar, completed=work.seen, total=work.total, description=f"{work.replayed:,} replayed")

        done = admin.replay(queue, **chosen, rate=rate, dry_run=dry_run, task=task, progress=moved, cancel=stop.is_set)
    if session.json:
        session.emit(
            {
                "queue": queue,
                "task": done.id,
                "status": done.status,
                "seen": done.seen,
                "replayed": done.replayed,
                "dry_run": done.dry_run,
            }
        )
    if done.status == "cancelled":
        how = "" if dry_run else f"; continue with: restante replay {queue} --task {done.id}"
        session.nothing(f"stopped after {done.replayed:,} replayed{how}")
    if not done.replayed:
        session.nothing(f"no dead messages of {queue} match")
    session.note(f"{done.replayed:,} {'would be ' if dry_run else ''}replayed in {queue}")


def _matching(session: Session, queue: str, task: str | None, chosen: dict[str, Any]) -> int:
    """How many messages a replay would move, for the confirmation; counted only if it will be asked."""
    admin = session.admin
    if task is not None:
        work = admin.task(queue, task)
        return max(0, work.total - work.seen)
    if chosen["ids"] is not None:
        return len(chosen["ids"])
    if session.out.is_terminal and not session.json and (chosen["kind"] or chosen["error_class"]):
        return admin.replay(queue, **chosen, dry_run=True).replayed
    return admin.counts(queue).dead


def delete(context: Context, queue: QueueName, ids: Ids) -> None:
    """Delete messages by id; leased messages stay."""
    session = context.obj
    count = session.admin.delete(session.existing(queue), ids)
    _report(session, "deleted", queue, count, f"{queue} has none of these messages")


def _report(session: Session, verb: str, queue: str, count: int, otherwise: str, **more: str) -> None:
    if session.json:
        session.emit({"queue": queue, verb: count, **more})
    if not count:
        session.nothing(otherwise)
    session.note(f"{count:,} {verb}")


def purge(
    context: Context,
    queue: QueueName,
    state: Annotated[list[State] | None, typer.Option(help="Only this state; repeatable.")] = None,
    yes: Yes = False,
) -> None:
    """Delete all messages of a queue except leased ones, or those in some states."""
    session = context.obj
    admin = session.admin
    counts = admin.counts(session.existing(queue))
    states = state or [each for each in State if each is not State.LEASED]
    total = sum(getattr(counts, each.value) for each in states)
    if total:
        words = ", ".join(each.value for each in states)
        session.confirm(f"Remove {total:,} messages ({words}) of {queue} for good?", yes=yes, needed=True)
    with render.progress(session.err, quiet=session.json) as progress:
        bar = progress.add_task("purging", total=total)
        count = admin.purge(queue, states, progress=lambda gone: progress.update(bar, completed=gone))
    _report(session, "purged", queue, count, f"nothing to purge in {queue}")


Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="A note for the journal and the audit.")]


def revoke(context: Context, queue: QueueName, ids: Ids, reason: Reason = "") -> None:
    """Take leased messages back: they are ready again at once, and the attempt counts."""
    session = context.obj
    count = session.admin.revoke(session.existing(queue), ids, detail=reason)
    _report(session, "revoked", queue, count, f"{queue} has none of these messages in state leased")


def cancel(context: Context, queue: QueueName, ids: Ids, reason: Reason = "") -> None:
    """Give messages up, whether they wait or run; dead and done ones stay."""
    session = context.obj
    count = session.admin.cancel(session.existing(queue), ids, detail=reason)
    _report(session, "cancelled", queue, count, f"{queue} has none of these messages, or they have ended")


def drop(
    context: Context,
    queue: QueueName,
    force: Annotated[bool, typer.Option("--force", help="Even while consumers use it or hold messages.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a queue with its messages, settings and journal."""
    session = context.obj
    admin = session.admin
    counts = admin.counts(session.existing(queue))
    if not force:
        _refuse_while_used(session, queue, counts.leased)
    held = {state: getattr(counts, state.value) for state in State}
    total = sum(held.values())
    words = ", ".join(f"{count:,} {state.value}" for state, count in held.items() if count)
    question = f"Remove {queue} with {f'its {total:,} messages ({words})' if total else 'its settings'} for good?"
    session.confirm(question, yes=yes, needed=True)
    admin.drop(queue, force=force)
    if session.json:
        return session.emit({"queue": queue, "dropped": True, "messages": total})
    session.note(f"{queue} dropped, {total:,} messages with it")
    return None


def _refuse_while_used(session: Session, queue: str, leased: int) -> None:
    """Raises if the queue is in use: a consumer would create the queue again with its next receive."""
    if leased:
        raise MessageLeased(f"{queue} has {leased:,} leased messages: stop its consumers, or give --force")
    users = [consumer for consumer in session.admin.consumers() if queue in consumer.queues and is_running(consumer)]
    if users:
        names = ", ".join(consumer.name for consumer in users[:5])
        raise InUse(f"{queue} is consumed by {names}, seen within the last minute: stop them, or give --force")


def is_running(consumer: ConsumerInfo) -> bool:
    """Whether a consumer may still run; certain only for processes of this host."""
    pids = [consumer.pid, *(process.pid for process in consumer.processes)]
    return consumer.host != platform.node() or any(pid == 0 or _is_alive(pid) for pid in pids)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the process of another user: it runs
    return True


def pause(context: Context, queue: QueueName) -> None:
    """Stop all receives from a queue until it is resumed; sends still work."""
    context.obj.admin.pause(context.obj.existing(queue))
    _report_pause(context.obj, queue, "paused")


def resume(context: Context, queue: QueueName) -> None:
    """Allow receives from a paused queue again."""
    context.obj.admin.resume(context.obj.existing(queue))
    _report_pause(context.obj, queue, "resumed")


def _report_pause(session: Session, queue: str, event: str) -> None:
    if session.json:
        session.emit({"queue": queue, "paused": event == "paused"})
    session.note(f"{queue} {event}")


def move(
    context: Context,
    queue: QueueName,
    target: Annotated[str, typer.Argument(help="The queue to move to.", autocompletion=complete_queue)],
    ids: Ids,
    create: Create = False,
) -> None:
    """Move messages to another queue; leased messages stay."""
    session = context.obj
    count = session.admin.move(session.existing(queue), session.new_or_existing(target, create=create), ids)
    _report(session, "moved", queue, count, f"none of these messages of {queue} could be moved", target=target)


def edit(
    context: Context,
    queue: QueueName,
    id: Annotated[str, typer.Argument(help="The message's id.")],
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="The new payload.")] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=255, help="The new priority.")] = None,
    delay: Annotated[
        float | None, typer.Option(parser=parse_duration, metavar="TIME", help="Delay until the message is ready.")
    ] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="New headers; repeatable.")] = None,
) -> None:
    """Change a message that is not leased; options that are not given leave their part unchanged."""
    session = context.obj
    changes: dict[str, Any] = {"priority": priority, "delay": delay}
    if payload is not None:
        changes["payload"] = parse_json(payload, "the payload")
    if header:
        changes["headers"] = dict(parse_pair(text, "--header") for text in header)
    if all(value is None for value in changes.values()) and payload is None:
        raise WrongUsage("give what to change: --payload, --priority, --delay or --header")
    message = session.admin.edit(session.existing(queue), id, **changes)
    if session.json:
        return session.emit(render.message_dict(message))
    session.note(f"{id} edited, now {message.state.value}")
    return None


def configure(
    context: Context,
    queue: QueueName,
    pairs: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE…]", help="Settings; an empty value restores the default.")
    ] = None,
    create: Create = False,
) -> None:
    """Show or change a queue's settings. Changes apply to every client at once.

    For example: configure orders lease=2m max_attempts=8 retry=fixed:1,5,30 keep_done=1000 max_length=
    """
    session = context.obj
    if pairs:
        options = {name: _setting(name, value) for name, value in (parse_pair(text, "a setting") for text in pairs)}
        settings: QueueSettings = session.admin.configure(session.new_or_existing(queue, create=create), **options)
    else:
        settings = session.admin.counts(session.existing(queue)).settings
    if session.json:
        return session.emit({"queue": queue, "settings": settings.as_dict()})
    session.out.print(render.key_values(render.settings_rows(settings)))
    return None


def _setting(name: str, value: str) -> Any:
    """Converts a value to the type of its setting; core refuses unknown settings by name."""
    if value in ("", "none", "default"):
        return None
    if name in DURATIONS:
        return parse_duration(value)
    if name == "retry":
        return RetryPolicy.parse(value)
    if name == "rate":
        return _number(value, float)
    if name in ("durability", "journal"):
        return value
    return _number(value, int)


def _number(text: str, kind: type[int] | type[float]) -> Any:
    try:
        return kind(text)
    except ValueError:
        return text
