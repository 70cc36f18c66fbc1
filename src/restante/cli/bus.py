"""Commands of the event bus, for Redis and RabbitMQ alike: publish, call, topics, and dead ls, show, replay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from restante.cli import render
from restante.cli.session import Context, Session, WrongUsage
from restante.core.embedded import DEFAULT_DIRECTORY, EMBEDDED, tell_private_server
from restante.core.errors import InvalidInput
from restante.core.stored import decode_json

if TYPE_CHECKING:
    from restante.bus.dead import DeadEvent
    from restante.bus.registry import HandlerInfo

Broker = Annotated[
    str | None,
    typer.Option("--broker", metavar="URL", help="restante:// or amqp://. Default: RESTANTE_BROKER, else the server."),
]
Data = Annotated[str, typer.Argument(help="The data as JSON.")]
Service = Annotated[str, typer.Option("--service", "-s", help="The service.")]
OneSubscription = Annotated[str | None, typer.Option("--subscription", help="Only events of this subscription.")]
OneError = Annotated[str | None, typer.Option("--error-class", help="Only events that died of this error.")]

dead = typer.Typer(name="dead", no_args_is_help=True, help="Events that a service could not handle, on either broker.")


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    app.command("publish", rich_help_panel="Events")(publish)
    app.command("call", rich_help_panel="Events")(call)
    app.command("topics", rich_help_panel="Events")(topics)
    for name, command in (("ls", ls), ("show", show), ("replay", replay)):
        dead.command(name)(command)
    app.add_typer(dead, rich_help_panel="Events")


def _broker_url(session: Session, given: str | None) -> str:
    """The URL of the broker. Default: RESTANTE_BROKER, else the server of the global options."""
    import os

    if url := given or os.environ.get("RESTANTE_BROKER"):
        return url
    named = session.url or (None if session.directory else os.environ.get("RESTANTE_URL"))
    if named and named != EMBEDDED:
        return named
    if not named and not session.directory:
        tell_private_server(Path(DEFAULT_DIRECTORY).absolute())
    return f"restante+embedded://{session.directory or DEFAULT_DIRECTORY}"


def _parse_data(text: str) -> Any:
    try:
        return decode_json(text.encode())
    except ValueError as error:
        raise InvalidInput(f"the data is not JSON: {error}") from None


def _client(session: Session, broker: str | None) -> Any:
    try:
        from restante.bus.client import BusClient
    except ModuleNotFoundError as error:
        raise WrongUsage(f"the bus needs {error.name}: pip install 'restante[bus]'") from None
    return BusClient(_broker_url(session, broker), source="restante-cli")


def publish(
    context: Context,
    topic: Annotated[str, typer.Argument(help="Words separated by dots, such as shop.order.paid.")],
    data: Data = "null",
    broker: Broker = None,
    delay: Annotated[float, typer.Option(help="Seconds that the broker holds the event.")] = 0.0,
    id: Annotated[str | None, typer.Option(help="The event id; publishing the same id again stores nothing.")] = None,
    must_route: Annotated[
        bool, typer.Option("--must-route", help="Refuse the event if it has no subscription.")
    ] = False,
) -> None:
    """Publish an event to every service that subscribes to its topic."""
    session = context.obj
    with _client(session, broker) as client:
        event = client.publish(topic, _parse_data(data), delay=delay, id=id, unrouted="raise" if must_route else "keep")
    if session.json:
        return session.emit({"id": event.id, "subscriptions": event.subscriptions})
    count = event.subscriptions
    if count == 0:
        session.note(f"no service subscribes to {topic}: kept in events.unrouted")
    else:
        session.note(f"published to {'at least one' if count is None else count} subscription{'s' * (count != 1)}")
    session.out.print(event.id, markup=False)
    return None


def call(
    context: Context,
    topic: Annotated[str, typer.Argument(help="The call's topic.")],
    data: Data = "null",
    broker: Broker = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the reply.")] = 30.0,
    all: Annotated[bool, typer.Option("--all", help="Call every service that answers, and show all replies.")] = False,
) -> None:
    """Call a service and show its reply."""
    session = context.obj
    with _client(session, broker) as client:
        if all:
            answers = client.call_all(topic, _parse_data(data), timeout=timeout)
            value: Any = {
                name: {"outcome": answer.outcome, "data": decode_json(answer.text), "error": answer.error}
                for name, answer in answers.items()
            }
        else:
            value = client.call(topic, _parse_data(data), timeout=timeout)
    if session.json:
        return session.emit(value)
    session.out.print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode(), markup=False, soft_wrap=True)
    return None


def topics(context: Context, broker: Broker = None) -> None:
    """List subscriptions and calls, with their counts of waiting and dead messages. With the URL of a RabbitMQ
    (--broker or RESTANTE_BROKER) also its queues, its archives and the rungs that hold messages."""
    from restante.bus.registry import registered_handlers

    session = context.obj
    url = _broker_url(session, broker)
    if url.startswith(("amqp://", "amqps://")):
        known = registered_handlers(session.post) if _has_store(session) else []
        rows, more = _rows_on_rabbitmq(url, known)
        rows += _rows_on_redis(session, [card for card in known if card.broker == "redis"])
    else:
        rows, more = _rows_on_redis(session, registered_handlers(session.post)), {}
    if session.json:
        return session.emit({"subscriptions": rows, **more})
    if not rows:
        session.nothing("no service has subscribed yet: start a service with `celery -A module worker`")
    table = render.table("topic", "way", "service", "handler", "broker", "waiting", "dead")
    for row in sorted(rows, key=lambda row: (str(row["topic"]), str(row["service"]))):
        table.add_row(
            *(str(row[name]) for name in ("topic", "way", "service", "handler", "broker")),
            _number(row["waiting"]),
            _number(row["dead"]),
        )
    session.out.print(table)
    _show_rabbitmq(session, more)
    if not more and any(row["broker"] == "rabbitmq" for row in rows):
        session.note("? is on RabbitMQ: give --broker amqp://… or RESTANTE_BROKER to see its queues")
    return None


def _number(count: int | None) -> str:
    return "?" if count is None else str(count or "·")


def _has_store(session: Session) -> bool:
    """Whether a Redis server was named; a query to an embedded server would create it."""
    import os

    return bool(session.url or os.environ.get("RESTANTE_URL"))


def _rows_on_redis(session: Session, cards: list[HandlerInfo]) -> list[dict[str, Any]]:
    from restante.core.inspector import Inspector

    if not cards:
        return []
    counts = {row.queue: row for row in Inspector(session.post).all_counts()}
    rows = []
    for card in cards:
        row = _row(card)
        if card.broker == "redis":
            queue = counts.get(card.queue)
            row |= {"waiting": queue.waiting if queue else 0, "dead": queue.dead if queue else 0}
        rows.append(row)
    return rows


def _rows_on_rabbitmq(url: str, known: list[HandlerInfo]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Reads the subscriptions, archives and rungs of a RabbitMQ."""
    try:
        from restante.bus.inventory import take_inventory
    except ModuleNotFoundError as error:
        raise WrongUsage(f"RabbitMQ needs {error.name}: pip install 'restante[rabbitmq]'") from None
    inventory = take_inventory(url, known)
    return [{**_row(card), "waiting": inventory.waiting_in(card.queue)} for card in inventory.handlers], {
        "archives": [
            {
                "service": archive.service,
                "dead": archive.messages,
                "limit": archive.limit,
                "nearly_full": archive.nearly_full,
            }
            for archive in inventory.archives
        ],
        "rungs": [
            {"queue": rung.queue, "seconds": rung.seconds, "messages": rung.messages} for rung in inventory.rungs
        ],
        "unrouted": inventory.unrouted,
    }


def _row(card: HandlerInfo) -> dict[str, Any]:
    """The row of a subscription without counts. On RabbitMQ an archive holds all dead events of a service."""
    return {
        "topic": card.answers or card.topic,
        "way": "call" if card.answers else "event",
        "service": card.service,
        "handler": card.handler,
        "broker": card.broker,
        "queue": card.queue,
        "waiting": None,
        "dead": None,
    }


def _show_rabbitmq(session: Session, more: dict[str, Any]) -> None:
    if not more:
        return
    archives = render.table("archive of", "dead", "limit", "full")
    for archive in more["archives"]:
        dead, limit = archive["dead"], archive["limit"]
        share = f"{dead / limit:.0%}" if dead is not None and limit else "?"
        archives.add_row(
            archive["service"],
            _number(dead),
            _number(limit),
            f"{share} nearly full" if archive["nearly_full"] else share,
        )
    session.out.print(archives)
    held = [rung for rung in more["rungs"] if rung["messages"]]
    if held:
        rungs = render.table("rung", "holds", "messages")
        for rung in held:
            rungs.add_row(rung["queue"], f"{rung['seconds']:g} s", str(rung["messages"]))
        session.out.print(rungs)
    session.note(
        f"{sum(rung['messages'] for rung in held)} messages on the {len(more['rungs'])} rungs of the ladder, "
        f"{more['unrouted']} unrouted"
    )


def ls(
    context: Context,
    service: Service,
    broker: Broker = None,
    subscription: OneSubscription = None,
    error_class: OneError = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The most events to show.")] = 100,
) -> None:
    """List the dead events of a service: newest first on Redis, oldest first on RabbitMQ."""
    from restante.bus.dead import DeadFilter, open_dead_letters

    session = context.obj
    with open_dead_letters(_broker_url(session, broker), service) as letters:
        events = letters.list(DeadFilter(None, subscription, error_class), limit)
    if session.json:
        return session.emit({"dead": [event.as_dict() for event in events]})
    if not events:
        session.nothing(f"{service} has no dead events")
    table = render.table("id", "topic", "subscription", "attempts", "died", "error", "data")
    for event in events:
        died = f"{event.died_at:%Y-%m-%d %H:%M:%S}" if event.died_at else ""
        table.add_row(
            event.id,
            event.topic,
            event.subscription,
            str(event.attempts),
            died,
            event.error_class,
            render.one_line(event.data, 60),
        )
    session.out.print(table)
    return None


def show(
    context: Context,
    id: Annotated[str, typer.Argument(help="The event's id.")],
    service: Service,
    broker: Broker = None,
) -> None:
    """Show a dead event with its data and the error of its last attempt."""
    from restante.bus.dead import find_dead_event, open_dead_letters

    session = context.obj
    with open_dead_letters(_broker_url(session, broker), service) as letters:
        event: DeadEvent = find_dead_event(letters, id)
    if session.json:
        return session.emit(event.as_dict())
    for name, value in event.as_dict().items():
        if name not in ("error", "data"):
            session.out.print(f"{name:<13} {value}", markup=False)
    session.out.print(f"\n{event.data}\n", markup=False, soft_wrap=True)
    session.out.print(event.error, markup=False, soft_wrap=True)
    return None


def replay(
    context: Context,
    ids: Annotated[list[str] | None, typer.Argument(help="Only these events. Default: all that match.")] = None,
    service: Service = "",
    broker: Broker = None,
    subscription: OneSubscription = None,
    error_class: OneError = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the events.")] = False,
) -> None:
    """Send dead events again, only to the service they died in, with their attempts reset."""
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from restante.bus.dead import DeadFilter, open_dead_letters

    session = context.obj
    if not service:
        raise WrongUsage("give the service: --service billing")
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with (
        open_dead_letters(_broker_url(session, broker), service) as letters,
        Progress(*columns, console=session.err, transient=True, disable=session.json) as bar,
    ):
        shown = bar.add_task(f"replaying {service}")
        done = letters.replay(
            DeadFilter(ids or None, subscription, error_class),
            dry_run=dry_run,
            progress=lambda count: bar.update(shown, description=f"replaying {service}: {count}"),
        )
    if session.json:
        return session.emit({"replayed": done, "dry_run": dry_run})
    if not done:
        session.nothing(f"{service} has no dead events that match")
    session.note(f"{'would replay' if dry_run else 'replayed'} {done} event{'s' * (done != 1)} to {service}")
    return None
