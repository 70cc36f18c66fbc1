"""The catalogue of planted faults fits the code, and a small part of it is tried in every run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.catalogue import FAULTS
from tests.mutants.planting import Fault, NotPlanted, locate, plant
from tests.mutants.running import ROOT, Outcome, failing_without_fault, judge, likeliest_first, try_all

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


def test_the_test_that_caught_a_fault_last_runs_first_while_it_exists() -> None:
    fault = Fault("core", "sends nothing", "Queue.send", "a", "b", ("tests/core", "-k", "send"))
    here = "tests/mutants/test_catalogue.py"
    caught = f"{here}::test_no_two_faults_have_one_name"
    assert likeliest_first(fault, {fault.name: f"{caught}[sync-7.0]"}) == (caught, *fault.tests)
    assert likeliest_first(fault, {fault.name: f"{here}::TestGone::test_that_is_gone"}) == fault.tests
    assert likeliest_first(fault, {fault.name: "tests/gone.py::test_gone"}) == fault.tests
    assert likeliest_first(fault, {}) == fault.tests


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command with four faults of which one run tries two; returns the names of those that were tried."""
    tried: list[str] = []

    def try_two(faults: Sequence[Fault], processes: int) -> Iterator[Outcome]:
        for fault in faults[:2]:
            tried.append(fault.name)
            yield Outcome(fault, "caught", "tests/a.py::test_b")
        if len(faults) > 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "RESULTS", tmp_path / "results/mutants.jsonl")
    monkeypatch.setattr(command, "try_all", try_two)
    monkeypatch.setattr(command, "failing_without_fault", lambda tests, processes: set())
    monkeypatch.setattr(command, "FAULTS", FAULTS[:4])
    return tried


def test_a_stopped_run_is_continued(recording: list[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        command.main([])
    assert command.main(["--resume"]) == 0
    assert recording == [fault.name for fault in FAULTS[:4]]


def test_what_changed_since_an_earlier_run_is_tried_again(
    recording: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        command.main([])
    assert command.main(["--resume"]) == 0
    old = command.digest
    monkeypatch.setattr(command, "digest", lambda fault: old(fault) + ("changed" if fault == FAULTS[1] else ""))
    assert command.main(["--resume"]) == 0
    assert recording[4:] == [FAULTS[1].name]


def test_a_test_that_fails_without_the_fault_proves_nothing(
    recording: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "FAULTS", FAULTS[:2])
    monkeypatch.setattr(command, "failing_without_fault", lambda tests, processes: set(tests))
    assert command.main([]) == 1
    assert "all           0 of 2" in capsys.readouterr().out


def test_the_tests_that_caught_faults_run_without_them() -> None:
    good = "tests/mutants/test_catalogue.py::test_no_two_faults_have_one_name"
    assert failing_without_fault([good], 1) == set()
    with pytest.raises(RuntimeError, match="pytest ended with"):
        failing_without_fault([f"{good}_that_is_gone"], 1)
