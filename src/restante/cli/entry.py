"""The program itself: global options, the commands put together, and every failure turned into a line and a code."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import orjson
import typer
from typer.main import get_command_name

from restante.cli import (
    access,
    admin,
    bus,
    inspect,
    long_running,
    messages,
    migrate,
    pipeline,
    rabbitmq,
    rsmq,
    rsmq_bridge,
)
from restante.cli.session import Code, Context, Session, WrongUsage, code_of
from restante.core.errors import RestanteError

EPILOG = (
    "Exit codes: 0 done · 1 nothing found or not done · 2 wrong usage · 3 server unavailable · "
    "4 refused (full, held, invalid) · 5 the doctor or an audit found a danger. "
    "Global options may stand before or after the command."
)
#: Global options that take a value; they may also stand after the command, where people type them.
_VALUED = ("--url", "--directory")

app = typer.Typer(name="restante", rich_markup_mode="rich", pretty_exceptions_enable=False)
for part in (messages, bus, inspect, admin, access, migrate, rabbitmq, rsmq, rsmq_bridge, long_running, pipeline):
    part.add_to(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"restante {version('restante')}")
        raise typer.Exit


@app.callback(epilog=EPILOG)
def globals_(
    context: Context,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The Redis server; else [bold]RESTANTE_URL[/], else an embedded one."),
    ] = None,
    directory: Annotated[
        str | None, typer.Option(metavar="DIR", help="Where the embedded server lives; else .restante here.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON on standard output, and nothing else.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and end.")
    ] = False,
) -> None:
    """A message queue on Redis: mail that waits until it is signed for."""
    if url is not None and directory is not None:
        raise WrongUsage("give --url or --directory, not both")
    context.obj.url, context.obj.directory, context.obj.json = url, directory, json


def global_options_first(args: Sequence[str]) -> list[str]:
    """The arguments with the global options in front."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word == "--json" or word.startswith(tuple(f"{name}=" for name in _VALUED)):
            front.append(word)
        elif word in _VALUED:
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        else:
            rest.append(word)
    return front + rest


def _command_name(args: Sequence[str]) -> str | None:
    """The command that hoisted arguments name; None where an option asks about the program itself."""
    words = iter(args)
    for word in words:
        if word in _VALUED:
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif word.partition("=")[0] not in (*_VALUED, "--json"):
            return None
    return None


def _program_for(args: Sequence[str]) -> typer.Typer:
    """The program with only the command that the arguments name, or the whole one.

    Typer builds the parser of every command before it looks for the one to run. That takes longer than most commands.
    """
    name = _command_name(args)
    part = copy.copy(app)
    part.registered_commands = [
        one
        for one in app.registered_commands
        if one.callback is not None and name == (one.name or get_command_name(one.callback.__name__))
    ]
    part.registered_groups = [
        one
        for one in app.registered_groups
        if one.typer_instance is not None and name == (one.name or one.typer_instance.info.name)
    ]
    return part if part.registered_commands or part.registered_groups else app


def print_error(name: str, message: str, *, json: bool) -> None:
    """One line on standard error."""
    line = " ".join(message.split())
    text = orjson.dumps({"error": name, "message": line}).decode() if json else f"error: {line}"
    print(text, file=sys.stderr)


def run(args: Sequence[str], *, program: typer.Typer = app, name: str = "restante") -> int:
    """One command from arguments to exit code; of `restante`, or of a program that is a part of it."""
    session = Session(json="--json" in args)
    try:
        # Completion asks with its own variable and no arguments: it must not become a call for help.
        completing = f"_{name.upper()}_COMPLETE" in os.environ
        asked = (global_options_first(args) if program is app else list(args)) or ([] if completing else ["--help"])
        if program is app:
            program = _program_for(asked)
        result = program(asked, prog_name=name, standalone_mode=False, obj=session)
        return int(result or Code.OK)
    except WrongUsage as error:
        print_error("WrongUsage", str(error), json=session.json)
        return Code.USAGE
    except RestanteError as error:
        print_error(type(error).__name__, str(error), json=session.json)
        return code_of(error)
    except (KeyboardInterrupt, typer.Abort):
        print_error("Interrupted", "interrupted", json=session.json)
        return Code.NOTHING
    except BrokenPipeError:
        # Whoever read us has enough; what is still in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Code.NOTHING
    except Exception as error:
        # Typer's own complaints; it changed the library their class comes from, so it is known by its shape.
        if hasattr(error, "format_message"):
            context = getattr(error, "ctx", None)
            where = f"; see {context.command_path} --help" if context is not None else ""
            print_error("WrongUsage", f"{error.format_message().rstrip('.')}{where}", json=session.json)
            return Code.USAGE
        if os.environ.get("RESTANTE_TRACEBACK"):
            raise
        hint = "set RESTANTE_TRACEBACK=1 to see where"
        print_error(type(error).__name__, f"unexpected {type(error).__name__}: {error}; {hint}", json=session.json)
        return Code.NOTHING
    finally:
        session.close()


def main() -> None:
    """The entry point of `restante`."""
    sys.exit(run(sys.argv[1:]))
