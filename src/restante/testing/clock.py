"""A clock that a test moves: this process's scripts add to the server's time what the test has set.

A server reads the machine's clock, and no command changes that. So the first move puts a few lines before each script
of this process, which read the test's setting from a key of the server on every look at the time; `reset` removes them.
Processes that were started, not forked, keep the real time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from restante.core import admin as admin  # imported so that their scripts are there before they are changed
from restante.core import claims as claims
from restante.core import lease_journal as lease_journal
from restante.core import throttle as throttle
from restante.core.connection import Connection
from restante.core.errors import InvalidInput
from restante.core.keys import QUEUES, TEST_CLOCK, QueueKeys
from restante.core.queue import Client
from restante.core.scripts import Command, Script, pack, sha1
from restante.core.settings import milliseconds
from restante.core.sweeper import Sweeper

#: Lua that hides `redis` behind a table whose TIME is the test's. The key holds = and a time, or + and an offset, in
#: microseconds. A server without the key, one that forbids it and a cluster answer with their own time.
PREFACE: Final = f"""local redis = setmetatable({{ call = (function(server)
  local real = server.call
  return function(verb, ...)
    if verb ~= 'TIME' then return real(verb, ...) end
    local time, set = real('TIME'), server.pcall('GET', '{TEST_CLOCK.decode()}')
    local way, by = string.match(type(set) == 'string' and set or '', '^([+=])(-?%d+)$')
    if not way then return time end
    local at = way == '=' and tonumber(by) or time[1] * 1000000 + time[2] + by
    return {{ string.format('%d', math.floor(at / 1000000)), string.format('%d', at % 1000000) }}
  end
end)(redis) }}, {{ __index = redis }})
"""
_TIME: Final = f"#!lua flags=no-writes\n{PREFACE}return redis.call('TIME')".encode()
_MICRO: Final = 1_000_000
#: Keys that one SCAN of the server looks at.
_SCAN: Final = 1000


class Clock:
    """The time of a server as this process sees it. It runs with the real time until the test moves or stops it.

    It covers what the server measures: delays, retries, leases, expiry, rates, deduplication. What it does not cover:
    `datetime.now()` in your own code, the seconds for which a `receive(timeout=…)` waits, and other processes.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sweeper = Sweeper(client)

    @property
    def _connection(self) -> Connection:
        return self._client.connection

    def now(self) -> datetime:
        """The time on the clock."""
        return _moment(self._now())

    def move(self, by: float | timedelta) -> datetime:
        """Moves the clock forward by seconds or a timedelta, and returns the new time.

        What is due by then is promoted, and leases that have ended are reclaimed, as a sweeper does.
        """
        span = milliseconds(by, "by") * 1000
        way, value = self._setting()
        self._set(way, value + span)
        self._age(span // 1000)
        self._settle()
        return self.now()

    def set(self, at: datetime) -> datetime:
        """Sets the clock to a time, earlier or later, and returns it. It runs on from there, unless it is frozen."""
        target = _micros(at)
        gone = target - self._now()
        way, value = self._setting()
        self._set(way, target if way == "=" else value + gone)
        self._age(gone // 1000)
        self._settle()
        return self.now()

    def freeze(self, at: datetime | None = None) -> datetime:
        """Stops the clock, now or at a time: from here only the test moves it."""
        now = self._now()
        stopped = now if at is None else _micros(at)
        self._set("=", stopped)
        self._age((stopped - now) // 1000)
        self._settle()
        return _moment(stopped)

    def reset(self) -> None:
        """Returns to the real time."""
        self._connection.command("DEL", TEST_CLOCK, key=TEST_CLOCK)
        restore_scripts()

    def _setting(self) -> tuple[str, int]:
        text = self._connection.command("GET", TEST_CLOCK, key=TEST_CLOCK) or b"+0"
        return text[:1].decode(), int(text[1:])

    def _set(self, way: str, value: int) -> None:
        move_scripts()
        self._connection.command("SET", TEST_CLOCK, f"{way}{value}", key=TEST_CLOCK)

    def _now(self) -> int:
        seconds, micros = self._connection.command("TIME", key=QUEUES)
        return int(seconds) * _MICRO + int(micros)

    def _age(self, span: int) -> None:
        """Shortens the life of keys that expire by themselves: those the server itself removes, by the real time."""
        cursor = b"0"
        while span > 0:
            cursor, keys = self._connection.command("SCAN", cursor, "MATCH", "restante:*", "COUNT", _SCAN, key=QUEUES)
            for key in keys:
                left = int(self._connection.command("PTTL", key, key=key))
                if left > 0:
                    self._connection.command("PEXPIRE", key, left - span, key=key)
            if cursor == b"0":
                return

    def _settle(self) -> None:
        """Sweeps, then wakes the consumers that wait for a due time on the old clock."""
        self._sweeper.run_once()
        for name in self._connection.command("SMEMBERS", QUEUES, key=QUEUES):
            marker = QueueKeys(name.decode())["marker"]
            self._connection.command("ZADD", marker, 0, 0, key=marker)


def _micros(at: datetime) -> int:
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidInput(f"the time must be an aware datetime such as datetime(2030, 1, 1, tzinfo=UTC), not {at!r}")
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


# -- the scripts of this process -------------------------------------------------------------------------------------

_packed = Command.packed
_plain_texts: dict[Script, bytes] = {}


def loaded_scripts() -> Iterator[Script]:
    """Every script of the modules of Restante that are imported."""
    for name, module in list(sys.modules.items()):
        if name.startswith("restante."):
            yield from {value for value in vars(module).values() if isinstance(value, Script)}


def move_scripts() -> None:
    """Lets every script and every TIME of this process follow the clock. Scripts of modules imported later follow from
    the next move on."""
    for script in loaded_scripts():
        if script not in _plain_texts:
            _plain_texts[script] = script.text
            flags, _, body = script.text.partition(b"\n")
            _write(script, flags + b"\n" + PREFACE.encode() + body)
    Command.packed = _packed_by_clock  # type: ignore[method-assign, assignment]


def restore_scripts() -> None:
    """Gives the scripts of this process their own texts back."""
    for script, text in _plain_texts.items():
        _write(script, text)
    _plain_texts.clear()
    Command.packed = _packed  # type: ignore[method-assign]


def _write(script: Script, text: bytes) -> None:
    # A call that another thread packs in between runs the old script once more.
    script.text, script.sha = text, sha1(text)


def _packed_by_clock(command: Command[Any]) -> bytes:
    return pack((b"EVAL", _TIME, 0)) if command.words == ("TIME",) else _packed(command)
