"""Lua scripts, and calls of them as values: what to send to a server and how to read the reply; no I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import hiredis

T = TypeVar("T")
Argument = bytes | str | int

#: Packs the words of one command for the wire. The library's own annotation allows single words only.
pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command

#: Scripts that store new data are refused at maxmemory. All others run there, or a full server could not be emptied.
NEED_ROOM = frozenset({"batch_add", "batch_count", "batch_open", "edit", "hold", "move", "schedule", "send", "tick"})
#: Scripts that only read also run on a replica and on a server whose disk is full.
READ_ONLY = frozenset({"agenda", "batch_show", "counts", "list", "show", "status"})

#: The parts of a verb beside moves.lua: Lua files whose text runs only when the script requires them. A part costs a
#: little at each call of a verb that has it, so a verb has only those it requires.
PARTS: Mapping[str, tuple[str, ...]] = {
    "ack": ("settling",),
    "ack_result": ("settling",),
    "batch_count": ("batches",),
    "batch_seal": ("batches",),
    "receive": ("settling", "sweep", "limits"),
    "send": ("repeats",),
    "tick": ("repeats", "send"),
}
#: A verb that another runs as a part: a tick stores its messages as a send does.
WHOLE: Mapping[str, str] = {"tick": "send"}


def declared(body: str, *, when_full: bool, reads: bool) -> bytes:
    """Puts the flags before a script: whether it runs at maxmemory, and whether it only reads.

    Without `reads`, a replica and a server whose disk is full refuse even a script that writes nothing.
    """
    flags = " flags=no-writes" if reads else " flags=allow-oom" if when_full else ""
    return f"#!lua{flags}\n{body}".encode()


def sha1(text: bytes) -> bytes:
    """The hash under which a server caches a script."""
    return hashlib.sha1(text).hexdigest().encode()


class Script:
    """The Lua text of a verb, behind the prelude and the function `require` that runs its parts, and its hash."""

    #: The type of each key, where the key's name does not imply it.
    types: tuple[str, ...] = ()

    def __init__(self, name: str, keys: str) -> None:
        folder = resources.files("restante.core").joinpath("lua")
        names = ("moves", *PARTS.get(name, ()))
        prelude, verb, *parts = (folder.joinpath(f"{file}.lua").read_text() for file in ("prelude", name, *names))
        choice = "else".join(f"if name == '{part}' then\n{text}" for part, text in zip(names, parts, strict=True))
        require = f"require = function(name)\n{choice}end\nend\n"
        self.name = name
        self.keys = tuple(keys.split())
        self.text = declared(prelude + require + verb, when_full=name not in NEED_ROOM, reads=name in READ_ONLY)
        self.sha = sha1(self.text)


class ScriptCall(NamedTuple, Generic[T]):
    """One call of one script. A tuple, because a frozen dataclass costs every send half a microsecond more."""

    script: Script
    keys: tuple[bytes, ...]
    args: Sequence[Argument]
    parse: Callable[[Any], T]
    #: The queue that error messages name.
    queue: str
    #: Ids of sent messages, for `Unconfirmed` when the reply is lost.
    sends: Sequence[str] = ()
    durability: str = "memory"
    #: The error message for a call that must not be repeated and whose reply was lost; empty if it may be repeated.
    once: str = ""
    #: Makes the call that a repeat sends, from this call and whether an attempt may have succeeded; None: the same.
    repeat: Callable[[ScriptCall[Any], bool], ScriptCall[Any]] | None = None
    #: A packed plain command that is sent to the same server before the call; `parse` gets both replies.
    question: bytes = b""

    def packed(self) -> bytes:
        """The call, packed for the wire."""
        return pack((b"EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args))


def _as_replied(reply: Any) -> Any:
    return reply


@dataclass(frozen=True)  # with slots too, Command[bytes](…) would fail
class Command(Generic[T]):
    """A plain command, run with the same retries. It may be repeated, so it must be safe to repeat."""

    words: tuple[Any, ...]
    #: The key that decides which server gets the command.
    key: bytes
    parse: Callable[[Any], T] = _as_replied

    queue: ClassVar[str] = "the server"
    sends: ClassVar[Sequence[str]] = ()
    durability: ClassVar[str] = "memory"
    once: ClassVar[str] = ""
    question: ClassVar[bytes] = b""

    @property
    def keys(self) -> tuple[bytes, ...]:
        return (self.key,)

    def packed(self) -> bytes:
        """The command, packed for the wire."""
        return pack(self.words)


#: What a runner runs: a value that says what to send and how to read the reply.
Operation = ScriptCall[T] | Command[T]


def with_question(call: ScriptCall[T], question: bytes) -> ScriptCall[tuple[Any, T]]:
    """The call with a packed plain command before it on the same server; returns the answers to both."""

    def parse(replies: Sequence[Any]) -> tuple[Any, T]:
        return replies[0], call.parse(replies[1])

    return call._replace(question=question, parse=parse)  # type: ignore[return-value, arg-type]
