"""What a service needs on RabbitMQ, as data: names, arguments, bindings, and the bits of a delay."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante import InvalidInput, InvalidName, RetryPolicy, exponential, fixed
from restante.rabbitmq import Binding, Exchange, Queue, Subscribed, TopologyOptions, climb, rungs, shared, topology
from restante.rabbitmq.topology import (
    LONGEST_KEY,
    LONGEST_LIFE,
    MARK,
    MOST_RUNGS,
    REACH,
    RESERVED_HANDLERS,
    RESERVED_SERVICES,
    SMALLEST,
    rung_name,
    target_of,
)

WEEK = 7 * 86400 * 1000
BOUNDS = (("x-message-ttl", WEEK), ("x-max-length", 10_000), ("x-overflow", "reject-publish"))
ASIDE = (("alternate-exchange", "events.unrouted"),)


def ladder_exchanges(owner: str, *labels: str) -> set[Exchange]:
    return {
        Exchange(f"{owner}.return", "topic", ASIDE),
        *(Exchange(f"{owner}.rung.{label}", "topic") for label in labels),
    }


def rung(owner: str, label: str, milliseconds: int, below: str) -> Queue:
    arguments = (("x-message-ttl", milliseconds), ("x-dead-letter-exchange", f"{owner}.{below}"))
    return Queue(f"{owner}.rung.{label}", arguments)


def steps(owner: str, *ways: tuple[str, str, str]) -> set[Binding]:
    found = set()
    for label, stars, below in ways:
        name = f"{owner}.rung.{label}"
        found |= {Binding(name, f"{stars}1.#", name), Binding(name, f"{stars}0.#", f"{owner}.{below}", True)}
    return found


def test_a_small_service_needs_exactly_this() -> None:
    made = topology(
        "billing",
        [Subscribed("on_paid", "shop.*.paid")],
        ["shop.price.get"],
        options=TopologyOptions(longest_delay=0.3),
    )
    assert made.service == "billing"
    assert {*made.exchanges} == {
        Exchange("events", "topic", ASIDE),
        Exchange("events.known", "topic"),
        Exchange("events.unrouted", "fanout"),
        Exchange("calls", "direct"),
        Exchange("calls.all", "direct"),
        *ladder_exchanges("events", "250ms", "125ms"),
        *ladder_exchanges("billing", "1s", "500ms", "250ms", "125ms"),
    }
    back = (("x-dead-letter-exchange", "billing.rung.1s"), ("x-dead-letter-routing-key", "0.0.0.1.@.billing.on_paid"))
    assert {*made.queues} == {
        Queue("events.unrouted", BOUNDS),
        rung("events", "250ms", 250, "rung.125ms"),
        rung("events", "125ms", 125, "return"),
        rung("billing", "1s", 1000, "rung.500ms"),
        rung("billing", "500ms", 500, "rung.250ms"),
        rung("billing", "250ms", 250, "rung.125ms"),
        rung("billing", "125ms", 125, "return"),
        Queue("billing.on_paid", (("x-max-priority", 10), *back)),
        Queue("billing.archive", BOUNDS),
        Queue("call:shop.price.get"),
        Queue("billing.calls"),
    }
    small = (("125ms", "", "return"), ("250ms", "*.", "rung.125ms"))
    assert {*made.bindings} == {
        Binding("events.unrouted", "", "events.unrouted"),
        *steps("events", *small),
        *steps("billing", *small, ("500ms", "*.*.", "rung.250ms"), ("1s", "*.*.*.", "rung.500ms")),
        Binding("events", "shop.*.paid", "billing.on_paid"),
        Binding("events.known", "shop.*.paid", "billing.on_paid"),
        Binding("events.return", "#.@.shop.*.paid", "billing.on_paid"),
        Binding("billing.return", "#.@.billing.on_paid", "billing.on_paid"),
        Binding("calls", "shop.price.get", "call:shop.price.get"),
        Binding("calls.all", "shop.price.get", "billing.calls"),
    }
    for objects in (made.exchanges, made.queues, made.bindings):
        assert len({*objects}) == len(objects)


def test_a_publisher_needs_the_shared_part_alone_which_every_service_has() -> None:
    common, service = shared(), topology("billing")
    assert {*common.exchanges} < {*service.exchanges}
    assert {*common.queues} < {*service.queues}
    assert {*common.bindings} < {*service.bindings}
    assert not [one for one in common.queues if one.name.startswith("billing")]


def test_quorum_queues_have_no_priority_and_no_delivery_limit() -> None:
    made = topology("billing", [Subscribed("on_paid", "a")], options=TopologyOptions(queue_type="quorum"))
    arguments = {one.name: dict(one.arguments) for one in made.queues}
    assert arguments["billing.on_paid"]["x-queue-type"] == "quorum"
    assert not {"x-max-priority", "x-delivery-limit"} & arguments["billing.on_paid"].keys()
    assert [name for name, told in arguments.items() if "x-queue-type" in told] == ["billing.on_paid"]


def test_without_an_archive_and_without_answers_there_are_no_queues_for_them() -> None:
    made = topology("billing", options=TopologyOptions(archive=False))
    assert not {"billing.archive", "billing.calls"} & {one.name for one in made.queues}


def test_one_handler_may_have_several_patterns_and_saying_a_thing_twice_changes_nothing() -> None:
    made = topology("s", [Subscribed("on", "a"), Subscribed("on", "b.#"), Subscribed("on", "a")], ["c", "c"])
    assert [one.name for one in made.queues].count("s.on") == 1
    assert [one.key for one in made.bindings if (one.source, one.target) == ("events", "s.on")] == ["a", "b.#"]
    assert [one.key for one in made.bindings if one.source == "calls"] == ["c"]


def test_a_ladder_that_grows_only_adds_and_changes_no_queue() -> None:
    low = topology("s", [Subscribed("on", "a")], options=TopologyOptions(longest_delay=2))
    high = topology("s", [Subscribed("on", "a")], options=TopologyOptions(longest_delay=REACH))
    assert {*low.exchanges} < {*high.exchanges}
    assert {*low.queues} < {*high.queues}
    assert {*low.bindings} < {*high.bindings}


@pytest.mark.parametrize(
    ("policy", "longest"),
    [
        (exponential(1, cap=600, jitter=0.1), 660),
        (exponential(5, factor=1, jitter=0.5), 7.5),
        (exponential(5, cap=2, factor=1, jitter=0), 2),
        (fixed(1, 500, 30), 500),
        (fixed(), 0),
    ],
)
def test_the_ladder_reaches_the_longest_delay_of_any_policy(policy: RetryPolicy, longest: float) -> None:
    made = topology("s", policies=[fixed(1), policy], options=TopologyOptions(longest_delay=1))
    steps = rungs(max(longest, 1))
    assert [one.name for one in made.queues if one.name.startswith("s.rung.")] == [
        rung_name("s", step) for step in reversed(steps)
    ]
    assert sum(steps) >= longest


def test_a_ladder_has_no_more_rungs_than_it_needs() -> None:
    assert rungs(0) == rungs(0.1) == rungs(SMALLEST) == (0.125,)
    assert rungs(0.126) == (0.25, 0.125)
    assert rungs(1) == (1.0, 0.5, 0.25, 0.125)
    assert rungs(1.875) == rungs(1)
    assert rungs(1.876) == (2.0, *rungs(1))
    assert len(rungs(86400)) == 20
    assert len(rungs(REACH)) == MOST_RUNGS
    assert rungs(REACH)[0] < LONGEST_LIFE < 2 * rungs(REACH)[0]


@given(st.floats(0, REACH))
def test_the_bits_of_a_delay_sum_to_it_rounded_up(delay: float) -> None:
    ladder = rungs(REACH)
    exchange, key = climb("billing", delay, "billing.on_paid", ladder)
    *bits, mark, first, second = key.split(".")
    assert (mark, first, second) == (MARK, "billing", "on_paid")
    held = [SMALLEST * 2**place for place, bit in enumerate(bits) if bit == "1"]
    assert sum(held) == math.ceil(delay / SMALLEST) * SMALLEST
    assert delay <= sum(held) <= delay + SMALLEST
    assert exchange == (rung_name("billing", max(held)) if held else "billing.return")
    assert len(key) <= LONGEST_KEY
    assert target_of(key) == "billing.on_paid"


def test_a_key_without_bits_leads_where_it_says() -> None:
    assert target_of("shop.order.paid") == "shop.order.paid"
    assert target_of("1.0") == "1.0"
    assert climb("events", 0, "a.b", rungs(1)) == ("events.return", "@.a.b")
    assert target_of("@.a.b") == "a.b"


def test_a_delay_beyond_the_ladder_is_refused_and_the_limit_named() -> None:
    assert climb("s", 1.875, "s.on", rungs(1))[0] == "s.rung.1s"
    with pytest.raises(InvalidInput, match=r"1\.9 s is beyond the ladder of s, which reaches 1\.875 s.*longest_delay"):
        climb("s", 1.9, "s.on", rungs(1))
    for call in (lambda: rungs(REACH + 1), lambda: climb("s", REACH + 1, "s.on", rungs(1))):
        with pytest.raises(InvalidInput, match="too long for RabbitMQ"):
            call()
    for bad in (-1, math.nan, math.inf, "soon", True):
        with pytest.raises(InvalidInput, match="delay must be"):
            climb("s", bad, "s.on", rungs(1))  # type: ignore[arg-type]  # the point
    with pytest.raises(InvalidInput, match="too long"):
        topology("s", policies=[fixed(REACH + 1)])


def test_a_routing_key_that_would_be_too_long_is_refused_and_the_limit_named() -> None:
    longest = "t" * 180
    assert len(climb("events", REACH, longest, rungs(REACH))[1]) <= LONGEST_KEY
    with pytest.raises(InvalidInput, match="255 is the limit"):
        climb("events", 1, "t" * 250, rungs(1))
    with pytest.raises(InvalidInput, match="255 is the limit"):
        climb("events", 1, "ü" * 125, rungs(1))


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "#", "ü", "a" * 61, "a\n", *sorted(RESERVED_SERVICES)])
def test_service_names_that_cannot_work_are_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(InvalidName, match=r"service .* is not valid: .*(use|choose)"):
        topology(name)


@pytest.mark.parametrize("name", ["", "a.b", "on paid", "*", "a" * 61, *sorted(RESERVED_HANDLERS)])
def test_handler_names_that_cannot_work_are_refused_with_a_remedy(name: str) -> None:
    with pytest.raises(InvalidName, match=r"handler .* is not valid: .*(use|choose)"):
        topology("billing", [Subscribed(name, "a")])


@pytest.mark.parametrize("pattern", ["", ".", "a.", ".a", "a..b", "a b", "a*", "a.#b", "ü", "@", "a" * 181])
def test_patterns_and_topics_that_cannot_work_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidName, match="is not valid: use words"):
        topology("billing", [Subscribed("on_paid", pattern)])
    with pytest.raises(InvalidName, match="is not valid: use words"):
        topology("billing", answered=[pattern])


def test_a_pattern_that_would_keep_the_broker_busy_is_refused() -> None:
    assert topology("billing", [Subscribed("on_paid", "#.a.#")])
    with pytest.raises(InvalidName, match="more than 2 #: use several subscriptions"):
        topology("billing", [Subscribed("on_paid", "#.a.#.b.#")])


def test_a_call_is_answered_by_topic_and_not_by_pattern() -> None:
    with pytest.raises(InvalidName, match=r"topic 'shop\.#' is not valid"):
        topology("billing", answered=["shop.#"])


@pytest.mark.parametrize(
    "options",
    [
        {"queue_type": "stream"},
        {"archive_seconds": 0},
        {"archive_seconds": LONGEST_LIFE + 1},
        {"unrouted_seconds": -1},
        {"archive_length": 0},
        {"unrouted_length": 1.5},
        {"longest_delay": REACH + 1},
        {"longest_delay": 0},
    ],
    ids=repr,
)
def test_options_that_cannot_work_are_refused_by_name(options: dict[str, object]) -> None:
    (name,) = options
    with pytest.raises(InvalidInput, match=name):
        TopologyOptions(**options)  # type: ignore[arg-type]  # the point


def test_people_see_one_line_per_rung_and_programs_see_everything() -> None:
    made = topology("billing", [Subscribed("on_paid", "a")], options=TopologyOptions(longest_delay=2))
    lines = made.text().splitlines()
    assert [line for line in lines if "billing.rung.2s" in line] == [
        "rung      billing.rung.2s     holds 2000 ms, then billing.rung.1s"
    ]
    told = json.loads(json.dumps(made.json()))
    assert told["service"] == "billing"
    assert [len(told[name]) for name in ("exchanges", "queues", "bindings")] == [
        len(made.exchanges), len(made.queues), len(made.bindings),
    ]  # fmt: skip
    assert {"name": "events", "type": "topic", "arguments": {"alternate-exchange": "events.unrouted"}} in told[
        "exchanges"
    ]


def test_the_topology_is_known_without_kombu() -> None:
    program = "import sys, restante.rabbitmq.topology; assert not {'kombu', 'amqp'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], check=True)
