"""A TCP proxy with faults that a test turns on and off while clients are connected.

It runs on an event loop in a thread of its own; every control method takes effect before it
returns. When the server behind it is gone, the client's connection is closed.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self, TypeVar

import hiredis

HOST: Final = "127.0.0.1"

#: Seconds a control method waits for the loop; only a deadlock reaches it.
CONTROL_TIMEOUT: Final = 5.0

#: With this option a close sends RST at once and throws away what is unsent.
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

_NOTHING: Final = object()
_T = TypeVar("_T")

#: Selects requests: all (None), those containing the bytes, or those the function accepts.
#: The bytes are the wire form of one whole request, e.g. b"*1\r\n$4\r\nPING\r\n".
Matching = bytes | Callable[[bytes], bool] | None


@dataclass
class Counters:
    """What has passed through the proxy, or was stopped by it, since it started."""

    connections: int = 0
    open: int = 0
    bytes_to_server: int = 0
    bytes_to_client: int = 0
    cut: int = 0
    dropped: int = 0
    discarded_bytes: int = 0


class RequestFramer:
    """Cuts a client's byte stream into whole requests, so that a fault hits exactly one."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = 1

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes; returns the requests that are now complete."""
        self._buffer += data
        requests = []
        while len(self._buffer) >= self._needed:
            end = self._end_of_request()
            if end is None:
                break
            requests.append(bytes(self._buffer[:end]))
            del self._buffer[:end]
            self._needed = 1
        return requests

    def _end_of_request(self) -> int | None:
        line_end = self._buffer.find(b"\r\n")
        if line_end < 0:
            return None
        end = line_end + 2
        if self._buffer[:1] != b"*":
            return end  # An inline command is one line.
        for _ in range(int(self._buffer[1:line_end])):
            line_end = self._buffer.find(b"\r\n", end)
            if line_end < 0:
                return None
            end = line_end + 2 + int(self._buffer[end + 1 : line_end]) + 2
            if len(self._buffer) < end:
                # Remembered, so that a huge argument is not looked at again per segment.
                self._needed = end
                return None
        return end


class _Fault:
    """A fault that strikes the next few matching requests."""

    def __init__(self, times: int = 0, matching: Matching = None) -> None:
        self._left = times
        self._matching = matching

    def strikes(self, request: bytes) -> bool:
        if self._left <= 0:
            return False
        if isinstance(self._matching, bytes):
            hit = self._matching in request
        else:
            hit = self._matching is None or self._matching(request)
        self._left -= hit
        return hit

    def again(self) -> None:
        """Strikes one more request: the last one was not executed."""
        self._left += 1


class _Pipe:
    """One direction of one connection: keeps order while it delays and splits."""

    def __init__(self, link: _Link, transport: asyncio.Transport) -> None:
        self._link = link
        self.transport = transport
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._timer: asyncio.Handle | None = None
        self._ending = False

    def put(self, data: bytes) -> None:
        proxy = self._link.proxy
        if not self._waiting and not proxy.delayed and not proxy.splitting:
            self.transport.write(data)
            return
        due = proxy.loop.time() + proxy.next_delay()
        if self._waiting:
            due = max(due, self._waiting[-1][0])
        self._waiting.append((due, data))
        if self._timer is None:
            self._timer = proxy.loop.call_at(due, self._pump)

    def end(self) -> None:
        """Close the connection once everything on its way has arrived."""
        self._ending = True
        if not self._waiting:
            self._link.close()

    def clear(self) -> int:
        """Forget what is on its way; returns the number of bytes."""
        lost = sum(len(data) for _, data in self._waiting)
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return lost

    def _pump(self) -> None:
        loop = self._link.proxy.loop
        self._timer = None
        due, data = self._waiting.popleft()
        if self._link.proxy.splitting and len(data) > 1:
            self.transport.write(data[:1])
            self._waiting.appendleft((due, data[1:]))
            # One turn of the loop per byte: written in one turn they would arrive as one.
            self._timer = loop.call_later(self._link.proxy.split_gap, self._pump)
            return
        self.transport.write(data)
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0][0], self._pump)
        elif self._ending:
            self._link.close()


class _Side(asyncio.Protocol):
    """The socket to the client or the one to the server, seen from the event loop."""

    def __init__(self, link: _Link, received: Callable[[bytes], None]) -> None:
        self._link = link
        self._received = received

    def data_received(self, data: bytes) -> None:
        self._received(data)

    def eof_received(self) -> bool:
        self._link.ended(self)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._link.ended(self)

    def pause_writing(self) -> None:
        self._link.set_flow(self, running=False)

    def resume_writing(self) -> None:
        self._link.set_flow(self, running=True)


class _ClientSide(_Side):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._link.opened(transport)


class _Link:
    """A client's connection, its connection to the server, and the faults on them."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.client_side = _ClientSide(self, self._from_client)
        self._server_side = _Side(self, self._from_server)
        self._to_client: _Pipe | None = None
        self._to_server: _Pipe | None = None
        self._framer = None if proxy.raw else RequestFramer()
        self._replies = hiredis.Reader(notEnoughData=_NOTHING, replyError=Exception)
        self._sent = 0
        self._answered = 0
        self._cut_at: int | None = None
        #: Replies in front of the one that is to be cut.
        self._held = b""
        self._half_open = False
        self._closed = False

    def opened(self, transport: asyncio.Transport) -> None:
        self._to_client = _Pipe(self, transport)
        self.proxy.links.add(self)
        self.proxy.counted.connections += 1
        if self.proxy.holed:
            self._half_open = True
            return
        transport.pause_reading()
        self.proxy.keep(self._connect(transport))

    async def _connect(self, client: asyncio.Transport) -> None:
        try:
            server, _ = await self.proxy.loop.create_connection(lambda: self._server_side, *self.proxy.target)
        except OSError:
            self.close()
            return
        if self._closed:
            server.abort()
            return
        self._to_server = _Pipe(self, server)
        client.resume_reading()

    def _from_client(self, data: bytes) -> None:
        if self._half_open or self._closed or self._to_server is None:
            self.proxy.counted.discarded_bytes += len(data)
            return
        if self._framer is not None:
            data = b"".join(self._admit(self._framer.feed(data)))
        if data:
            self.proxy.counted.bytes_to_server += len(data)
            self._to_server.put(data)
        if self._closed:
            # A request was dropped; those before it still arrive, then the server hears the end.
            self._to_server.end()

    def _admit(self, requests: list[bytes]) -> list[bytes]:
        admitted = []
        for request in requests:
            if self.proxy.drop.strikes(request):
                self.proxy.counted.dropped += 1
                self.close(keep_server=True)
                break
            self._sent += 1
            if self._cut_at is None and self.proxy.cut.strikes(request):
                self._cut_at = self._sent
            admitted.append(request)
        return admitted

    def _from_server(self, data: bytes) -> None:
        if self._half_open or self._closed or self._to_client is None:
            self.proxy.counted.discarded_bytes += len(data)
            return
        if self._framer is not None:
            self._count_replies(data)
        data, self._held = self._held + data, b""
        if self._cut_at is None:
            self.proxy.counted.bytes_to_client += len(data)
            self._to_client.put(data)
        elif self._answered >= self._cut_at:
            self.proxy.counted.cut += 1
            self.close()
        else:
            self._held = data

    def _count_replies(self, data: bytes) -> None:
        self._replies.feed(data)
        while (reply := self._replies.gets(False)) is not _NOTHING:
            if isinstance(reply, hiredis.PushNotification):
                continue
            self._answered += 1
            if self._answered == self._cut_at and isinstance(reply, Exception) and str(reply).startswith("NOSCRIPT"):
                self._cut_at = None  # nothing was executed: the fault strikes the next one
                self.proxy.cut.again()

    def ended(self, side: _Side) -> None:
        """One end has closed; the other end hears of it, unless the link is half-open."""
        if self._half_open or self._closed:
            return
        pipe = self._to_server if side is self.client_side else self._to_client
        if pipe is None:
            self.close()
        else:
            pipe.end()

    def set_flow(self, side: _Side, *, running: bool) -> None:
        """The socket of `side` is full or has room again: hold or let run its source."""
        source = self._to_server if side is self.client_side else self._to_client
        if source is not None and not source.transport.is_closing():
            (source.transport.resume_reading if running else source.transport.pause_reading)()

    def blackhole(self) -> None:
        """From now on nothing passes and neither end hears of the other, for good."""
        self._half_open = True
        for pipe in (self._to_client, self._to_server):
            if pipe is not None:
                self.proxy.counted.discarded_bytes += pipe.clear()

    def close(self, *, reset: bool = False, keep_server: bool = False) -> None:
        """Close both ends now."""
        self._closed = True
        self.proxy.links.discard(self)
        for pipe in (self._to_client, None if keep_server else self._to_server):
            if pipe is None:
                continue
            pipe.clear()
            if reset and not pipe.transport.is_closing():
                raw = pipe.transport.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                pipe.transport.abort()
            else:
                pipe.transport.close()


class FaultProxy:
    """A proxy in front of a port. Use as a context manager, or call `start` and `close`.

    Faults on single requests count RESP requests and replies. For any other protocol, and for a
    replication link, pass `raw=True`: then only the faults on whole connections work.
    Public attributes that are not described are for the connections, on the proxy's thread.
    """

    def __init__(self, target_port: int, *, host: str = HOST, raw: bool = False) -> None:
        self.target = (host, target_port)
        self.raw = raw
        self.loop = asyncio.new_event_loop()
        self.links: set[_Link] = set()
        self.counted = Counters()
        self.cut = _Fault()
        self.drop = _Fault()
        self.holed = False
        self.splitting = False
        self.split_gap = 0.0
        self.delayed = False
        self._delay = (0.0, 0.0)
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self._port}"

    @property
    def counters(self) -> Counters:
        """The counts at this moment."""
        return self._on_loop(lambda: replace(self.counted, open=len(self.links)))

    def pass_through(self) -> None:
        """Turn every fault off. Connections made half-open by `blackhole` stay so."""

        def change() -> None:
            self.cut, self.drop = _Fault(), _Fault()
            self.holed = self.splitting = self.delayed = False
            self._delay = (0.0, 0.0)

        self._on_loop(change)

    def cut_before_reply(self, times: int = 1, matching: Matching = None) -> None:
        """Let the server execute the next matching requests, then close instead of replying.

        A call of a script that the server does not know is not executed, so its reply comes through.
        """
        self._on_loop(lambda: setattr(self, "cut", _Fault(times, matching)))

    def drop_request(self, times: int = 1, matching: Matching = None) -> None:
        """Close the connection before the server sees the next matching requests."""
        self._on_loop(lambda: setattr(self, "drop", _Fault(times, matching)))

    def blackhole(self) -> None:
        """Accept connections and bytes but pass nothing on, in either direction.

        The connections open now, and those made before `heal`, stay half-open for good: what is
        sent on them is thrown away, and neither end hears that the other has closed.
        """

        def change() -> None:
            self.holed = True
            for link in self.links:
                link.blackhole()

        self._on_loop(change)

    def heal(self) -> None:
        """End the blackhole: new connections work, the old ones stay half-open."""
        self._on_loop(lambda: setattr(self, "holed", False))

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Hold every segment for `seconds` plus up to `jitter`, in each direction.

        A round trip thus takes two delays longer. Order is kept. Zero turns it off.
        """

        def change() -> None:
            self._delay = (seconds, jitter)
            self.delayed = seconds > 0 or jitter > 0

        self._on_loop(change)

    def split(self, on: bool = True, *, gap: float = 0.0) -> None:
        """Send every byte as a segment of its own, in both directions, `gap` seconds apart.

        Without a gap a receiver that is slow to wake reads several segments at once; a gap of
        a millisecond or two makes nearly every read a single byte, at a price in time.
        """

        def change() -> None:
            self.splitting, self.split_gap = on, gap

        self._on_loop(change)

    def reset_all(self) -> int:
        """Send RST on every open connection now, to client and server; returns how many."""

        def change() -> int:
            links = list(self.links)
            for link in links:
                link.close(reset=True)
            return len(links)

        return self._on_loop(change)

    def next_delay(self) -> float:
        """Seconds to hold the next segment."""
        seconds, jitter = self._delay
        return seconds + random.uniform(0, jitter)

    def keep(self, work: asyncio._CoroutineLike[None]) -> None:
        """Run work on the loop; the loop itself holds tasks only weakly."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def start(self) -> Self:
        """Listen on a free port."""
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(
            self.loop.create_server(lambda: _Link(self).client_side, HOST, 0), self.loop
        )
        self._listener = listening.result(CONTROL_TIMEOUT)
        self._port = self._listener.sockets[0].getsockname()[1]
        return self

    def close(self) -> None:
        """Close every connection, also the half-open ones, and end the thread."""
        if not self._thread.is_alive():
            return

        def change() -> None:
            if self._listener is not None:
                self._listener.close()
            for link in list(self.links):
                link.close()
            for task in self._tasks:
                task.cancel()
            # Two turns later, when the transports have closed their sockets.
            self.loop.call_later(0.01, self.loop.stop)

        self._on_loop(change)
        self._thread.join(CONTROL_TIMEOUT)
        self.loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def _on_loop(self, change: Callable[[], _T]) -> _T:
        async def run() -> _T:
            return change()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(CONTROL_TIMEOUT)
