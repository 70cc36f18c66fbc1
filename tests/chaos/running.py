"""Runs the tests of the rows and sums up what each of them said.

The tests of a row that are in one file make a part, which one process of pytest runs. Most of them wait for something,
so `LANES` parts run at once; those of `ALONE` follow one by one. A part of several rows runs once. What pytest printed
about a part that failed is kept in `OUTPUTS`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.matrix import ALONE, Row

ROOT: Final = Path(__file__).resolve().parents[2]
OUTPUTS: Final = ROOT / "benchmarks" / "results" / "chaos"
#: Parts that run at once. With more of them than cores, bounds of time would be those of a busy machine.
LANES: Final = 2
#: Random inputs per property, where a row has such a test.
EXAMPLES: Final = "300"
#: Milliseconds that the measured work takes on a shared machine with two cores, for which the bounds were written.
USUAL_MS: Final = 40.0
#: The counts of a result that must be zero, by the words in which tests tell them.
_COUNTS: Final = {"lost": "lost", "doubled": "dup", "phantom": "phantom", "early": "early", "stale": "stale"}
_PASSED = re.compile(r"(\d+) passed")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)

#: Tests of one file.
Part = tuple[str, ...]


@dataclass(frozen=True)
class Ended:
    """How pytest ended on a part: its exit code and output, and the lines that `tests.faults.rows` wrote."""

    code: int
    output: str
    lines: Sequence[str]
    seconds: float


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


def parts(row: Row) -> list[Part]:
    """The tests of a row by file."""
    files: dict[str, list[str]] = {}
    for test in row.tests:
        files.setdefault(test.partition("::")[0], []).append(test)
    return [tuple(tests) for tests in files.values()]


def run_all(
    rows: Iterable[Row],
    *,
    slower: float = 1.0,
    run: Callable[[Part, float], Ended] | None = None,
    told: Callable[[Iterable[Part]], None] = lambda running: None,
) -> Iterator[Result]:
    """The result of each row, as soon as all its parts have ended; `told` hears which parts run."""
    waiting = {row: parts(row) for row in rows}
    wanted = list(dict.fromkeys(part for found in waiting.values() for part in found))
    ended: dict[Part, Ended] = {}
    for lanes, alone in ((LANES, False), (1, True)):
        with ThreadPoolExecutor(lanes) as pool:
            chosen = [part for part in wanted if part[0].startswith(ALONE) is alone]
            running: dict[Future[Ended], Part] = {pool.submit(run or run_part, part, slower): part for part in chosen}
            while running:
                told(list(running.values())[:lanes])
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                ended |= {running.pop(one): one.result() for one in done}
                for row in [row for row, found in waiting.items() if ended.keys() >= set(found)]:
                    yield summed(row.number, [ended[part] for part in waiting.pop(row)])


def run_part(part: Part, slower: float) -> Ended:
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
            [sys.executable, "-m", "pytest", "-rfE", "-m", "", *part],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        said = lines.read_text().splitlines() if lines.exists() else []
    if done.returncode:
        OUTPUTS.mkdir(parents=True, exist_ok=True)
        (OUTPUTS / f"{part[0].replace('/', '.')}.txt").write_text(done.stdout + done.stderr)
    return Ended(done.returncode, done.stdout, said, time.monotonic() - begun)


def summed(number: int, ended: Sequence[Ended]) -> Result:
    """The result of a row from those of its parts; each test without counts is one case."""
    result = Result(number, seconds=round(sum(part.seconds for part in ended), 1))
    proved = bool(ended)
    for part in ended:
        result.failed += _FAILED.findall(part.output)
        counted = [json.loads(line) for line in part.lines]
        for one in counted:
            _add(result, one)
        passed = _PASSED.search(part.output)
        cases = max(0, (int(passed[1]) if passed else 0) - len(counted))
        result.n += cases
        proved = proved and part.code == 0 and (cases > 0 or any(one["n"] for one in counted))
    bad = any(getattr(result, name) for name in _COUNTS)
    result.verdict = "pass" if proved and not bad else "fail"
    return result


def _add(result: Result, one: dict[str, Any]) -> None:
    result.n += one["n"]
    for name, word in _COUNTS.items():
        if word in one:
            setattr(result, name, (getattr(result, name) or 0) + one[word])
    result.max_recovery_s = max(result.max_recovery_s, one.get("max_recovery_s", 0.0))
