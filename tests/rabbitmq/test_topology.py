"""What a service needs on RabbitMQ, as data: names, arguments, bindings, and the bits of a delay."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from restante import InvalidInput, InvalidName, RetryPolicy, exponential, fixed
from restante.rabbitmq import Binding, Exchange, Ladder, Queue, Subscribed, TopologyOptions, rungs, shared, topology
from restante.rabbitmq.ladder import GATE, LONGEST_KEY, LONGEST_LIFE, MOST_RUNGS, REACH, SMALLEST, TO_QUEUE, target_of
from restante.rabbitmq.topology import RESERVED_HANDLERS, RESERVED_SERVICES, UNROUTED, is_rung

WEEK = 7 * 86400 * 1000
BOUNDS = (("x-message-ttl", WEEK), ("x-max-length", 10_000), ("x-overflow", "reject-publish"))
ASIDE = (("alternate-exchange", "events.unrouted"),)


def rung(label: str, milliseconds: int, below: str) -> Queue:
    return Queue(f"ladder:classic.{label}", (("x-message-ttl", milliseconds), ("x-dead-letter-exchange", below)))


def steps(*ways: tuple[str, str, str]) -> set[Binding]:
    found = set()
    for label, stars, below in ways:
        name = f"ladder:classic.{label}"
        found |= {Binding(name, f"{stars}1.#", name), Binding(name, f"{stars}0.#", below, True)}
    return found


def test_a_small_service_needs_exactly_this() -> None:
    made = topology(
        "billing",
        [Subscribed("on_paid", "shop.*.paid")],
        ["shop.price.get"],
        options=TopologyOptions(longest_delay=0.3, rungs="classic"),
    )
    assert made.service == "billing"
    assert {*made.exchanges} == {
        Exchange("events", "topic", ASIDE),
        Exchange("events.known", "topic"),
        Exchange("events.unrouted", "fanout"),
        Exchange("calls", "direct"),
        Exchange("calls.all", "direct"),
        Exchange("ladder:return", "topic", ASIDE),
        Exchange("ladder:gate", "fanout", durable=False),
        Exchange("ladder:due", "topic", ASIDE),
        *(Exchange(f"ladder:classic.{label}", "topic") for label in ("1s", "500ms", "250ms", "125ms")),
        Exchange("billing.rung.1s", "topic"),
    }
    back = (("x-dead-letter-exchange", "billing.rung.1s"), ("x-dead-letter-routing-key", "0.0.0.1.@.billing.on_paid"))
    assert {*made.queues} == {
        Queue("events.unrouted", BOUNDS),
        Queue("events.services"),
        rung("1s", 1000, "ladder:classic.500ms"),
        rung("500ms", 500, "ladder:classic.250ms"),
        rung("250ms", 250, "ladder:classic.125ms"),
        rung("125ms", 125, "ladder:return"),
        Queue("billing.on_paid", (("x-max-priority", 10), *back)),
        Queue("billing.archive", BOUNDS),
        Queue("call:shop.price.get"),
        Queue("billing.calls"),
    }
    assert {*made.bindings} == {
        Binding("events.unrouted", "", "events.unrouted"),
        *steps(
            ("125ms", "", "ladder:return"),
            ("250ms", "*.", "ladder:classic.125ms"),
            ("500ms", "*.*.", "ladder:classic.250ms"),
            ("1s", "*.*.*.", "ladder:classic.500ms"),
        ),
        Binding("billing.rung.1s", "#", "ladder:classic.1s", True),
        Binding("events", "shop.*.paid", "billing.on_paid"),
        Binding("events.known", "shop.*.paid", "billing.on_paid"),
        Binding("ladder:return", "#.~.#", "ladder:gate", True),
        Binding("ladder:gate", "", "ladder:due", True),
        Binding("ladder:due", "#.~.shop.*.paid", "billing.on_paid"),
        Binding("ladder:return", "#.@.billing.on_paid", "billing.on_paid"),
        Binding("calls", "shop.price.get", "call:shop.price.get"),
        Binding("calls.all", "shop.price.get", "billing.calls"),
    }
    for objects in (made.exchanges, made.queues, made.bindings):
        assert len({*objects}) == len(objects)


def test_no_exchange_is_handed_anything_before_it_leads_somewhere() -> None:
    """Messages travel while bindings are made, and an exchange without one drops what it is given."""
    made = topology("billing", [Subscribed("on_paid", "a")], ["b"], options=TopologyOptions(longest_delay=2))
    leads = {one.name for one in made.exchanges if dict(one.arguments).get("alternate-exchange")}
    for one in made.bindings:
        assert not one.to_exchange or one.target in leads, one
        leads.add(one.source)


def test_all_services_share_one_ladder_and_the_guide_states_the_count() -> None:
    """22 queues for all, and per service one for each handler, one for calls and one archive."""
    exchanges: set[str] = set()
    queues: set[str] = set()
    for service in ("billing", "mail", "books"):
        made = topology(service, [Subscribed("on_paid", "a"), Subscribed("on_sent", "b")], [f"{service}.ask"])
        exchanges |= {one.name for one in made.exchanges}
        queues |= {one.name for one in made.queues}
    assert len(shared().queues) == 22
    assert len([name for name in queues if is_rung(name)]) == 20
    # Three services, each with two handlers of events, one of calls, the queue of calls to all, and an archive.
    assert len(queues) == 22 + 3 * (2 + 1 + 1 + 1)
    assert len(shared().exchanges) == 28
    assert len(exchanges) == 28 + 3
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "events.md").read_text()
    assert "22 queues and 28 exchanges" in " ".join(guide.split())


def test_quorum_rungs_move_messages_at_least_once_and_have_names_of_their_own() -> None:
    made = topology("billing", [Subscribed("on_paid", "a")], options=TopologyOptions(rungs="quorum", longest_delay=1))
    arguments = {one.name: dict(one.arguments) for one in made.queues}
    assert arguments["ladder:quorum.250ms"] == {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-message-ttl": 250,
        "x-dead-letter-exchange": "ladder:quorum.125ms",
    }
    assert not [name for name in arguments if name.startswith("ladder:classic")]
    assert Binding("billing.rung.1s", "#", "ladder:quorum.1s", True) in made.bindings
    assert Binding("billing.rung.1s", "#", "ladder:classic.1s", True) in made.unbound
    # The queues of a service are the same with either, so that a change of mind is no mismatch.
    options = TopologyOptions(rungs="classic", longest_delay=1)
    classic = topology("billing", [Subscribed("on_paid", "a")], options=options)
    assert {one for one in made.queues if not is_rung(one.name)} == {
        one for one in classic.queues if not is_rung(one.name)
    }


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
    typed = {name for name, told in arguments.items() if "x-queue-type" in told and not is_rung(name)}
    assert typed == {"billing.on_paid"}


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
    assert [one.name for one in made.queues if is_rung(one.name)] == [Ladder().rung(step) for step in reversed(steps)]
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
    ladder = Ladder(steps=rungs(REACH))
    exchange, key = ladder.retry(delay, "billing.on_paid")
    *bits, mark, first, second = key.split(".")
    assert (mark, first, second) == (TO_QUEUE, "billing", "on_paid")
    held = [SMALLEST * 2**place for place, bit in enumerate(bits) if bit == "1"]
    assert sum(held) == math.ceil(delay / SMALLEST) * SMALLEST
    assert delay <= sum(held) <= delay + SMALLEST
    assert exchange == (ladder.rung(max(held)) if held else "ladder:return")
    assert len(key) <= LONGEST_KEY
    assert target_of(key) == "billing.on_paid"


def test_a_key_without_bits_leads_where_it_says() -> None:
    assert target_of("shop.order.paid") == "shop.order.paid"
    assert target_of("1.0") == "1.0"
    assert Ladder(steps=rungs(1)).later(0, "a.b") == ("ladder:return", "~.a.b")
    assert target_of("~.a.b") == target_of("@.a.b") == target_of("0.1.~.a.b") == "a.b"


def test_a_delay_beyond_the_ladder_is_refused_and_the_limit_named() -> None:
    low = Ladder(steps=rungs(1))
    assert low.retry(1.875, "s.on")[0] == "ladder:quorum.1s"
    with pytest.raises(InvalidInput, match=r"1\.9 s is beyond the ladder, which reaches 1\.875 s.*longest_delay"):
        low.retry(1.9, "s.on")
    for call in (lambda: rungs(REACH + 1), lambda: low.retry(REACH + 1, "s.on")):
        with pytest.raises(InvalidInput, match="too long for RabbitMQ"):
            call()
    for bad in (-1, math.nan, math.inf, "soon", True):
        with pytest.raises(InvalidInput, match="delay must be"):
            low.retry(bad, "s.on")  # type: ignore[arg-type]  # the point
    with pytest.raises(InvalidInput, match="too long"):
        topology("s", policies=[fixed(REACH + 1)])
    with pytest.raises(InvalidInput, match="rungs must be classic or quorum, not 'lazy'"):
        Ladder("lazy")  # type: ignore[arg-type]  # the point


def test_a_routing_key_that_would_be_too_long_is_refused_and_the_limit_named() -> None:
    longest = "t" * 180
    assert len(Ladder(steps=rungs(REACH)).later(REACH, longest)[1]) <= LONGEST_KEY
    for topic in ("t" * 250, "ü" * 125):
        with pytest.raises(InvalidInput, match="255 is the limit"):
            Ladder(steps=rungs(1)).later(1, topic)


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
        {"rungs": "stream"},
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
    assert [line for line in lines if "ladder:quorum.2s" in line] == [
        "rung      ladder:quorum.2s     holds 2000 ms, then ladder:quorum.1s"
    ]
    told = json.loads(json.dumps(made.json()))
    assert told["service"] == "billing"
    assert [len(told[name]) for name in ("exchanges", "queues", "bindings")] == [
        len(made.exchanges),
        len(made.queues),
        len(made.bindings),
    ]
    events = {"name": "events", "type": "topic", "durable": True, "arguments": {"alternate-exchange": UNROUTED}}
    assert events in told["exchanges"]
    assert {"name": GATE, "type": "fanout", "durable": False, "arguments": {}} in told["exchanges"]


def test_the_topology_is_known_without_kombu() -> None:
    program = "import sys, restante.rabbitmq.topology; assert not {'kombu', 'amqp'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], check=True)
