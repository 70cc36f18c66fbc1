"""Retry policies as values: which delay follows which attempt, when it is over, and what is refused."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante import InvalidInput, RetryPolicy, exponential, fixed, no_retry
from restante.core.retry import LONGEST_DELAY, seconds


def test_delays_grow_by_the_factor_up_to_the_cap() -> None:
    policy = exponential(2, factor=3, cap=50, jitter=0)
    assert [policy.next(attempts) for attempts in range(1, 7)] == [2, 6, 18, 50, 50, 50]


def test_the_defaults_double_from_a_second_to_ten_minutes_spread_by_a_tenth() -> None:
    assert exponential() == RetryPolicy(base=1.0, factor=2.0, cap=600.0, jitter=0.1, delays=None)
    assert RetryPolicy() == exponential()


def test_a_policy_is_made_by_its_class_or_by_the_function_of_that_name() -> None:
    assert RetryPolicy.exponential is exponential
    assert RetryPolicy.fixed is fixed
    assert RetryPolicy.none is no_retry
    assert RetryPolicy.none().next(1) is None


def test_a_factor_of_one_keeps_the_base() -> None:
    policy = exponential(7, factor=1, jitter=0)
    assert {policy.next(attempts) for attempts in (1, 2, 1000)} == {7}


def test_an_exponential_policy_never_ends() -> None:
    policy = exponential(1, factor=1000, cap=LONGEST_DELAY, jitter=0)
    assert policy.next(10**9) == LONGEST_DELAY


def test_what_grows_from_nothing_stays_nothing_however_often() -> None:
    assert {exponential(0, factor=1000, jitter=0).next(attempts) for attempts in (1, 2, 10**9)} == {0}


@pytest.mark.parametrize(("random", "share"), [(0.0, 0.75), (0.5, 1.0), (0.75, 1.125), (1.0, 1.25)])
def test_jitter_spreads_by_its_share_either_way(monkeypatch: pytest.MonkeyPatch, random: float, share: float) -> None:
    monkeypatch.setattr("random.random", lambda: random)
    assert exponential(8, jitter=0.25).next(1) == 8 * share


def test_jitter_does_not_lead_beyond_the_longest_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.random", lambda: 1.0)
    assert exponential(LONGEST_DELAY, cap=LONGEST_DELAY, jitter=1).next(1) == LONGEST_DELAY


def test_fixed_delays_come_in_order_and_then_the_message_is_dead() -> None:
    policy = fixed(1, timedelta(minutes=2), 0)
    assert [policy.next(attempts) for attempts in range(1, 6)] == [1, 120, 0, None, None]
    assert no_retry().next(1) is None
    assert no_retry() == fixed()


@given(
    st.floats(0, LONGEST_DELAY), st.floats(1, 1000), st.floats(0, LONGEST_DELAY), st.floats(0, 1), st.integers(1, 5000)
)
def test_every_delay_is_within_the_spread_of_the_one_without_jitter(
    base: float, factor: float, cap: float, jitter: float, attempts: int
) -> None:
    plain = exponential(base, factor=factor, cap=cap, jitter=0).next(attempts)
    spread = exponential(base, factor=factor, cap=cap, jitter=jitter).next(attempts)
    assert plain is not None
    assert spread is not None
    assert plain <= cap
    assert plain * (1 - jitter) * (1 - 1e-9) <= spread <= min(LONGEST_DELAY, plain * (1 + jitter) * (1 + 1e-9))


@given(
    st.one_of(
        st.builds(
            exponential,
            st.floats(0, LONGEST_DELAY),
            factor=st.floats(1, 1000),
            cap=st.floats(0, LONGEST_DELAY),
            jitter=st.floats(0, 1),
        ),
        st.lists(st.floats(0, LONGEST_DELAY), max_size=20).map(lambda delays: fixed(*delays)),
    )
)
def test_a_policy_is_read_back_from_its_text(policy: RetryPolicy) -> None:
    assert RetryPolicy.parse(policy.text()) == policy


def test_the_texts_are_those_that_redis_keeps() -> None:
    assert exponential(1, factor=2, cap=600, jitter=0.5).text() == "exponential:1.0:2.0:600.0:0.5"
    assert fixed(1, 5, 30).text() == "fixed:1.0,5.0,30.0"
    assert no_retry().text() == "fixed:"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "linear:1",
        "exponential",
        "exponential:1:2:3",
        "exponential:1:2:3:4:5",
        "exponential:1:0.5:3:0",
        "exponential:1:2:3:1.5",
        "exponential:x:2:3:0",
        "fixed:1,x",
        "fixed:-1",
        "fixed:nan",
    ],
)
def test_a_text_that_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"^not a retry policy: .*; use exponential:BASE:FACTOR:CAP:JITTER or fixed:1,5,30$"
    ):
        RetryPolicy.parse(text)


@pytest.mark.parametrize("factor", [0.999, 1000.1, -2, math.nan])
def test_a_factor_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(InvalidInput, match="factor must be between 1 and 1000"):
        exponential(factor=factor)


@pytest.mark.parametrize("jitter", [-0.001, 1.001, math.nan])
def test_jitter_out_of_range_is_refused(jitter: float) -> None:
    with pytest.raises(InvalidInput, match="jitter must be between 0 and 1"):
        exponential(jitter=jitter)


def test_a_delay_out_of_range_is_refused_by_the_name_of_its_argument() -> None:
    with pytest.raises(InvalidInput, match=r"^base must be "):
        exponential(-1)
    with pytest.raises(InvalidInput, match=r"^cap must be "):
        exponential(cap=-1)
    with pytest.raises(InvalidInput, match=r"^delay must be "):
        fixed(1, -1)


def test_the_ends_of_the_ranges_are_allowed() -> None:
    assert exponential(0, factor=1, cap=0, jitter=0).next(1) == 0
    assert exponential(LONGEST_DELAY, factor=1000, cap=LONGEST_DELAY, jitter=1).factor == 1000
    assert fixed(LONGEST_DELAY).next(1) == LONGEST_DELAY


@pytest.mark.parametrize("value", [True, "1", None, 1 + 0j])
def test_a_duration_that_is_no_number_is_refused_by_its_name(value: object) -> None:
    with pytest.raises(InvalidInput, match="lease must be a number of seconds or a timedelta"):
        seconds(value, "lease")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.001, math.nan, math.inf, LONGEST_DELAY * 1.001, timedelta(days=-1)])
def test_a_duration_out_of_range_is_refused_by_its_name(value: float | timedelta) -> None:
    with pytest.raises(InvalidInput, match=r"delay must be between 0 and 3\.1536e\+08 seconds"):
        seconds(value, "delay")


def test_durations_are_seconds_whatever_they_are_given_as() -> None:
    assert seconds(timedelta(milliseconds=1500), "lease") == 1.5
    assert (seconds(2, "lease"), type(seconds(2, "lease"))) == (2.0, float)
    assert seconds(0.5, "lease", least=0.5) == 0.5
    with pytest.raises(InvalidInput, match=r"between 0\.5 and"):
        seconds(0.4999, "lease", least=0.5)
