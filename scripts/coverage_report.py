"""`make coverage`: which lines of the package the tests run, by room and for the modules below `LOW`.

Runs the whole suite under coverage.py, children included, and prints a table; `--write-docs` puts it into
docs/explain/planted-faults.md. There is no target: a line that runs is not a line that is checked, which is what the
planted faults are for. A test that hangs fails at `TEST_LIMIT`, and a run that does not end is stopped after `--limit`:
both are named above the table, which is made all the same. The exit code is that of the tests.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "explain" / "planted-faults.md"
CONSOLE: Final = Console()
#: The last run: how it ended and what coverage.py found per file, lines included.
RESULTS: Final = ROOT / "benchmarks" / "results" / "coverage.json"
BEGIN, END = "<!-- coverage: begin -->", "<!-- coverage: end -->"
#: Percent; a module below it is listed with its reason.
LOW: Final = 85.0
#: Why modules run less than `LOW` percent of their lines in the tests.
REASONS: Final[dict[str, str]] = {}
#: Tests that say nothing under a tracer, with the reason. They run in `make test`.
EXCLUDED: Final[dict[str, str]] = {}
#: Seconds after which a test counts as hanging. Under a tracer some take minutes; a longer limit only delays the rest.
TEST_LIMIT: Final = 900
#: Seconds that a test waits for a condition, well below `TEST_LIMIT`.
PATIENCE: Final = 300
#: Minutes after which the run is stopped, unless told otherwise.
RUN_LIMIT: Final = 180.0
#: Seconds that a run which was told to stop may take to leave its data, before it is killed.
GRACE: Final = 60.0
#: Seconds between two looks at whether they are gone.
LOOK_AGAIN: Final = 0.1
#: Seconds between two lines about how far the run is.
EVERY: Final = 60.0
_RESULT: Final = re.compile(r"^(?:\[gw\d+\] \[ *\d+%\] )?(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (tests/\S.*?)\s*$")
_COUNT: Final = re.compile(r"^\d+ workers \[(\d+) items\]")
#: What the distribution of tests over processes adds to their names.
_GROUP: Final = re.compile(r"@[\w-]+$")


@dataclass
class Run:
    """What the tests have said so far."""

    begun: float = field(default_factory=time.monotonic)
    count: int = 0
    ended: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    running: dict[str, None] = field(default_factory=dict)
    stopped: bool = False
    code: int = 0
    #: Whether the tests' own summary has begun.
    summary: bool = False

    def read(self, line: str) -> bool:
        """Takes in one line of pytest's output; returns whether it is shown: all but tests that begin or pass."""
        if self.summary:
            return True
        if found := _RESULT.match(line):
            test = _GROUP.sub("", found[2])
            self.running.pop(test, None)
            self.ended.add(test)
            failed = found[1] in ("FAILED", "ERROR")
            if failed and test not in self.failed:
                self.failed.append(test)
            return failed
        if line.startswith("tests/"):
            self.running[_GROUP.sub("", line.strip())] = None
            return False
        if found := _COUNT.match(line):
            self.count = int(found[1])
        self.summary = line.startswith("===") and "test session starts" not in line
        return bool(line.strip())

    def outcome(self) -> dict[str, Any]:
        """How it ended, as JSON."""
        return {
            "date": str(datetime.datetime.now(datetime.UTC).date()),
            "code": self.code,
            "count": self.count,
            "ended": len(self.ended),
            "failed": self.failed,
            "stopped": self.stopped,
            "running": list(self.running),
        }

    def progress(self) -> str:
        minutes = (time.monotonic() - self.begun) / 60
        return f"{minutes:.0f} min: {len(self.ended)} of {self.count} tests, {len(self.failed)} failed"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.coverage_report")
    parser.add_argument("--write-docs", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("--processes", default=str(2 * (os.cpu_count() or 1)))
    parser.add_argument("--limit", type=float, default=RUN_LIMIT, help="minutes after which the run is stopped")
    parser.add_argument("tests", nargs="*", help="tests to run instead of all")
    parser.add_argument("--again", action="store_true", help="make the table of the last run again; runs no tests")
    told = parser.parse_args(words)
    if told.write_docs and told.tests:
        parser.error("--write-docs publishes a whole run: leave the tests out")
    if told.again and not RESULTS.exists():
        parser.error("no run has ended here: leave --again out")
    if not told.again:
        measure(told.processes, told.tests, told.limit * 60)
    last = json.loads(RESULTS.read_text())
    if told.write_docs and not last["run"]["whole"]:
        parser.error("--write-docs publishes a whole run, and the last one was of chosen tests")
    text = table(last["files"], last["run"])
    CONSOLE.print(text, markup=False, highlight=False, soft_wrap=True)
    if told.write_docs:
        write(PAGE, text)
    return int(last["run"]["code"])


def measure(processes: str, tests: Sequence[str], limit: float) -> None:
    """Runs the tests and writes what they ran to `RESULTS`; if the latter fails, the data of the run is kept."""
    folder = tempfile.mkdtemp(prefix="restante-coverage-")
    Path(folder).chmod(0o1777)  # some tests run programs as a user without rights
    environment = {
        **os.environ,
        "COVERAGE_FILE": str(Path(folder, "data")),
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),  # this checkout, whatever is installed
        "RESTANTE_PATIENCE": str(PATIENCE),
    }
    coverage = [sys.executable, "-m", "coverage"]
    CONSOLE.print(f"data in {folder}")
    run = run_tests([*coverage, "run"], processes, tests, environment, limit)
    if not run.ended:
        raise SystemExit(f"pytest ended with {run.code} before any test: there is nothing to report")
    subprocess.run([*coverage, "combine", "--quiet"], cwd=ROOT, env=environment, check=True)
    report = Path(folder, "report.json")
    # Tests also run copies of the package, which are gone by now.
    chosen = ["--include", "src/restante/*", "--ignore-errors"]
    subprocess.run([*coverage, "json", "--quiet", *chosen, "-o", str(report)], cwd=ROOT, env=environment, check=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"run": run.outcome() | {"whole": not tests}, "files": json.loads(report.read_text())["files"]})
    )
    shutil.rmtree(folder)


def run_tests(
    coverage: Sequence[str], processes: str, tests: Iterable[str], environment: dict[str, str], limit: float
) -> Run:
    """Runs the tests, prints how far they are and, in the end, why some failed."""
    limits = ["-o", f"timeout={TEST_LIMIT}", "-o", "timeout_method=signal"]
    left_out = [f"--deselect={test}" for test in EXCLUDED]
    pytest = ["-m", "pytest", "-vv", "-m", "not chaos", "-n", processes, "--dist", "loadgroup", *limits, *left_out]
    run = Run()
    running = subprocess.Popen(
        [*coverage, *pytest, *tests],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    over = threading.Event()
    watching = [
        threading.Thread(target=_stop_after, args=(limit, running, run, over)),
        threading.Thread(target=_repeat, args=(over, lambda: CONSOLE.print(run.progress()))),
    ]
    for thread in watching:
        thread.start()
    with running:
        try:
            assert running.stdout is not None
            for line in running.stdout:
                if run.read(line):
                    CONSOLE.out(line, end="", highlight=False)
            run.code = running.wait()
        finally:
            over.set()
            _end_group(running, GRACE)
    for thread in watching:
        thread.join()
    CONSOLE.print(run.progress())
    return run


def _repeat(over: threading.Event, say: Callable[[], None]) -> None:
    while not over.wait(EVERY):
        say()


def _stop_after(limit: float, running: subprocess.Popen[str], run: Run, over: threading.Event) -> None:
    """Stops a run that does not end. At SIGTERM its processes leave their data, unless they hang in C."""
    if over.wait(limit):
        return
    run.stopped = True
    CONSOLE.out(f"stopped after {limit / 60:.0f} min, running: {', '.join(run.running)}", highlight=False)
    os.killpg(running.pid, signal.SIGTERM)
    if not over.wait(GRACE):
        _end_group(running, 0.0)


def _end_group(running: subprocess.Popen[str], grace: float) -> None:
    """Kills what is left of the run's processes; before that they may write their data for `grace` seconds."""
    deadline = time.monotonic() + grace
    try:
        while time.monotonic() < deadline:
            os.killpg(running.pid, 0)
            time.sleep(LOOK_AGAIN)
        os.killpg(running.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # Nobody is left.


def table(files: dict[str, Any], run: dict[str, Any]) -> str:
    """How the run ended, lines per room, then the modules below `LOW` and the tests that were left out."""
    rooms: dict[str, list[int]] = {}
    low: list[str] = []
    for path, found in sorted(files.items()):
        inside = path.partition("src/restante/")[2]
        room = inside.partition("/")[0] if "/" in inside else "(top level)"
        summary = found["summary"]
        sums = rooms.setdefault(room, [0, 0])
        sums[0] += summary["num_statements"]
        sums[1] += summary["covered_lines"]
        if summary["num_statements"] and summary["percent_covered"] < LOW:
            reason = REASONS.get(inside, "")
            low.append(f"| `{inside}` | {summary['num_statements']} | {summary['percent_covered']:.0f}% | {reason} |")
    lines = [*ending(run), "", "| room | statements | run by tests |", "|---|---|---|"]
    every = [sum(column) for column in zip(*rooms.values(), strict=True)]
    for room, (statements, covered) in [*sorted(rooms.items()), ("all", every)]:
        lines.append(f"| {room} | {statements:,} | {100 * covered / max(1, statements):.1f}% |")
    if low:
        lines += ["", f"| module below {LOW:.0f}% | statements | run | reason |", "|---|---|---|---|", *low]
    if EXCLUDED:
        lines += ["", "| test left out | reason |", "|---|---|"]
        lines += [f"| `{test}` | {reason} |" for test, reason in EXCLUDED.items()]
    return "\n".join(lines)


def ending(run: dict[str, Any]) -> list[str]:
    """When the tests ran, which of them failed, and which did not end."""
    lines = [f"Run on {run['date']}: {run['ended']:,} tests, {len(run['failed'])} failed."]
    lines += [f"Failed: `{test}`." for test in run["failed"]]
    if run["stopped"] or run["code"] not in (0, 1):
        how = "was stopped" if run["stopped"] else f"ended with {run['code']}"
        lines.append(f"The run {how} after {run['ended']:,} of {run['count']:,} tests: the figures are incomplete.")
        lines += [f"Did not end: `{test}`." for test in run["running"]]
    return lines


def write(page: Path, text: str) -> None:
    made, times = re.subn(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}\n{text}\n{END}", page.read_text(), flags=re.DOTALL)
    if times != 1:
        raise ValueError(f"{page} has the marks {BEGIN} and {END} {times} times, not once")
    page.write_text(made)


if __name__ == "__main__":
    sys.exit(main())
