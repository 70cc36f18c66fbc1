"""Speaks HTTP to a server under test as any program would, without our own client in between."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from restante import Client
from restante.server import create_app
from tests.harness.deadlines import PATIENCE, wait_until
from tests.harness.processes import PythonProcess

_PROGRAM = """
import sys
from restante.cli import main
sys.argv = ["restante", *sys.argv[1:]]
main()
"""


@cache
def described() -> Any:
    """The API as it describes itself; made once, and not to be changed."""
    return create_app("redis://localhost:1")._app.openapi()  # type: ignore[attr-defined]


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Api:
    """Calls to one server; each on a connection of its own."""

    def __init__(self, address: str, token: str = "") -> None:
        self.address = address
        parts = urlsplit(address)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        raw: bytes | None = None,
        timeout: float = PATIENCE,
    ) -> Answer:
        link = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        told = {**self._headers, **(headers or {})}
        text = raw
        if body is not None:
            text = json.dumps(body).encode()
            told.setdefault("Content-Type", "application/json")
        try:
            link.request(method, path, text, told)
            answer = link.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            link.close()

    def get(self, path: str, **options: Any) -> Answer:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.call("POST", path, {} if body is None else body, **options)

    def events(self, path: str, *, after: str = "", timeout: float = PATIENCE) -> Stream:
        return Stream(self, path, after, timeout)


@dataclass
class Told:
    """One server-sent event."""

    name: str
    id: str
    data: Any


class Stream:
    """A live connection."""

    def __init__(self, api: Api, path: str, after: str, timeout: float) -> None:
        self._link = http.client.HTTPConnection(api.host, api.port, timeout=timeout)
        headers = {"Accept": "text/event-stream", **api._headers, **({"Last-Event-ID": after} if after else {})}
        self._link.request("GET", path, None, headers)
        self.answer = self._link.getresponse()
        self.status = self.answer.status

    def __iter__(self) -> Iterator[Told]:
        name, id, data = "", "", ""
        for line in self.answer:
            word, _, rest = line.decode().rstrip("\n").partition(": ")
            if word == "event":
                name = rest
            elif word == "id":
                id = rest
            elif word == "data":
                data = rest
            elif not word and name:
                yield Told(name, id, json.loads(data))
                name, id, data = "", "", ""

    def until(self, name: str, seconds: float = PATIENCE) -> Told:
        """The next event of that name."""
        deadline = time.monotonic() + seconds
        for told in self:
            if told.name == name:
                return told
            assert time.monotonic() < deadline, f"no {name} within {seconds} s"
        raise AssertionError(f"the stream ended without {name}")

    def first(self, *names: str, seconds: float = PATIENCE) -> list[Told]:
        """The first event of each of these names, in whatever order they come."""
        deadline = time.monotonic() + seconds
        found: dict[str, Told] = {}
        for told in self:
            found.setdefault(told.name, told)
            if found.keys() >= set(names):
                return [found[name] for name in names]
            assert time.monotonic() < deadline, f"only {sorted(found)} within {seconds} s"
        raise AssertionError(f"the stream ended with only {sorted(found)}")

    def rest(self, seconds: float = PATIENCE) -> list[str]:
        """The names of what still comes until the server ends the stream."""
        deadline = time.monotonic() + seconds
        found = []
        for told in self:
            found.append(told.name)
            assert time.monotonic() < deadline, f"the stream goes on: {found[-5:]}"
        return found

    def lines(self, count: int) -> tuple[list[dict[str, Any]], str]:
        """So many journal lines, and the position after them."""
        found: list[dict[str, Any]] = []
        for told in self:
            assert told.name != "resync", told
            if told.name == "journal":
                found += told.data
                if len(found) >= count:
                    return found, told.id
        raise AssertionError(f"the stream ended after {len(found)} lines")

    def close(self) -> None:
        self.answer.close()
        self._link.close()


class Up(PythonProcess):
    """`restante up` in a process of its own."""

    def __init__(self, post: Client, *words: str) -> None:
        super().__init__(_PROGRAM, "--url", post.url, "--json", "up", "--port", "0", *words, forked=True)
        wait_until(lambda: self.lines or self.returncode is not None, lambda: self.stderr[-3000:])
        assert self.lines, self.stderr[-3000:]
        self.address: str = json.loads(self.lines[0])["address"]
        self.api = Api(self.address)
