"""Runs the closest tests against each planted fault, several at once, each in a copy of the checkout.

A fault counts as caught only if a test fails that passes without it. A run that ends in another way (nothing
collected, a broken import, a time-out) is reported as such and does not count. The test that caught a fault in the
last whole run goes first.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.planting import Fault, NotPlanted, plant

ROOT = Path(__file__).resolve().parents[2]
#: The test that caught each fault in the last whole run, by the fault's name. It only saves time: the others follow.
CAUGHT_BY = Path(__file__).with_name("caught_by.json")
#: Seconds after which a run of tests counts as hanging.
LIMIT = 400.0
#: Seconds that one test waits for a condition. A planted fault often means that the condition never holds; the usual
#: patience of minutes would make each such fault take minutes.
PATIENCE = 30.0
#: Not copied: made by tools, or large.
_LEFT = (".git", ".venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis", "results")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
#: What the distribution of tests over processes adds to their names.
_GROUP = re.compile(r"@\w+$")
_STATIC = Path("src/restante/server/static")


@dataclass(frozen=True)
class Outcome:
    """How the tests ended with a fault planted."""

    fault: Fault
    #: "caught", "missed", or why the run says nothing.
    verdict: str
    #: The test that failed first.
    by: str = ""
    seconds: float = 0.0

    @property
    def caught(self) -> bool:
        return self.verdict == "caught"


@contextmanager
def copies(count: int) -> Iterator[SimpleQueue[Path]]:
    """Copies of the checkout, to be taken and put back."""
    free: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="restante-mutants-") as folder:
        for number in range(count):
            copy = Path(folder, str(number))
            shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT))
            (copy / ".venv").symlink_to((ROOT / ".venv").resolve())
            if (modules := ROOT / "dashboard" / "node_modules").exists():
                (copy / "dashboard" / "node_modules").symlink_to(modules.resolve())
            free.put(copy)
        yield free


def run_tests(tests: Sequence[str], copy: Path, *options: str, limit: float = LIMIT) -> tuple[int, str]:
    """Runs pytest in a copy, whose package comes before the installed one; returns its exit code and output."""
    environment = os.environ | {
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "RESTANTE_PATIENCE": str(PATIENCE),
    }
    # Those of the outer run; what a fault makes run says nothing about which lines tests run.
    for name in [name for name in environment if name.startswith(("PYTEST_", "COVERAGE_"))]:
        del environment[name]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *(options or ("-x", "-n", "0")),
        "--no-header",
        "-m",
        "not chaos",
        *tests,
    ]
    running = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = running.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        return -1, ""
    return running.returncode, output


def judge(code: int, output: str) -> tuple[str, str]:
    """The verdict on a run, and the test that failed first."""
    if code == 0:
        return "missed", ""
    found = _FAILED.search(output)
    if code == 1 and found is not None and "error during collection" not in output:
        return "caught", found[1]
    return {-1: "the tests hang", 5: "no tests"}.get(code, f"pytest ended with {code}"), output[-300:]


def likeliest_first(fault: Fault, caught_by: Mapping[str, str]) -> tuple[str, ...]:
    """The fault's tests, and before them the one that caught it last, if it still exists."""
    test = caught_by.get(fault.name, "")
    file, _, rest = test.partition("::")
    name = rest.partition("[")[0].rpartition("::")[2]
    exists = name and (ROOT / file).is_file() and f"def {name}(" in (ROOT / file).read_text()
    return (test.partition("[")[0], *fault.tests) if exists else fault.tests


def try_fault(fault: Fault, copy: Path, caught_by: Mapping[str, str]) -> Outcome:
    """Plants the fault in the copy, runs its tests, and puts the copy back as it was."""
    began = time.monotonic()
    try:
        file = plant(fault, copy)
    except NotPlanted as error:
        return Outcome(fault, f"not planted: {error}")
    try:
        if fault.room == "dashboard":
            built = subprocess.run(["scripts/dashboard.sh"], cwd=copy, capture_output=True, text=True)
            if built.returncode:
                return Outcome(fault, "not built", built.stdout[-300:], time.monotonic() - began)
        code, output = run_tests(likeliest_first(fault, caught_by), copy)
    finally:
        shutil.copyfile(ROOT / file.relative_to(copy), file)
        if fault.room == "dashboard":
            shutil.rmtree(copy / _STATIC, ignore_errors=True)
            shutil.copytree(ROOT / _STATIC, copy / _STATIC)
    return Outcome(fault, *judge(code, output), time.monotonic() - began)


def try_all(faults: Sequence[Fault], processes: int) -> Iterator[Outcome]:
    """Outcomes as they come, in no order."""
    caught_by = json.loads(CAUGHT_BY.read_text()) if CAUGHT_BY.exists() else {}
    with copies(processes) as free, ThreadPoolExecutor(processes) as pool:

        def one(fault: Fault) -> Outcome:
            copy = free.get()
            try:
                return try_fault(fault, copy, caught_by)
            finally:
                free.put(copy)

        for future in as_completed([pool.submit(one, fault) for fault in faults]):
            yield future.result()


def failing_without_fault(tests: Iterable[str], processes: int) -> set[str]:
    """Which of these tests fail on the checkout as it is."""
    if not (wanted := sorted(tests)):
        return set()
    with copies(1) as free:
        code, output = run_tests(wanted, free.get(), "-n", str(processes), "--dist", "loadgroup", limit=10 * LIMIT)
    if code not in (0, 1):
        raise RuntimeError(f"the tests that caught faults cannot be run: pytest ended with {code}\n{output[-1000:]}")
    return {_GROUP.sub("", name) for name in _FAILED.findall(output)}
