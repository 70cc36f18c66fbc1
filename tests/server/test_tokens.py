"""Tokens that end, tokens that change, and addresses that guess."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from dataclasses import replace

import orjson
import pytest

import restante
from restante import Client, InvalidInput, NotFound
from restante.core.keys import TOKENS
from restante.server import Serving, access
from restante.server.access import FAILURE_SECONDS, MOST_FAILURES, SignInLimit, Tokens
from tests.harness.clock import FrozenClock
from tests.harness.servers import RedisServer
from tests.server.calls import Api


class Dated:
    """Tokens on a Redis whose clock the test moves."""

    def __init__(self, post: Client, clock: FrozenClock) -> None:
        self.post, self.tokens, self.clock = post, Tokens(post), clock

    def after(self, seconds: float) -> Tokens:
        """The tokens as a server sees them so much later."""
        self.clock.advance(seconds)
        self.tokens._asked_at = float("-inf")
        return self.tokens


@pytest.fixture(scope="module")
def _dated() -> Iterator[tuple[Client, FrozenClock]]:
    with FrozenClock() as clock, RedisServer(clock=clock) as server, restante.connect(server.url) as post:
        yield post, clock


@pytest.fixture
def dated(_dated: tuple[Client, FrozenClock]) -> Dated:
    post, clock = _dated
    post.connection.command("UNLINK", TOKENS, key=TOKENS)
    return Dated(post, clock)


class TestExpiry:
    def test_a_token_and_its_browsers_end_by_the_clock_of_redis(self, dated: Dated) -> None:
        made, text = dated.tokens.create("ci", ["send"], expires=60)
        signed = dated.tokens.sign_in(text)
        assert signed is not None
        assert made.expires_at is not None
        later = dated.after(59)
        assert later.by_text(text) is not None
        assert later.by_cookie(signed[1]) is not None
        over = dated.after(1)
        assert over.by_text(text) is None
        assert over.by_cookie(signed[1]) is None
        assert over.sign_in(text) is None

    def test_a_token_without_an_end_does_not_end(self, dated: Dated) -> None:
        _, text = dated.tokens.create("ci", ["send"])
        assert dated.after(400 * 86400).by_text(text) is not None

    def test_a_server_whose_tokens_have_all_expired_is_not_open(self, dated: Dated) -> None:
        dated.tokens.create("ci", ["send"], expires=60)
        over = dated.after(61)
        assert over.any()
        assert [token.name for token in over.list()] == ["ci"]

    @pytest.mark.parametrize("span", [0, -1, float("nan"), 1e300, True])
    def test_an_end_that_is_none_is_refused(self, dated: Dated, span: float) -> None:
        with pytest.raises(InvalidInput):
            dated.tokens.create("ci", ["send"], expires=span)
        assert dated.tokens.list() == []


class TestRotation:
    def test_both_texts_work_until_the_overlap_is_over(self, dated: Dated) -> None:
        _, old = dated.tokens.create("ci", ["send", "read"])
        signed = dated.tokens.sign_in(old)
        assert signed is not None
        rotated, new = dated.tokens.rotate("ci", overlap=30)
        assert (rotated.name, sorted(rotated.roles)) == ("ci", ["read", "send"])
        assert new != old
        during = dated.after(29)
        assert during.by_text(new) == during.by_text(old) == during.by_cookie(signed[1])
        assert during.by_text(new) is not None
        over = dated.after(1)
        assert over.by_text(new) is not None
        assert over.by_text(old) is None
        assert over.by_cookie(signed[1]) is None

    def test_without_overlap_the_old_text_ends_at_once(self, dated: Dated) -> None:
        _, old = dated.tokens.create("ci", ["send"])
        _, new = dated.tokens.rotate("ci", overlap=0)
        assert dated.tokens.by_text(old) is None
        assert dated.tokens.by_text(new) is not None

    def test_of_two_rotations_the_first_text_is_not_let_in(self, dated: Dated) -> None:
        _, first = dated.tokens.create("ci", ["send"])
        dated.tokens.rotate("ci", overlap=30)
        dated.tokens.rotate("ci", overlap=30)
        assert dated.tokens.by_text(first) is None

    def test_an_end_stays_unless_a_new_one_is_given(self, dated: Dated) -> None:
        made, _ = dated.tokens.create("ci", ["send"], expires=60)
        assert dated.tokens.rotate("ci")[0].expires_at == made.expires_at
        over = dated.after(61)
        with pytest.raises(InvalidInput, match="has expired"):
            over.rotate("ci")
        _, text = over.rotate("ci", expires=60)
        assert over.by_text(text) is not None
        with pytest.raises(NotFound):
            over.rotate("nobody")


def test_an_unknown_token_is_compared_like_a_wrong_secret(dated: Dated, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = dated.tokens.create("ci", ["send"])
    wrong, unknown = text[:-4] + "AAAA", f"rst_{'0' * 12}_{'a' * 43}"
    compared: list[bytes] = []
    real = hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    counts = []
    for shown in (text, wrong, unknown):
        compared.clear()
        assert (dated.tokens.by_text(shown) is not None) == (shown == text)
        counts.append(len(compared))
    assert counts[0] == counts[1] == counts[2] > 0


@pytest.mark.parametrize("digest", ["ключ", ""])
def test_a_record_whose_hash_was_spoiled_lets_nobody_in(dated: Dated, digest: str) -> None:
    made, text = dated.tokens.create("ci", ["send"])
    spoiled = orjson.loads(made.record()) | {"digest": digest}
    dated.post.connection.command("HSET", TOKENS, made.id, orjson.dumps(spoiled), key=TOKENS)
    assert dated.after(60).by_text(text) is None


class TestSigningIn:
    def test_an_address_that_guesses_is_refused_for_a_while(self, token: Callable[..., Api], serving: Serving) -> None:
        text = token("read")._headers["Authorization"].removeprefix("Bearer ")
        now = 1000.0
        serving.state.sign_in_limit = SignInLimit(clock=lambda: now)
        browser = Api(serving.address)
        wrong = {"token": f"rst_{'0' * 12}_{'a' * 43}"}
        assert [browser.post("/api/session", wrong).status for _ in range(MOST_FAILURES)] == [401] * MOST_FAILURES
        now += FAILURE_SECONDS / 2
        for body in (wrong, {"token": text}):
            refused = browser.post("/api/session", body)
            assert (refused.status, refused.headers["retry-after"]) == (429, str(int(FAILURE_SECONDS / 2)))
            assert refused.json["error"] == "TooManyTries"
        # Programs and browsers that are signed in are not concerned.
        assert browser.get("/api/queues", headers={"Authorization": f"Bearer {text}"}).status == 200
        now += FAILURE_SECONDS / 2
        assert browser.post("/api/session", {"token": text}).status == 200

    def test_addresses_are_counted_apart_and_a_network_of_ipv6_as_one(self) -> None:
        now = 0.0
        limit = SignInLimit(clock=lambda: now)
        for number in range(MOST_FAILURES):
            limit.fail("192.0.2.1")
            limit.fail(f"2001:db8:0:1::{number:x}")
        assert limit.wait("192.0.2.1") == limit.wait("2001:db8:0:1:ffff::1") == FAILURE_SECONDS
        assert limit.wait("192.0.2.2") == limit.wait("2001:db8:0:2::1") == limit.wait("") == 0
        now = FAILURE_SECONDS
        assert limit.wait("192.0.2.1") == 0
        limit.fail("192.0.2.1")
        assert limit.wait("192.0.2.1") == 0

    def test_the_memory_of_addresses_is_bounded(self) -> None:
        limit = SignInLimit(clock=lambda: 0.0)
        for number in range(access._REMEMBERED + 100):
            limit.fail(f"host-{number}")
        assert len(limit._failures) == access._REMEMBERED


def test_a_server_for_other_machines_is_not_opened_by_the_end_of_its_last_token(
    token: Callable[..., Api], post: Client, serving: Serving
) -> None:
    token("operate")
    settings = serving.state.settings
    serving.state.settings = replace(settings, host="0.0.0.0")
    try:
        Tokens(post).revoke("t-operate")
        serving.state.tokens._asked_at = float("-inf")
        for host in ("localhost", "127.0.0.1:8025", "shop.example"):
            assert Api(serving.address).get("/api/queues", headers={"Host": host}).status == 401
    finally:
        serving.state.settings = settings
    assert Api(serving.address).get("/api/queues").status == 200
