"""The session of a command: its server connection, its output and its exit codes; on failure commands raise."""

from __future__ import annotations

import enum
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import orjson
import typer

import restante
from restante.core import errors
from restante.core.keywords import nearest, resembling
from restante.core.names import valid_name

if TYPE_CHECKING:
    # Imported when first used: `rsmqctl` needs neither.
    from rich.console import Console

    from restante import Admin, Client

#: Columns of output to a pipe or file, which people search, so tables are not cut to a screen's width.
PLAIN_WIDTH = 200
#: Client settings of a command, in seconds: it gives up on a dead server before its user does. Consumers keep the
#: client's defaults.
QUICK: dict[str, Any] = {"connect_timeout": 1.5, "socket_timeout": 1.5, "patience": 1.0}


class Code(enum.IntEnum):
    """The exit codes that scripts may rely on."""

    OK = 0
    #: Nothing found, nothing done, or interrupted.
    NOTHING = 1
    USAGE = 2
    #: The server cannot be reached, or a send was not confirmed.
    UNAVAILABLE = 3
    #: Refused: the queue is full, the message is held, the input is not valid.
    REFUSED = 4
    #: The doctor or an audit found a danger.
    DANGER = 5


#: The first class that matches decides.
_CODES: tuple[tuple[type[errors.RestanteError], Code], ...] = (
    (errors.NotFound, Code.NOTHING),
    (errors.ResultTimeout, Code.NOTHING),
    (errors.Unavailable, Code.UNAVAILABLE),
    (errors.Unconfirmed, Code.UNAVAILABLE),
    (errors.RestanteError, Code.REFUSED),
)


def code_of(error: errors.RestanteError) -> Code:
    """The exit code of a command that ended with this error."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


class WrongUsage(Exception):
    """The command line is not valid; nothing was done."""


@dataclass
class Session:
    """One run of the command line: its options, its connection and its consoles."""

    url: str | None = None
    directory: str | None = None
    json: bool = False
    #: Standard output, for tables.
    out: Console = field(default_factory=lambda: _stdout_console())
    #: Standard error, for progress, notes and errors.
    err: Console = field(default_factory=lambda: _stderr_console())
    _post: Client | None = None

    @property
    def post(self) -> Client:
        """The client of the server that --url, RESTANTE_URL or --directory names; connected on first use."""
        return self.connect()

    def connect(self, **settings: Any) -> Client:
        """The same, with client settings that this command needs."""
        if self._post is None:
            self._post = restante.connect(self.url, directory=self.directory, **QUICK | settings)
        return self._post

    def use(self, url: str) -> None:
        """Connects to this server instead of that of the global options, unless a connection is open."""
        if self._post is None:
            self._post = restante.connect(url, **QUICK)

    @property
    def admin(self) -> Admin:
        return restante.Admin(self.post)

    def existing(self, queue: str) -> str:
        """Returns the queue's name, or raises NotFound, so that a misspelt name does not create a queue."""
        names = self.admin.queues()
        if queue not in names:
            raise errors.NotFound(f"no queue {valid_name(queue)}: {nearest(queue, names)}")
        return queue

    def new_or_existing(self, queue: str, *, create: bool) -> str:
        """Returns the queue's name, for commands that may create it: a name that resembles another needs --create."""
        names = self.admin.queues()
        if queue not in names and not create and (near := resembling(valid_name(queue), names)):
            raise errors.NotFound(f"no queue {queue}: did you mean {near}? Give --create to create a new queue")
        return queue

    def emit(self, value: Any) -> None:
        """Prints one JSON document on one line of standard output."""
        try:
            text = orjson.dumps(value).decode()
        except TypeError:
            text = json.dumps(value, ensure_ascii=False)  # a number beyond 64 bits
        typer.echo(text)

    def note(self, text: str) -> None:
        """Prints a note for people on standard error; nothing with --json."""
        if not self.json:
            self.err.print(text, markup=False)

    def nothing(self, text: str) -> NoReturn:
        """Ends a command that found or did nothing, with code 1."""
        self.note(text)
        raise typer.Exit(Code.NOTHING)

    def confirm(self, question: str, *, yes: bool, needed: bool) -> None:
        """Asks on a terminal. Elsewhere it continues, or raises WrongUsage if `needed`."""
        if yes:
            return
        if not self.out.is_terminal or self.json or not typer.get_text_stream("stdin").isatty():
            if needed:
                raise WrongUsage(f"{question} Give --yes to confirm")
            return
        if not typer.confirm(question, err=True):
            raise typer.Exit(Code.NOTHING)

    def close(self) -> None:
        if self._post is not None:
            self._post.close()
            self._post = None


def _stdout_console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    return console


def _stderr_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


class Context(typer.Context):
    """Typer's context; its object is the session."""

    obj: Session
