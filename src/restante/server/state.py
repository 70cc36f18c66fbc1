"""What the routes share: connections, operators, who may come in, what is live, and how answers are written.

Sends, receives and verdicts run in the event loop; what an operator does runs in a few threads, so that a long look
never stands in the way of a message.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import orjson
from starlette.requests import Request
from starlette.responses import Response

import restante
from restante.core.admin import Admin
from restante.core.errors import NotFound, RestanteError, Unavailable
from restante.core.keys import QUEUES
from restante.core.names import valid_name
from restante.core.queue import AsyncClient, AsyncQueue, Client
from restante.core.settings import DEFAULT_HTTP_PORT, ClientSettings
from restante.core.sweeper import Sweeper
from restante.server.access import ANYBODY, COOKIE, Caller, Role, SignInLimit, Tokens, is_loopback
from restante.server.http_protocol import HEAD_SECONDS, WRITE_SECONDS
from restante.server.journal_feed import Hub
from restante.server.monitor import Monitor
from restante.server.rabbitmq import RabbitView

T = TypeVar("T")
#: Bytes of one request. A batch of large payloads is better sent in several.
MAX_BODY = 32 * 1024 * 1024
#: Seconds in which a body must have come.
BODY_SECONDS = 30.0
#: Operators' calls at work at one time.
THREADS = 16
#: Replays at work at one time; a slow one takes hours, and must not take a thread from who only looks.
REPLAYS = 8
#: Receives that wait at one time; each holds a connection to Redis.
MAX_WAITING = 500
#: Live connections at one time.
MAX_LIVE = 2000
#: Pairs of queue and consumer remembered.
_REMEMBERED = 10_000


#: Names by which a browser may call a server that asks for no token; any other name may be a page of somebody else's
#: that has been pointed state.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the server is told."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_HTTP_PORT
    max_body: int = MAX_BODY
    body_seconds: float = BODY_SECONDS
    #: Seconds in which the headers of a request must have come.
    head_seconds: float = HEAD_SECONDS
    #: Connections at one time; None takes what the process's descriptors allow.
    max_connections: int | None = None
    #: Seconds in which a client must take something of its answer.
    write_seconds: float = WRITE_SECONDS
    #: Names by which browsers may call a server without tokens.
    open_hosts: frozenset[str] = LOOPBACK
    #: The lake whose report the Insights page shows.
    lake: Path | None = None
    #: The RabbitMQ whose queues, archives and rungs the Topics page and the metrics show.
    broker: str | None = None
    #: Whether to promote and reclaim in queues that nobody consumes.
    sweep: bool = True


class Json(Response):
    """An answer of values; payloads are pasted as they lie in Redis."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        try:
            return orjson.dumps(content)
        except TypeError:
            return json.dumps(content, ensure_ascii=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, orjson.Fragment):
        return json.loads(orjson.dumps(value))
    raise TypeError(f"{type(value).__name__} is not a JSON value")


class Refused(Exception):
    """An answer that is not a RestanteError: 401, 403, 429, 503."""

    def __init__(self, status: int, error: str, message: str, hint: str, *, retry_seconds: float = 1) -> None:
        super().__init__(message)
        self.status = status
        #: When it is worth another try, for 429 and 503.
        self.retry_after = math.ceil(retry_seconds)
        self.body = {"error": error, "message": message, "hint": hint}


class ServerState:
    """One server process's post state."""

    def __init__(self, url: str, settings: ServerSettings | None = None) -> None:
        self.settings = settings or ServerSettings()
        client = ClientSettings(idle_connections=32)
        self.post = Client(url, client)
        self.fast = AsyncClient(url, client)
        self.tokens = Tokens(self.post)
        self.sign_in_limit = SignInLimit()
        self._sweeping = Client(url, client)
        self.sweeper = Sweeper(self._sweeping)
        self.hub = Hub(self.fast)
        self.monitor = Monitor(self)
        self.hub.watchers.append(self.monitor.hear)
        self.version = version(restante.__name__)
        self.closing = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.waiting = 0
        self.rabbitmq = RabbitView(self.settings.broker, self.post)
        self._limiter = anyio.CapacityLimiter(THREADS)
        self._replaying = anyio.CapacityLimiter(REPLAYS)
        self._queues: OrderedDict[tuple[str, str], AsyncQueue] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        #: The question about tokens that is under way; all who need its answer wait for the one.
        self._asking: asyncio.Task[bool] | None = None

    @property
    def shown(self) -> str:
        """The Redis server's address, without its login."""
        return self.post.connection.endpoint.shown

    async def open(self) -> None:
        """Begins what runs beside the requests."""
        self.loop = asyncio.get_running_loop()
        if self.settings.sweep:
            self.sweeper.start()
        for work in (self.hub.run, self.monitor.run):
            self.keep(asyncio.create_task(work()))

    def keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Holds a task until it ends; the event loop alone would forget it."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Ends everything that runs beside the requests."""
        self.closing.set()
        self.sweeper.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.fast.close()
        self._sweeping.close()
        self.post.close()

    # -- work ----------------------------------------------------------------------------------------------------

    async def call(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """Runs what blocks in a thread."""
        return await anyio.to_thread.run_sync(partial(work, *args, **options), limiter=self._limiter)

    async def call_slowly(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """Runs what may take hours in one of a few threads of its own kind; Refused when all are taken."""
        if self._replaying.available_tokens < 1:
            raise Refused(503, "Busy", f"{REPLAYS} replays run already", "wait for one of them to end")
        return await anyio.to_thread.run_sync(partial(work, *args, **options), limiter=self._replaying)

    def admin(self, caller: Caller) -> Admin:
        """The operator whom the journal will name."""
        return Admin(self.post, operator=caller.name)

    def queue(self, name: str, consumer: str, host: str = "", pid: int = 0) -> AsyncQueue:
        """A queue as one consumer uses it."""
        found = self._queues.get((name, consumer))
        if found is None:
            found = AsyncQueue(self.fast.connection, valid_name(name), valid_name(consumer, "consumer"), {})
            found.ref.presence = orjson.dumps({"host": host, "pid": pid, "concurrency": 1})
            self._queues[name, consumer] = found
            if len(self._queues) > _REMEMBERED:
                self._queues.popitem(last=False)
        return found

    async def existing(self, name: str) -> str:
        """The name of a queue that is there; looking at one must not make it."""
        valid_name(name)
        if not await self.fast.connection.command("SISMEMBER", QUEUES, name, key=QUEUES):
            raise NotFound(f"there is no queue {name}: send a message to it, or see GET /api/queues")
        return name

    async def now_ms(self) -> int:
        """The Redis server's clock."""
        seconds, micros = await self.fast.connection.command("TIME", key=QUEUES)
        return int(seconds) * 1000 + int(micros) // 1000

    # -- who asks ------------------------------------------------------------------------------------------------

    async def caller(self, request: Request) -> Caller:
        """Who asks; Refused where nobody we know does."""
        try:
            if not await self._token_needed():
                return self._anybody(request)
            header = request.headers.get("authorization", "")
            if header:
                scheme, _, text = header.partition(" ")
                found = self.tokens.by_text(text.strip()) if scheme.lower() == "bearer" else None
            else:
                cookie = request.cookies.get(COOKIE, "")
                found = await self.call(self.tokens.by_cookie, cookie) if cookie else None
        except Unavailable:
            raise
        except RestanteError as error:
            raise Unavailable(str(error)) from error
        if found is None:
            raise Refused(
                401,
                "Unauthorized",
                "this server asks for a token",
                "send Authorization: Bearer rst_…, made by `restante token create`",
            )
        return found

    async def _token_needed(self) -> bool:
        """Whether there are tokens; asked once for all who ask at the same time."""
        if self.tokens.fresh():
            return self.tokens.any()
        if self._asking is None or self._asking.done():
            self._asking = self.keep(asyncio.create_task(self.call(self.tokens.any)))
        return await asyncio.shield(self._asking)

    def _anybody(self, request: Request) -> Caller:
        if not is_loopback(self.settings.host):
            # There were tokens when it began; a Host header proves nothing about where a program is.
            message = "this server is reached from other machines and has no token left"
            raise Refused(401, "Unauthorized", message, "make one with `restante token create`")
        host = request.headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in self.settings.open_hosts:
            raise Refused(
                403,
                "ForeignHost",
                f"a server without tokens answers to localhost, not to {host[:80]!r}",
                "make a token with `restante token create`, or call it by localhost",
            )
        return ANYBODY

    async def need(self, request: Request, role: Role) -> Caller:
        """The caller, who must have this role."""
        caller = await self.caller(request)
        if not caller.may(role):
            raise Refused(
                403,
                "Forbidden",
                f"the token {caller.name} may {', '.join(sorted(caller.roles))}, not {role}",
                f"use a token with the role {role}",
            )
        return caller

    async def still_may(self, request: Request, role: Role) -> bool:
        """Whether the caller of a request that lasts may go on. While Redis is away nobody is turned out: there is
        nothing to hand out either."""
        try:
            await self.need(request, role)
        except Refused:
            return False
        except RestanteError:
            return True
        return True
