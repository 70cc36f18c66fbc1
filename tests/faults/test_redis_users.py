"""Users with one role each: what they may do works, and the rest is refused with the role that may."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import restante
from restante import AccessDenied, Admin, Client, Consumer, Position, State, Sweeper
from restante.core import doctor
from restante.core.acl import PLACEHOLDER, RedisRole, add_rights, set_user
from restante.core.call_retry import Server, disk_support
from restante.core.embedded import socket_path
from restante.core.journal_reader import JournalReader
from restante.core.lease_journal import LeaseJournal, Settlement
from restante.rsmq import inspector
from restante.server.access import Tokens
from restante.spark.registration import Registration
from tests.harness.servers import RedisServer, call

PASSWORD = "a secret of 7 words"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server with a user per role, made by the very lines that `restante acl` prints."""
    # What Redis refuses to everybody unless told otherwise is allowed here: the rights alone must refuse it.
    with RedisServer(config={"enable-debug-command": "yes", "enable-module-command": "yes"}) as running:
        for role in RedisRole:
            assert call(running.client(), *set_user(role, [role], password=PASSWORD).split()) in (b"OK", True)
        yield running


@pytest.fixture
def owner(server: RedisServer) -> Iterator[Client]:
    """The default user, on an empty server."""
    call(server.client(), "FLUSHALL")
    with restante.connect(server.url) as post:
        yield post


@pytest.fixture
def log_in(server: RedisServer, owner: Client) -> Iterator[Callable[[str], Client]]:
    """Clients that log in with a role."""
    opened: list[Client] = []

    def made(role: str) -> Client:
        opened.append(restante.connect(url_of(server, role), patience=0.2, consumer=f"c-{role}"))
        return opened[-1]

    yield made
    for post in opened:
        post.close()


def url_of(server: RedisServer, user: str) -> str:
    return server.url.replace("redis://", f"redis://{user}:{PASSWORD.replace(' ', '%20')}@")


def contents(server: RedisServer) -> dict[bytes, bytes]:
    """Every key with its whole value."""
    client = server.client()
    keys: list[bytes] = call(client, "KEYS", "*")
    return {key: call(client, "DUMP", key) for key in keys}


# -- what each role does ---------------------------------------------------------------------------------------------


def sends(post: Client) -> None:
    plain = post.queue("orders", lease=60)
    assert plain.send(1)
    assert plain.send({"later": True}, delay=60, priority=9, kind="k", headers={"a": 1})
    assert plain.send(2, id="same").stored
    assert not plain.send(2, id="same").stored
    assert plain.send(3, unique="u").stored
    assert not plain.send(3, unique="u").stored
    limited = post.queue("limited", max_length=4500, max_dead=10, journal_keep=1000, journal_cap=1000)
    for _ in range(4):
        limited.send_many([0] * 1000)  # far enough for the journal to be trimmed
    with pytest.raises(restante.QueueFull):
        limited.send_many([0] * 1000)


def consumes(post: Client) -> None:
    queue = post.queue("work", lease=60, max_attempts=9, keep_done=2, dedup=0.001)
    for verb in ("ack", "nack", "bury", "release", "extend"):
        message = queue.receive()
        assert message is not None
        getattr(message, verb)(**({"delay": 60} if verb == "nack" else {}))
    assert queue.receive(timeout=0.2) is not None
    while queue.receive() is not None:
        pass
    assert queue.receive(timeout=0.05) is None  # sleeps by the marker, and is woken over a second connection
    handled = []
    first = post.queue("first")
    first.handler(lambda message: handled.append(message.payload))
    Consumer([first], stop_when_empty=True).run()
    handled += [message.payload for message in post.queue("second").consume(stop_when_empty=True)]
    assert handled == [1, 2]
    assert Sweeper(post).run_once().queues
    journal = LeaseJournal(post, "third", "driver")
    assert journal.ready() == 4
    last, claimed = journal.claim(4, lease=30, lasts=60)
    assert journal.renew(list(claimed.values()), 60) == set()
    for word, (id, token) in zip(("ack", "nack", "bury", "release"), claimed.values(), strict=True):
        assert journal.settle(word, [Settlement(id, token, 0, "E", b'"no"')]) == []
    assert len(list(journal.rows(0, last))) == 4
    assert len(journal.verdicts([token for _, token in claimed.values()])) == 4
    journal.clear(last)


def looks(post: Client) -> None:
    admin = Admin(post)
    assert admin.queues() == ["first", "second", "third", "work"]
    assert admin.counts("work").ready == 9
    assert len(admin.all_counts()) == 4
    assert len(admin.messages("work", State.READY, limit=2).messages) == 2
    assert admin.cursors("work", "ready", 3)
    assert admin.show("work", admin.peek("work")[0].id).payload == 0
    assert [one.name for one in admin.consumers()] == ["c-here"]
    assert admin.journal("work")
    assert admin.journal("work", newest_first=True, limit=1)
    assert admin.audit()
    assert admin.tasks("work") == []
    assert (admin.unroutable(), admin.elsewhere()) == ({}, frozenset())
    findings = {one.what: one for one in doctor.examine(post)}
    assert findings["version"].level == "ok"
    keys = [post.queue(name).ref.keys["journal"] for name in ("first", "work")]
    assert post.connection.command("XREAD", "COUNT", 9, "STREAMS", *keys, "0-0", "0-0", key=keys[0])


def pipes(post: Client) -> None:
    reader = JournalReader(post)
    place = reader.claim("work", "spark")
    assert place is not None
    assert sum(len(page) for page in reader.blocks("work", place.floor, place.last))
    assert reader.seek("work", place, 2**50) == place.last
    reader.register("work", "spark", place.last)
    reader.forget("work", "spark")
    Admin(post).register_reader("work", "other", Position(1))
    Admin(post).forget_reader("work", "other")
    with Registration(post.url) as registration:
        assert set(registration.look()) <= {"first", "second", "third", "work"}
        assert registration.unread()
        registration.withdraw()
    assert Admin(post).messages("work", State.READY).messages


def operates(post: Client) -> None:
    admin = Admin(post)
    looks(post)
    admin.configure("work", lease=5)
    admin.pause("work")
    admin.resume("work")
    ids = [message.id for message in admin.peek("work", 9)]
    assert admin.edit("work", ids[0], payload="new", priority=3).payload == "new"
    assert admin.delete("work", ids[:1]) == 1
    assert admin.move("work", "elsewhere", ids[1:3]) == 2
    assert admin.replay("third").replayed == 1
    assert admin.tasks("third")
    assert admin.purge("work") == 6
    admin.drop("elsewhere", force=True)
    assert [entry.verb for entry in admin.audit()][:2] == ["drop", "purge"]
    tokens = Tokens(post)
    _, text = tokens.create("browser", ["read"])
    signed_in = tokens.sign_in(text)
    assert signed_in is not None
    assert tokens.by_cookie(signed_in[1]) is not None
    tokens.sign_out(signed_in[1])
    tokens.revoke("browser")


WORK: dict[str, Callable[[Client], None]] = {
    "send": sends,
    "consume": consumes,
    "view": looks,
    "pipeline": pipes,
    "operate": operates,
}


def prepare(owner: Client) -> None:
    """Queues with something in every state, a consumer that was seen just now and one long gone."""
    here = restante.connect(owner.url, consumer="c-here")
    owner.queue("work").send_many([0] * 9)
    owner.queue("first").send(1)
    owner.queue("second").send(2)
    third = owner.queue("third")
    third.send_many([0] * 5)
    held = here.queue("third").receive()
    assert held is not None
    held.bury()
    here.close()
    old = owner.queue("work").ref.keys["consumers"]
    owner.connection.command("HSET", old, "long-gone", b'1000\t{"host":"h"}', key=old)
    Admin(owner).pause("first")
    Admin(owner).resume("first")


@pytest.mark.parametrize("role", WORK)
def test_a_role_may_do_its_work(owner: Client, log_in: Callable[[str], Client], role: str) -> None:
    if role != "send":
        prepare(owner)
    WORK[role](log_in(role))


# -- what it may not -------------------------------------------------------------------------------------------------


def test_whoever_may_not_read_rsmq_queues_still_sees_the_native_ones(log_in: Callable[[str], Client]) -> None:
    """As `restante ls` and the dashboard's first page do, which show both."""
    post = log_in("view")
    assert (inspector.default_namespace_counts(post), inspector.has_queues(post)) == ([], False)


def receive(post: Client) -> Any:
    return post.queue("work").receive()


def send(post: Client) -> Any:
    return post.queue("work").send(1)


#: What each role tries in vain, and the role that the error names.
REFUSED: list[tuple[str, str, Callable[[Client], Any]]] = [
    ("send", "consume", receive),
    ("send", "view", lambda post: Admin(post).counts("work")),
    ("send", "view", lambda post: Admin(post).journal("work")),
    ("send", "view", lambda post: Admin(post).queues()),
    ("send", "operate", lambda post: Admin(post).purge("work")),
    ("send", "operate", lambda post: Admin(post).delete("work", ["m1"])),
    ("consume", "send", send),
    ("consume", "view", lambda post: Admin(post).messages("work", "ready")),
    ("consume", "operate", lambda post: Admin(post).replay("work", ids=["m1"])),
    ("consume", "operate", lambda post: Admin(post).purge("work", ["dead"])),
    ("consume", "view", lambda post: Admin(post).move("work", "other", ["m1"])),
    ("view", "send", send),
    ("view", "send", receive),  # to open a queue is to register its name, as a sender does
    ("view", "send", lambda post: Admin(post).pause("work")),
    ("view", "operate", lambda post: Admin(post).purge("work")),
    ("view", "pipeline", lambda post: JournalReader(post).claim("work", "r")),
    ("view", "operate", lambda post: Tokens(post).list()),
    ("pipeline", "send", send),
    ("pipeline", "operate", lambda post: Admin(post).edit("work", "m1", priority=1)),
    ("operate", "consume", receive),
]


@pytest.mark.parametrize(("role", "needed", "attempt"), REFUSED)
def test_what_a_role_may_not_do_is_refused_with_the_role_that_may_and_changes_nothing(
    server: RedisServer,
    owner: Client,
    log_in: Callable[[str], Client],
    role: str,
    needed: str,
    attempt: Callable[[Client], Any],
) -> None:
    owner.queue("work").send(1, id="m1")
    post = log_in(role)
    before = contents(server)
    with pytest.raises(AccessDenied) as told:
        attempt(post)
    assert f"`restante acl --role {needed}`" in str(told.value)
    assert contents(server) == before


def test_durability_disk_names_the_right_it_needs_before_redis_7_2(
    server: RedisServer, owner: Client, log_in: Callable[[str], Client]
) -> None:
    with pytest.raises(AccessDenied) as told:
        log_in("send").queue("work").send(1, durability="disk")
    assert "+config|get, which also shows the server's passwords" in str(told.value)


def test_a_newer_server_is_asked_how_it_writes_to_disk_without_the_right_to_its_configuration() -> None:
    newer = Server((7, 2, 4), "noeviction", loading=False)
    assert disk_support(newer, b"# Persistence\r\naof_enabled:1\r\n", "redis://x")
    with pytest.raises(restante.UnsafeServer, match="appendonly yes"):
        disk_support(newer, b"# Persistence\r\naof_enabled:0\r\n", "redis://x")


#: Commands that no user of a queue needs; each would harm others on the server or tell what is none of his business.
DANGEROUS = (
    """
FLUSHALL|FLUSHDB|SWAPDB 0 1|KEYS *|SCAN 0|RANDOMKEY|DBSIZE
CONFIG SET maxmemory 1|CONFIG GET requirepass|CONFIG REWRITE|CONFIG RESETSTAT
DEBUG SLEEP 0|DEBUG RELOAD|SHUTDOWN NOSAVE|SAVE|BGSAVE|BGREWRITEAOF|LASTSAVE|FAILOVER
SCRIPT FLUSH|SCRIPT KILL|SCRIPT EXISTS x|EVAL return(1) 0|EVAL_RO return(1) 0
FUNCTION LOAD x|FUNCTION FLUSH|FUNCTION LIST|FCALL f 0
ACL SETUSER eve on nopass ~* +@all|ACL DELUSER send|ACL LIST|ACL GETUSER default|ACL LOG|ACL SAVE|ACL LOAD
REPLICAOF NO ONE|SLAVEOF NO ONE|SYNC|PSYNC ? -1|MODULE LOAD /tmp/x.so|MODULE LIST
MIGRATE 127.0.0.1 1 k 0 10|RESTORE k 0 x|DUMP restante:{work}:messages|COPY restante:{work}:messages k
CLIENT KILL TYPE normal|CLIENT LIST|CLIENT PAUSE 1|CLIENT NO-EVICT on|MONITOR
CLUSTER RESET|CLUSTER FAILOVER|CLUSTER MEET 127.0.0.1 1|LATENCY RESET|SLOWLOG GET|SLOWLOG RESET|MEMORY PURGE
GET foreign|SET foreign 1|DEL foreign|HGETALL foreign|HSET foreign a b|ZADD foreign 1 a|XADD foreign * a b|TYPE foreign
EXPIRE restante:{work}:messages 1|PERSIST restante:{work}:messages|DEL restante:{work}:messages
RENAME restante:{work}:messages foreign|RENAME foreign restante:{work}:messages|MOVE restante:{work}:messages 1
SORT restante:{work}:ready BY nosort GET foreign|OBJECT ENCODING foreign|PUBLISH c x|SUBSCRIBE c|PSUBSCRIBE *
XGROUP CREATE restante:{work}:journal g 0|SET restante:{work}:marker 1|SUNIONSTORE restante:queues foreign
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


@pytest.fixture(scope="module")
def clients(server: RedisServer) -> Iterator[dict[str, redis.Redis]]:
    made = {role.value: redis.Redis.from_url(url_of(server, role)) for role in RedisRole}
    yield made
    for client in made.values():
        client.close()


@pytest.mark.parametrize("role", WORK)
def test_dangerous_commands_are_refused_to_every_role(
    server: RedisServer, owner: Client, clients: dict[str, redis.Redis], role: str
) -> None:
    owner.queue("work").send(1)
    call(server.client(), "SET", "foreign", "kept")
    before = contents(server)
    allowed = []
    for words in DANGEROUS:
        try:
            call(clients[role], *words.split())
            allowed.append(words)
        except redis.exceptions.NoPermissionError:
            pass
    assert allowed == []
    assert len(DANGEROUS) >= 30
    assert contents(server) == before


#: Scripts of somebody else's, with nothing in them that the roles may not do.
FOREIGN_SCRIPTS = (
    "return 1",
    "return redis.call('TIME')",
    "while true do end",
    "return redis.call('HGETALL', KEYS[1])",
    "return redis.call('HDEL', KEYS[1], 'sequence')",
)


@pytest.mark.parametrize("role", WORK)
def test_a_script_that_is_not_restante_s_own_is_not_run(
    server: RedisServer, owner: Client, clients: dict[str, redis.Redis], role: str
) -> None:
    owner.queue("work").send(1)
    before = contents(server)
    for text in FOREIGN_SCRIPTS:
        sha = call(clients[role], "SCRIPT", "LOAD", text)
        for command in ("EVALSHA", "EVALSHA_RO"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                call(clients[role], command, sha, 1, "restante:{work}:queue")
    assert contents(server) == before


# -- the line that is printed ----------------------------------------------------------------------------------------


def test_a_line_pasted_with_its_placeholder_makes_no_user(server: RedisServer) -> None:
    line = set_user("careless", [RedisRole.SEND])
    assert PLACEHOLDER in line
    with pytest.raises(redis.exceptions.ResponseError):
        call(server.client(), *line.split())
    assert b"careless" not in call(server.client(), "ACL", "USERS")


def test_two_roles_and_one_queue_give_both_kinds_of_work_on_that_queue_alone(
    server: RedisServer, owner: Client
) -> None:
    roles = [RedisRole.SEND, RedisRole.CONSUME]
    call(server.client(), *set_user("both", roles, ["orders"], PASSWORD).split())
    owner.queue("others").send(1)
    with restante.connect(url_of(server, "both"), patience=0.2) as post:
        post.queue("orders").send(1)
        message = post.queue("orders").receive()
        assert message is not None
        message.ack()
        with pytest.raises(AccessDenied):
            post.queue("others").receive()
        with pytest.raises(AccessDenied):
            post.queue("others").send(2)
    assert Admin(owner).counts("others").ready == 1


def test_a_user_made_again_keeps_no_right_of_before(server: RedisServer, owner: Client) -> None:
    client = server.client()
    call(client, *set_user("changed", [RedisRole.OPERATE], password=PASSWORD).split())
    call(client, *set_user("changed", [RedisRole.VIEW], password=PASSWORD).split())
    with restante.connect(url_of(server, "changed"), patience=0.2) as post, pytest.raises(AccessDenied):
        Admin(post).purge("work")


def test_added_rights_leave_those_of_before_and_the_password(server: RedisServer, owner: Client) -> None:
    client = server.client()
    call(client, *set_user("growing", [RedisRole.SEND], password=PASSWORD).split())
    call(client, *add_rights("growing", [RedisRole.CONSUME]).split())
    with restante.connect(url_of(server, "growing"), patience=0.2) as post:
        post.queue("work").send(1)
        assert post.queue("work").receive() is not None


# -- the doctor ------------------------------------------------------------------------------------------------------


def user_finding(post: Client) -> doctor.Finding:
    (found,) = (one for one in doctor.examine(post) if one.what == "user")
    return found


def test_the_doctor_says_who_it_is_and_notices_the_default_user(owner: Client, log_in: Callable[[str], Client]) -> None:
    assert user_finding(owner).level == "notice"
    assert "restante acl --role" in user_finding(owner).remedy
    assert user_finding(log_in("view")) == doctor.Finding("ok", "user", "view")


def test_a_default_user_without_password_is_a_danger_where_other_machines_reach_the_server() -> None:
    with RedisServer() as running:
        client = running.client()
        # An address that this machine does not have, so that nobody can reach the server for the sake of a test.
        call(client, "CONFIG", "SET", "bind", "127.0.0.1 -192.0.2.1")
        call(client, "CONFIG", "SET", "protected-mode", "yes")
        with restante.connect(running.url) as post:
            assert user_finding(post).level == "notice"
            call(client, "CONFIG", "SET", "protected-mode", "no")
            assert user_finding(post).level == "danger"
            call(client, "CONFIG", "SET", "requirepass", "secret")
        with restante.connect(running.url.replace("redis://", "redis://:secret@")) as post:
            assert user_finding(post).level == "notice"


def test_an_embedded_server_listens_on_a_socket_of_its_owner_alone(tmp_path: Path) -> None:
    with restante.connect(directory=tmp_path / "embedded") as post:
        assert user_finding(post) == doctor.Finding("ok", "user", "default, by a socket that the file system guards")
        assert post.connection.command("CONFIG", "GET", "port", key=b"") == [b"port", b"0"]
        assert stat.S_IMODE(socket_path(tmp_path / "embedded").stat().st_mode) & 0o077 == 0
