"""Row 59: load over every door with random faults; a minute here, as long as wanted by `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.plot import plot
from tests.chaos.soak import soak
from tests.faults.rows import verdict


@pytest.mark.chaos
def test_a_minute_under_faults_loses_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    outcome, sampler = soak(1.0, 7)
    plot(sampler.samples, tmp_path / "soak.svg")
    assert (outcome.grown, outcome.keys_left) == ({}, [])
    assert len(outcome.faults) >= 2
    verdict(59, n=sum(outcome.sent.values()), lost=sum(outcome.lost.values()), faults=outcome.faults)


def test_a_soak_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "soak.svg"
    plot([{"seconds": 2.0 * place, "redis_mb": 5.0 + place, "keys": 0.0} for place in range(5)], picture)
    assert picture.read_text().count("<polyline") == 2
    assert "redis mb" in picture.read_text()
    plot([], picture)
    assert picture.read_text().startswith("<svg")
