"""Commands for what a service needs on RabbitMQ: rabbitmq topology, check, declare, clean, adopt-archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from restante.cli import texts
from restante.cli.session import Code, Context, WrongUsage
from restante.rabbitmq.ladder import RUNG_TYPES, RUNGS
from restante.rabbitmq.topology import Subscribed, Topology, TopologyOptions
from restante.rabbitmq.topology import topology as topology_of

rabbitmq = typer.Typer(
    name="rabbitmq", no_args_is_help=True, help="What a service needs on RabbitMQ: see it, check it, declare it."
)

Service = Annotated[str, typer.Option(metavar="NAME", help="The service.")]
Subscriptions = Annotated[
    list[str] | None,
    typer.Option(
        "--subscription", "-s", metavar="HANDLER=PATTERN", help="on_paid=shop.order.paid; may be given several times."
    ),
]
Answers = Annotated[
    list[str] | None,
    typer.Option("--answer", "-a", metavar="TOPIC", help="A call it answers; may be given several times."),
]
QueueType = Annotated[str, typer.Option(metavar="TYPE", help="Of subscription queues: classic or quorum.")]
Rungs = Annotated[str, typer.Option(metavar="TYPE", help="Of the ladder's rungs: classic or quorum.")]
LongestDelay = Annotated[str, typer.Option(metavar="TIME", help="How far the ladder reaches, 90s, 2h or 3d.")]
NoArchive = Annotated[bool, typer.Option("--no-archive", help="Dead messages are not kept.")]
Broker = Annotated[str, typer.Option(metavar="URL", help="The broker: amqp://user:password@host:5672//.")]


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    commands: dict[str, Callable[..., None]] = {
        "topology": topology,
        "check": check,
        "declare": declare,
        "clean": clean,
        "adopt-archive": adopt,
    }
    for name, command in commands.items():
        rabbitmq.command(name)(command)
    app.add_typer(rabbitmq, rich_help_panel="Operate")


def topology(
    context: Context,
    service: Service,
    subscription: Subscriptions = None,
    answer: Answers = None,
    queue_type: QueueType = "classic",
    rungs: Rungs = RUNGS,
    longest_delay: LongestDelay = "1d",
    no_archive: NoArchive = False,
) -> None:
    """Show the exchanges, queues and bindings of a service. Asks no broker."""
    session = context.obj
    made = _made(service, subscription, answer, queue_type, rungs, longest_delay, no_archive)
    if session.json:
        return session.emit(made.json())
    table = texts.table("what", "name", "detail", shrinking=("detail",))
    for row in made.rows():
        table.add_row(row.what, texts.cell(row.name, "bold"), texts.cell(row.detail))
    session.out.print(table)
    return None


def check(
    context: Context,
    broker: Broker,
    service: Service,
    subscription: Subscriptions = None,
    answer: Answers = None,
    queue_type: QueueType = "classic",
    rungs: Rungs = RUNGS,
    longest_delay: LongestDelay = "1d",
    no_archive: NoArchive = False,
) -> None:
    """Name what is missing on a broker, with code 1, and what earlier versions left there. Declares nothing."""
    session = context.obj
    made = _made(service, subscription, answer, queue_type, rungs, longest_delay, no_archive)
    with _connected(broker) as (connection, declaration):
        missing = declaration.verify(connection, made)
        left = _leftovers(connection, service)
    if session.json:
        session.emit({"missing": missing, "left_over": left})
    for name in () if session.json else missing:
        session.out.print(f"missing: {name}", markup=False, soft_wrap=True)
    _tell(session, left)
    if missing:
        session.note(f"{len(missing)} missing; restante rabbitmq declare makes them")
        raise typer.Exit(Code.NOTHING)
    session.note(f"all {len(made.exchanges)} exchanges and {len(made.queues)} queues are there")


def declare(
    context: Context,
    broker: Broker,
    service: Service,
    subscription: Subscriptions = None,
    answer: Answers = None,
    queue_type: QueueType = "classic",
    rungs: Rungs = RUNGS,
    longest_delay: LongestDelay = "1d",
    no_archive: NoArchive = False,
) -> None:
    """Declare what a service needs on a broker; what is there already must be the same, or it ends with code 4."""
    session = context.obj
    made = _made(service, subscription, answer, queue_type, rungs, longest_delay, no_archive)
    with _connected(broker) as (connection, declaration):
        declaration.declare(connection, made)
        left = _leftovers(connection, service)
    told = {"exchanges": len(made.exchanges), "queues": len(made.queues), "bindings": len(made.bindings)}
    if session.json:
        return session.emit({"declared": told, "left_over": left})
    session.note("declared " + ", ".join(f"{count} {name}" for name, count in told.items()))
    _tell(session, left)
    return None


def adopt(
    context: Context,
    broker: Annotated[str, typer.Option(metavar="URL", help="The broker of the service: amqp://… or restante://….")],
    service: Service,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="The broker of the old archive; else --broker.")
    ] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="The old archive; else SERVICE:archived.")] = None,
    handler: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC=HANDLER", help="Whom a topic is for, if not order.paid=order-paid; several times."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and move nothing.")] = False,
) -> None:
    """Move what lies in the archive of celery-amqp-events to a service: into its archive, on Redis to its handlers."""
    session = context.obj
    named = {}
    for text in handler or ():
        topic, equals, name = text.partition("=")
        if not equals or not name:
            raise WrongUsage(f"not a handler: {text!r}; write --handler order.paid=on_paid")
        named[topic] = name
    try:
        from restante.bus.adoption import adopt as moved
    except ModuleNotFoundError as error:
        raise WrongUsage(f"the bus needs {error.name}: pip install 'restante[bus,rabbitmq]'") from None
    made = moved(source or broker, service, queue=queue, to=broker, handlers=named, dry_run=dry_run)
    if session.json:
        return session.emit({**asdict(made), "dry_run": dry_run})
    if made.unreadable:
        several = made.unreadable != 1
        session.note(
            f"{made.unreadable} message{'s are' if several else ' is'} not of celery-amqp-events and "
            f"stay{'' if several else 's'} in the old archive"
        )
    if not made.adopted:
        session.nothing("there is nothing to adopt")
    already = f", {made.known} of them already here" if made.known else ""
    session.note(f"{'would adopt' if dry_run else 'adopted'} {made.adopted} event{'s' * (made.adopted != 1)}{already}")
    return None


def clean(
    context: Context,
    broker: Broker,
    service: Annotated[
        list[str],
        typer.Option(
            metavar="NAME", help="A service whose processes all run this version; may be given several times."
        ),
    ],
    rungs: Rungs = RUNGS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Name what is left over, and remove nothing.")] = False,
) -> None:
    """Remove the ladders that earlier versions made per service, once they are empty. Ends with code 1 while messages
    are still on their way back: nothing of theirs is removed; run it again later."""
    session = context.obj
    if rungs not in RUNG_TYPES:
        raise WrongUsage(f"--rungs is classic or quorum, not {rungs!r}")
    with _connected(broker) as (connection, _):
        from restante.rabbitmq import leftovers

        removed: list[leftovers.Leftover] = []
        if dry_run:
            kept = leftovers.find(connection, service)
        else:
            removed, kept = leftovers.remove(connection, service, "quorum" if rungs == "quorum" else "classic")
    if session.json:
        session.emit({"removed": [one.text() for one in removed], "kept": [one.text() for one in kept]})
    else:
        for word, some in (("removed", removed), ("kept", kept)):
            for one in some:
                session.out.print(f"{word}: {one.text()}", markup=False, soft_wrap=True)
    if kept and not dry_run:
        session.note("messages are on their way back by these rungs; run it again later")
        raise typer.Exit(Code.NOTHING)
    if not removed and not kept:
        session.note("nothing is left of earlier versions")


def _leftovers(connection: Any, service: str) -> list[str]:
    from restante.rabbitmq import leftovers

    return [one.text() for one in leftovers.find(connection, [service])]


def _tell(session: Any, left: list[str]) -> None:
    if session.json or not left:
        return
    for name in left:
        session.out.print(f"left over: {name}", markup=False, soft_wrap=True)
    session.note(
        f"{len(left)} left of an earlier version; restante rabbitmq clean removes them once no process runs it"
    )


def _made(
    service: str,
    subscription: list[str] | None,
    answer: list[str] | None,
    queue_type: str,
    rungs: str,
    longest_delay: str,
    no_archive: bool,
) -> Topology:
    subscribed = []
    for text in subscription or ():
        handler, equals, pattern = text.partition("=")
        if not equals:
            raise WrongUsage(f"not a subscription: {text!r}; write --subscription on_paid=shop.order.paid")
        subscribed.append(Subscribed(handler, pattern))
    if queue_type not in ("classic", "quorum"):
        raise WrongUsage(f"--queue-type is classic or quorum, not {queue_type!r}")
    if rungs not in RUNG_TYPES:
        raise WrongUsage(f"--rungs is classic or quorum, not {rungs!r}")
    options = TopologyOptions(
        queue_type="quorum" if queue_type == "quorum" else "classic",
        rungs="quorum" if rungs == "quorum" else "classic",
        archive=not no_archive,
        longest_delay=texts.duration(longest_delay),
    )
    return topology_of(service, subscribed, answer or (), options=options)


@contextmanager
def _connected(broker: str) -> Iterator[tuple[Any, Any]]:
    """A connection, and the module that speaks to it, which is imported only where Kombu is installed."""
    if not broker.startswith(("amqp://", "amqps://")):
        raise WrongUsage("--broker is a URL such as amqp://guest:guest@localhost:5672//")
    try:
        from kombu import Connection

        from restante.rabbitmq import declaration
    except ModuleNotFoundError as error:
        raise WrongUsage(f"RabbitMQ needs {error.name}: pip install 'restante[rabbitmq]'") from None
    with Connection(broker) as connection:
        yield connection, declaration
