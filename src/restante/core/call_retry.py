"""The decisions of both runners, without I/O: what to do after each failure, and what is known of a server."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from redis import exceptions as foreign
from redis.crc import key_slot

from restante.core.acl import RedisRole, role_for_command, role_for_script
from restante.core.endpoint import Address, Endpoint
from restante.core.errors import (
    Corrupt,
    NotReady,
    QueueFull,
    ReadOnly,
    RestanteError,
    Unavailable,
    Unconfirmed,
    UnsafeServer,
)
from restante.core.failures import access_denied, refusal, unreachable
from restante.core.scripts import Command, Operation, Script, ScriptCall, pack
from restante.core.settings import ClientSettings

#: Longest wait for a marker in seconds: a lost wake-up delays a consumer no longer than this.
BLOCK = 5.0
#: Seconds after which a block that the server has not ended counts as a half-open connection.
BLOCK_MARGIN = 3.0
#: Seconds; first and longest pause between two attempts of a call.
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
#: Seconds; longest pause of a service while the server is away. Recovery takes at most this long.
LONGEST_AWAY = 1.0
#: Oldest Redis whose scripts can declare that they may run at maxmemory. Valkey reports itself as Redis 7.2 or newer.
OLDEST = (7, 0)
#: Oldest server that has WAITAOF, which waits until a write is on disk.
WAITAOF_SINCE = (7, 2)


def away(failures: int, took: float = 0.0) -> float:
    """Seconds a service pauses after this many failures in a row; random, so that services do not return together.

    The pause counts from the start of the failed call, which took `took` seconds: a call that waited long for a server
    that does not answer needs no further pause. The first failure may have ended a sleep, so its pause counts in full.
    """
    pause = random.random() * min(LONGEST_AWAY, 0.05 * 2.0 ** min(failures, 10))
    return pause if failures == 1 else max(0.0, pause - took)


@dataclass(frozen=True, slots=True)
class Step:
    """What to do after a failed attempt: raise `error`, or repair and repeat."""

    error: RestanteError | None = None
    pause: float = 0.0
    load: Script | None = None
    remap: bool = False
    ask: Address | None = None
    inspect: bool = False


@dataclass(slots=True)
class CallRetry:
    """The attempts of one call so far."""

    op: Operation[Any]
    patience: float
    started: float
    tries: int = 0
    #: Whether an attempt may have succeeded although its reply was lost.
    doubt: bool = False
    #: When the latest attempt began, by time.monotonic(); 0 for the first.
    tried_at: float = 0.0

    def next(self, error: BaseException, shown: str, written: bool) -> Step:
        """Decides what to do after a failure."""
        self.tries += 1
        if isinstance(error, foreign.NoScriptError) and isinstance(self.op, ScriptCall):
            if self.tries < 20:
                return Step(load=self.op.script)
            return Step(error=Unavailable("the server keeps dropping scripts"))
        text = str(error)
        if (final := self._unready(error, text, shown)) is not None:
            return self._again(final, remap=isinstance(error, _ELSEWHERE) or text.startswith("CLUSTERDOWN"))
        if isinstance(error, foreign.AskError):
            return self._again(NotReady(f"the cluster keeps moving {self.op.queue}"), ask=(error.host, error.port))
        if (denied := access_denied(error, shown, _role(self.op))) is not None:
            return Step(error=denied)
        if isinstance(error, foreign.ReadOnlyError) or "READONLY" in text:
            return self._again(ReadOnly(f"{shown} is a replica: point the URL at the master"), remap=True)
        if "MISCONF" in text or "NOREPLICAS" in text:
            return self._again(ReadOnly(f"{shown} refuses writes: {text}"))
        if "max number of clients" in text:
            return self._again(Unavailable(f"{shown} has no free connection: close clients or raise maxclients"))
        if isinstance(error, foreign.ResponseError):
            return self._refused(error, text, shown)
        return self._lost(error, shown, written)

    def repeat(self) -> None:
        """Replaces the call by the one that a repeat sends, which knows that an attempt may have succeeded."""
        if isinstance(self.op, ScriptCall) and self.op.repeat is not None:
            self.op = self.op.repeat(self.op, self.doubt)

    def _unready(self, error: BaseException, text: str, shown: str) -> NotReady | None:
        """The error of a server that is not ready, or no longer responsible; None for any other failure."""
        if isinstance(error, foreign.MovedError):
            return NotReady(f"the cluster keeps moving {self.op.queue}")
        if isinstance(error, foreign.MasterDownError):
            return NotReady(f"{shown} is a replica that lost its master: wait, or point the URL at the master")
        if isinstance(error, foreign.TryAgainError | foreign.ClusterDownError) or text.startswith("CLUSTERDOWN"):
            return NotReady(f"the cluster is moving {self.op.queue} or incomplete: {text}")
        if isinstance(error, foreign.BusyLoadingError) or text.startswith(("LOADING", "BUSY")):
            return NotReady(f"{shown} is not ready: {text}")
        return None

    def _refused(self, error: foreign.ResponseError, text: str, shown: str) -> Step:
        """Decides after an error reply that repeating the same call would only get again."""
        if isinstance(error, foreign.OutOfMemoryError) or "OOM command not allowed" in text:
            return Step(error=QueueFull(f"{shown} is at maxmemory: consume the backlog or raise maxmemory"))
        if "WRONGTYPE" in text:
            return Step(inspect=True)
        if text.startswith("RESTANTE KEYS"):
            return Step()  # the queue has limits that this client did not know of: a repeated send names every key
        return Step(error=refusal(text, self.op.queue, shown))

    def _lost(self, error: BaseException, shown: str, written: bool) -> Step:
        """Decides after a lost connection, or a reply that did not arrive in time."""
        self.doubt = self.doubt or written
        if self.doubt and self.op.once:
            return Step(error=Unconfirmed(self.op.once))
        final = unreachable(error, shown, written)
        if isinstance(error, foreign.InvalidResponse) and not written:
            return Step(error=final)  # the service there is not Redis and will not become Redis
        return self._again(final, remap=True)

    def _again(self, final: RestanteError, *, remap: bool = False, ask: Address | None = None) -> Step:
        now = time.monotonic()
        spent = now - self.started
        if spent >= self.patience:
            return Step(error=Unconfirmed(ids=self.op.sends) if self.doubt and self.op.sends else final)
        pause = 0.0 if ask else random.random() * min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self.tries, 10))
        # Counted from the start of the attempt: one that waited long for a server that does not answer was a pause.
        pause -= max(0.0, now - (self.tried_at or self.started))
        pause = min(max(0.0, pause), self.patience - spent)
        self.tried_at = now + pause
        return Step(pause=pause, remap=remap, ask=ask)


@dataclass(slots=True)
class Server:
    """The facts of a server that a client reads on the first connection."""

    version: tuple[int, ...]
    policy: str
    loading: bool

    @classmethod
    def parse(cls, *sections: bytes) -> Server:
        facts = info(b"\n".join(sections))
        version = tuple(int(part) for part in facts.get("redis_version", "0").split(".")[:3] if part.isdecimal())
        return cls(version, facts.get("maxmemory_policy", "noeviction"), facts.get("loading") == "1")

    def check(self, settings: ClientSettings, shown: str) -> None:
        """Raises UnsafeServer if the server is too old or would lose messages."""
        if self.version < OLDEST:
            raise UnsafeServer(
                f"{shown} is Redis {'.'.join(map(str, self.version))}: Restante needs {'.'.join(map(str, OLDEST))} "
                "or newer, or Valkey"
            )
        if self.policy.startswith("allkeys") and not settings.allow_eviction:
            raise UnsafeServer(
                f"{shown} has maxmemory-policy {self.policy} and would delete messages when memory is full: set it "
                "to noeviction, or pass allow_eviction=True"
            )


def info(text: bytes) -> dict[str, str]:
    """The fields of an INFO reply."""
    pairs = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines() if ":" in line)
    return {name: value.strip() for name, _, value in pairs}


HANDSHAKE = pack(("INFO", "server")) + pack(("INFO", "memory")) + pack(("CLIENT", "ID"))
_ASKING = pack(("ASKING",))
#: The errors of a server that is not, or no longer, the one to ask.
_ELSEWHERE = (foreign.MovedError, foreign.MasterDownError, foreign.TryAgainError, foreign.ClusterDownError)
#: The errors that the driver raises for a lost connection or a refused command.
LOST = (foreign.RedisError, OSError)


def asking(ask: bool) -> bytes:
    """The command ASKING, which precedes a call to the node that a slot moves to."""
    return _ASKING if ask else b""


class SlotMap:
    """The addresses of a cluster's nodes by slot."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Address]] = []

    def learn(self, reply: Iterable[Any]) -> None:
        """Reads the reply of CLUSTER SLOTS."""
        self._ranges = [(row[0], row[1], (row[2][0].decode(), row[2][1])) for row in reply if row[2][0]]

    def of(self, key: bytes) -> Address | None:
        slot = key_slot(key)
        for first, last, address in self._ranges:
            if first <= slot <= last:
                return address
        return None


def durability_command(level: str, waitaof: bool, settings: ClientSettings) -> bytes | None:
    """The command that follows a send on its connection, or None."""
    # Below the socket's timeout, so that the server's "not yet" arrives as a reply.
    limit = int(settings.socket_timeout * 800)
    if level == "disk":
        return pack(("WAITAOF", 1, 0, limit)) if waitaof else None
    return pack(("WAIT", int(level.partition(":")[2]), limit))


def disk_question(server: Server) -> bytes:
    """The command that reads how the server writes to disk. CONFIG, which few users may run, only without WAITAOF."""
    return pack(("INFO", "persistence")) if server.version >= WAITAOF_SINCE else pack(("CONFIG", "GET", "append*"))


def disk_support(server: Server, reply: Any, shown: str) -> bool:
    """Whether durability disk needs WAITAOF; False if every write is synced anyway. Raises UnsafeServer if neither."""
    if server.version >= WAITAOF_SINCE:
        if info(reply).get("aof_enabled") == "1":
            return True
    else:
        config = dict(zip(reply[::2], reply[1::2], strict=True))
        if (config.get(b"appendonly"), config.get(b"appendfsync")) == (b"yes", b"always"):
            return False
    raise UnsafeServer(
        f"{shown} cannot promise durability disk: set appendonly yes and, before Redis 7.2, appendfsync always"
    )


def confirmed(level: str, reply: Any) -> bool:
    """Whether the reply of WAIT or WAITAOF confirms the level."""
    if level == "disk":
        return bool(reply[0] >= 1)
    return bool(reply >= int(level.partition(":")[2]))


def not_confirmed(op: Operation[Any]) -> Unconfirmed:
    """The error for a message that is stored while its durability level was not reached."""
    return Unconfirmed(
        f"{', '.join(op.sends[:3])} is stored but not yet at durability {op.durability}: check the replicas or the "
        "disk; sending again with the same id is safe",
        ids=op.sends,
    )


def misplaced(op: Operation[Any], types: Sequence[bytes]) -> Corrupt:
    """The error that names the key whose type Restante did not write."""
    types_named = op.script.types if isinstance(op, ScriptCall) else ()
    for place, (key, actual) in enumerate(zip(op.keys, types, strict=True)):
        word = key.rpartition(b"}:")[2].partition(b":")[0].decode()
        expected = types_named[place] if types_named else TYPES.get(word)
        if actual != b"none" and actual.decode() != expected:
            return Corrupt(
                f"the key {key.decode()} holds a {actual.decode()} that Restante did not write: rename or delete it"
            )
    return Corrupt(f"a key of {op.queue} has a type that Restante did not write")


def waiting_failed(error: foreign.ResponseError, markers: Sequence[bytes], shown: str) -> RestanteError | None:
    """The error for a refused wait; None if the caller's next call handles the cause."""
    text = str(error)
    if "WRONGTYPE" in text:
        names = ", ".join(marker.decode() for marker in markers)
        return Corrupt(f"one of the keys {names} holds a value that Restante did not write: rename or delete it")
    if isinstance(error, foreign.MovedError | foreign.AskError | foreign.TryAgainError) or text.startswith("UNBLOCKED"):
        return None
    return access_denied(error, shown, RedisRole.CONSUME) or NotReady(f"{shown} is not ready: {text}")


def lost_waiting(error: BaseException, shown: str) -> Unavailable:
    """The error for a wait whose connection was lost."""
    return access_denied(error, shown, RedisRole.CONSUME) or Unavailable(f"{shown} was lost while waiting: {error}")


def markers_by_slot(endpoint: Endpoint, markers: Sequence[bytes]) -> list[list[bytes]]:
    """Groups markers by blocking call: all in one, or in a cluster one per call."""
    return [[marker] for marker in markers] if endpoint.mode == "cluster" else [list(markers)]


#: The type of every key of a queue.
TYPES = {
    "queue": "hash",
    "journal": "stream",
    "messages": "hash",
    "deliveries": "hash",
    "history": "hash",
    "ready": "zset",
    "scheduled": "zset",
    "retrying": "zset",
    "leased": "zset",
    "dead": "zset",
    "done": "zset",
    "marker": "zset",
    "unique": "hash",
    "acked": "hash",
    "acked_before": "hash",
    "cancelled": "zset",
    "consumers": "hash",
    "tasks": "hash",
    "schedules": "hash",
    "ticks": "zset",
    "outbox": "zset",
    "batches": "zset",
    "batches_ended": "zset",
    "batch": "hash",
    "members": "hash",
    "queues": "set",
    "leases": "stream",
    "verdicts": "hash",
}


def _role(op: Operation[Any]) -> RedisRole | None:
    """The least role that may make this call; None for scripts of other rooms."""
    if isinstance(op, Command):
        return role_for_command(str(op.words[0]), op.key)
    return role_for_script(op.script.name) if type(op.script) is Script else None
