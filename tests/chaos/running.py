"""Runs the tests of the rows one after the other and sums up what each of them said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.matrix import Row

ROOT: Final = Path(__file__).resolve().parents[2]
#: Random inputs per property, where a row has such a test.
EXAMPLES: Final = "300"
#: Milliseconds that the measured work takes on a shared machine with two cores, for which the bounds were written.
USUAL_MS: Final = 40.0
#: The counts of a result that must be zero, by the words in which tests tell them.
_COUNTS: Final = {"lost": "lost", "doubled": "dup", "phantom": "phantom", "early": "early", "stale": "stale"}
_PASSED = re.compile(r"(\d+) passed")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass
class Result:
    """How a row went: sums over its tests, None for what none of them counts, and the slowest recovery."""

    row: int
    n: int = 0
    lost: int | None = None
    doubled: int | None = None
    phantom: int | None = None
    early: int | None = None
    stale: int | None = None
    max_recovery_s: float = 0.0
    verdict: str = "fail"
    seconds: float = 0.0
    failed: list[str] = field(default_factory=list)

    def line(self) -> str:
        return json.dumps(asdict(self))


def slowness() -> float:
    """How many times slower than usual this machine is, at least 1: bounds of time are multiplied by it."""
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        sum(hash((number, str(number))) & 1 for number in range(100_000))
        took.append((time.perf_counter() - begun) * 1000)
    return max(1.0, min(took) / USUAL_MS)


def run_all(
    rows: Iterable[Row], *, slower: float = 1.0, told: Callable[[Row], None] = lambda row: None
) -> Iterator[Result]:
    """The result of each row, in turn."""
    for row in rows:
        told(row)
        yield run(row, slower)


def run(row: Row, slower: float = 1.0) -> Result:
    with tempfile.TemporaryDirectory(prefix="restante-chaos-") as folder:
        lines = Path(folder, "rows")
        environment = {
            **os.environ,
            "RESTANTE_ROWS": str(lines),
            "RESTANTE_BOUNDS": "1",
            "RESTANTE_SLOWER": f"{slower:.2f}",
            "RESTANTE_EXAMPLES": os.environ.get("RESTANTE_EXAMPLES", EXAMPLES),
        }
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rfE", "-m", "", *row.tests],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        said = lines.read_text().splitlines() if lines.exists() else []
        return summed(row.number, done.returncode, done.stdout, said, time.monotonic() - begun)


def summed(number: int, code: int, output: str, said: Iterable[str], seconds: float) -> Result:
    """The result of a row whose tests ended with a code of pytest; each test without counts is one case."""
    result = Result(number, seconds=round(seconds, 1), failed=_FAILED.findall(output))
    counted = [json.loads(line) for line in said]
    for one in counted:
        _add(result, one)
    passed = _PASSED.search(output)
    tests = int(passed[1]) if passed else 0
    result.n += max(0, tests - len(counted))
    bad = any(getattr(result, name) for name in _COUNTS)
    result.verdict = "pass" if code == 0 and result.n > 0 and not bad else "fail"
    return result


def _add(result: Result, one: dict[str, Any]) -> None:
    result.n += one["n"]
    for name, word in _COUNTS.items():
        if word in one:
            setattr(result, name, (getattr(result, name) or 0) + one[word])
    result.max_recovery_s = max(result.max_recovery_s, one.get("max_recovery_s", 0.0))
