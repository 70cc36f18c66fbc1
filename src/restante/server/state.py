"""The state that all routes of a server share: Redis clients, tokens, the journal feed, the monitor and JSON responses.

Sends, receives and verdicts run in the event loop. Operators' calls run in a few threads, so that a slow one never
delays a message. While Redis is unavailable a caller cannot be checked, and gets Unavailable.
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
from typing import Any, Concatenate, ParamSpec, TypeVar

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

P = ParamSpec("P")
T = TypeVar("T")
#: Bytes of one request body. Larger batches must be split: each body is held in memory.
MAX_BODY = 32 * 1024 * 1024
#: Seconds within which a body must arrive.
BODY_SECONDS = 30.0
#: Operators' calls that run at the same time.
THREADS = 16
#: Replays that run at the same time. A slow one takes hours, so replays have threads of their own.
REPLAYS = 8
#: Receives that wait at the same time. Each holds a connection to Redis.
MAX_WAITING = 500
#: Journal streams open at the same time.
MAX_LIVE = 2000
#: Pairs of queue and consumer whose `AsyncQueue` is cached.
_REMEMBERED = 10_000


#: Host names that a server without tokens answers to by default. Any other name may be a foreign page whose name was
#: rebound to this address (DNS rebinding).
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the HTTP server."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_HTTP_PORT
    max_body: int = MAX_BODY
    body_seconds: float = BODY_SECONDS
    #: Seconds within which the headers of a request must arrive.
    head_seconds: float = HEAD_SECONDS
    #: Open connections; None derives the limit from the process's file descriptors.
    max_connections: int | None = None
    #: Seconds within which a client must read at least a part of its response.
    write_seconds: float = WRITE_SECONDS
    #: Host names that a server without tokens answers to.
    open_hosts: frozenset[str] = LOOPBACK
    #: Directory of the data lake whose report the Insights page shows.
    lake: Path | None = None
    #: URL of the RabbitMQ node that the Topics page and the metrics show.
    broker: str | None = None
    #: Whether this process runs a sweeper.
    sweep: bool = True


class Json(Response):
    """A JSON response. Payloads are copied as they are stored, without decoding."""

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
    """A failure of HTTP alone, which is no RestanteError: 401, 403, 409, 429, 503."""

    def __init__(self, status: int, error: str, message: str, hint: str, *, retry_seconds: float = 1) -> None:
        super().__init__(message)
        self.status = status
        #: Seconds for the Retry-After header of 429 and 503.
        self.retry_after = math.ceil(retry_seconds)
        self.body = {"error": error, "message": message, "hint": hint}


class ServerState:
    """What the routes of one server process share."""

    def __init__(self, url: str, settings: ServerSettings | None = None) -> None:
        self.settings = settings or ServerSettings()
        client_settings = ClientSettings(idle_connections=32)
        self.client = Client(url, client_settings)
        self.async_client = AsyncClient(url, client_settings)
        self.tokens = Tokens(self.client)
        self.sign_in_limit = SignInLimit()
        self._sweeping = Client(url, client_settings)
        self.sweeper = Sweeper(self._sweeping)
        self.hub = Hub(self.async_client)
        self.monitor = Monitor(self)
        self.hub.listeners.append(self.monitor.observe)
        self.version = version(restante.__name__)
        self.closing = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.waiting = 0
        self.rabbitmq = RabbitView(self.settings.broker, self.client)
        self._limiter = anyio.CapacityLimiter(THREADS)
        self._replaying = anyio.CapacityLimiter(REPLAYS)
        self._queues: OrderedDict[tuple[str, str], AsyncQueue] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        #: The running read of the tokens; requests that need it share it.
        self._asking: asyncio.Task[bool] | None = None

    @property
    def shown(self) -> str:
        """The Redis server's address, without user and password."""
        return self.client.connection.endpoint.shown

    async def open(self) -> None:
        """Starts the background tasks."""
        self.loop = asyncio.get_running_loop()
        if self.settings.sweep:
            self.sweeper.start()
        for work in (self.hub.run, self.monitor.run):
            self.keep(asyncio.create_task(work()))

    def keep(self, task: asyncio.Task[T]) -> asyncio.Task[T]:
        """Keeps a reference to the task until it ends: the event loop holds only a weak one."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Stops the background tasks and closes the connections."""
        self.closing.set()
        self.sweeper.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.async_client.close()
        self._sweeping.close()
        self.client.close()

    # -- work ----------------------------------------------------------------------------------------------------

    async def call(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """Runs a blocking function in a thread."""
        return await anyio.to_thread.run_sync(partial(work, *args, **options), limiter=self._limiter)

    async def call_slowly(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """Runs a function that may take hours in one of the replay threads; Refused if all are busy."""
        if self._replaying.available_tokens < 1:
            raise Refused(503, "Busy", f"{REPLAYS} replays are already running", "wait until one has ended")
        return await anyio.to_thread.run_sync(partial(work, *args, **options), limiter=self._replaying)

    def admin(self, caller: Caller) -> Admin:
        """The admin API under the caller's name, which the journal records."""
        return Admin(self.client, operator=caller.name)

    async def operate(
        self,
        caller: Caller,
        verb: Callable[Concatenate[Admin, str, P], T],
        queue: str,
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Runs a verb of `Admin` on a queue that exists, under the caller's name; raises NotFound if it does not."""
        await self.existing(queue)
        return await self.call(verb, self.admin(caller), queue, *args, **options)

    def queue(self, name: str, consumer: str, host: str = "", pid: int = 0) -> AsyncQueue:
        """The queue for this consumer, cached."""
        queue = self._queues.get((name, consumer))
        if queue is None:
            queue = AsyncQueue(self.async_client.connection, valid_name(name), valid_name(consumer, "consumer"), {})
            queue.ref.presence = orjson.dumps({"host": host, "pid": pid, "concurrency": 1})
            self._queues[name, consumer] = queue
            if len(self._queues) > _REMEMBERED:
                self._queues.popitem(last=False)
        return queue

    async def existing(self, name: str) -> str:
        """Returns the name if the queue exists, else raises NotFound: reading a queue must not create it."""
        valid_name(name)
        if not await self.async_client.connection.command("SISMEMBER", QUEUES, name, key=QUEUES):
            raise NotFound(f"there is no queue {name}: send a message to it, or see GET /api/queues")
        return name

    async def now_ms(self) -> int:
        """The Redis server's clock."""
        seconds, micros = await self.async_client.connection.command("TIME", key=QUEUES)
        return int(seconds) * 1000 + int(micros) // 1000

    # -- callers ------------------------------------------------------------------------------------------------

    async def caller(self, request: Request) -> Caller:
        """The caller of a request; Refused if it shows no valid token and one is required."""
        try:
            if not await self._token_needed():
                return self._anybody(request)
            header = request.headers.get("authorization", "")
            if header:
                scheme, _, text = header.partition(" ")
                caller = self.tokens.by_text(text.strip()) if scheme.lower() == "bearer" else None
            else:
                cookie = request.cookies.get(COOKIE, "")
                caller = await self.call(self.tokens.by_cookie, cookie) if cookie else None
        except Unavailable:
            raise
        except RestanteError as error:
            raise Unavailable(str(error)) from error
        if caller is None:
            raise Refused(
                401,
                "Unauthorized",
                "this server requires a token",
                "send Authorization: Bearer rst_…; `restante token create` creates a token",
            )
        return caller

    async def _token_needed(self) -> bool:
        """Whether a token is required; concurrent requests share one read."""
        if self.tokens.fresh():
            return self.tokens.any()
        if self._asking is None or self._asking.done():
            self._asking = self.keep(asyncio.create_task(self.call(self.tokens.any)))
        return await asyncio.shield(self._asking)

    def _anybody(self, request: Request) -> Caller:
        if not is_loopback(self.settings.host):
            # `Serving.check` found tokens at the start. A Host header does not prove where a program runs.
            message = "this server can be reached from other machines, and its last token is gone"
            raise Refused(401, "Unauthorized", message, "create one with `restante token create`")
        host = request.headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in self.settings.open_hosts:
            raise Refused(
                403,
                "ForeignHost",
                f"a server without tokens answers only to localhost, not to {host[:80]!r}",
                "create a token with `restante token create`, or use the address localhost",
            )
        return ANYBODY

    async def need(self, request: Request, role: Role) -> Caller:
        """The caller of a request; Refused if it lacks the role."""
        caller = await self.caller(request)
        if not caller.may(role):
            raise Refused(
                403,
                "Forbidden",
                f"the token {caller.name} has the roles {', '.join(sorted(caller.roles))}, not {role}",
                f"use a token with the role {role}",
            )
        return caller

    async def still_may(self, request: Request, role: Role) -> bool:
        """Whether the caller of a long request may continue.

        True while Redis is unavailable: then there is nothing to deliver either.
        """
        try:
            await self.need(request, role)
        except Refused:
            return False
        except RestanteError:
            return True
        return True
