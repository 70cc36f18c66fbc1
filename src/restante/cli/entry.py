"""The program `restante`: its global options and all commands; on failure it prints a line and returns a code."""

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
    batches,
    bus,
    consume,
    inspect,
    long_running,
    messages,
    migrate,
    pipeline,
    rabbitmq,
    rsmq,
    rsmq_bridge,
    schedule,
)
from restante.cli.options import options_first
from restante.cli.session import Code, Context, Session, WrongUsage, code_of
from restante.core.errors import RestanteError

EPILOG = (
    "Exit codes: 0 done · 1 nothing found or done · 2 wrong usage · 3 server unavailable · "
    "4 refused (full, held, invalid) · 5 the doctor or an audit found a danger. "
    "Global options may stand before or after the command."
)
#: Global options that take a value; they may also follow the command, where people type them.
_VALUED = ("--url", "--directory")

app = typer.Typer(name="restante", rich_markup_mode="rich", pretty_exceptions_enable=False)
for part in (
    messages,
    consume,
    bus,
    inspect,
    admin,
    schedule,
    batches,
    access,
    migrate,
    rabbitmq,
    rsmq,
    rsmq_bridge,
    long_running,
    pipeline,
):
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
        typer.Option(metavar="URL", help="The Redis server. Default: [bold]RESTANTE_URL[/], else an embedded server."),
    ] = None,
    directory: Annotated[
        str | None, typer.Option(metavar="DIR", help="The embedded server's directory. Default: .restante.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on standard output.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A message queue on Redis: mail that waits until it is signed for."""
    if url is not None and directory is not None:
        raise WrongUsage("give --url or --directory, not both")
    context.obj.url, context.obj.directory, context.obj.json = url, directory, json


def _global_options_first(args: Sequence[str]) -> list[str]:
    return options_first(args, flags=("--json",), valued=_VALUED)


def _command_name(args: Sequence[str]) -> str | None:
    """The command that the reordered arguments name; None if an option asks about the program itself."""
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
    """The program with only the command that the arguments name, or the whole program.

    Typer builds the parsers of all commands before it selects the one to run. That takes longer than most commands.
    """
    name = _command_name(args)
    part = copy.copy(app)
    part.registered_commands = [
        command
        for command in app.registered_commands
        if command.callback is not None and name == (command.name or get_command_name(command.callback.__name__))
    ]
    part.registered_groups = [
        command
        for command in app.registered_groups
        if command.typer_instance is not None and name == (command.name or command.typer_instance.info.name)
    ]
    return part if part.registered_commands or part.registered_groups else app


def print_error(name: str, message: str, *, json: bool) -> None:
    """Prints an error as one line on standard error."""
    line = " ".join(message.split())
    text = orjson.dumps({"error": name, "message": line}).decode() if json else f"error: {line}"
    print(text, file=sys.stderr)


def run(args: Sequence[str], *, program: typer.Typer = app, name: str = "restante") -> int:
    """Runs one command of `restante`, or of a program that is part of it; returns the exit code."""
    session = Session(json="--json" in args)
    try:
        # Shell completion sets a variable and gives no arguments: it must not print the help.
        completing = f"_{name.upper()}_COMPLETE" in os.environ
        words = (_global_options_first(args) if program is app else list(args)) or ([] if completing else ["--help"])
        if program is app:
            program = _program_for(words)
        result = program(words, prog_name=name, standalone_mode=False, obj=session)
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
        # The reader closed the pipe; flushing the rest of the buffer at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Code.NOTHING
    except Exception as error:
        # Usage errors of Typer, which changed the library of their class: recognised by their method.
        if hasattr(error, "format_message"):
            context = getattr(error, "ctx", None)
            where = f"; see {context.command_path} --help" if context is not None else ""
            print_error("WrongUsage", f"{error.format_message().rstrip('.')}{where}", json=session.json)
            return Code.USAGE
        if os.environ.get("RESTANTE_TRACEBACK"):
            raise
        hint = "set RESTANTE_TRACEBACK=1 to see the traceback"
        print_error(type(error).__name__, f"unexpected {type(error).__name__}: {error}; {hint}", json=session.json)
        return Code.NOTHING
    finally:
        session.close()


def main() -> None:
    """The entry point of `restante`."""
    sys.exit(run(sys.argv[1:]))
