"""Commands of the event bus: publish, call, topics, and dead ls, show, replay; the same for Redis and RabbitMQ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from restante.cli import texts
from restante.cli.session import Context, Session, WrongUsage
from restante.core.embedded import DEFAULT_DIRECTORY, EMBEDDED, tell_private_server
from restante.core.errors import InvalidInput
from restante.core.stored import decode_json

if TYPE_CHECKING:
    from restante.bus.dead import DeadEvent
    from restante.bus.registry import HandlerInfo

Broker = Annotated[
    str | None,
    typer.Option("--broker", metavar="URL", help="restante:// or amqp://; else RESTANTE_BROKER, else the server."),
]
Service = Annotated[str, typer.Option("--service", "-s", help="The service whose events are meant.")]
OneSubscription = Annotated[str | None, typer.Option("--subscription", help="Only those of this subscription.")]
OneError = Annotated[str | None, typer.Option("--error-class", help="Only those that died of this error.")]

dead = typer.Typer(name="dead", no_args_is_help=True, help="Events that a service could not handle, on either broker.")


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    app.command("publish", rich_help_panel="Events")(publish)
    app.command("call", rich_help_panel="Events")(call)
    app.command("topics", rich_help_panel="Events")(topics)
    for name, command in (("ls", ls), ("show", show), ("replay", replay)):
        dead.command(name)(command)
    app.add_typer(dead, rich_help_panel="Events")


def _broker(session: Session, given: str | None) -> str:
    """The broker's URL; with none given, the server that all commands are for."""
    import os

    if found := given or os.environ.get("RESTANTE_BROKER"):
        return found
    named = session.url or (None if session.directory else os.environ.get("RESTANTE_URL"))
    if named and named != EMBEDDED:
        return named
    if not named and not session.directory:
        tell_private_server(Path(DEFAULT_DIRECTORY).absolute())
    return f"restante+embedded://{session.directory or DEFAULT_DIRECTORY}"


def _value(text: str) -> Any:
    try:
        return decode_json(text.encode())
    except ValueError as error:
        raise InvalidInput(f"the data is not JSON: {error}") from None


def _client(session: Session, broker: str | None) -> Any:
    try:
        from restante.bus.client import BusClient
    except ModuleNotFoundError as error:
        raise WrongUsage(f"the bus needs {error.name}: pip install 'restante[bus]'") from None
    return BusClient(_broker(session, broker), source="restante-cli")


def publish(
    context: Context,
    topic: Annotated[str, typer.Argument(help="Words parted by dots, such as shop.order.paid.")],
    data: Annotated[str, typer.Argument(help="The data as JSON.")] = "null",
    broker: Broker = None,
    delay: Annotated[float, typer.Option(help="Seconds it waits at the broker.")] = 0.0,
    id: Annotated[str | None, typer.Option(help="Its id; the same id again is the same event.")] = None,
    must_route: Annotated[bool, typer.Option("--must-route", help="Refuse it where nobody has subscribed.")] = False,
) -> None:
    """Publish an event to every service that has subscribed to its topic."""
    session = context.obj
    with _client(session, broker) as client:
        made = client.publish(topic, _value(data), delay=delay, id=id, unrouted="raise" if must_route else "keep")
    if session.json:
        return session.emit({"id": made.id, "subscriptions": made.subscriptions})
    count = made.subscriptions
    if count == 0:
        session.note(f"nobody has subscribed to {topic}: kept in events.unrouted")
    else:
        session.note(f"published to {'at least one' if count is None else count} subscription{'s' * (count != 1)}")
    session.out.print(made.id, markup=False)
    return None


def call(
    context: Context,
    topic: Annotated[str, typer.Argument(help="The call's topic.")],
    data: Annotated[str, typer.Argument(help="The data as JSON.")] = "null",
    broker: Broker = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 30.0,
    all: Annotated[bool, typer.Option("--all", help="Ask every service that answers, and show all answers.")] = False,
) -> None:
    """Call a service and show its answer."""
    session = context.obj
    with _client(session, broker) as client:
        if all:
            answers = client.call_all(topic, _value(data), timeout=timeout)
            value: Any = {
                name: {"outcome": one.outcome, "data": decode_json(one.text), "error": one.error}
                for name, one in answers.items()
            }
        else:
            value = client.call(topic, _value(data), timeout=timeout)
    if session.json:
        return session.emit(value)
    session.out.print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode(), markup=False, soft_wrap=True)
    return None


def topics(context: Context, broker: Broker = None) -> None:
    """List subscriptions and calls: who listens to what, and how much waits for them. With the URL of a RabbitMQ
    (--broker or RESTANTE_BROKER) also its queues, its archives and the rungs that hold messages."""
    from restante.bus.registry import registered_handlers

    session = context.obj
    url = _broker(session, broker)
    if url.startswith(("amqp://", "amqps://")):
        known = registered_handlers(session.post) if _has_store(session) else []
        rows, more = _rows_on_rabbitmq(url, known)
        rows += _rows_on_redis(session, [card for card in known if card.broker == "redis"])
    else:
        rows, more = _rows_on_redis(session, registered_handlers(session.post)), {}
    if session.json:
        return session.emit({"subscriptions": rows, **more})
    if not rows:
        session.nothing("nobody has subscribed to anything yet: start a service with `celery -A module worker`")
    made = texts.table("topic", "way", "service", "handler", "broker", "waiting", "dead")
    for row in sorted(rows, key=lambda row: (str(row["topic"]), str(row["service"]))):
        made.add_row(*(str(row[name]) for name in ("topic", "way", "service", "handler", "broker")),
                     _number(row["waiting"]), _number(row["dead"]))  # fmt: skip
    session.out.print(made)
    _show_rabbitmq(session, more)
    if not more and any(row["broker"] == "rabbitmq" for row in rows):
        session.note("? is on RabbitMQ: name it by --broker amqp://… or RESTANTE_BROKER to see its queues")
    return None


def _number(count: int | None) -> str:
    return "?" if count is None else str(count or "·")


def _has_store(session: Session) -> bool:
    """Whether a Redis was named; to ask an embedded one would make it."""
    import os

    return bool(session.url or os.environ.get("RESTANTE_URL"))


def _rows_on_redis(session: Session, cards: list[HandlerInfo]) -> list[dict[str, Any]]:
    from restante.core.inspector import Inspector

    if not cards:
        return []
    counts = {one.queue: one for one in Inspector(session.post).all_counts()}
    rows = []
    for card in cards:
        row = _row(card)
        if card.broker == "redis":
            found = counts.get(card.queue)
            row |= {"waiting": found.waiting if found else 0, "dead": found.dead if found else 0}
        rows.append(row)
    return rows


def _rows_on_rabbitmq(url: str, known: list[HandlerInfo]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Its subscriptions, its archives and its rungs."""
    try:
        from restante.bus.inventory import take_inventory
    except ModuleNotFoundError as error:
        raise WrongUsage(f"RabbitMQ needs {error.name}: pip install 'restante[rabbitmq]'") from None
    found = take_inventory(url, known)
    return [{**_row(card), "waiting": found.waiting_in(card.queue)} for card in found.handlers], {
        "archives": [
            {"service": one.service, "dead": one.messages, "limit": one.limit, "nearly_full": one.nearly_full}
            for one in found.archives
        ],
        "rungs": [{"queue": one.queue, "seconds": one.seconds, "messages": one.messages} for one in found.rungs],
        "unrouted": found.unrouted,
    }  # fmt: skip


def _row(card: HandlerInfo) -> dict[str, Any]:
    """On RabbitMQ the dead of a service lie together in its archive."""
    return {
        "topic": card.answers or card.topic, "way": "call" if card.answers else "event", "service": card.service,
        "handler": card.handler, "broker": card.broker, "queue": card.queue, "waiting": None, "dead": None,
    }  # fmt: skip


def _show_rabbitmq(session: Session, more: dict[str, Any]) -> None:
    if not more:
        return
    archives = texts.table("archive of", "dead", "limit", "full")
    for one in more["archives"]:
        dead, limit = one["dead"], one["limit"]
        share = f"{dead / limit:.0%}" if dead is not None and limit else "?"
        archives.add_row(
            one["service"], _number(dead), _number(limit), f"{share} nearly full" if one["nearly_full"] else share
        )
    session.out.print(archives)
    held = [one for one in more["rungs"] if one["messages"]]
    if held:
        rungs = texts.table("rung", "holds", "messages")
        for one in held:
            rungs.add_row(one["queue"], f"{one['seconds']:g} s", str(one["messages"]))
        session.out.print(rungs)
    session.note(
        f"{sum(one['messages'] for one in held)} messages on the {len(more['rungs'])} rungs of the ladder, "
        f"{more['unrouted']} unrouted"
    )


def ls(
    context: Context,
    service: Service,
    broker: Broker = None,
    subscription: OneSubscription = None,
    error_class: OneError = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")] = 100,
) -> None:
    """List the dead events of a service, the newest first on Redis, the oldest first on RabbitMQ."""
    from restante.bus.dead import DeadFilter, open_dead_letters

    session = context.obj
    with open_dead_letters(_broker(session, broker), service) as letters:
        found = letters.list(DeadFilter(None, subscription, error_class), limit)
    if session.json:
        return session.emit({"dead": [one.as_dict() for one in found]})
    if not found:
        session.nothing(f"{service} has no dead events")
    made = texts.table("id", "topic", "subscription", "attempts", "died", "error", "data")
    for one in found:
        died = f"{one.died_at:%Y-%m-%d %H:%M:%S}" if one.died_at else ""
        made.add_row(
            one.id, one.topic, one.subscription, str(one.attempts), died, one.error_class, texts.oneline(one.data, 60)
        )
    session.out.print(made)
    return None


def show(
    context: Context,
    id: Annotated[str, typer.Argument(help="The event's id.")],
    service: Service,
    broker: Broker = None,
) -> None:
    """Show a dead event whole: its data, and the error of its last attempt."""
    from restante.bus.dead import find_dead_event, open_dead_letters

    session = context.obj
    with open_dead_letters(_broker(session, broker), service) as letters:
        one: DeadEvent = find_dead_event(letters, id)
    if session.json:
        return session.emit(one.as_dict())
    for name, value in one.as_dict().items():
        if name not in ("error", "data"):
            session.out.print(f"{name:<13} {value}", markup=False)
    session.out.print(f"\n{one.data}\n", markup=False, soft_wrap=True)
    session.out.print(one.error, markup=False, soft_wrap=True)
    return None


def replay(
    context: Context,
    ids: Annotated[
        list[str] | None, typer.Argument(help="Only these events; all that fit where none is given.")
    ] = None,
    service: Service = "",
    broker: Broker = None,
    subscription: OneSubscription = None,
    error_class: OneError = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and put nothing back.")] = False,
) -> None:
    """Put dead events back to the service they died in, and to no other, with their attempts reset."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from restante.bus.dead import DeadFilter, open_dead_letters

    session = context.obj
    if not service:
        raise WrongUsage("name the service: --service billing")
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with (
        open_dead_letters(_broker(session, broker), service) as letters,
        Progress(*columns, console=session.err, transient=True, disable=session.json) as bar,
    ):
        shown = bar.add_task(f"replaying {service}")
        done = letters.replay(
            DeadFilter(ids or None, subscription, error_class), dry_run=dry_run,
            progress=lambda count: bar.update(shown, description=f"replaying {service}: {count}"),
        )  # fmt: skip
    if session.json:
        return session.emit({"replayed": done, "dry_run": dry_run})
    if not done:
        session.nothing(f"{service} has no dead events that fit")
    session.note(f"{'would put' if dry_run else 'put'} {done} event{'s' * (done != 1)} back to {service}")
    return None
