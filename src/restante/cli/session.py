"""What every command shares: the server it talks to, how it speaks, and which exit code means what."""

from __future__ import annotations

import enum
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import orjson
import typer
from rich.console import Console

import restante
from restante import Admin, Client
from restante.core import errors
from restante.core.keywords import nearest, resembling
from restante.core.names import valid_name

#: Columns where nobody watches: a pipe or a file is for searching in, so nothing is cut to a screen's width.
PLAIN_WIDTH = 200
#: Seconds; a command gives up on a dead server before a person does. Consumers keep the client's own settings.
QUICK: dict[str, Any] = {"connect_timeout": 1.5, "socket_timeout": 1.5, "patience": 1.0}


class Code(enum.IntEnum):
    """What a script may rely on."""

    OK = 0
    #: Nothing found, or nothing done.
    NOTHING = 1
    USAGE = 2
    #: The server cannot be reached, or a send was not confirmed.
    UNAVAILABLE = 3
    #: Refused: the queue is full, the message is held, the input is not valid.
    REFUSED = 4
    #: The doctor found a danger.
    DANGER = 5


#: The first class that fits decides.
_CODES: tuple[tuple[type[errors.RestanteError], Code], ...] = (
    (errors.NotFound, Code.NOTHING),
    (errors.Unavailable, Code.UNAVAILABLE),
    (errors.Unconfirmed, Code.UNAVAILABLE),
    (errors.RestanteError, Code.REFUSED),
)


def code_of(error: errors.RestanteError) -> Code:
    """The exit code an error ends a command with."""
    return next(code for kind, code in _CODES if isinstance(error, kind))


class WrongUsage(Exception):
    """The command cannot be understood; nothing was done."""


@dataclass
class Session:
    """One run of the command line."""

    url: str | None = None
    directory: str | None = None
    json: bool = False
    #: For people, on standard output.
    out: Console = field(default_factory=lambda: _console())
    #: For progress, notes and errors.
    err: Console = field(default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True))
    _post: Client | None = None

    @property
    def post(self) -> Client:
        """The server meant by --url, RESTANTE_URL or --directory; connected when first asked for."""
        return self.connect()

    def connect(self, **settings: Any) -> Client:
        """The same, with settings for the client that this command needs."""
        if self._post is None:
            self._post = restante.connect(self.url, directory=self.directory, **QUICK | settings)
        return self._post

    def use(self, url: str) -> None:
        """Connects to this server instead of the one of the global options, unless a connection is open."""
        if self._post is None:
            self._post = restante.connect(url, **QUICK)

    @property
    def admin(self) -> Admin:
        return Admin(self.post)

    def existing(self, queue: str) -> str:
        """The queue's name, or NotFound: a typing slip must not make a new queue."""
        names = self.admin.queues()
        if queue not in names:
            raise errors.NotFound(f"no queue {valid_name(queue)}: {nearest(queue, names)}")
        return queue

    def new_or_existing(self, queue: str, *, create: bool) -> str:
        """The queue's name, for commands that may make it: one that resembles another needs --create."""
        names = self.admin.queues()
        if queue not in names and not create and (near := resembling(valid_name(queue), names)):
            raise errors.NotFound(f"no queue {queue}: did you mean {near}? Say --create to make a new one")
        return queue

    def emit(self, value: Any) -> None:
        """One JSON document on one line of standard output."""
        try:
            text = orjson.dumps(value).decode()
        except TypeError:
            text = json.dumps(value, ensure_ascii=False)  # a number beyond 64 bits
        typer.echo(text)

    def note(self, text: str) -> None:
        """A word to the person, never to the program that reads standard output."""
        if not self.json:
            self.err.print(text, markup=False)

    def nothing(self, text: str) -> NoReturn:
        """Ends a command that found or did nothing."""
        self.note(text)
        raise typer.Exit(Code.NOTHING)

    def confirm(self, question: str, *, yes: bool, needed: bool) -> None:
        """Asks on a terminal; elsewhere goes on, or refuses where --yes is needed."""
        if yes:
            return
        if not self.out.is_terminal or self.json or not typer.get_text_stream("stdin").isatty():
            if needed:
                raise WrongUsage(f"{question} Say --yes to do it")
            return
        if not typer.confirm(question, err=True):
            raise typer.Exit(Code.NOTHING)

    def close(self) -> None:
        if self._post is not None:
            self._post.close()
            self._post = None


def _console() -> Console:
    made = Console(highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PLAIN_WIDTH
    return made


class Context(typer.Context):
    """Typer's context, whose object is our session."""

    obj: Session


@contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stop` instead of ending the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
