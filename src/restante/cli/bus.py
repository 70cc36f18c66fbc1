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
        from restante.bus.client import Client
    except ModuleNotFoundError as error:
        raise WrongUsage(f"the bus needs {error.name}: pip install 'restante[bus]'") from None
    return Client(_broker(session, broker), source="restante-cli")


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
        made = client.publish(topic, _value(data), delay=delay, id=id, nobody="raise" if must_route else "keep")
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


def topics(context: Context) -> None:
    """List subscriptions and calls: who listens to what, and how much waits for them."""
    from restante.bus.registry import cards
    from restante.core.viewing import Viewer

    session = context.obj
    counts = {one.queue: one for one in Viewer(session.post).all_counts()}
    found = cards(session.post)
    rows = [
        {
            "topic": card.answers or card.topic, "way": "call" if card.answers else "event", "service": card.service,
            "handler": card.handler, "broker": card.broker, "queue": card.queue,
            "waiting": counts[card.queue].waiting if card.queue in counts else 0,
            "dead": counts[card.queue].dead if card.queue in counts else 0,
        }
        for card in found
    ]  # fmt: skip
    if session.json:
        return session.emit({"subscriptions": rows})
    if not rows:
        session.nothing("nobody has subscribed to anything yet: start a service with `celery -A module worker`")
    made = texts.table("topic", "way", "service", "handler", "broker", "waiting", "dead")
    for row in sorted(rows, key=lambda row: (str(row["topic"]), str(row["service"]))):
        far = row["broker"] == "rabbitmq"
        made.add_row(
            str(row["topic"]), str(row["way"]), str(row["service"]), str(row["handler"]), str(row["broker"]),
            "·" if far else str(row["waiting"] or "·"), "·" if far else str(row["dead"] or "·"),
        )  # fmt: skip
    session.out.print(made)
    return None


def ls(
    context: Context,
    service: Service,
    broker: Broker = None,
    subscription: OneSubscription = None,
    error_class: OneError = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")] = 100,
) -> None:
    """List the dead events of a service, the newest first on Redis, the oldest first on RabbitMQ."""
    from restante.bus.dead import Choice, opened

    session = context.obj
    with opened(_broker(session, broker), service) as letters:
        found = letters.list(Choice(None, subscription, error_class), limit)
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
    from restante.bus.dead import found, opened

    session = context.obj
    with opened(_broker(session, broker), service) as letters:
        one: DeadEvent = found(letters, id)
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

    from restante.bus.dead import Choice, opened

    session = context.obj
    if not service:
        raise WrongUsage("name the service: --service billing")
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with (
        opened(_broker(session, broker), service) as letters,
        Progress(*columns, console=session.err, transient=True, disable=session.json) as bar,
    ):
        shown = bar.add_task(f"replaying {service}")
        done = letters.replay(
            Choice(ids or None, subscription, error_class), dry_run=dry_run,
            progress=lambda count: bar.update(shown, description=f"replaying {service}: {count}"),
        )  # fmt: skip
    if session.json:
        return session.emit({"replayed": done, "dry_run": dry_run})
    if not done:
        session.nothing(f"{service} has no dead events that fit")
    session.note(f"{'would put' if dry_run else 'put'} {done} event{'s' * (done != 1)} back to {service}")
    return None
