"""Maps failures of the server and the driver to typed errors that name the remedy; no I/O."""

from __future__ import annotations

import re

from redis import exceptions as foreign

from restante.core.errors import AccessDenied, InvalidInput, PayloadTooLarge, QueueFull, RestanteError, Unavailable

#: The access rules that a Redis user of Restante needs: its keys, and the commands of clients and scripts.
ACL_RULES = (
    "~restante:* +@read +@write +@scripting +@connection +@blocking +info +wait +time +config|get +cluster|slots"
)
_USER = re.compile(r"[Uu]ser '?([^ ']+)'? has no permissions")
_LATIN = re.compile(r"got \"(.*?)\" as")


def access_denied(error: BaseException, shown: str, role: str | None = None) -> AccessDenied | None:
    """Returns the error for a refused login, command, key or socket; None for any other failure.

    `role` is the least role of `restante acl` that allows the refused command, if there is one.
    """
    text = str(error)
    sentinels = (
        "; the sentinels' own login is ?sentinel_username= and ?sentinel_password=" if "+sentinel" in shown else ""
    )
    if "without any password configured" in text or "no password is set" in text:
        return AccessDenied(f"{shown} has no password for the default user: leave the password out of the URL")
    if "NOAUTH" in text or "Authentication required" in text:
        return AccessDenied(f"{shown} asks for a login: write redis://user:password@host:port/database{sentinels}")
    if "WRONGPASS" in text or "invalid username-password" in text or "invalid password" in text:
        return AccessDenied(
            f"{shown} refused the login: check user and password in the URL (percent-encoded), and that the user is on"
            f"{sentinels}"
        )
    if (
        isinstance(error, foreign.NoPermissionError | foreign.AuthorizationError)
        or "NOPERM" in text
        or "ACL failure in script" in text
        or "user executing the script can't" in text
    ):
        user = match.group(1) if (match := _USER.search(text)) else "USER"
        if "config|get" in text:
            return AccessDenied(
                f"{shown} does not let this user ask how it writes to disk ({_reason(text)}), as durability disk must "
                f"before Redis 7.2: ACL SETUSER {user} +config|get, which also shows the server's passwords, or upgrade"
            )
        remedy = (
            f"ACL SETUSER {user} {ACL_RULES}"
            if role is None
            else f"use a user with the rights that `restante acl --role {role}` prints"
        )
        return AccessDenied(f"{shown} does not let this user do what Restante needs ({_reason(text)}): {remedy}")
    if text.startswith("DENIED"):
        return AccessDenied(f"{shown} is in protected mode: set a password or `bind`, or turn protected-mode off")
    if isinstance(error, foreign.AuthenticationError):
        return AccessDenied(f"{shown} refused the login: {text}; check user and password in the URL")
    if isinstance(error, PermissionError) or "Error 13 connecting" in text or "Permission denied" in text:
        return AccessDenied(
            f"{shown} may not be opened by this user: Permission denied; run as a member of the socket's group, or "
            "change `unixsocketperm`"
        )
    return None


def _reason(text: str) -> str:
    """The server's message without its error code and the place in a script."""
    text = re.sub(r"^.*?(NOPERM|ACL failure in script:?|@user_script: ?\d+:)\s*", "", text)
    text = re.sub(r"^@user_script: ?\d+:\s*", "", text)
    return text.partition(" script: ")[0].rstrip(". ")


def unreachable(error: BaseException, shown: str, written: bool) -> Unavailable:
    """The error for a server that is not there, does not answer, or is none of Redis; `written`: it was, before."""
    text = str(error) or type(error).__name__
    if isinstance(error, foreign.InvalidResponse):
        reply = match.group(1) if (match := _LATIN.search(text)) else ""
        guess = "it expects TLS (rediss://)" if reply == "\\x15" else "another service listens there"
        return Unavailable(f"{shown} does not answer as Redis does: {guess}; check host and port")
    late = isinstance(error, foreign.TimeoutError | TimeoutError)
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text or (shown.startswith("rediss") and late):
        return Unavailable(
            f"{shown} cannot be reached: the TLS handshake failed ({text.rstrip('.')}); use redis:// if the server has "
            "no TLS, or the port where it has"
        )
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return Unavailable(f"{shown} has a certificate that is not trusted: give ssl_ca_certs in the URL; {text}")
    if "Name or service not known" in text or "Temporary failure in name resolution" in text:
        return Unavailable(f"{shown} cannot be reached: its host name is not known; check the spelling and DNS")
    if not written and late and "connecting" not in text:
        return Unavailable(
            f"{shown} cannot be reached: it accepts the connection and does not answer; it hangs, or is not Redis"
        )
    if not written and "closed" in text.lower():
        return Unavailable(
            f"{shown} cannot be reached: it closes the connection before it answers; another service may listen there, "
            "or it expects TLS (rediss://)"
        )
    return Unavailable(f"{shown} cannot be reached: {text.rstrip('.')}; is the server running?")


def refusal(text: str, queue: str, shown: str) -> RestanteError:
    """Maps a refusal of a script to its error, and any other server error to RestanteError."""
    _, own, rest = text.partition("RESTANTE ")
    code, _, detail = rest.partition(" ")
    if own:
        if code == "TOOLARGE":
            return PayloadTooLarge(f"{queue}: {detail}")
        if code == "FULL":
            return QueueFull(f"{queue} is full ({detail}): consume what waits or raise max_length")
        if code == "DEADFULL":
            return QueueFull(f"{queue} has too many dead letters ({detail}): replay or delete them, or raise max_dead")
        return InvalidInput(f"{queue}: {detail}")
    if "DB index is out of range" in text:
        return InvalidInput(f"{shown} has no such database: lower its number, or raise `databases` in redis.conf")
    return RestanteError(f"the server refused a call on {queue}: {text}")
