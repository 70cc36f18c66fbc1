"""The processes of `restante consume --processes`: the parent's part, and what each child runs.

A child reports why it cannot start. If that is so from the beginning, the command ends with the child's error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from restante import Consumer, RestanteError
from restante.cli.consume import (
    Consuming,
    configure_logging,
    descriptions,
    find_groups,
    make_consumers,
    report_end,
    run_all,
)
from restante.cli.session import Code, Session, WrongUsage, code_of
from restante.core import errors
from restante.core.child_process import Parent, Program, StartMethod, Stop, memory_in_use
from restante.core.queue import consumer_name
from restante.core.queue_ref import QueueRef
from restante.core.restart_policy import ProcessLimits, Report
from restante.core.supervisor import Supervisor

#: Characters of an error that a child reports to its parent: a report must fit into a pipe as one piece.
MAX_FAILURE = 2000


def run_processes(
    session: Session,
    consuming: Consuming,
    processes: int,
    *,
    max_tasks: int | None,
    max_memory: int | None,
    method: StartMethod,
    reload: bool,
) -> None:
    """Runs the handlers in child processes until stopped; raises what kept the first of them from working."""
    own_name = consumer_name()

    def program(number: int) -> Program:
        return Program(consume_as_child, asdict(consuming) | {"number": number, "parent_name": own_name})

    def announce(said: dict[str, Any]) -> None:
        count = f"{processes} process{'es' if processes > 1 else ''}"
        for text in said["consuming"]:
            session.note(f"consuming {text} in {count} with concurrency {consuming.concurrency}; Ctrl-C to stop")

    if reload:
        from restante.cli.reload import watching_sources  # needs an optional package
    if method == "fork":
        find_groups(consuming.names)  # the modules are imported here once, and shared by all children
    supervisor = Supervisor(
        program,
        processes,
        ProcessLimits(max_tasks, max_memory, consuming.grace),
        method=method,
        restarts_ended=not consuming.stop_when_empty,
        awaits_change=reload,
        ready=announce,
    )
    with watching_sources(supervisor.replace_all) if reload else nullcontext():
        totals = supervisor.run()
    if supervisor.failure is not None:
        raise _error_of(supervisor.failure)
    report_end(session, totals.handled, totals.failed)


def _error_of(failure: dict[str, Any]) -> Exception:
    """The error that a child has reported."""
    kind = getattr(errors, failure["error"], RestanteError)
    return WrongUsage(failure["message"]) if failure["error"] == "WrongUsage" else kind(failure["message"])


def consume_as_child(parent: Parent, options: dict[str, Any]) -> int:
    """Runs the consumers of a child process; returns its exit code."""
    number, parent_name = options.pop("number"), options.pop("parent_name")
    consuming = Consuming(**options)
    consumers: list[Consumer] = []

    def look() -> Report:
        return _report(consumers)

    def announce() -> None:
        parent.say({"consuming": descriptions(groups)})

    parent.report_regularly(look)
    configure_logging(json=consuming.json, many=True)
    if (place := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, place)
    try:
        groups = find_groups(consuming.names)
        for queue in (queue for group in groups for queue in group):
            _name(queue.ref, parent_name, number)
        consumers += make_consumers(groups, consuming)
        for consumer, group in zip(consumers, groups, strict=True):
            consumer.card = {"parent": group[0].ref.consumer.rpartition("/")[0], "parent_pid": parent.pid}
        parent.listen(_stopping(consumers), consuming.grace)
        run_all(consumers, announce, signals=lambda stop: nullcontext())  # the parent says when to stop
    except (WrongUsage, RestanteError) as error:
        code = Code.USAGE if isinstance(error, WrongUsage) else code_of(error)
        parent.say({"error": type(error).__name__, "message": str(error)[:MAX_FAILURE]})
        return int(code)
    finally:
        parent.report(look())
    return 0


def _name(ref: QueueRef, parent_name: str, number: int) -> None:
    """Names this child as a consumer: its parent's name, or the one that the program gave its client, and its number.

    The successor of a child gets the same name, so the registry shows as many children as there are.
    """
    own = (consumer_name(), parent_name)  # a forked child's clients were named by its parent
    ref.consumer = f"{parent_name if ref.consumer in own else ref.consumer}/{number}"


def _stopping(consumers: list[Consumer]) -> Callable[[Stop], None]:
    """Stops the consumers as far as was said; saying it twice changes nothing."""
    told = 0
    lock = threading.RLock()  # a signal may come while its handler runs

    def stop(wanted: Stop) -> None:
        nonlocal told
        with lock:
            while told < wanted:
                told += 1
                for consumer in consumers:
                    consumer.stop()

    return stop


def _report(consumers: list[Consumer]) -> Report:
    return Report(
        handled=sum(consumer.handled for consumer in consumers),
        failed=sum(consumer.failed for consumer in consumers),
        running=sum(consumer.running for consumer in consumers),
        hung=sum(consumer.hung for consumer in consumers),
        rss=memory_in_use(),
        lease=max((consumer.longest_lease for consumer in consumers), default=0.0),
        polled=any(consumer.last_poll for consumer in consumers),
    )
