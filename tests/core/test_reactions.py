"""What a client does after each kind of failure, and what it believes about its server: decisions without I/O."""

from __future__ import annotations

import time
from typing import Any

import pytest
from redis import exceptions as foreign
from redis.crc import key_slot

from restante import (
    AccessDenied,
    Corrupt,
    InvalidInput,
    NotReady,
    PayloadTooLarge,
    QueueFull,
    ReadOnly,
    RestanteError,
    Unavailable,
    Unconfirmed,
    UnsafeServer,
)
from restante.core import call_retry
from restante.core.call_retry import (
    LONGEST_AWAY,
    LONGEST_PAUSE,
    CallRetry,
    Server,
    SlotMap,
    Step,
    away,
    confirmed,
    disk_support,
    durability_command,
    info,
    lost_waiting,
    misplaced,
    not_confirmed,
    waiting_failed,
)
from restante.core.operations import ACK, SEND
from restante.core.scripts import Operation, ScriptCall, pack
from restante.core.settings import ClientSettings

SHOWN = "redis://host:6379/0"


@pytest.fixture(autouse=True)
def longest_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 1.0)


def sending(*ids: str) -> ScriptCall[Any]:
    return ScriptCall(SEND, (b"restante:{orders}:queue",), [], lambda reply: reply, "orders", sends=ids)


def effort(op: Operation[Any] | None = None, *, spent: float = 0.0, patience: float = 4.0) -> CallRetry:
    return CallRetry(op or sending("a"), patience, time.monotonic() - spent)


REPAIRED = [
    # error of the driver, error once patience is spent, whether servers are looked up anew
    (foreign.MovedError("1 other:1"), NotReady, "keeps moving orders", True),
    (foreign.MasterDownError("MASTERDOWN"), NotReady, "lost its master", True),
    (foreign.TryAgainError("TRYAGAIN"), NotReady, "moving orders or incomplete", True),
    (foreign.ClusterDownError("CLUSTERDOWN The cluster is down"), NotReady, "moving orders or incomplete", True),
    (foreign.ResponseError("CLUSTERDOWN Hash slot not served"), NotReady, "moving orders or incomplete", True),
    (foreign.BusyLoadingError("loading"), NotReady, "is not ready", False),
    (foreign.ResponseError("LOADING Redis is loading"), NotReady, "is not ready", False),
    (foreign.ResponseError("BUSY Redis is busy running a script"), NotReady, "is not ready", False),
    (foreign.ReadOnlyError("You can't write"), ReadOnly, "is a replica: point the URL at the master", True),
    (foreign.ResponseError("-READONLY from a script"), ReadOnly, "is a replica", True),
    (foreign.ResponseError("MISCONF Redis is configured"), ReadOnly, "refuses writes: MISCONF", False),
    (foreign.ResponseError("NOREPLICAS Not enough good replicas"), ReadOnly, "refuses writes: NOREPLICAS", False),
    (foreign.ResponseError("max number of clients reached"), Unavailable, "raise maxclients", False),
    (foreign.ConnectionError("Connection refused"), Unavailable, "is the server running", True),
    (OSError("gone"), Unavailable, "cannot be reached", True),
]


@pytest.mark.parametrize(("error", "final", "words", "remap"), REPAIRED, ids=lambda value: str(value)[:30])
def test_a_call_is_repeated_while_there_is_patience_and_then_ends_in_its_own_error(
    error: Exception, final: type[RestanteError], words: str, remap: bool
) -> None:
    again = effort().next(error, SHOWN, written=False)
    assert again.error is None
    assert again.remap is remap
    assert 0 < again.pause <= LONGEST_PAUSE
    assert (again.load, again.inspect, again.ask) == (None, False, None)
    ended = effort(spent=5.0).next(error, SHOWN, written=False)
    assert type(ended.error) is final
    assert words in str(ended.error)


@pytest.mark.parametrize(
    ("error", "final", "words"),
    [
        (foreign.NoPermissionError("User alice has no permissions to run"), AccessDenied, "restante acl --role send"),
        (foreign.ResponseError("NOAUTH Authentication required"), AccessDenied, "asks for a login"),
        (foreign.OutOfMemoryError("OOM"), QueueFull, "is at maxmemory"),
        (foreign.ResponseError("OOM command not allowed when used memory"), QueueFull, "is at maxmemory"),
        (foreign.ResponseError("RESTANTE TOOLARGE 10 bytes"), PayloadTooLarge, "orders: 10 bytes"),
        (foreign.ResponseError("RESTANTE FULL 5 wait"), QueueFull, "orders is full"),
        (foreign.ResponseError("RESTANTE DEADFULL 5"), QueueFull, "too many dead letters"),
        (foreign.ResponseError("RESTANTE BAD lease"), InvalidInput, "orders: lease"),
        (foreign.ResponseError("ERR DB index is out of range"), InvalidInput, "no such database"),
        (foreign.ResponseError("ERR odd"), RestanteError, "refused a call on orders: ERR odd"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_refusal_is_told_at_once(error: Exception, final: type[RestanteError], words: str) -> None:
    step = effort().next(error, SHOWN, written=True)
    assert type(step.error) is final
    assert words in str(step.error)
    assert (step.load, step.remap, step.inspect, step.ask) == (None, False, False, None)


def test_a_forgotten_script_is_loaded_without_a_pause_and_not_for_ever() -> None:
    trying = effort()
    steps = [trying.next(foreign.NoScriptError("NOSCRIPT"), SHOWN, written=True) for _ in range(20)]
    assert steps[:19] == [Step(load=SEND)] * 19
    assert isinstance(steps[19].error, Unavailable)


def test_a_slot_on_its_way_is_asked_for_at_its_new_node_at_once() -> None:
    assert effort().next(foreign.AskError("1 other:7001"), SHOWN, written=True) == Step(ask=("other", 7001))


def test_a_key_of_the_wrong_type_is_looked_at_and_new_limits_are_read() -> None:
    assert effort().next(foreign.ResponseError("WRONGTYPE Operation"), SHOWN, True) == Step(inspect=True)
    assert effort().next(foreign.ResponseError("RESTANTE KEYS"), SHOWN, True) == Step()


def test_a_send_that_may_have_been_carried_out_ends_unconfirmed_with_its_ids() -> None:
    trying = effort(sending("a", "b"))
    assert trying.next(foreign.ConnectionError("reset"), SHOWN, written=True).error is None
    trying.started -= 5.0
    # The last failure is another one; the doubt of the first stays.
    ended = trying.next(foreign.ConnectionError("refused"), SHOWN, written=False)
    assert isinstance(ended.error, Unconfirmed)
    assert list(ended.error.ids) == ["a", "b"]


def test_a_send_that_was_never_written_is_unavailable() -> None:
    ended = effort(spent=5.0).next(foreign.ConnectionError("refused"), SHOWN, written=False)
    assert type(ended.error) is Unavailable


def test_what_sends_nothing_is_unavailable_even_in_doubt() -> None:
    op: Operation[Any] = ScriptCall(ACK, (b"k",), [], lambda reply: reply, "orders")
    ended = effort(op, spent=5.0).next(foreign.TimeoutError("Timeout reading"), SHOWN, written=True)
    assert type(ended.error) is Unavailable


def test_a_call_that_must_not_be_repeated_is_unconfirmed_after_one_lost_answer() -> None:
    op: Operation[Any] = ScriptCall(SEND, (b"k",), [], lambda reply: reply, "orders", once="popped, perhaps")
    lost = effort(op).next(foreign.ConnectionError("reset"), SHOWN, written=True)
    assert isinstance(lost.error, Unconfirmed)
    assert "popped, perhaps" in str(lost.error)
    never_sent = effort(op).next(foreign.ConnectionError("refused"), SHOWN, written=False)
    assert never_sent.error is None


def test_another_service_on_the_port_is_told_at_once() -> None:
    error = foreign.InvalidResponse('Protocol error, got "H" as reply type byte')
    assert isinstance(effort().next(error, SHOWN, written=False).error, Unavailable)
    assert effort().next(error, SHOWN, written=True).error is None


def test_pauses_double_to_their_bound_and_end_with_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    trying = effort(patience=1000.0)
    pauses = [trying.next(foreign.BusyLoadingError("LOADING"), SHOWN, False).pause for _ in range(12)]
    assert pauses[:5] == [0.04, 0.08, 0.16, 0.32, LONGEST_PAUSE]
    assert set(pauses[5:]) == {LONGEST_PAUSE}
    late = effort(spent=3.9, patience=4.0).next(foreign.BusyLoadingError("LOADING"), SHOWN, False)
    assert late.error is not None or late.pause <= 0.1


def test_services_wait_longer_and_longer_up_to_a_second() -> None:
    assert [away(failures) for failures in range(1, 6)] == [0.1, 0.2, 0.4, 0.8, LONGEST_AWAY]
    assert {away(failures) for failures in (10, 1000)} == {LONGEST_AWAY}


def test_a_pause_counts_from_the_start_of_a_call_that_waited_for_a_silent_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [away(failures, took) for failures, took in ((1, 5.0), (4, 0.5), (4, 5.0))] == [0.1, pytest.approx(0.3), 0.0]
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    trying = effort(patience=1000.0)
    pauses = []
    for took in (0.0, 0.03, 1.5, 0.0):
        now += took
        pauses.append(trying.next(foreign.BusyLoadingError("LOADING"), SHOWN, False).pause)
        now += pauses[-1]
    assert pauses == [pytest.approx(pause) for pause in (0.04, 0.05, 0.0, 0.32)]


class TestServer:
    def test_it_is_read_from_its_own_description(self) -> None:
        server = Server.parse(b"redis_version:7.0.15\r\nloading:1\r\n", b"maxmemory_policy:allkeys-lru\r\n")
        assert server == Server((7, 0, 15), "allkeys-lru", True)
        assert Server.parse(b"") == Server((0,), "noeviction", False)

    def test_an_old_server_is_refused(self) -> None:
        with pytest.raises(UnsafeServer, match=r"is Redis 6\.2\.14: Restante needs 7\.0 or newer, or Valkey"):
            Server((6, 2, 14), "noeviction", False).check(ClientSettings(), SHOWN)
        Server((7, 0), "noeviction", False).check(ClientSettings(), SHOWN)

    @pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
    def test_a_server_that_evicts_is_refused_unless_allowed(self, policy: str) -> None:
        server = Server((7, 0), policy, False)
        with pytest.raises(UnsafeServer, match=policy):
            server.check(ClientSettings(), SHOWN)
        server.check(ClientSettings(allow_eviction=True), SHOWN)

    @pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
    def test_a_server_that_evicts_nothing_of_ours_is_taken(self, policy: str) -> None:
        Server((7, 0), policy, False).check(ClientSettings(), SHOWN)

    def test_fields_are_read_with_all_their_colons(self) -> None:
        assert info(b"# Server\r\na:1\r\nb:x:y \r\n\r\n") == {"a": "1", "b": "x:y"}


class TestSlots:
    def test_a_key_is_served_by_the_node_of_its_slot(self) -> None:
        slots = SlotMap()
        assert slots.of(b"any") is None
        slot = key_slot(b"restante:{orders}:queue")
        slots.learn([[0, slot - 1, [b"below", 1]], [slot, slot, [b"this", 2]], [slot + 1, 16383, [b"above", 3]]])
        assert slots.of(b"restante:{orders}:queue") == ("this", 2)
        assert slots.of(b"restante:{orders}:ready") == ("this", 2)
        slots.learn([[0, slot, [b"", 1]], [slot + 1, 16383, [b"above", 3]]])
        assert slots.of(b"restante:{orders}:queue") is None


class TestDurability:
    def test_the_command_waits_for_less_than_the_socket_does(self) -> None:
        settings = ClientSettings(socket_timeout=5)
        assert durability_command("disk", True, settings) == pack(("WAITAOF", 1, 0, 4000))
        assert durability_command("disk", False, settings) is None
        assert durability_command("replica:2", False, settings) == pack(("WAIT", 2, 4000))

    @pytest.mark.parametrize(
        ("version", "reply", "waits"),
        [
            ((7, 2), b"aof_enabled:1\r\n", True),
            ((7, 0), [b"appendonly", b"yes", b"appendfsync", b"always"], False),
        ],
    )
    def test_disk_is_confirmed_by_waiting_or_by_the_servers_own_setting(
        self, version: tuple[int, ...], reply: Any, waits: bool
    ) -> None:
        assert disk_support(Server(version, "noeviction", False), reply, SHOWN) is waits

    @pytest.mark.parametrize(
        ("version", "reply"),
        [
            ((7, 2), b"aof_enabled:0\r\n"),
            ((7, 2), b""),
            ((7, 0), [b"appendonly", b"yes", b"appendfsync", b"everysec"]),
            ((7, 0), [b"appendonly", b"no", b"appendfsync", b"always"]),
        ],
    )
    def test_a_server_that_cannot_promise_disk_is_refused(self, version: tuple[int, ...], reply: Any) -> None:
        with pytest.raises(UnsafeServer, match="cannot promise durability disk"):
            disk_support(Server(version, "noeviction", False), reply, SHOWN)

    def test_fewer_replicas_or_no_disk_is_no_confirmation(self) -> None:
        assert [confirmed("replica:2", count) for count in (1, 2, 3)] == [False, True, True]
        assert [confirmed("disk", reply) for reply in ([0, 0], [1, 0])] == [False, True]

    def test_what_is_stored_and_not_confirmed_names_its_ids(self) -> None:
        op = sending("a", "b", "c", "d")._replace(durability="replica:2")
        error = not_confirmed(op)
        assert list(error.ids) == ["a", "b", "c", "d"]
        assert "a, b, c is stored but not yet at durability replica:2" in str(error)


class TestKeysAndSleeps:
    def test_the_key_that_is_not_ours_is_named(self) -> None:
        keys = (b"restante:{orders}:queue", b"restante:{orders}:ready", b"restante:{orders}:leases:me")
        op: Operation[Any] = ScriptCall(SEND, keys, [], lambda reply: reply, "orders")
        assert "restante:{orders}:ready holds a string" in str(misplaced(op, [b"hash", b"string", b"none"]))
        assert "restante:{orders}:leases:me holds a hash" in str(misplaced(op, [b"none", b"zset", b"hash"]))
        assert "a key of orders has a type" in str(misplaced(op, [b"hash", b"zset", b"stream"]))

    @pytest.mark.parametrize(
        "error",
        [
            foreign.MovedError("1 other:1"),
            foreign.AskError("1 other:1"),
            foreign.TryAgainError("TRYAGAIN"),
            foreign.ResponseError("UNBLOCKED force unblock from blocking operation"),
        ],
    )
    def test_a_sleep_that_the_server_ends_is_no_failure(self, error: foreign.ResponseError) -> None:
        assert waiting_failed(error, [b"marker"], SHOWN) is None

    def test_a_refused_sleep_says_why(self) -> None:
        wrong = waiting_failed(foreign.ResponseError("WRONGTYPE"), [b"one", b"two"], SHOWN)
        assert isinstance(wrong, Corrupt)
        assert "one, two" in str(wrong)
        denied = waiting_failed(foreign.NoPermissionError("NOPERM"), [b"one"], SHOWN)
        assert isinstance(denied, AccessDenied)
        assert isinstance(waiting_failed(foreign.ResponseError("LOADING"), [b"one"], SHOWN), NotReady)
        assert isinstance(lost_waiting(OSError("reset"), SHOWN), Unavailable)
        assert isinstance(lost_waiting(foreign.ResponseError("NOAUTH"), SHOWN), AccessDenied)

    def test_every_key_of_a_queue_has_its_type(self) -> None:
        for name in SEND.keys:
            assert name in call_retry.TYPES
