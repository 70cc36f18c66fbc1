"""Who may do what: tokens with roles, and browsers that signed in with one.

A token is shown once, when it is made; Redis keeps the hash of its secret. Where no token exists everybody who reaches
the server may do everything, so the server then listens on this machine alone. On failure to ask Redis nobody is let
in: the error is Unavailable, never a yes.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from restante.core.errors import InvalidInput, NotFound
from restante.core.keys import TOKENS, session_key
from restante.core.names import valid_name
from restante.core.queue import Post

#: Seconds for which an answer about tokens is believed. A revoked token may work for this long.
BELIEVED = 2.0
#: Seconds a browser stays signed in without asking again.
SESSION_SECONDS = 7 * 86400
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

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "id": self.id, "name": self.name, "roles": sorted(self.roles), "created_at": self.created_at.isoformat()
        }  # fmt: skip


#: What everybody is while there are no tokens.
ANYBODY = Caller("local", EVERY_ROLE, open=True)


def digest_of(secret: str) -> str:
    """Secrets are random and long, so a plain hash cannot be guessed back."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Tokens:
    """The tokens of one server, and the browsers that use them."""

    def __init__(self, post: Post) -> None:
        self._connection = post.connection
        self._known: dict[str, Token] = {}
        self._asked_at = float("-inf")

    def create(self, name: str, roles: Collection[Role | str]) -> tuple[Token, str]:
        """A new token and its text, which nobody can ask for again."""
        valid_name(name, "token name")
        try:
            chosen = frozenset(Role(role) for role in roles)
        except ValueError:
            raise InvalidInput(f"roles are {', '.join(Role)}, not {', '.join(map(str, roles))}") from None
        if not chosen:
            raise InvalidInput(f"name at least one role: {', '.join(Role)}")
        if any(token.name == name for token in self.list()):
            raise InvalidInput(f"there is a token {name} already: revoke it first, or choose another name")
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        made = Token(id, name, chosen, digest_of(secret), datetime.now(UTC))
        kept = {
            "name": name, "roles": sorted(chosen), "digest": made.digest, "created_at": made.created_at.timestamp()
        }  # fmt: skip
        self._connection.command("HSET", TOKENS, id, orjson.dumps(kept), key=TOKENS)
        self._asked_at = float("-inf")
        return made, f"rst_{id}_{secret}"

    def list(self) -> list[Token]:
        """Every token, by name."""
        flat = self._connection.command("HGETALL", TOKENS, key=TOKENS)
        made = []
        for i in range(0, len(flat), 2):
            kept = orjson.loads(flat[i + 1])
            roles = frozenset(Role(role) for role in kept["roles"])
            created = datetime.fromtimestamp(kept["created_at"], UTC)
            made.append(Token(flat[i].decode(), kept["name"], roles, kept["digest"], created))
        return sorted(made, key=lambda token: token.name)

    def revoke(self, name: str) -> Token:
        """Ends a token, by its name or id, and every browser that signed in with it."""
        for token in self.list():
            if name in (token.name, token.id):
                self._connection.command("HDEL", TOKENS, token.id, key=TOKENS)
                self._asked_at = float("-inf")
                return token
        raise NotFound(f"there is no token {name}: see restante token ls")

    def _by_id(self) -> dict[str, Token]:
        now = time.monotonic()
        if now - self._asked_at > BELIEVED:
            self._known = {token.id: token for token in self.list()}
            self._asked_at = now
        return self._known

    def fresh(self) -> bool:
        """Whether the next question needs no answer from Redis."""
        return time.monotonic() - self._asked_at <= BELIEVED

    def any(self) -> bool:
        """Whether a token must be shown."""
        return bool(self._by_id())

    def by_text(self, text: str) -> Caller | None:
        """Who shows this token; None if it is not one of ours."""
        matched = _TOKEN.fullmatch(text)
        if matched is None:
            return None
        token = self._by_id().get(matched[1])
        if token is None or not hmac.compare_digest(token.digest, digest_of(matched[2])):
            return None
        return Caller(token.name, token.roles)

    # -- browsers ------------------------------------------------------------------------------------------------

    def sign_in(self, text: str) -> tuple[Caller, str] | None:
        """A cookie for a browser that shows a token."""
        caller = self.by_text(text)
        if caller is None:
            return None
        matched = _TOKEN.fullmatch(text)
        assert matched is not None
        cookie = secrets.token_urlsafe(32)
        key = session_key(digest_of(cookie))
        self._connection.command("SET", key, matched[1], "EX", SESSION_SECONDS, key=key)
        return caller, cookie

    def by_cookie(self, cookie: str) -> Caller | None:
        """Who signed in with this cookie."""
        if not 1 <= len(cookie) <= 100:
            return None
        key = session_key(digest_of(cookie))
        id = self._connection.command("GET", key, key=key)
        token = self._by_id().get(id.decode()) if id else None
        return None if token is None else Caller(token.name, token.roles)

    def sign_out(self, cookie: str) -> None:
        """Forgets a browser."""
        key = session_key(digest_of(cookie))
        self._connection.command("DEL", key, key=key)
