"""Checks a server for everything that could lose or delay messages, and names the remedies."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from restante.core.admin import Admin
from restante.core.call_retry import OLDEST, info
from restante.core.errors import Corrupt, RestanteError
from restante.core.keys import QUEUES
from restante.core.queue import Client

#: Seconds the server's clock may differ from this machine's before a warning. Only Redis' clock counts.
CLOCK_SKEW = 5.0
#: Share of maxmemory above which a warning is due: at the limit sends are refused.
MEMORY_SHARE = 0.8
#: Milliseconds of a round trip above which single sends are slow.
SLOW_PING = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    #: ok, notice, warning or danger. A notice puts no message at risk.
    level: str
    what: str
    found: str
    remedy: str = ""

    def as_dict(self) -> dict[str, str]:
        return {"level": self.level, "what": self.what, "found": self.found, "remedy": self.remedy}


def examine(client: Client) -> list[Finding]:
    """Checks the server of a client and returns all findings; a bad finding raises no error."""
    started = time.monotonic()
    command = client.connection.command
    command("TIME", key=QUEUES)  # not PING, which a server that cannot write to its disk refuses
    ping = (time.monotonic() - started) * 1000
    facts = info(command("INFO", key=QUEUES))
    return [
        _version(facts),
        _eviction(facts),
        *_persistence(facts, _config(command, "appendfsync")),
        _memory(facts),
        _clock(command),
        _role(facts),
        *_user(client, facts),
        Finding(
            "ok" if ping < SLOW_PING else "warning",
            "round trip",
            f"{ping:.1f} ms",
            "" if ping < SLOW_PING else "send in batches, or move closer to the server",
        ),
        *_celery(command),
        *_queues(client),
    ]


def _config(command: Any, name: str) -> str:
    try:
        reply = command("CONFIG", "GET", name, key=QUEUES)
        return reply[1].decode() if reply else ""
    except RestanteError:
        return ""  # some hosted servers forbid CONFIG; an unknown value is not judged


def _version(facts: dict[str, str]) -> Finding:
    compatible = facts.get("redis_version", "0")
    version = tuple(int(part) for part in compatible.split(".")[:2] if part.isdecimal())
    valkey = facts.get("valkey_version")
    text = f"Valkey {valkey}" if valkey else f"Redis {compatible}"
    if version < OLDEST:
        return Finding("danger", "version", text, f"install Redis {'.'.join(map(str, OLDEST))} or newer, or Valkey")
    return Finding("ok", "version", text)


def _eviction(facts: dict[str, str]) -> Finding:
    policy = facts.get("maxmemory_policy", "")
    if policy.startswith("allkeys"):
        remedy = "CONFIG SET maxmemory-policy noeviction: as it is, a full server deletes messages without an error"
        return Finding("danger", "eviction", policy, remedy)
    if policy.startswith("volatile"):
        remedy = "noeviction is safer; keys with a time to live may be deleted (Restante's own have none)"
        return Finding("warning", "eviction", policy, remedy)
    return Finding("ok", "eviction", policy)


def _persistence(facts: dict[str, str], fsync: str) -> list[Finding]:
    findings = []
    if facts.get("aof_enabled") != "1":
        remedy = "CONFIG SET appendonly yes: without it a crash of the server loses everything since its last snapshot"
        findings.append(Finding("danger", "persistence", "no append-only file", remedy))
    elif fsync == "no":
        remedy = "CONFIG SET appendfsync everysec (a power cut loses at most a second) or always"
        findings.append(Finding("warning", "persistence", "append-only file, fsync left to the system", remedy))
    else:
        lost = "nothing" if fsync == "always" else "at most about a second of sends on a power cut"
        findings.append(Finding("ok", "persistence", f"append-only file, fsync {fsync or 'unknown'}: loses {lost}"))
    for name, label in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if facts.get(name, "ok") != "ok":
            findings.append(
                Finding("danger", "persistence", f"last {label} write failed", "free disk space, see its log")
            )
    return findings


def _memory(facts: dict[str, str]) -> Finding:
    used, limit = int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))
    total = int(facts.get("total_system_memory", 0))
    shown = f"{used / 1e6:.0f} MB used"
    if limit:
        share = used / limit
        level = "danger" if share >= 0.95 else "warning" if share >= MEMORY_SHARE else "ok"
        remedy = "" if level == "ok" else "raise maxmemory or consume the backlog: at the limit sends are refused"
        return Finding(level, "memory", f"{shown} of {limit / 1e6:.0f} MB ({share:.0%})", remedy)
    if total and used / total >= MEMORY_SHARE:
        return Finding(
            "danger", "memory", f"{shown} of {total / 1e6:.0f} MB in the machine", "set maxmemory, add memory"
        )
    remedy = "set maxmemory: without it a backlog ends with the system killing the server instead of refused sends"
    return Finding("warning", "memory", f"{shown}, no maxmemory", remedy)


def _clock(command: Any) -> Finding:
    before = time.time()
    seconds, micros = command("TIME", key=QUEUES)
    skew = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
    if abs(skew) > CLOCK_SKEW:
        remedy = "run NTP on both; due_at you compute here is off by as much, delays and leases are not affected"
        return Finding("warning", "clock", f"the server's clock is {skew:+.1f} s from this machine's", remedy)
    return Finding("ok", "clock", f"{skew * 1000:+.0f} ms from this machine's")


def _role(facts: dict[str, str]) -> Finding:
    if facts.get("role") == "slave":
        return Finding("danger", "role", "replica", "point the URL at the master, or use redis+sentinel://")
    return Finding("ok", "role", f"master with {facts.get('connected_slaves', '0')} replicas")


def _user(client: Client, facts: dict[str, str]) -> list[Finding]:
    """The Redis user of this client, and whether anybody who reaches the server has its rights."""
    command = client.connection.command
    try:
        user = command("ACL", "WHOAMI", key=QUEUES).decode()
    except RestanteError:
        return []  # a user without this right is not the default user
    if user != "default":
        return [Finding("ok", "user", user)]
    if _config(command, "port") == "0" and _config(command, "tls-port") in ("", "0"):
        return [Finding("ok", "user", "default, by a socket that the file system guards")]
    if not client.connection.endpoint.options.get("password") and _is_open(command):
        remedy = "set a password for the default user or turn it off, then `restante acl` for users with few rights"
        return [Finding("danger", "user", "default without a password, on a server that other machines reach", remedy)]
    remedy = "`restante acl --role send` and other roles print users who may do only their part"
    return [Finding("notice", "user", "default, who may do everything", remedy)]


def _is_open(command: Any) -> bool:
    """Whether the server answers other machines; False if that cannot be determined."""
    bind = _config(command, "bind").split()
    return _config(command, "protected-mode") == "no" and (not bind or _reaches_out(bind))


def _reaches_out(addresses: list[str]) -> bool:
    return any(not address.lstrip("-").startswith(("127.", "::1", "localhost")) for address in addresses)


def _celery(command: Any) -> list[Finding]:
    """Finds tasks that Celery on Kombu's own Redis transport has left on this server."""
    findings = []
    try:
        plus = command("ZCARD", "queue:celery", key=b"queue:celery")
    except RestanteError:
        plus = 0
    if plus:
        remedy = "restante migrate-celery --from this server: workers on restante:// do not see them"
        findings.append(Finding("warning", "celery", f"{plus} tasks wait in celery-redis-plus's queue", remedy))
    try:
        held = command("HLEN", "unacked", key=b"unacked")
        lists = command("LLEN", "celery", key=b"celery")
    except RestanteError:
        return findings  # keys of another program with these names
    if lists:
        remedy = "restante migrate-celery --from this server: workers on restante:// do not see them"
        findings.append(Finding("warning", "celery", f"{lists} tasks wait in Kombu's own list", remedy))
    if held:
        remedy = "stop workers on redis://, then restante migrate-celery --unacked; those that died left them"
        findings.append(
            Finding("warning", "celery", f"{held} tasks are held by workers on Kombu's own transport", remedy)
        )
    return findings


def _queues(client: Client) -> list[Finding]:
    findings: list[Finding] = []
    try:
        every = Admin(client).all_counts()
    except RestanteError as error:
        # A replica, a server that refuses writes, or a key of another program: the error names the remedy.
        level = "danger" if isinstance(error, Corrupt) else "warning"
        return [Finding(level, "queues", "cannot be counted", str(error))]
    for counts in every:
        if counts.paused:
            findings.append(Finding("warning", f"queue {counts.queue}", "paused", f"restante resume {counts.queue}"))
        if counts.overdue:
            remedy = "no consumer or sweeper looks at it: start one, or `restante up`"
            findings.append(Finding("warning", f"queue {counts.queue}", f"{counts.overdue} leases overdue", remedy))
        if counts.journal_lost:
            remedy = "a registered reader fell behind the cap: raise journal_cap or forget the reader"
            findings.append(
                Finding("warning", f"queue {counts.queue}", f"{counts.journal_lost} journal entries lost", remedy)
            )
    return findings
