"""Who may do what: tokens with roles, and browsers that signed in with one.

A token is shown once, when it is made or rotated; Redis keeps the hash of its secret. Where no token exists everybody
who reaches the server may do everything, so the server then listens on this machine alone; tokens that have expired
still count, so their end opens nothing. On failure to ask Redis nobody is let in: the error is Unavailable, never a
yes.
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

#: Seconds for which an answer about tokens is believed: for so long a revoked token still begins requests. Zero asks
#: Redis with every request.
BELIEVED = 1.0
#: Seconds between two checks of the token behind a live connection, which therefore ends at most this much later.
CHECKED_EVERY = 1.0
#: Seconds a browser stays signed in without asking again.
SESSION_SECONDS = 7 * 86400
#: Seconds for which a rotated token's old text still works, unless told otherwise: time to bring the new one out.
OVERLAP = 3600.0
#: Wrong tokens that one address may try to sign in with, within so many seconds.
MOST_FAILURES, FAILURE_SECONDS = 10, 60.0
#: Addresses whose failures are remembered; beyond it the oldest are forgotten.
_REMEMBERED = 10_000
COOKIE = "restante_session"
_TOKEN = re.compile(r"rst_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


class Role(enum.StrEnum):
    """What a token is for; several may be given."""

    #: Look at everything.
    READ = "read"
    #: Put messages in.
    SEND = "send"
    #: Receive and settle messages.
    CONSUME = "consume"
    #: Everything, with a line in the audit.
    OPERATE = "operate"


EVERY_ROLE = frozenset(Role)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking."""

    name: str
    roles: frozenset[Role]
    #: No token exists, so none was asked for.
    open: bool = False

    def may(self, role: Role) -> bool:
        return role in self.roles or Role.OPERATE in self.roles


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the server knows it: without its secret."""

    id: str
    name: str
    roles: frozenset[Role]
    digest: str
    created_at: datetime
    #: When it ends by itself; None for never.
    expires_at: datetime | None = None
    #: The hash before the last rotation, and until when it is let in.
    previous: tuple[str, datetime] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "id": self.id,
            "name": self.name,
            "roles": sorted(self.roles),
            "created_at": self.created_at.isoformat(),
            "expires_at": None if self.expires_at is None else self.expires_at.isoformat(),
        }

    def admits(self, digest: str, now: datetime) -> bool:
        """Whether a secret with this hash is let in now. A wrong one takes as long as a right one."""
        before, until = self.previous or (self.digest, now)
        is_current = _same(self.digest, digest)
        is_previous = _same(before, digest) and now < until
        return (is_current or is_previous) and (self.expires_at is None or now < self.expires_at)

    def kept(self) -> bytes:
        """As Redis keeps it."""
        made: dict[str, Any] = {
            "name": self.name,
            "roles": sorted(self.roles),
            "digest": self.digest,
            "created_at": self.created_at.timestamp(),
        }
        if self.expires_at is not None:
            made["expires_at"] = self.expires_at.timestamp()
        if self.previous is not None:
            made["previous"] = [self.previous[0], self.previous[1].timestamp()]
        return orjson.dumps(made)

    @classmethod
    def parse(cls, id: bytes, text: bytes) -> Token:
        """From what Redis keeps; Corrupt where somebody else wrote it."""
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
            raise Corrupt(f"the token {id!r} is not what was written: revoke it by its id, and make it anew") from None


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


#: What everybody is while there are no tokens.
ANYBODY = Caller("local", EVERY_ROLE, open=True)


def digest_of(secret: str) -> str:
    """Secrets are random and long, so a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode()).hexdigest()


#: Compared with where there is no such token, so that an unknown id takes as long as a wrong secret.
_NOBODY = Token("", "", frozenset(), digest_of(secrets.token_urlsafe(32)), _instant(0), _instant(0))


def _same(kept: str, shown: str) -> bool:
    """Compares in constant time. As bytes: hmac refuses text beyond ASCII, which a spoiled record may hold."""
    return hmac.compare_digest(kept.encode(), shown.encode())


class Tokens:
    """The tokens of one server, and the browsers that use them."""

    def __init__(self, post: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = post.connection
        #: Seconds by which answers age.
        self.clock = clock
        self._known: dict[str, Token] = {}
        self._asked_at = float("-inf")
        #: The Redis server's clock when it was asked.
        self._told = _instant(0)

    def create(
        self, name: str, roles: Collection[Role | str], *, expires: float | timedelta | None = None
    ) -> tuple[Token, str]:
        """A new token and its text, which nobody can ask for again. With `expires` it ends so long from now."""
        valid_name(name, "token name")
        try:
            chosen = frozenset(Role(role) for role in roles)
        except ValueError:
            raise InvalidInput(f"roles are {', '.join(Role)}, not {', '.join(map(str, roles))}") from None
        if not chosen:
            raise InvalidInput(f"name at least one role: {', '.join(Role)}")
        span = None if expires is None else timedelta(milliseconds=milliseconds(expires, "expires", least=1))
        if any(token.name == name for token in self.list()):
            raise InvalidInput(f"there is a token {name} already: revoke or rotate it, or choose another name")
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        now = self._now()
        return self._keep(Token(id, name, chosen, digest_of(secret), now, None if span is None else now + span)), (
            f"rst_{id}_{secret}"
        )

    def rotate(
        self, name: str, *, overlap: float | timedelta = OVERLAP, expires: float | timedelta | None = None
    ) -> tuple[Token, str]:
        """A new text for a token, by its name or id; the old text works for `overlap` seconds more.

        What the old text signed in ends with it. `expires` sets a new end; else the token keeps the one it has.
        """
        held, now, secret = self._find(name), self._now(), secrets.token_urlsafe(32)
        until = now + timedelta(milliseconds=milliseconds(overlap, "overlap"))
        ends = held.expires_at
        if expires is not None:
            ends = now + timedelta(milliseconds=milliseconds(expires, "expires", least=1))
        elif ends is not None and ends <= now:
            raise InvalidInput(f"the token {held.name} has expired: say when the new text expires")
        made = replace(held, digest=digest_of(secret), expires_at=ends, previous=(held.digest, until))
        return self._keep(made), f"rst_{held.id}_{secret}"

    def _keep(self, token: Token) -> Token:
        self._connection.command("HSET", TOKENS, token.id, token.kept(), key=TOKENS)
        self._asked_at = float("-inf")
        return token

    def list(self) -> list[Token]:
        """Every token, by name; those that have expired too."""
        flat = self._connection.command("HGETALL", TOKENS, key=TOKENS)
        made = [Token.parse(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]
        return sorted(made, key=lambda token: token.name)

    def _find(self, name: str) -> Token:
        for token in self.list():
            if name in (token.name, token.id):
                return token
        raise NotFound(f"there is no token {name}: see restante token ls")

    def _now(self) -> datetime:
        """The Redis server's clock, by which tokens expire on every server alike."""
        seconds, micros = self._connection.command("TIME", key=TOKENS)
        return _instant(int(seconds) + int(micros) / 1e6)

    def revoke(self, name: str) -> Token:
        """Ends a token, by its name or id, and every browser that signed in with it."""
        try:
            token = self._find(name)
        except Corrupt:
            token = Token(name, name, frozenset(), "", _instant(0))  # by its id it can be removed without being read
        self._connection.command("HDEL", TOKENS, token.id, key=TOKENS)
        self._asked_at = float("-inf")
        return token

    def _by_id(self) -> dict[str, Token]:
        now = self.clock()
        if now - self._asked_at > BELIEVED:
            self._known, self._told = {token.id: token for token in self.list()}, self._now()
            self._asked_at = now
        return self._known

    def _caller(self, id: str, digest: str) -> Caller | None:
        """Who shows a secret with this hash for this token; None where it is not let in, or not any more."""
        token = self._by_id().get(id, _NOBODY)
        now = self._told + timedelta(seconds=self.clock() - self._asked_at)
        return Caller(token.name, token.roles) if token.admits(digest, now) else None

    def fresh(self) -> bool:
        """Whether the next question needs no answer from Redis."""
        return self.clock() - self._asked_at <= BELIEVED

    def any(self) -> bool:
        """Whether a token must be shown."""
        return bool(self._by_id())

    def by_text(self, text: str) -> Caller | None:
        """Who shows this token; None if it is not one of ours."""
        matched = _TOKEN.fullmatch(text)
        return None if matched is None else self._caller(matched[1], digest_of(matched[2]))

    # -- browsers ------------------------------------------------------------------------------------------------

    def sign_in(self, text: str) -> tuple[Caller, str] | None:
        """A cookie for a browser that shows a token."""
        caller, matched = self.by_text(text), _TOKEN.fullmatch(text)
        if caller is None or matched is None:
            return None
        cookie = secrets.token_urlsafe(32)
        key = session_key(digest_of(cookie))
        kept = f"{matched[1]} {digest_of(matched[2])}"
        self._connection.command("SET", key, kept, "EX", SESSION_SECONDS, key=key)
        return caller, cookie

    def by_cookie(self, cookie: str) -> Caller | None:
        """Who signed in with this cookie."""
        if not 1 <= len(cookie) <= 100:
            return None
        key = session_key(digest_of(cookie))
        kept = self._connection.command("GET", key, key=key)
        id, _, digest = kept.decode().partition(" ") if kept else ("", "", "")
        return self._caller(id, digest) if digest else None

    def sign_out(self, cookie: str) -> None:
        """Forgets a browser."""
        key = session_key(digest_of(cookie))
        self._connection.command("DEL", key, key=key)


class SignInLimit:
    """Refuses an address that tries many wrong tokens: MOST_FAILURES within FAILURE_SECONDS, counted per process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: Address → failures, and when the first of them was.
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Seconds until the address may try again; 0 if it may now."""
        count, first = self._failures.get(_neighbourhood(address), (0, 0.0))
        left = first + FAILURE_SECONDS - self._clock()
        return left if count >= MOST_FAILURES and left > 0 else 0.0

    def fail(self, address: str) -> None:
        """Counts a wrong token."""
        key, now = _neighbourhood(address), self._clock()
        count, first = self._failures.pop(key, (0, now))
        if now - first >= FAILURE_SECONDS:
            count, first = 0, now
        self._failures[key] = (count + 1, first)
        if len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)


def _neighbourhood(address: str) -> str:
    """The address, or of IPv6 the network that one customer has: he may use a new address for every try."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else address


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
