"""Commands for schedules: add, ls, show, pause, resume, run, rm."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from restante import RetryPolicy, Schedule
from restante.cli import render
from restante.cli.arguments import OptionalQueueName, QueueName, parse_duration, parse_json, parse_pair
from restante.cli.session import Context, Session, WrongUsage

schedule = typer.Typer(name="schedule", no_args_is_help=True, help="Schedules: messages sent at certain times.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
Ticks = Annotated[int, typer.Option("--ticks", "-n", min=0, max=100, help="How many of the next ticks to show.")]


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    named = (("add", add), ("ls", ls), ("show", show), ("pause", pause), ("resume", resume), ("run", run), ("rm", rm))
    for name, command in named:
        schedule.command(name)(command)
    app.add_typer(schedule, rich_help_panel="Operate")


def _instant(text: str | datetime) -> datetime:
    """An aware datetime from ISO text; without an offset it is of this machine's time zone."""
    try:
        return (text if isinstance(text, datetime) else datetime.fromisoformat(text)).astimezone()
    except ValueError:
        raise WrongUsage(f"not a time: {text!r}; write 2030-01-31T08:00:00+01:00 or 2030-01-31") from None


def add(
    context: Context,
    queue: QueueName,
    name: Name,
    cron: Annotated[
        str | None, typer.Argument(metavar="[CRON]", help="A cron expression such as '0 3 * * *' or @daily.")
    ] = None,
    payload: Annotated[str, typer.Option(metavar="JSON", help="The payload of each message.")] = "null",
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Tick at this interval instead: 30s, 5m, 1h30m, 1d.")
    ] = None,
    tz: Annotated[
        str | None, typer.Option(metavar="ZONE", help="The time zone, such as Europe/Berlin. Default: UTC.")
    ] = None,
    start: Annotated[
        datetime | None, typer.Option(parser=_instant, metavar="TIME", help="No tick before this time.")
    ] = None,
    end: Annotated[
        datetime | None, typer.Option(parser=_instant, metavar="TIME", help="No tick after this time.")
    ] = None,
    jitter: Annotated[
        str | None, typer.Option(metavar="TIME", help="Fire each tick up to this much later, the same for each tick.")
    ] = None,
    missed: Annotated[
        str | None, typer.Option(help="Ticks that passed while nothing ran: once (default), skip or all.")
    ] = None,
    no_overlap: Annotated[
        bool, typer.Option("--no-overlap", help="Pass over a tick while the message before is not settled.")
    ] = False,
    priority: Annotated[int, typer.Option(min=0, max=255, help="The priority of the messages.")] = 0,
    kind: Annotated[str, typer.Option(help="The kind of the messages.")] = "",
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header; repeatable.")] = None,
    lease: Annotated[
        float | None, typer.Option(parser=parse_duration, metavar="TIME", help="A lease for the messages.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(metavar="N", help="A limit of attempts.")] = None,
    retry: Annotated[str | None, typer.Option(metavar="POLICY", help="A retry policy: fixed:1,5,30 or …")] = None,
    timeout: Annotated[
        float | None, typer.Option(parser=parse_duration, metavar="TIME", help="A time limit for the handler.")
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the queue even if its name resembles another.")] = (
        False
    ),
) -> None:
    """Add a schedule, or change the one of that name: a message at each tick of a cron expression or an interval."""
    session = context.obj
    if (cron is None) == (every is None):
        raise WrongUsage("give a cron expression such as '0 3 * * *', or --every 5m")
    options: dict[str, Any] = {
        "tz": tz,
        "start": start,
        "end": end,
        "jitter": jitter,
        "missed": missed,
        "overlap": False if no_overlap else None,
        "priority": priority,
        "kind": kind,
        "headers": dict(parse_pair(text, "--header") for text in header or ()) or None,
        "lease": lease,
        "max_attempts": max_attempts,
        "retry": RetryPolicy.parse(retry) if retry else None,
        "timeout": timeout,
    }
    value = parse_json(payload, "the payload")
    session.new_or_existing(queue, create=create)
    stored = session.admin.add_schedule(queue, name, cron, every=every, payload=value, **options)
    _print(session, stored, 3)


def ls(context: Context, queue: OptionalQueueName = None) -> None:
    """List the schedules of a queue, or of all, the next to tick first."""
    session = context.obj
    if queue is not None:
        session.existing(queue)
    found = session.admin.schedules(queue)
    if session.json:
        session.emit({"schedules": [one.as_dict() for one in found]})
    elif found:
        session.out.print(_table(found))
    if not found:
        session.nothing(f"no schedules in {queue}" if queue else "no schedules")


def show(context: Context, queue: QueueName, name: Name, ticks: Ticks = 5) -> None:
    """Show a schedule and its next ticks, in local and in UTC time."""
    session = context.obj
    _print(session, session.admin.schedule(session.existing(queue), name), ticks)


def pause(context: Context, queue: QueueName, name: Name) -> None:
    """Pause a schedule: it does not tick until it is resumed."""
    session = context.obj
    stored = session.admin.pause_schedule(session.existing(queue), name)
    _done(session, stored, f"{name} is paused; resume it with: restante schedule resume {queue} {name}")


def resume(context: Context, queue: QueueName, name: Name) -> None:
    """End the pause of a schedule. Ticks that passed meanwhile are not made up for."""
    session = context.obj
    stored = session.admin.resume_schedule(session.existing(queue), name)
    _done(session, stored, f"{name} is {stored.status}; next tick: {_both(stored.next_at) or 'none'}")


def run(context: Context, queue: QueueName, name: Name) -> None:
    """Send the message of a schedule now, beside its ticks."""
    session = context.obj
    id = session.admin.run_schedule(session.existing(queue), name)
    if session.json:
        session.emit({"queue": queue, "schedule": name, "id": id})
    else:
        session.out.print(Text(id))


def rm(
    context: Context,
    queue: QueueName,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a schedule. Messages that it has sent stay."""
    session = context.obj
    session.existing(queue)
    session.confirm(f"Delete the schedule {name} of {queue}?", yes=yes, needed=False)
    session.admin.delete_schedule(queue, name)
    if session.json:
        session.emit({"queue": queue, "schedule": name, "deleted": True})
    session.note(f"{name} deleted")


def _done(session: Session, stored: Schedule, text: str) -> None:
    if session.json:
        session.emit(stored.as_dict())
    session.note(text)


def _both(at: datetime | None) -> str:
    """A time in this machine's zone and in UTC."""
    return f"{render.format_time(at)} ({at.astimezone(UTC):%H:%M:%S} UTC)" if at else ""


def _last(stored: Schedule) -> Text:
    if not stored.last_id:
        return Text("·", style="dim")
    return render.state_label(stored.last_state) if stored.last_state else Text("gone", style="dim")


def _table(found: list[Schedule]) -> RenderableType:
    grid = render.table(
        "queue", "name", "when", "zone", "next", "in", "last", "fired", right=("fired",), shrinking=("name",)
    )
    for one in found:
        left = (one.head.due_ms - one.now_ms) / 1000
        grid.add_row(
            one.queue,
            render.cell(one.name),
            one.timing.text,
            one.timing.tz if one.timing.cron else "",
            _both(one.next_at) or Text(one.status, style="dim"),
            render.format_duration(max(0.0, left)) if one.next_at else "",
            _last(one),
            f"{one.fired:,}",
        )
    return grid


def _print(session: Session, stored: Schedule, ticks: int) -> None:
    following = stored.next(ticks)
    if session.json:
        ticks_ = [at.isoformat() for at in following]
        return session.emit(stored.as_dict() | {"payload": _payload(stored), "ticks": ticks_})
    timing = stored.timing
    rows: dict[str, RenderableType] = {
        "schedule": f"{stored.name} of {stored.queue}",
        "when": timing.text + (f" in {timing.tz}" if timing.cron else ""),
        "status": stored.status,
        "missed": timing.missed + ("" if timing.overlap else ", no overlap"),
        "payload": render.cell(render.one_line(repr(_payload(stored)))),
        "last tick": Text.assemble(_both(stored.last_at) or "none", "  ", _last(stored)),
        "fired": f"{stored.fired:,}"
        + (f", {stored.skipped:,} passed over ({stored.head.why})" if stored.skipped else ""),
        "next ticks": "\n".join(_both(at) for at in following) or "none",
    }
    if timing.jitter_ms:
        rows["jitter"] = f"up to {render.format_duration(timing.jitter_ms / 1000)}"
    session.out.print(render.key_values(rows))
    return None


def _payload(stored: Schedule) -> Any:
    return f"{stored.stored.size} bytes" if isinstance(stored.payload, bytes) else stored.payload
