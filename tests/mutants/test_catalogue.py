"""The catalogue of planted faults fits the code, and a small part of it is tried in every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.catalogue import FAULTS
from tests.mutants.planting import Fault, NotPlanted, locate, plant
from tests.mutants.running import ROOT, judge, try_all

#: Faults that every run tries, by name: each is caught within seconds and stands for its room.
ALWAYS = (
    "core: acks are forgotten when ack_many fails",
    "core: the sweeper ends at its first failure",
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_of_the_catalogue_can_be_planted(fault: Fault) -> None:
    locate(fault, ROOT)
    assert fault.old != fault.new
    paths = [word.partition("::")[0] for word in fault.tests if word.startswith("tests/")]
    assert paths
    assert all((ROOT / path).exists() for path in paths)


def test_no_two_faults_have_one_name() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_a_few_planted_faults_are_caught() -> None:
    chosen = [fault for fault in FAULTS if fault.name in ALWAYS]
    assert len(chosen) == len(ALWAYS)
    outcomes = list(try_all(chosen, 1))
    assert [one for one in outcomes if not one.caught] == []


def test_a_text_that_is_not_there_is_not_planted(tmp_path: Path) -> None:
    module = tmp_path / "src/restante/core/queue.py"
    module.parent.mkdir(parents=True)
    module.write_text("class Queue:\n    def send(self):\n        return 1\n\n\ndef other():\n    return 1\n")
    fault = Fault("core", "sends nothing", "Queue.send", "return 2", "return 3", ())
    with pytest.raises(NotPlanted, match=r"Queue\.send was found 1 times, its text to change in 0"):
        plant(fault, tmp_path)
    with pytest.raises(NotPlanted, match=r"Queue\.gone was found 0 times"):
        plant(Fault("core", "sends nothing", "Queue.gone", "return 1", "return 3", ()), tmp_path)
    plant(Fault("core", "sends nothing", "Queue.send", "return 1", "return 3", ()), tmp_path)
    assert module.read_text().splitlines()[2:] == ["        return 3", "", "", "def other():", "    return 1"]


@pytest.mark.parametrize(
    ("code", "output", "verdict"),
    [
        (0, "5 passed", "missed"),
        (1, "FAILED tests/a.py::test_b - assert 1", "caught"),
        (1, "ERROR tests/a.py::test_b - Exception", "caught"),
        (1, "ERROR tests/a.py - SyntaxError\n1 error during collection", "pytest ended with 1"),
        (2, "interrupted", "pytest ended with 2"),
        (5, "no tests ran", "no tests"),
        (-1, "", "the tests hang"),
    ],
)
def test_only_a_failed_test_counts(code: int, output: str, verdict: str) -> None:
    assert judge(code, output)[0] == verdict
