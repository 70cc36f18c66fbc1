"""A shared pace: whoever takes places under one name waits until the last of them may be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from restante.core.errors import InvalidInput, InvalidName
from restante.core.queue import Client, Queue
from restante.core.settings import ClientSettings
from restante.core.throttle import forget_throttle, throttle
from tests.core.bench import Bench
from tests.core.contents import changes, dump
from tests.harness.clock import START_MS as T

#: Microseconds per message: a hundred per second.
EACH = 10_000


@pytest.fixture
def queues(bench: Bench) -> Iterator[tuple[Queue, Queue]]:
    """The same queue, opened by two clients."""
    with Client(bench.server.url, ClientSettings()) as one, Client(bench.server.url, ClientSettings()) as other:
        one.queue("q").configure(lease=30)
        yield one.queue("q"), other.queue("q")


def test_each_waits_until_the_last_of_its_own_may_pass_whoever_came_before(queues: tuple[Queue, Queue]) -> None:
    one, other = queues
    assert throttle(one, "job", EACH, 10, 0) == 10 * EACH
    assert throttle(other, "job", EACH, 5, 0) == 15 * EACH
    assert throttle(one, "job", EACH, 1, 0) == 16 * EACH
    assert throttle(one, "job", EACH, 0, 0) == 16 * EACH
    assert throttle(other, "another", EACH, 1, 0) == EACH


def test_time_that_passes_is_waited_for_no_more(bench: Bench, queues: tuple[Queue, Queue]) -> None:
    one, _ = queues
    throttle(one, "job", EACH, 10, 0)
    bench.clock.advance(0.04)
    assert throttle(one, "job", EACH, 1, 0) == 7 * EACH
    bench.clock.advance(3600)
    assert throttle(one, "job", EACH, 1, 0) == EACH


def test_a_pause_is_made_up_for_by_the_slack_and_no_more(bench: Bench, queues: tuple[Queue, Queue]) -> None:
    one, _ = queues
    slack = 20 * EACH
    assert throttle(one, "job", EACH, 1, slack) == EACH  # the beginning is no pause
    for _ in range(2):
        bench.clock.advance(3600)
        assert [throttle(one, "job", EACH, 1, slack) for _ in range(22)] == [*[0] * 20, EACH, 2 * EACH]


def test_a_job_that_is_forgotten_leaves_nothing_and_begins_anew(bench: Bench, queues: tuple[Queue, Queue]) -> None:
    one, other = queues
    before = dump(bench.client, "q")
    throttle(one, "job", EACH, 10, 0)
    forget_throttle(other, "job")
    forget_throttle(other, "job")
    assert dump(bench.client, "q") == before
    assert throttle(one, "job", EACH, 1, 0) == EACH


def test_a_name_that_is_none_is_refused(queues: tuple[Queue, Queue]) -> None:
    acts: list[Callable[[], object]] = [
        lambda: throttle(queues[0], "two words", EACH, 1, 0),
        lambda: forget_throttle(queues[0], "two words"),
    ]
    for act in acts:
        with pytest.raises(InvalidName):
            act()


def test_nothing_changes_but_its_own_field(bench: Bench, queues: tuple[Queue, Queue]) -> None:
    before = dump(bench.client, "q")
    throttle(queues[0], "job", EACH, 3, 0)
    assert changes(before, dump(bench.client, "q")) == {"queue": {"pace:job": T * 1000 + 3 * EACH}}


@pytest.mark.parametrize("numbers", [(-1, 1, 0), (1, -1, 0), (1, 1, -1), (1, 10**9, 0)])
def test_numbers_that_make_no_sense_are_refused(queues: tuple[Queue, Queue], numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInput):
        throttle(queues[0], "job", *numbers)
