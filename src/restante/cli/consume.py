"""The command that runs handlers: `restante consume`, in its own process or in several that it supervises.

On failure: what is wrong at the start ends the command with its error. Later, one process ends with the error of its
consumer; several are restarted, see `restante.core.supervisor`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import restante
from restante import Admin, Client, Consumer, InvalidInput, Queue, RestanteError
from restante.aio import AsyncClient, AsyncQueue
from restante.cli.arguments import parse_duration, parse_size
from restante.cli.json_log import JsonLines
from restante.cli.session import QUICK, Context, Session, WrongUsage
from restante.core.consume import stopping_by_signal
from restante.core.hooks import QueueHooks
from restante.core.keywords import LISTED, nearest
from restante.core.operations import MAX_BATCH
from restante.core.queue import queues_with
from restante.core.task import AnyTask

#: Log lines: time, level, and a verb with key=value.
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
#: The same where several processes write to one place.
LOG_FORMAT_OF_MANY = "%(asctime)s %(levelname)s [%(process)d] %(message)s"
#: The most child processes of one command; more is a slip.
MAX_PROCESSES = 1000


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(rich_help_panel="Send and receive")(consume)


@dataclass(frozen=True, slots=True)
class Consuming:
    """What a process consumes, and how."""

    names: list[str]
    concurrency: int
    prefetch: int
    grace: float
    stop_when_empty: bool
    json: bool


def consume(
    context: Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:QUEUE…", help="Queues, tasks or handlers, or modules: all their queues with handlers."
        ),
    ],
    concurrency: Annotated[
        int, typer.Option("-c", "--concurrency", min=1, help="How many handlers run at a time, per process.")
    ] = 1,
    prefetch: Annotated[int, typer.Option(min=0, max=MAX_BATCH, help="The most messages received ahead.")] = 100,
    grace: Annotated[
        float, typer.Option(parser=parse_duration, metavar="TIME", help="How long a stop waits for running handlers.")
    ] = 30.0,
    stop_when_empty: Annotated[bool, typer.Option("--stop-when-empty", help="Exit when the queues are empty.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            "-p", "--processes", min=1, max=MAX_PROCESSES, help="Run the handlers in this many child processes."
        ),
    ] = None,
    max_tasks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Replace a process after about N messages.")
    ] = None,
    max_memory: Annotated[
        int | None, typer.Option(parser=parse_size, metavar="SIZE", help="Replace a process that uses more: 512M, 2G.")
    ] = None,
    start_method: Annotated[
        str, typer.Option(metavar="METHOD", help="How processes start: spawn, a new interpreter, or fork.")
    ] = "spawn",
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: restart when a Python file here changes.")
    ] = False,
) -> None:
    """Run the handlers of queues in a module of this directory.

    The first Ctrl-C or SIGTERM waits for running handlers and releases other messages; the second releases all.
    """
    session = context.obj
    if start_method not in ("spawn", "fork"):
        raise WrongUsage(f"--start-method is spawn or fork, not {start_method}")
    if reload and start_method == "fork":
        raise WrongUsage("--reload needs --start-method spawn: a forked process keeps the code of its parent")
    _pass_server_on(session)
    consuming = Consuming(list(names), concurrency, prefetch, grace, stop_when_empty, session.json)
    many = processes is not None or max_tasks is not None or max_memory is not None or reload
    configure_logging(json=session.json, many=many)
    sys.path.insert(0, str(Path.cwd()))
    if not many:
        return _consume_here(session, consuming)
    from restante.cli.processes import run_processes  # only several processes need its imports

    return run_processes(
        session,
        consuming,
        processes or 1,
        max_tasks=max_tasks,
        max_memory=max_memory,
        method="fork" if start_method == "fork" else "spawn",
        reload=reload,
    )


def _pass_server_on(session: Session) -> None:
    """Lets the modules that are imported connect to the server that the command was given."""
    if session.url is not None:
        os.environ["RESTANTE_URL"] = session.url
    elif session.directory is not None:
        os.environ.pop("RESTANTE_URL", None)
        os.environ["RESTANTE_DIRECTORY"] = session.directory


def configure_logging(*, json: bool, many: bool) -> None:
    """Logs to standard error: lines for people, or JSON objects."""
    logging.basicConfig(format=LOG_FORMAT_OF_MANY if many else LOG_FORMAT, stream=sys.stderr, level=logging.INFO)
    if json:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())


def _consume_here(session: Session, consuming: Consuming) -> None:
    groups = find_groups(consuming.names)
    consumers = make_consumers(groups, consuming)

    def announce() -> None:
        for text in descriptions(groups):
            session.note(f"consuming {text} with concurrency {consuming.concurrency}; Ctrl-C to stop")

    try:
        run_all(consumers, announce)
    finally:
        report_end(session, sum(each.handled for each in consumers), sum(each.failed for each in consumers))


def report_end(session: Session, handled: int, failed: int) -> None:
    """Says how many messages the command has handled."""
    if session.json:
        session.emit({"handled": handled, "failed": failed})
    session.note(f"stopped: {handled:,} handled, {failed:,} failed")


Group = list[Queue | AsyncQueue]


def find_groups(names: Sequence[str]) -> list[Group]:
    """The queues that the names mean, by client: a consumer has one connection, so each client's queues get one."""
    groups: dict[int, Group] = {}
    for queue in dict.fromkeys(queue for name in names for queue in find_queues(name)):
        groups.setdefault(id(queue.connection), []).append(queue)
    for url in {group[0].connection.url for group in groups.values()}:
        _check_server(url)
    return list(groups.values())


def make_consumers(groups: Sequence[Group], consuming: Consuming) -> list[Consumer]:
    """A consumer for each client's queues."""
    return [
        Consumer(
            group,
            concurrency=consuming.concurrency,
            prefetch=consuming.prefetch,
            grace=consuming.grace,
            stop_when_empty=consuming.stop_when_empty,
        )
        for group in groups
    ]


def descriptions(groups: Sequence[Group]) -> list[str]:
    """Queues and their server, without its password."""
    return [f"{', '.join(queue.name for queue in group)} on {group[0].connection.endpoint.shown}" for group in groups]


def _check_server(url: str) -> None:
    """Raises soon if the server is away; the consumers themselves would wait for it."""
    with restante.connect(url, **QUICK) as post:
        Admin(post).queues()


def find_queues(name: str) -> list[Queue | AsyncQueue]:
    """Returns the queues that `module:queue`, `module:task`, `module:handler` or `module` means."""
    module_name, _, path = name.partition(":")
    module = _imported(module_name)
    known = _consumable(module)
    if not path:
        queues = list(dict.fromkeys(queue for each in known.values() for queue in each))
        if not queues:
            raise WrongUsage(
                f"{module_name} has no queue with a handler: register one with @queue.handler or @queue.task"
                f"{_http_hint(vars(module).values())}"
            )
        return queues
    value = module
    for part in path.split("."):
        if not hasattr(value, part):
            raise WrongUsage(f"{module_name} has no {path}: {nearest(path, known)}")
        value = getattr(value, part)
    if isinstance(value, Queue | AsyncQueue) and not value.handlers:
        raise InvalidInput(f"{name} has no handler: register one with @{path}.handler or @{path}.task")
    queues = queues_of(value)
    if not queues:
        raise WrongUsage(_refusal(name, value, [f"{module_name}:{one}" for one in known]))
    return queues


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise WrongUsage(f"no module {name} in this directory or installed") from None
        raise WrongUsage(f"importing {name} failed: {_error_with_line(error)}") from None
    except RestanteError:
        raise
    except Exception as error:
        raise WrongUsage(f"importing {name} failed: {_error_with_line(error)}") from None


def _consumable(module: Any) -> dict[str, list[Queue | AsyncQueue]]:
    """The names of a module that mean queues with handlers: queues, tasks, and what they mean."""
    found = {}
    for name, value in vars(module).items():
        if isinstance(value, Queue | AsyncQueue | AnyTask) and (queues := queues_of(value)):
            found[name] = queues
    return found


def queues_of(value: Any) -> list[Queue | AsyncQueue]:
    """The queues with handlers that an object means: itself, that of a task, or those of a handler."""
    if isinstance(value, AnyTask):
        value = value.queue
    if isinstance(value, Queue | AsyncQueue):
        return [value] if value.handlers else []
    return queues_with(value) if callable(value) else []


def _refusal(name: str, value: Any, known: Sequence[str]) -> str:
    """Says what a name is that means no queue, and what to name instead."""
    kind = type(value).__name__
    article = "an" if kind.startswith(("A", "E", "I", "O", "U", "Http")) else "a"
    expected = "a queue, a task or a handler"
    instead = f": name {' or '.join(known[:LISTED])}" if known else ": this module has none"
    members = list(value.values()) if isinstance(value, dict) else value
    if isinstance(members, list | tuple | set | frozenset) and any(queues_of(each) for each in members):
        return (
            f"{name} is a {kind}; name each of its queues or tasks, such as {' '.join(known) or 'app:orders app:mail'}"
        )
    if isinstance(value, Client | AsyncClient):
        return f"{name} is {article} {kind}, not one of its queues{instead}"
    if isinstance(value, Consumer):
        return f"{name} is a Consumer, which runs in a program of its own by run(){instead}"
    if hint := _http_hint([value]):
        return f"{name} is {article} {kind}, not {expected}{hint}"
    return f"{name} is {article} {kind}, not {expected}{instead}"


def _http_hint(values: Iterable[Any]) -> str:
    """What to do with queues over HTTP, if there is one among these values or the queues of these tasks."""
    for value in values:
        queue = value.queue if isinstance(value, AnyTask) else value
        if isinstance(queue, QueueHooks) and not isinstance(queue, Queue | AsyncQueue):
            return "; nothing consumes over HTTP: receive in a loop and call run_handler, or connect to Redis"
    return ""


def _error_with_line(error: Exception) -> str:
    """The error and the line that raised it, for one line of output instead of a traceback."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name} line {last.lineno})"


def run_all(
    consumers: list[Consumer],
    announce: Callable[[], None],
    signals: Callable[[Callable[[], None]], AbstractContextManager[None]] = stopping_by_signal,
) -> None:
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
    with signals(stop):
        announce()
        for thread in threads:
            thread.start()
        for _ in threads:
            # With a timeout, because on some systems an unbounded wait in the main thread blocks signals.
            while not ended.acquire(timeout=1.0):
                pass
    if failures:
        raise failures[0]
