"""A shared pace: whoever takes places under one name waits for those who came before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from restante.core.errors import InvalidInput
from restante.core.pacing import pace
from restante.core.queue import Post, Queue
from restante.core.settings import ClientSettings
from tests.core.bench import Bench
from tests.core.contents import changes, dump
from tests.harness.clock import START_MS as T

#: Microseconds per message: a hundred per second.
EACH = 10_000


@pytest.fixture
def queues(bench: Bench) -> Iterator[tuple[Queue, Queue]]:
    """The same queue, opened by two clients."""
    with Post(bench.server.url, ClientSettings()) as one, Post(bench.server.url, ClientSettings()) as other:
        one.queue("q").configure(lease=30)
        yield one.queue("q"), other.queue("q")


def test_each_waits_for_those_before_it_whoever_they_are(queues: tuple[Queue, Queue]) -> None:
    one, other = queues
    assert pace(one, "job", EACH, 10, 0) == 0
    assert pace(other, "job", EACH, 5, 0) == 10 * EACH
    assert pace(one, "job", EACH, 1, 0) == 15 * EACH
    assert pace(one, "job", EACH, 0, 0) == 16 * EACH
    assert pace(other, "another", EACH, 1, 0) == 0


def test_time_that_passes_is_waited_for_no_more(bench: Bench, queues: tuple[Queue, Queue]) -> None:
    one, _ = queues
    pace(one, "job", EACH, 10, 0)
    bench.clock.advance(0.04)
    assert pace(one, "job", EACH, 1, 0) == 6 * EACH
    bench.clock.advance(3600)
    assert pace(one, "job", EACH, 1, 0) == 0


def test_a_pause_is_made_up_for_by_the_slack_and_no_more(bench: Bench, queues: tuple[Queue, Queue]) -> None:
    one, _ = queues
    slack = 20 * EACH
    assert pace(one, "job", EACH, 1, slack) == 0
    bench.clock.advance(3600)
    passed = sum(pace(one, "job", EACH, 1, slack) == 0 for _ in range(100))
    assert passed == 21  # those of the slack, and the one of now


def test_nothing_changes_but_its_own_field(bench: Bench, queues: tuple[Queue, Queue]) -> None:
    before = dump(bench.client, "q")
    pace(queues[0], "job", EACH, 3, 0)
    assert changes(before, dump(bench.client, "q")) == {"queue": {"pace:job": T * 1000 + 3 * EACH}}


@pytest.mark.parametrize("numbers", [(-1, 1, 0), (1, -1, 0), (1, 1, -1), (1, 10**9, 0)])
def test_numbers_that_make_no_sense_are_refused(queues: tuple[Queue, Queue], numbers: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInput):
        pace(queues[0], "job", *numbers)
