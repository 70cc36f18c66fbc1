"""Every parser of what others wrote: whatever it is given, it answers or raises a typed error, and hides nothing else.

`RESTANTE_EXAMPLES` sets how many inputs are tried; without it a fixed set, the same on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import restante
from restante import Admin, Client, Corrupt, InvalidInput, RestanteError, State
from restante.bus.envelope import Envelope, Malformed
from restante.core.attempts import parse_delivery, parse_history, parse_progress, parse_result
from restante.core.endpoint import Endpoint
from restante.core.journal import JournalEntry, Position
from restante.core.journal_reader import JournalReader
from restante.core.settings import ClientSettings, QueueSettings
from restante.core.stored import Stored, encode, readable, sound
from restante.rsmq import inspector as rsmq_views
from restante.rsmq.client import Rsmq
from restante.server.access import Caller, Token, Tokens
from tests.harness.servers import RedisServer, call

_ASKED = os.environ.get("RESTANTE_EXAMPLES")


def tries(count: int) -> settings:
    return settings(
        max_examples=int(_ASKED) if _ASKED else count,
        derandomize=_ASKED is None,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


quick, slow = tries(150), tries(25)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
#: Pieces of which our own formats are made, so that inputs come near to them.
_PIECES = st.sampled_from(
    [
        b"\t",
        b"\n",
        b"0",
        b"1",
        b"-1",
        b"9" * 25,
        b"kind",
        b"+",
        b"@",
        b"\0\0",
        b"\xff",
        b"{}",
        b'{"h": 1}',
        b"",
        b"dead",
    ]
)
NEAR = st.lists(_PIECES | st.binary(max_size=4), max_size=24).map(b"".join)
TEXT = st.text(max_size=30) | NEAR.map(lambda raw: raw.decode("latin-1"))


def stored_form(payload: Any = "x", **options: Any) -> bytes:
    """A message as Redis would keep it."""
    return b"7\n1700000000000\t" + encode(payload, **options)[0]


FORMS = [
    stored_form(),
    stored_form(kind="a.b", priority=9, headers={"a": 1}, lease_ms=5, max_attempts=3, unique="u", unique_states="r"),
    stored_form(b"\xff\0", expires_ms=9, expires_from=8),
]


@st.composite
def changed(draw: Callable[[st.SearchStrategy[Any]], Any], raw: bytes) -> bytes:
    """The bytes with some of them cut out or replaced."""
    start = draw(st.integers(0, len(raw)))
    end = draw(st.integers(start, min(len(raw), start + 12)))
    return raw[:start] + bytes(draw(NEAR | st.binary(max_size=3))) + raw[end:]


SPOILED = st.sampled_from(FORMS).flatmap(changed) | NEAR | st.binary(max_size=60)
_PARTS = (
    *("sent_ms", "kind", "priority", "size", "lease_ms", "expires_ms", "max_attempts", "unique_states", "unique"),
    *("options", "headers", "content_type", "retry", "body", "payload"),
)


class TestStoredForm:
    @quick
    @given(SPOILED)
    @example(b"")
    @example(b"1\n2\t\xff\t0\t1\n\n\0\0\0\0\0\0x")
    @example(b"1\n2\tk\t0\t1\n\t\t\n\0\0\0\0\0\0x")
    @example(b"1\n" + b"9" * 30 + b"\tk\t0\t1\n\n\0\0\0\0\0\0x")
    @example(b"1\n2\t\t0\t1\n\n\0\0\0\0\xff\xff" + b"[" * 65535)
    def test_each_part_is_read_or_is_corrupt(self, raw: bytes) -> None:
        sound(raw)
        for part in _PARTS:
            try:
                getattr(Stored(raw), part)
            except Corrupt:
                pass
        held = readable(raw)
        for part in _PARTS[:-1]:
            getattr(held, part)  # whoever only looks is never refused the facts

    @quick
    @given(st.sampled_from(FORMS), st.data())
    def test_a_change_of_any_byte_is_seen(self, raw: bytes, data: st.DataObject) -> None:
        assert sound(raw)
        place = data.draw(st.integers(raw.index(b"\t") + 1, len(raw) - 1))
        bit = data.draw(st.integers(0, 7))
        assert not sound(raw[:place] + bytes([raw[place] ^ (1 << bit)]) + raw[place + 1 :])

    @quick
    @given(JSON, st.text(max_size=5))
    def test_what_was_written_is_read_back(self, payload: Any, header: str) -> None:
        try:
            raw = stored_form(payload, headers={header: header})
        except restante.InvalidPayload:
            return
        held = Stored(raw)
        assert (held.payload, held.headers, held.kind) == (payload, {header: header}, "")

    @quick
    @given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]{0,30}", fullmatch=True))
    def test_the_kind_is_read_without_the_other_facts(self, kind: str) -> None:
        held = Stored(stored_form({"a": 1}, kind=kind))
        assert (held.kind, held.kind, held.priority) == (kind, kind, 0)


class TestLines:
    LINE = b"1\tsent\tready\t1700000000000\tm1\t1700000000000\tk\t0\t5\t0\t\t\t\t"

    @quick
    @given(changed(LINE) | NEAR | st.binary(max_size=40), st.sampled_from([b"0-1", b"0-9", b"7-3", b"x", b""]))
    @example(LINE.replace(b"sent", b"nothing"), b"0-1")
    @example(LINE.replace(b"1700000000000", b"9" * 40), b"0-1")
    @example(LINE.replace(b"1700000000000", b"9" * 5000), b"0-1")
    def test_a_journal_s_lines_are_read_or_are_corrupt(self, block: bytes, stream_id: bytes) -> None:
        try:
            lines = JournalEntry.parse_block("q", stream_id, block)
        except Corrupt:
            return
        assert len(lines) == block.count(b"\n") + 1
        assert lines[-1].position == Position.parse(stream_id)
        for line in lines:
            line.as_dict()

    @quick
    @given(NEAR | st.binary(max_size=60))
    @example('1\t1\t2\tnacked\tc\tE\t"line\u2028of\x85text"\n'.encode())
    def test_histories_deliveries_and_settings_are_read_as_far_as_they_can_be(self, text: bytes) -> None:
        parse_history(text)
        parse_delivery(text)
        parse_progress(text)
        parse_result(text)
        words = text.decode("utf-8", "replace")
        for name in ("version", "lease_ms", "retry", "rate", "max_length"):
            try:
                QueueSettings.parse({name: words})
            except Corrupt:
                pass

    @quick
    @given(NEAR | JSON.map(lambda value: repr(value).encode()) | st.binary(max_size=40))
    def test_a_token_is_read_or_is_corrupt(self, text: bytes) -> None:
        try:
            Token.parse(b"id", text)
        except Corrupt:
            pass


class TestEnvelopes:
    NAMES = st.sampled_from(
        ["id", "type", "source", "time", "schemaversion", "traceparent", "expires_at", "x-a", "own"]
    )

    @quick
    @given(st.dictionaries(NAMES | st.text(max_size=4), JSON | TEXT, max_size=9), TEXT, TEXT)
    @example({"time": "9999-12-31T23:59:59.999999-23:59"}, "i", "a.b")
    @example({"expires_at": 10**5000}, "i", "a.b")
    def test_headers_are_an_event_or_malformed(self, headers: dict[str, Any], id: str, topic: str) -> None:
        try:
            found = Envelope.read(headers, id=id, topic=topic)
        except Malformed:
            return
        assert isinstance(found.is_over, bool)
        found.attributes()


class TestAddresses:
    @quick
    @given(
        st.sampled_from(["redis://", "rediss://", "unix://", "redis+cluster://", "redis+sentinel://", "http://", ""]),
        st.lists(
            st.sampled_from(
                [
                    "host",
                    ":",
                    "@",
                    "/",
                    "?",
                    "&",
                    "=",
                    "[",
                    "]",
                    "%",
                    "#",
                    ",",
                    "99999",
                    "٣",
                    "²",
                    "db",
                    "mymaster",
                    "secret",
                ]
            )
            | st.characters(),
            max_size=14,
        ).map("".join),
    )
    @example("redis+cluster://", "host:99999")
    @example("redis+cluster://", "host,host:99999")
    @example("redis+sentinel://", "host:٣/m")
    @example("redis://", "[::1")
    @example("redis://", "h?ssl_cert_reqs=x")
    @example("redis://", "h?socket_timeout=abc")
    def test_a_url_is_an_address_or_is_refused_without_its_password(self, scheme: str, rest: str) -> None:
        found = typed(lambda: Endpoint.parse(f"{scheme}user:s3cr3t@{rest}", ClientSettings()))
        assert isinstance(found, Endpoint | InvalidInput)
        assert "s3cr3t" not in (found.shown if isinstance(found, Endpoint) else str(found))
        assert isinstance(found, InvalidInput) or all(0 < port <= 65535 for _, port in found.seeds)


# -- planted in Redis ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def post(server: RedisServer) -> Iterator[Client]:
    with restante.connect(server.url, patience=0.2, consumer="c") as opened:
        yield opened


def fresh(server: RedisServer, post: Client) -> Admin:
    """An empty server with one queue of three messages, the second of them at work, the third dead."""
    call(server.client(), "FLUSHALL")
    queue = post.queue("q", lease=60)
    queue.ref.opened, queue.ref.seen = False, 0.0  # as if this client had not used it yet
    for id in ("dead", "held", "good"):
        queue.send(id, id=id)
    first, _ = queue.receive_many(2)
    first.bury(error="why")
    return Admin(post)


def plant(post: Client, key: str, field: str, value: bytes) -> None:
    name = post.queue("q").ref.keys[key]
    post.connection.command("HSET", name, field, value, key=name)


def typed(attempt: Callable[[], Any]) -> Any:
    """The answer, or the error if it is one of ours; any other passes through."""
    try:
        return attempt()
    except RestanteError as error:
        return error


class TestPlanted:
    @slow
    @given(raw=SPOILED)
    def test_a_spoiled_message_hides_no_other_and_is_buried_when_received(
        self, server: RedisServer, post: Client, raw: bytes
    ) -> None:
        admin = fresh(server, post)
        queue = post.queue("q")
        queue.send("spoiled", id="spoiled", priority=255)
        plant(post, "messages", "spoiled", raw)
        assert {message.id for message in admin.walk("q", State.READY)} >= {"good"}
        typed(lambda: admin.show("q", "spoiled").payload)
        assert admin.counts("q").leased == 1
        got = queue.receive()
        while got is not None and got.id != "good":
            typed(partial(getattr, got, "payload"))  # sound by chance, as a change that changes nothing is
            typed(got.ack)  # a changed form may ask for a lease of milliseconds
            got = queue.receive()
        assert got is not None
        assert admin.show("q", "good").payload == "good"

    @slow
    @given(raw=NEAR | st.binary(max_size=40))
    def test_spoiled_deliveries_and_histories_hide_no_message(
        self, server: RedisServer, post: Client, raw: bytes
    ) -> None:
        admin = fresh(server, post)
        for key in ("deliveries", "history"):
            for id in ("dead", "held"):
                plant(post, key, id, raw)
        assert [message.id for message in admin.walk("q", State.DEAD)] == ["dead"]
        assert [message.id for message in admin.walk("q", State.LEASED)] == ["held"]
        assert admin.show("q", "dead").payload == "dead"
        typed(lambda: admin.replay("q"))
        got = post.queue("q").receive()
        assert got is not None

    @slow
    @given(raw=NEAR | st.binary(max_size=40))
    def test_spoiled_records_are_typed_errors_or_left_out(self, server: RedisServer, post: Client, raw: bytes) -> None:
        admin = fresh(server, post)
        command = post.connection.command
        plant(post, "consumers", "stranger", raw)
        plant(post, "tasks", "task", raw)
        command("HSET", b"restante:subscriptions", "s", raw, key=b"restante:subscriptions")
        command("HSET", b"restante:tokens", "t", raw, key=b"restante:tokens")
        command("XADD", b"restante:audit", "*", raw or b"x", raw, key=b"restante:audit")
        assert "c" in [one.name for one in admin.consumers()]
        assert len(admin.audit()) == 1
        admin.elsewhere()
        typed(lambda: admin.tasks("q"))
        tokens = Tokens(post)
        assert isinstance(typed(tokens.list), Corrupt | list)
        assert not isinstance(typed(lambda: tokens.by_text(f"rst_{'0' * 12}_{'a' * 43}")), Caller)
        tokens.revoke("t")
        assert tokens.list() == []

    @slow
    @given(block=NEAR | st.binary(max_size=40))
    def test_spoiled_lines_of_a_journal_are_corrupt_to_every_reader(
        self, server: RedisServer, post: Client, block: bytes
    ) -> None:
        admin = fresh(server, post)
        key = post.queue("q").ref.keys["journal"]
        last = admin.counts("q").journal_last
        post.connection.command("XADD", key, f"0-{last + 1}", "e", block, key=key)
        typed(lambda: admin.journal("q"))
        reader = JournalReader(post)
        before = [block for page in reader.blocks("q", 0, last) for block in page]
        assert before[-1].last == last, "the lines before it are read"
        place = reader.place("q")
        assert place is not None
        typed(lambda: list(reader.blocks("q", 0, last + 1, pass_gaps=True)))
        typed(lambda: reader.seek("q", place._replace(last=last + 1), 2**45))


class TestRsmq:
    @slow
    @given(
        id=st.binary(min_size=1, max_size=40),
        values=st.fixed_dictionaries({name: NEAR | st.binary(max_size=12) for name in ("", ":rc", ":fr")}),
    )
    @example(id=b"x" * 32, values={"": b"\xff", ":rc": b"nan", ":fr": b"never"})
    @example(id=b"\xff\xfe", values={"": b"", ":rc": b"9" * 5000, ":fr": b""})
    def test_foreign_messages_are_received_or_named(
        self, server: RedisServer, post: Client, id: bytes, values: dict[str, bytes]
    ) -> None:
        call(server.client(), "FLUSHALL")
        client = Rsmq(post=post)
        client.create_queue("q")
        sound_id = client.send_message("q", "good")
        for suffix, value in values.items():
            call(server.client(), "HSET", "rsmq:q:Q", id + suffix.encode(), value)
        call(server.client(), "ZADD", "rsmq:q", 1, id)
        typed(lambda: rsmq_views.page(post, "q"))
        typed(lambda: rsmq_views.counts(post, "q"))
        typed(lambda: client.get_queue_attributes("q"))
        for _ in range(3):
            typed(lambda: client.receive_message("q", vt=100))
        typed(lambda: client.delete_message("q", id.decode("latin-1")))
        assert rsmq_views.show(post, "q", sound_id).payload == b"good"

    @slow
    @given(
        name=st.sampled_from(["vt", "delay", "maxsize", "totalsent", "created"]), value=NEAR | st.binary(max_size=12)
    )
    @example(name="vt", value=b"inf")
    @example(name="maxsize", value=b"1e400")
    @example(name="delay", value=b"nan")
    def test_foreign_settings_of_a_queue_are_typed_errors(
        self, server: RedisServer, post: Client, name: str, value: bytes
    ) -> None:
        call(server.client(), "FLUSHALL")
        client = Rsmq(post=post)
        client.create_queue("q")
        call(server.client(), "HSET", "rsmq:q:Q", name, value)
        for attempt in (
            lambda: rsmq_views.counts(post, "q"),
            lambda: rsmq_views.default_namespace_counts(post),
            lambda: client.get_queue_attributes("q"),
            lambda: client.send_message("q", "x"),
            lambda: client.receive_message("q"),
        ):
            typed(attempt)


@pytest.mark.parametrize("text", ["line\u2028of", "a\x85b", "a\x0bb\x0cc", "a\x1cb", "\u202e\0"])
def test_an_error_s_text_is_kept_whatever_is_in_it(server: RedisServer, post: Client, text: str) -> None:
    admin = fresh(server, post)
    message = post.queue("q").receive()
    assert message is not None
    message.bury(error=text)
    assert admin.show("q", message.id).history[-1].error == text
    assert orjson.loads(orjson.dumps(admin.messages("q", State.DEAD).messages[-1].history[-1].error)) == text
