"""Commands for a service's exchanges and queues on RabbitMQ: topology, check, declare, clean, adopt-archive."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from restante.cli import render
from restante.cli.arguments import parse_duration
from restante.cli.session import Code, Context, WrongUsage
from restante.rabbitmq.ladder import RUNG_TYPES, RUNGS
from restante.rabbitmq.topology import Subscribed, Topology, TopologyOptions
from restante.rabbitmq.topology import topology as topology_of

rabbitmq = typer.Typer(
    name="rabbitmq",
    no_args_is_help=True,
    help="The exchanges and queues of a service on RabbitMQ: show, check, declare.",
)

Service = Annotated[str, typer.Option(metavar="NAME", help="The service.")]
Subscriptions = Annotated[
    list[str] | None,
    typer.Option("--subscription", "-s", metavar="HANDLER=PATTERN", help="on_paid=shop.order.paid; repeatable."),
]
Answers = Annotated[
    list[str] | None,
    typer.Option("--answer", "-a", metavar="TOPIC", help="The topic of a call that it answers; repeatable."),
]
QueueType = Annotated[str, typer.Option(metavar="TYPE", help="The type of subscription queues: classic or quorum.")]
Rungs = Annotated[str, typer.Option(metavar="TYPE", help="The type of the ladder's rungs: classic or quorum.")]
LongestDelay = Annotated[str, typer.Option(metavar="TIME", help="The longest delay of the ladder: 90s, 2h or 3d.")]
NoArchive = Annotated[bool, typer.Option("--no-archive", help="Do not keep dead messages.")]
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


def _topology(
    service: Service,
    subscription: Subscriptions = None,
    answer: Answers = None,
    queue_type: QueueType = "classic",
    rungs: Rungs = RUNGS,
    longest_delay: LongestDelay = "1d",
    no_archive: NoArchive = False,
) -> Topology:
    subscribed = []
    for text in subscription or ():
        handler, equals, pattern = text.partition("=")
        if not equals:
            raise WrongUsage(f"not a subscription: {text!r}; write --subscription on_paid=shop.order.paid")
        subscribed.append(Subscribed(handler, pattern))
    if queue_type not in ("classic", "quorum"):
        raise WrongUsage(f"--queue-type must be classic or quorum, not {queue_type!r}")
    if rungs not in RUNG_TYPES:
        raise WrongUsage(f"--rungs must be classic or quorum, not {rungs!r}")
    options = TopologyOptions(
        queue_type="quorum" if queue_type == "quorum" else "classic",
        rungs="quorum" if rungs == "quorum" else "classic",
        archive=not no_archive,
        longest_delay=parse_duration(longest_delay),
    )
    return topology_of(service, subscribed, answer or (), options=options)


def _with_topology(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `_topology` to a command, which gets the topology as `declared`.

    Typer knows no groups of options that several commands share: it reads them from the signature.
    """
    own = [one for one in inspect.signature(command, eval_str=True).parameters.values() if one.name != "declared"]
    shared = inspect.signature(_topology, eval_str=True).parameters

    @functools.wraps(command)
    def run(**given: Any) -> None:
        declared = _topology(**{name: given.pop(name) for name in shared})
        command(**given, declared=declared)

    together = inspect.Signature([*own, *shared.values()])
    run.__signature__ = together  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in together.parameters.values()}
    return run


@_with_topology
def topology(context: Context, declared: Topology) -> None:
    """Show the exchanges, queues and bindings of a service. Contacts no broker."""
    session = context.obj
    if session.json:
        return session.emit(declared.json())
    table = render.table("what", "name", "detail", shrinking=("detail",))
    for row in declared.rows():
        table.add_row(row.what, render.cell(row.name, "bold"), render.cell(row.detail))
    session.out.print(table)
    return None


@_with_topology
def check(context: Context, broker: Broker, declared: Topology) -> None:
    """Show what is missing on a broker, with exit code 1, and what earlier versions left there. Declares nothing."""
    session = context.obj
    with _connected(broker) as (connection, declaration):
        missing = declaration.verify(connection, declared)
        left = _leftovers(connection, declared.service)
    if session.json:
        session.emit({"missing": missing, "left_over": left})
    for name in () if session.json else missing:
        session.out.print(f"missing: {name}", markup=False, soft_wrap=True)
    _show_leftovers(session, left)
    if missing:
        session.note(f"{len(missing)} missing; declare them with restante rabbitmq declare")
        raise typer.Exit(Code.NOTHING)
    session.note(f"all {len(declared.exchanges)} exchanges and {len(declared.queues)} queues exist")


@_with_topology
def declare(context: Context, broker: Broker, declared: Topology) -> None:
    """Declare what a service needs on a broker. Exit code 4 if an existing exchange or queue is different."""
    session = context.obj
    with _connected(broker) as (connection, declaration):
        declaration.declare(connection, declared)
        left = _leftovers(connection, declared.service)
    counts = {"exchanges": len(declared.exchanges), "queues": len(declared.queues), "bindings": len(declared.bindings)}
    if session.json:
        return session.emit({"declared": counts, "left_over": left})
    session.note("declared " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    _show_leftovers(session, left)
    return None


def adopt(
    context: Context,
    broker: Annotated[str, typer.Option(metavar="URL", help="The broker of the service: amqp://… or restante://…")],
    service: Service,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="The broker of the old archive. Default: --broker.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="The old archive. Default: SERVICE:archived.")
    ] = None,
    handler: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC=HANDLER", help="The handler of a topic, if not order.paid=order-paid; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")] = False,
) -> None:
    """Move the archive of celery-amqp-events to a service: into its archive, or on Redis to its handlers."""
    session = context.obj
    named = {}
    for text in handler or ():
        topic, equals, name = text.partition("=")
        if not equals or not name:
            raise WrongUsage(f"not a handler: {text!r}; write --handler order.paid=on_paid")
        named[topic] = name
    try:
        from restante.bus.adoption import adopt as adopt_archive
    except ModuleNotFoundError as error:
        raise WrongUsage(f"the bus needs {error.name}: pip install 'restante[bus,rabbitmq]'") from None
    adoption = adopt_archive(source or broker, service, queue=queue, to=broker, handlers=named, dry_run=dry_run)
    if session.json:
        return session.emit({**asdict(adoption), "dry_run": dry_run})
    if adoption.unreadable:
        several = adoption.unreadable != 1
        session.note(
            f"{adoption.unreadable} message{'s are' if several else ' is'} not of celery-amqp-events and "
            f"stay{'' if several else 's'} in the old archive"
        )
    if not adoption.adopted:
        session.nothing("there are no messages to adopt")
    already = f", {adoption.known} of them already here" if adoption.known else ""
    session.note(
        f"{'would adopt' if dry_run else 'adopted'} {adoption.adopted} event{'s' * (adoption.adopted != 1)}{already}"
    )
    return None


def clean(
    context: Context,
    broker: Broker,
    service: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="A service whose processes all run this version; repeatable."),
    ],
    rungs: Rungs = RUNGS,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what is left over, and remove nothing.")] = False,
) -> None:
    """Remove the ladders that earlier versions declared per service, once they are empty. Exit code 1 while they still
    hold messages: then nothing is removed from them; run it again later."""
    session = context.obj
    if rungs not in RUNG_TYPES:
        raise WrongUsage(f"--rungs must be classic or quorum, not {rungs!r}")
    with _connected(broker) as (connection, _):
        from restante.rabbitmq import leftovers

        removed: list[leftovers.Leftover] = []
        if dry_run:
            kept = leftovers.find(connection, service)
        else:
            removed, kept = leftovers.remove(connection, service, "quorum" if rungs == "quorum" else "classic")
    if session.json:
        session.emit({"removed": [rung.text() for rung in removed], "kept": [rung.text() for rung in kept]})
    else:
        for word, some in (("removed", removed), ("kept", kept)):
            for rung in some:
                session.out.print(f"{word}: {rung.text()}", markup=False, soft_wrap=True)
    if kept and not dry_run:
        session.note("these rungs still hold messages; run it again later")
        raise typer.Exit(Code.NOTHING)
    if not removed and not kept:
        session.note("earlier versions left nothing behind")


def _leftovers(connection: Any, service: str) -> list[str]:
    from restante.rabbitmq import leftovers

    return [leftover.text() for leftover in leftovers.find(connection, [service])]


def _show_leftovers(session: Any, left: list[str]) -> None:
    if session.json or not left:
        return
    for name in left:
        session.out.print(f"left over: {name}", markup=False, soft_wrap=True)
    session.note(
        f"{len(left)} left of an earlier version; remove them with restante rabbitmq clean once no process runs it"
    )


@contextmanager
def _connected(broker: str) -> Iterator[tuple[Any, Any]]:
    """A connection to a broker, and the module `declaration`, which is imported only if Kombu is installed."""
    if not broker.startswith(("amqp://", "amqps://")):
        raise WrongUsage("--broker must be a URL such as amqp://guest:guest@localhost:5672//")
    try:
        from kombu import Connection

        from restante.rabbitmq import declaration
    except ModuleNotFoundError as error:
        raise WrongUsage(f"RabbitMQ needs {error.name}: pip install 'restante[rabbitmq]'") from None
    with Connection(broker) as connection:
        yield connection, declaration
