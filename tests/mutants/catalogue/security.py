"""Faults planted where rights are given, tokens are checked, and what others wrote is read."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_USERS = ("tests/faults/test_redis_users.py",)
_ACL = ("tests/core/test_acl.py",)
_BYTES = ("tests/faults/test_foreign_bytes.py",)
_TOKENS = ("tests/server/test_tokens.py",)
_PAGES = ("tests/browser/test_hostile_texts.py",)
_BODIES = ("tests/server/test_foreign_bodies.py",)

FAULTS: Final = (
    Fault("core", "a user may run every script", "rules", 'f"+evalsha|{_sha(name)}"', '"+evalsha"', _USERS),
    Fault(
        "core",
        "rights leave out what shared functions do",
        "_reached",
        "waiting += [known[name] for name in fresh]",
        "pass",
        _ACL,
    ),
    Fault(
        "core",
        "a key moved in a script is granted in its old place only",
        "_words",
        'given[:2] if command == "RENAME" else given[:1]',
        "given[:1]",
        _ACL,
    ),
    Fault(
        "core",
        "the doctor calls an open server safe",
        "_is_open",
        "not bind or _reaches_out(bind)",
        "False",
        _USERS,
    ),
    Fault(
        "core",
        "who may only look fails at a consumer long gone",
        "Inspector.consumers",
        "contextlib.suppress(AccessDenied)",
        "contextlib.suppress()",
        _USERS,
    ),
    Fault("core", "a damaged message fails the page of its list", "readable", "return Damaged(raw)", "raise", _BYTES),
    Fault(
        "core",
        "a line separator in an error splits the history",
        "parse_history",
        '.split("\\n")',
        ".splitlines()",
        _BYTES,
    ),
    Fault(
        "core",
        "a port that no machine has is taken",
        "_seeds",
        "0 < number <= LAST_PORT",
        "0 < number",
        _BYTES,
    ),
    Fault(
        "server",
        "an expired token is let in",
        "Token.admits",
        " and (self.expires_at is None or now < self.expires_at)",
        "",
        _TOKENS,
    ),
    Fault("server", "a rotated token's old text never ends", "Token.admits", " and now < until", "", _TOKENS),
    Fault(
        "server",
        "tokens that have all expired open the server",
        "Tokens.any",
        "bool(self._by_id())",
        "any(one.expires_at is None for one in self._by_id().values())",
        _TOKENS,
    ),
    Fault(
        "server",
        "the end of the last token opens a server for other machines",
        "ServerState._anybody",
        "if not is_loopback(self.settings.host):",
        "if False:",
        _TOKENS,
    ),
    Fault(
        "server",
        "an address that guesses is never refused",
        "SignInLimit.wait",
        "count >= MOST_FAILURES",
        "count > 1e9",
        _TOKENS,
    ),
    Fault(
        "server",
        "one line that cannot be read stops the live journal",
        "Hub._parse",
        "except Corrupt as error:",
        "except KeyError as error:",
        _BODIES,
    ),
    Fault(
        "server",
        "a damaged payload breaks the answer it is in",
        "_content",
        "not checked and not _is_json(stored.body)",
        "False",
        _BODIES,
    ),
    Fault(
        "dashboard",
        "an error's text is taken for markup",
        "Message.tsx",
        '<p class="error-line">{message.error}</p>',
        '<p class="error-line" dangerouslySetInnerHTML={{ __html: message.error }} />',
        _PAGES,
    ),
    Fault(
        "dashboard",
        "a text that turns its direction round is shown so",
        "exactjson.ts",
        ".replace(UNSEEN, escaped)",
        ".replace(UNSEEN, (one) => one || escaped(one))",
        _PAGES,
    ),
)
