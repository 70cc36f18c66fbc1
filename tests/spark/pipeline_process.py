"""The pipeline, or a replay, as a process of its own that a test kills; one JSON argument says what it does.

Lines on stdout: `up` when Spark runs, `step <name> <done> <total>` as the work goes on, `over <JSON>` at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.deadlines import PATIENCE
from tests.harness.processes import PythonProcess


def say(*words: object) -> None:
    # One write per line: two threads' print() calls could mix.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class SparkProcess(PythonProcess):
    """A process of this file; `told` goes to the function `work` names. With `gate` it starts Spark and waits there
    until `go`, so that the next one can start while this one works.
    """

    def __init__(self, work: str, **told: Any) -> None:
        self._gate = told.get("gate")
        archive = os.environ.get("RESTANTE_SPARK_ARCHIVE", "1")
        super().__init__(Path(__file__), json.dumps({"work": work, **told}), env={"RESTANTE_SPARK_ARCHIVE": archive})

    def wait_up(self) -> None:
        self.wait_line("up", timeout=PATIENCE)

    def go(self) -> None:
        self.wait_up()
        Path(str(self._gate)).touch()


def wait_at(gate: str | None) -> None:
    while gate and not Path(gate).exists():
        time.sleep(0.02)


def pipeline(told: dict[str, Any]) -> object:
    """Runs the pipeline until it is killed, or once."""
    from restante.spark.pipeline import Pipeline, PipelineOptions, Step
    from tests.harness.spark_session import quick_session

    def progress(step: Step) -> None:
        say("step", step.name, step.done, step.total)

    work = Pipeline(quick_session(), PipelineOptions(**told["options"]), progress=progress)
    say("up")
    wait_at(told.get("gate"))
    return work.run_once() if told.get("once") else work.run_continuously()


def replay(told: dict[str, Any]) -> object:
    """Carries a frozen replay on."""
    import restante
    from restante.spark.replay import Replay
    from tests.harness.spark_session import quick_session

    work = Replay(quick_session(), told["lake"], restante.connect(told["url"]))
    plan = work.known(told["name"])
    assert plan is not None
    say("up")
    wait_at(told.get("gate"))
    return work.run(plan, rate=told.get("rate", 0.0), progress=lambda at: say("step", "replay", at.done, at.total))


def main() -> None:
    told = json.loads(sys.argv[1])
    work: Callable[[dict[str, Any]], object] = {"pipeline": pipeline, "replay": replay}[told["work"]]
    say("over", work(told))
    os._exit(0)  # Spark's own end takes seconds that no test waits for


if __name__ == "__main__":
    main()
