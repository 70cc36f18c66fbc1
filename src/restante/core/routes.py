"""The routes of an exchange as stored in Redis: the queues for each topic; no I/O."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from restante.core.scripts import pack
from restante.core.topics import matches_words, words_of

TYPES = ("direct", "topic", "fanout")
#: Predeclared exchanges, as in RabbitMQ: the one without a name, and one of each type.
PREDECLARED: dict[str | None, str] = {"": "direct", **{f"amq.{type}": type for type in TYPES}}
#: Topics whose routes a table caches.
REMEMBERED = 1000
_BINDING = re.compile(r"b:([^\t]*)\t(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """The declaration of a queue."""

    name: str
    #: Removed when unused: declared auto_delete or exclusive, or with x-expires.
    transient: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    def text(self) -> bytes:
        return orjson.dumps({"t": 1 if self.transient else 0, "a": self.arguments})

    @classmethod
    def parse(cls, name: str, text: bytes) -> QueueInfo:
        fields = orjson.loads(text)
        return cls(name, bool(fields.get("t")), fields.get("a") or {})

    def seconds(self, argument: str) -> float | None:
        """Returns an argument in milliseconds as seconds; None if it is not set."""
        value = self.arguments.get(argument)
        return None if value is None else value / 1000


@dataclass(slots=True)
class Table:
    """The routes of one exchange at one version."""

    version: bytes = b""
    type: str = "direct"
    durable: bool = False
    declared: bool = False
    bindings: list[tuple[str, tuple[str, ...], QueueInfo]] = field(default_factory=list)
    _routes: dict[str, list[QueueInfo]] = field(default_factory=dict)

    @classmethod
    def parse(cls, fields: list[bytes], exchange: str | None = None) -> Table:
        """Parses the stored routes of an exchange. Predeclared exchanges exist without being declared."""
        table = cls()
        if exchange in PREDECLARED:
            table.type, table.durable, table.declared = PREDECLARED[exchange], True, True
        for at in range(0, len(fields), 2):
            name, value = fields[at].decode(), fields[at + 1]
            if name == "version":
                table.version = value
            elif name == "type":
                table.type, _, durable = value.decode().partition(" ")
                table.durable, table.declared = durable == "durable", True
            elif match := _BINDING.fullmatch(name):
                table.bindings.append((match[2], tuple(words_of(match[2])), QueueInfo.parse(match[1], value)))
        return table

    def match(self, topic: str) -> list[QueueInfo]:
        """Returns the queues for a topic, each once."""
        queues = self._routes.get(topic)
        if queues is None:
            words = words_of(topic)
            chosen: dict[str, QueueInfo] = {}
            for key, pattern, info in self.bindings:
                if (
                    self.type == "fanout"
                    or (self.type == "direct" and key == topic)
                    or (self.type == "topic" and matches_words(pattern, words))
                ):
                    chosen[info.name] = info
            if len(self._routes) >= REMEMBERED:
                self._routes.clear()
            queues = self._routes[topic] = list(chosen.values())
        return queues

    @property
    def broadcasts(self) -> bool:
        """Whether transient queues read this exchange's stream instead of getting copies."""
        return self.type in ("topic", "fanout")


@functools.cache
def question(routes: bytes) -> bytes:
    """The packed command that reads the version of the routes, to check whether a table is still valid."""
    return pack(("HGET", routes, "version"))
