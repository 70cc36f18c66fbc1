"""Access control: tokens with roles, and browser sessions that were opened with a token.

A token is shown once, when it is created or rotated; Redis keeps the hash of its secret. While no token exists, every
caller may do everything, so the server then listens on this machine only. Expired tokens still count as existing:
their expiry must not open the server. If Redis cannot be asked, access is denied with Unavailable.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from restante.core.errors import Corrupt, InvalidInput, NotFound
from restante.core.keys import TOKENS, session_key
from restante.core.names import valid_name
from restante.core.queue import Client
from restante.core.settings import milliseconds

#: Seconds for which the tokens read from Redis are cached. A revoked token still starts requests for this long; zero
#: reads them for every request.
TOKEN_CACHE_SECONDS = 1.0
#: Seconds between two checks of a stream's token. A stream outlives its revoked token by at most this long.
CHECKED_EVERY = 1.0
#: Seconds until a browser must sign in again.
SESSION_SECONDS = 7 * 86400
#: Seconds for which the old text of a rotated token still works by default: time to deploy the new one.
OVERLAP = 3600.0
#: Wrong tokens that one address may try when signing in, and the seconds in which they are counted.
MOST_FAILURES, FAILURE_SECONDS = 10, 60.0
#: Addresses whose failures are counted; beyond this the oldest are dropped.
_REMEMBERED = 10_000
COOKIE = "restante_session"
_TOKEN = re.compile(r"rst_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


class Role(enum.StrEnum):
    """What a token may do. A token can have several roles."""

    #: Read everything.
    READ = "read"
    #: Send messages.
    SEND = "send"
    #: Receive and settle messages.
    CONSUME = "consume"
    #: Do everything; each action is recorded in the audit.
    OPERATE = "operate"


EVERY_ROLE = frozenset(Role)


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller of a request: name and roles."""

    name: str
    roles: frozenset[Role]
    #: True while no token exists, so that none was required.
    open: bool = False

    def may(self, role: Role) -> bool:
        return role in self.roles or Role.OPERATE in self.roles


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret."""

    id: str
    name: str
    roles: frozenset[Role]
    digest: str
    created_at: datetime
    #: When it expires; None for never.
    expires_at: datetime | None = None
    #: The hash before the last rotation, and until when it is still accepted.
    previous: tuple[str, datetime] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields that commands show, as JSON values."""
        return {
            "id": self.id,
            "name": self.name,
            "roles": sorted(self.roles),
            "created_at": self.created_at.isoformat(),
            "expires_at": None if self.expires_at is None else self.expires_at.isoformat(),
        }

    def admits(self, digest: str, now: datetime) -> bool:
        """Whether a secret with this hash is accepted now. The check takes equally long for right and wrong secrets."""
        before, until = self.previous or (self.digest, now)
        is_current = _same(self.digest, digest)
        is_previous = _same(before, digest) and now < until
        return (is_current or is_previous) and (self.expires_at is None or now < self.expires_at)

    def record(self) -> bytes:
        """The record stored in Redis."""
        fields: dict[str, Any] = {
            "name": self.name,
            "roles": sorted(self.roles),
            "digest": self.digest,
            "created_at": self.created_at.timestamp(),
        }
        if self.expires_at is not None:
            fields["expires_at"] = self.expires_at.timestamp()
        if self.previous is not None:
            fields["previous"] = [self.previous[0], self.previous[1].timestamp()]
        return orjson.dumps(fields)

    @classmethod
    def parse(cls, id: bytes, text: bytes) -> Token:
        """Reads a record of Redis; raises Corrupt if it is not one that `record` wrote."""
        try:
            kept = orjson.loads(text)
            expires, previous = kept.get("expires_at"), kept.get("previous")
            return cls(
                id.decode(),
                str(kept["name"]),
                frozenset(Role(role) for role in kept["roles"]),
                str(kept["digest"]),
                _instant(kept["created_at"]),
                None if expires is None else _instant(expires),
                None if previous is None else (str(previous[0]), _instant(previous[1])),
            )
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, OSError):
            raise Corrupt(
                f"the stored record of token {id!r} is damaged: revoke it by its id and create it again"
            ) from None


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


#: Every caller while no token exists.
ANYBODY = Caller("local", EVERY_ROLE, open=True)


def digest_of(secret: str) -> str:
    """The hash of a secret. Secrets are long and random, so no slow hash is needed."""
    return hashlib.sha256(secret.encode()).hexdigest()


#: Compared with if there is no such token, so that an unknown ID takes as long as a wrong secret.
_NOBODY = Token("", "", frozenset(), digest_of(secrets.token_urlsafe(32)), _instant(0), _instant(0))


def _same(kept: str, shown: str) -> bool:
    """Compares in constant time. As bytes: hmac rejects non-ASCII text, which a damaged record may hold."""
    return hmac.compare_digest(kept.encode(), shown.encode())


class Tokens:
    """The tokens and browser sessions of one Redis server."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = client.connection
        #: Clock in seconds by which the cache expires.
        self.clock = clock
        self._known: dict[str, Token] = {}
        self._asked_at = float("-inf")
        #: The Redis server's time when the cache was filled.
        self._redis_time = _instant(0)

    def create(
        self, name: str, roles: Collection[Role | str], *, expires: float | timedelta | None = None
    ) -> tuple[Token, str]:
        """Creates a token; returns it and its text, which is not stored. It expires `expires` seconds from now."""
        valid_name(name, "token name")
        try:
            chosen = frozenset(Role(role) for role in roles)
        except ValueError:
            raise InvalidInput(f"roles are {', '.join(Role)}, not {', '.join(map(str, roles))}") from None
        if not chosen:
            raise InvalidInput(f"name at least one role: {', '.join(Role)}")
        span = None if expires is None else timedelta(milliseconds=milliseconds(expires, "expires", least=1))
        if any(token.name == name for token in self.list()):
            raise InvalidInput(f"a token named {name} exists already: revoke or rotate it, or choose another name")
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        now = self._now()
        return self._keep(Token(id, name, chosen, digest_of(secret), now, None if span is None else now + span)), (
            f"rst_{id}_{secret}"
        )

    def rotate(
        self, name: str, *, overlap: float | timedelta = OVERLAP, expires: float | timedelta | None = None
    ) -> tuple[Token, str]:
        """Gives a token, named by name or ID, a new text; the old text keeps working for `overlap` seconds.

        Browser sessions opened with the old text end with it. `expires` sets a new expiry; else the old one stays.
        """
        held, now, secret = self._find(name), self._now(), secrets.token_urlsafe(32)
        until = now + timedelta(milliseconds=milliseconds(overlap, "overlap"))
        ends = held.expires_at
        if expires is not None:
            ends = now + timedelta(milliseconds=milliseconds(expires, "expires", least=1))
        elif ends is not None and ends <= now:
            raise InvalidInput(f"the token {held.name} has expired: give expires= for the new text")
        rotated = replace(held, digest=digest_of(secret), expires_at=ends, previous=(held.digest, until))
        return self._keep(rotated), f"rst_{held.id}_{secret}"

    def _keep(self, token: Token) -> Token:
        self._connection.command("HSET", TOKENS, token.id, token.record(), key=TOKENS)
        self._asked_at = float("-inf")
        return token

    def list(self) -> list[Token]:
        """Every token by name, including expired ones."""
        flat = self._connection.command("HGETALL", TOKENS, key=TOKENS)
        tokens = [Token.parse(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
        return sorted(tokens, key=lambda token: token.name)

    def _find(self, name: str) -> Token:
        for token in self.list():
            if name in (token.name, token.id):
                return token
        raise NotFound(f"there is no token {name}: see `restante token ls`")

    def _now(self) -> datetime:
        """The Redis server's time, so that a token expires on every HTTP server at once."""
        seconds, micros = self._connection.command("TIME", key=TOKENS)
        return _instant(int(seconds) + int(micros) / 1e6)

    def revoke(self, name: str) -> Token:
        """Deletes a token by name or ID, which also ends the browser sessions opened with it."""
        try:
            token = self._find(name)
        except Corrupt:
            token = Token(name, name, frozenset(), "", _instant(0))  # a damaged record can still be deleted by its ID
        self._connection.command("HDEL", TOKENS, token.id, key=TOKENS)
        self._asked_at = float("-inf")
        return token

    def _by_id(self) -> dict[str, Token]:
        now = self.clock()
        if now - self._asked_at > TOKEN_CACHE_SECONDS:
            self._known, self._redis_time = {token.id: token for token in self.list()}, self._now()
            self._asked_at = now
        return self._known

    def _caller(self, id: str, digest: str) -> Caller | None:
        """The caller with this token ID and secret hash; None if it is not accepted."""
        token = self._by_id().get(id, _NOBODY)
        now = self._redis_time + timedelta(seconds=self.clock() - self._asked_at)
        return Caller(token.name, token.roles) if token.admits(digest, now) else None

    def fresh(self) -> bool:
        """Whether the cache is fresh, so that the next check does not read Redis."""
        return self.clock() - self._asked_at <= TOKEN_CACHE_SECONDS

    def any(self) -> bool:
        """Whether any token exists, so that callers must show one."""
        return bool(self._by_id())

    def by_text(self, text: str) -> Caller | None:
        """The caller that shows this token text; None if it is not valid."""
        matched = _TOKEN.fullmatch(text)
        return None if matched is None else self._caller(matched[1], digest_of(matched[2]))

    # -- browser sessions ----------------------------------------------------------------------------------------

    def sign_in(self, text: str) -> tuple[Caller, str] | None:
        """Opens a session; returns the caller and the cookie, or None if the token is not valid."""
        caller, matched = self.by_text(text), _TOKEN.fullmatch(text)
        if caller is None or matched is None:
            return None
        cookie = secrets.token_urlsafe(32)
        key = session_key(digest_of(cookie))
        kept = f"{matched[1]} {digest_of(matched[2])}"
        self._connection.command("SET", key, kept, "EX", SESSION_SECONDS, key=key)
        return caller, cookie

    def by_cookie(self, cookie: str) -> Caller | None:
        """The caller of the session with this cookie; None if there is none."""
        if not 1 <= len(cookie) <= 100:
            return None
        key = session_key(digest_of(cookie))
        kept = self._connection.command("GET", key, key=key)
        id, _, digest = kept.decode().partition(" ") if kept else ("", "", "")
        return self._caller(id, digest) if digest else None

    def sign_out(self, cookie: str) -> None:
        """Ends the session with this cookie."""
        key = session_key(digest_of(cookie))
        self._connection.command("DEL", key, key=key)


class SignInLimit:
    """Blocks an address after MOST_FAILURES wrong tokens within FAILURE_SECONDS. Counts per process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Address → number of failures, and time of the first.
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until the address may try again; 0 if it may now."""
        count, first = self._failures.get(_network_of(address), (0, 0.0))
        left = first + FAILURE_SECONDS - self._clock()
        return left if count >= MOST_FAILURES and left > 0 else 0.0

    def fail(self, address: str) -> None:
        """Counts a wrong token from the address."""
        key, now = _network_of(address), self._clock()
        count, first = self._failures.pop(key, (0, now))
        if now - first >= FAILURE_SECONDS:
            count, first = 0, now
        self._failures[key] = (count + 1, first)
        if len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)


def _network_of(address: str) -> str:
    """The address; for IPv6 its /64 network, in which one client can use a new address for each try."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
