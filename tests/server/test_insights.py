"""What the Insights page is told by a pipeline that runs, ends, fails or is killed; the real one writes the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from restante.core.errors import InUse, JournalLost
from restante.server import insights
from restante.server.insights import insights_out
from restante.spark.lake import Lake
from restante.spark.progress import PROGRESS, RunProgress


@pytest.fixture
def status(tmp_path: Path) -> RunProgress:
    return RunProgress(Lake(str(tmp_path)))


def state(lake: Path) -> tuple[str, str]:
    progress = insights_out(lake)["progress"]
    return progress["state"], progress["phase"]


def test_both_sides_mean_the_same_file() -> None:
    assert insights.PROGRESS == PROGRESS


def test_without_a_lake_the_hint_says_how_to_name_one() -> None:
    told = insights_out(None)
    assert (told["available"], told["progress"]) == (False, None)
    assert "--lake" in told["hint"]


def test_an_empty_lake_has_a_command_to_begin_with(tmp_path: Path) -> None:
    told = insights_out(tmp_path)
    assert (told["available"], told["made_at"], told["progress"]) == (False, None, None)
    assert told["hint"] == f"restante pipeline run --lake {tmp_path} --report {tmp_path}/report.html"


def test_a_run_is_told_from_before_spark_starts_to_its_end(tmp_path: Path, status: RunProgress) -> None:
    with status.running("starting Spark", report=True):
        assert state(tmp_path) == ("running", "starting Spark")
        with status.running("bronze"):  # the pipeline's own, inside the command's
            status.rows(0, 500)
            status.tell("bronze")
            status.rows(200)
            status.tell("silver and gold", 3, 11)
        progress = insights_out(tmp_path)["progress"]
        assert (progress["state"], progress["report"]) == ("running", True)
        assert (progress["done"], progress["total"]) == (3, 11)
        assert (progress["rows"], progress["rows_expected"], progress["ended_at"]) == (200, 500, None)
        assert progress["started_at"] <= progress["updated_at"]
    assert state(tmp_path)[0] == "done"


def test_a_failure_is_told_with_its_words(tmp_path: Path, status: RunProgress) -> None:
    with pytest.raises(JournalLost), status.running("bronze"):
        raise JournalLost("lines 1 to 9 are gone")
    assert state(tmp_path) == ("failed", "bronze")
    assert insights_out(tmp_path)["progress"]["error"] == "JournalLost: lines 1 to 9 are gone"


def test_a_second_pipeline_that_is_refused_does_not_end_the_first(tmp_path: Path, status: RunProgress) -> None:
    with status.running("bronze"):
        with pytest.raises(InUse), RunProgress(Lake(str(tmp_path))).running("starting Spark"):
            raise InUse("another pipeline is running")
        status.tell("silver and gold", 0, 11)
        assert state(tmp_path) == ("running", "silver and gold")


def test_a_process_that_was_killed_is_told_as_lost(
    tmp_path: Path, status: RunProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(insights, "SILENCE", -1.0)
    with status.running("bronze"):
        assert state(tmp_path) == ("lost", "bronze")


def test_a_run_that_drew_no_report_leaves_the_command_that_does(tmp_path: Path, status: RunProgress) -> None:
    with status.running("bronze"):
        pass
    assert insights_out(tmp_path)["hint"].startswith("restante pipeline report --lake")
    (tmp_path / "report.html").write_text("<h1>r</h1>")
    told = insights_out(tmp_path)
    assert (told["available"], told["hint"]) == (True, "")
    assert told["made_at"] is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"phase": 1}', '"x"', json.dumps({"done": "x"})])
def test_a_file_that_is_not_ours_is_no_progress(tmp_path: Path, text: str) -> None:
    (tmp_path / PROGRESS).write_text(text)
    assert insights_out(tmp_path)["progress"] is None
