"""The live journal: complete, in order, resumable anywhere, and bounded for whoever does not read."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import restante
from restante import Admin, Client
from restante.server import ServerSettings, Serving, journal_feed, responses
from restante.server.monitor import Monitor
from tests.harness.deadlines import PATIENCE, at_most, wait_until
from tests.harness.servers import RedisServer
from tests.server.calls import Api, Up


def memory(pid: int) -> int:
    """Bytes a process holds."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def watching(serving: Serving, count: int = 1) -> None:
    wait_until(lambda: len(serving.state.hub) >= count)


def known(serving: Serving, post: Client, *queues: str) -> None:
    """Returns when the server has read the journals of these queues to their ends."""
    admin = Admin(post)
    places = serving.state.hub.places
    wait_until(lambda: all(places.get(name, -1) >= admin.counts(name).journal_last for name in queues), lambda: places)


def _ready(counts: dict[str, Any]) -> dict[str, int]:
    """The queues that an event of counts tells of, with how many messages are ready."""
    return {queue["queue"]: queue["states"]["ready"] for queue in counts["queues"]}


class TestFollowing:
    def test_every_line_comes_once_and_in_order(self, api: Api, post: Client, admin: Admin, serving: Serving) -> None:
        queue = post.queue("orders")
        queue.send("before")
        known(serving, post, "orders")
        stream = api.events("/api/journal?queue=orders")
        stream.until("position")
        queue.send_many(list(range(500)))
        for message in queue.receive_many(300):
            message.ack()
        lines, _ = stream.lines(500 + 300 + 300)
        stream.close()
        numbers = [line["position"] for line in lines]
        assert numbers == list(range(numbers[0], numbers[0] + 1100))
        told = [line.position.sequence for line in admin.journal("orders", limit=5000)]
        assert numbers == told[-1100:]

    def test_lines_that_are_read_while_queues_are_counted_are_no_reset(
        self, api: Api, post: Client, serving: Serving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = post.queue("orders")
        queue.send("before")
        known(serving, post, "orders")
        stream = api.events("/api/journal?queue=orders")
        stream.until("position")
        look = Monitor._look

        def overtaken(monitor: Monitor) -> Any:
            counted = look(monitor)
            queue.send("while counting")
            known(serving, post, "orders")
            return counted

        monkeypatch.setattr(Monitor, "_look", overtaken)
        assert serving.state.loop is not None
        for _ in range(3):
            asyncio.run_coroutine_threadsafe(serving.state.monitor.count(), serving.state.loop).result(PATIENCE)
        lines, _ = stream.lines(3)
        stream.close()
        assert [line["position"] for line in lines] == [2, 3, 4]

    def test_a_dropped_connection_goes_on_without_gap_or_repeat_even_at_another_server(
        self, api: Api, post: Client, up: Callable[..., Up], serving: Serving
    ) -> None:
        orders, mails = post.queue("orders"), post.queue("mails")
        orders.send(0)
        mails.send(0)
        known(serving, post, "orders", "mails")
        other = up()
        seen: list[tuple[str, int]] = []
        position = ""
        stop = threading.Event()

        def write() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                (orders if number % 3 else mails).send(number)
                time.sleep(0.002)

        writer = threading.Thread(target=write)
        first = api.events("/api/journal")
        first.until("position")
        writer.start()
        try:
            for turn in range(6):
                stream = first if turn == 0 else (other.api if turn % 2 else api).events("/api/journal", after=position)
                found, position = stream.lines(60)
                seen += [(line["queue"], line["position"]) for line in found]
                stream.close()
                time.sleep(0.1)
        finally:
            stop.set()
            writer.join()
        post.queue("late").send("a queue that came while nobody watched")
        last = api.events("/api/journal", after=position)
        rest: list[tuple[str, int]] = []
        while ("late", 1) not in rest:
            rest += [(line["queue"], line["position"]) for line in last.until("journal").data]
        last.close()
        seen += rest
        for name in ("orders", "mails"):
            numbers = [number for queue, number in seen if queue == name]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))

    def test_a_position_that_the_journal_no_longer_has_is_told_as_resync(
        self, api: Api, post: Client, serving: Serving
    ) -> None:
        queue = post.queue("orders", journal_keep=1000, journal_cap=1000)
        for _ in range(5):
            queue.send_many(list(range(1000)))
        known(serving, post, "orders")
        stream = api.events("/api/journal", after="orders=1")
        assert stream.until("resync").data == {"reason": "trimmed"}
        stream.close()
        ahead = api.events("/api/journal", after="orders=999999")
        assert ahead.until("resync").data == {"reason": "reset"}
        ahead.close()

    def test_a_queue_that_this_server_has_not_met_is_neither_repeated_nor_jumped(self, api: Api, post: Client) -> None:
        """As after a reconnect to a server that looked for queues just before this one came."""
        queue = post.queue("fresh")
        queue.send_many(list(range(20)))
        stream = api.events("/api/journal", after="fresh=10")
        lines, _ = stream.lines(5)
        stream.close()
        assert [line["position"] for line in lines][:5] == [11, 12, 13, 14, 15]
        trimmed = post.queue("trimmed", journal_keep=1000, journal_cap=1000)
        for _ in range(5):
            trimmed.send_many(list(range(1000)))
        stream = api.events("/api/journal?queue=trimmed", after="trimmed=10")
        assert stream.until("resync").data == {"reason": "trimmed"}
        stream.close()

    def test_a_queue_that_was_dropped_and_made_anew_is_followed_again(
        self, api: Api, post: Client, admin: Admin, serving: Serving
    ) -> None:
        queue = post.queue("orders")
        queue.send_many(list(range(50)))
        known(serving, post, "orders")
        stream = api.events("/api/journal")
        stream.until("position")
        admin.drop("orders")
        with_new = post.queue("orders")
        with_new.ref.opened = False
        with_new.send("again")
        reset = stream.until("resync")
        assert reset.data == {"reason": "reset"}
        with_new.send("once more")
        lines, _ = stream.lines(1)
        stream.close()
        assert (lines[0]["queue"], lines[0]["event"]) == ("orders", "sent")
        assert lines[0]["position"] <= 5

    def test_what_is_no_position_is_refused(self, api: Api) -> None:
        for text in ("orders", "orders=x", "a b=1", "orders=1,,"):
            stream = api.events("/api/journal", after=text)
            assert stream.status == 422
            stream.close()

    def test_counts_tell_what_changed_and_no_more(self) -> None:
        # A Redis and a server of its own: the shared ones may still know queues of the test before.
        with (
            RedisServer() as redis,
            restante.connect(redis.url) as post,
            Serving(redis.url, ServerSettings(port=0)) as serving,
        ):
            post.queue("orders").send("x")
            post.queue("mails").send("x")
            stream = Api(serving.address).events("/api/journal?counts=1&journal=0")
            ready: dict[str, int] = {}
            while ready != {"orders": 1, "mails": 1}:
                ready |= _ready(stream.until("counts").data)
            post.queue("orders").send("y")
            changed = _ready(stream.until("counts").data)
            stream.close()
            assert changed == {"orders": 2}

    def test_a_stream_without_news_gives_signs_of_life(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("restante.server.journal_stream.HELLO_EVERY", 0.05)
        stream = api.events("/api/journal?counts=1")
        instants = [stream.until("hello").data["now"] for _ in range(4)]
        stream.close()
        assert instants == sorted(instants)

    def test_events_are_what_their_models_describe(self, api: Api, post: Client, serving: Serving) -> None:
        post.queue("orders").send("x")
        known(serving, post, "orders")
        stream = api.events("/api/journal?counts=1")
        hello, counts, _ = (told.data for told in stream.first("hello", "counts", "position"))
        post.queue("orders").send("y")
        lines = stream.until("journal").data
        while not counts["queues"]:  # the first may be older than the queue
            post.queue("orders").send("z")
            counts = stream.until("counts").data
        stream.close()
        described: list[tuple[type[BaseModel], dict[str, Any]]] = [
            (responses.HelloEvent, hello),
            (responses.CountsEvent, counts),
            (responses.QueueCounts, counts["queues"][0]),
            (responses.JournalLine, lines[0]),
        ]
        for model, data in described:
            model.model_validate(data)
            assert data.keys() == model.model_fields.keys()

    def test_payloads_are_not_told(self, api: Api, post: Client, serving: Serving) -> None:
        post.queue("orders").send("before")
        known(serving, post, "orders")
        stream = api.events("/api/journal")
        stream.until("position")
        post.queue("orders").send({"card": "4111111111111111"})
        told = stream.until("journal")
        stream.close()
        assert "4111" not in str(told.data)


class TestBounded:
    @pytest.mark.timed
    @pytest.mark.parametrize(("many", "megabytes"), [(100, 50), pytest.param(1000, 150, marks=pytest.mark.chaos)])
    def test_those_who_never_read_cost_little_and_hold_up_nobody(
        self, up: Callable[..., Up], post: Client, many: int, megabytes: int
    ) -> None:
        queue = post.queue("orders")
        queue.send("x")
        server = up()
        time.sleep(journal_feed.NAMES_EVERY + 0.3)
        host, port = server.api.host, server.api.port
        head = b"GET /api/journal?counts=1 HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        deaf = []
        for _ in range(many):
            link = socket.create_connection((host, port))
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.sendall(head)
            deaf.append(link)
        wait_until(lambda: b"restante_live_clients %d.0" % many in server.api.get("/metrics").body, poll=0.2)
        sizes = [memory(server.pid)]
        # On a busy machine the watchers' buffers fill later: what counts is that they are full some time, and how full.
        while len(sizes) < 4 or (sizes[-1] - sizes[-2] >= 30_000_000 and len(sizes) < 30):
            for _ in range(15):
                queue.send_many(list(range(1000)))
                queue.receive_many(1000)
                time.sleep(0.1)
            time.sleep(2)
            sizes.append(memory(server.pid))
        with at_most(5):
            assert server.api.get("/api/queues").status == 200
        for link in deaf:
            link.close()
        told = [f"{size / 1e6:.0f} MB" for size in sizes]
        assert sizes[-1] - sizes[0] < megabytes * 1_000_000, told
        assert sizes[-1] - sizes[-2] < 30_000_000, told  # of gigabytes told meanwhile

    def test_one_who_is_slow_is_told_to_look_anew_and_goes_on(
        self, post: Client, admin: Admin, serving: Serving, api: Api
    ) -> None:
        queue = post.queue("orders")
        queue.send("x")
        known(serving, post, "orders")
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect((api.host, api.port))
        link.sendall(b"GET /api/journal HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        watching(serving)
        for _ in range(60):
            queue.send_many(list(range(1000)))
        time.sleep(2)
        link.settimeout(PATIENCE)

        def read_until(mark: bytes) -> bytes:
            seen = b""
            deadline = time.monotonic() + PATIENCE
            while mark not in seen:
                assert time.monotonic() < deadline, f"no {mark!r}: {seen[-300:]!r}"
                part = link.recv(1 << 20)
                assert part, f"the stream ended without {mark!r}"
                seen = seen[-200_000:] + part
            return seen

        with link:
            seen = read_until(b'event: resync\ndata: {"reason":"slow"}\n\n')
            place = int(seen.rpartition(b"event: resync")[0].rpartition(b"orders=")[2])
            assert 1 < place <= admin.counts("orders").journal_last
            known(serving, post, "orders")
            queue.send("after the gap", kind="after")
            assert b'"kind":"after"' in read_until(b'"kind":"after"')
