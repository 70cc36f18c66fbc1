"""A broker that is killed while messages climb down the ladder loses none of them."""

from __future__ import annotations

import pytest

from restante.rabbitmq.ladder import RUNGS
from tests.faults.rows import verdict
from tests.harness.rabbitmq import RabbitServer
from tests.rabbitmq.kills import killed_while_climbing


def test_a_broker_that_is_killed_twice_loses_nothing_that_climbs_down_the_ladder() -> None:
    with RabbitServer() as server:
        outcome = killed_while_climbing(server, RUNGS, 300, 2)
    verdict(56, n=outcome.sent, lost=outcome.lost, doubled=outcome.doubled, kills=outcome.kills)


@pytest.mark.chaos
def test_a_broker_that_is_killed_twenty_times_loses_nothing_that_climbs_down_the_ladder() -> None:
    with RabbitServer() as server:
        outcome = killed_while_climbing(server, RUNGS, 5000, 20)
    verdict(56, n=outcome.sent, lost=outcome.lost, doubled=outcome.doubled, kills=outcome.kills)
