"""Run Celery's and Kombu's own integration suites on `redis://` and on `restante://` in turns, and list what differs.

Their source distributions are fetched by pip, in the locked versions, into a scratch folder with an environment of its
own; nothing of theirs is in this repository. Ends with status 1 when a test passes on Kombu's transport and fails on
ours, also when it is repeated. The Celery suite takes about a quarter of an hour per broker.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import venv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import redis
from rich.console import Console
from rich.table import Table

from benchmarks.environments import ENVIRONMENTS, ROOT
from benchmarks.server import RedisServer, dying_with_parent

console = Console()
SCRATCH = ENVIRONMENTS / "conformance"
BROKERS = ("redis", "restante")
#: What their suites need beside their packages; versions as they pin them.
PLUGINS = ("pytest", "pytest-rerunfailures", "pytest-timeout", "pytest-subtests", "pytest-order")
#: Seconds between two lines of progress.
PROGRESS_SECONDS = 30.0
#: How often a test that differs is repeated, to tell a busy machine from a fault.
REPEATS = 2

#: Kombu's cases are classes for each transport to inherit; this is ours, and Kombu's own for comparison.
KOMBU_CASES = """
import os

import kombu
import pytest

from .common import (
    BaseEventLoop, BaseExchangeTypes, BaseFailover, BaseMessage, BasePriority, BaseTimeToLive, BasicFunctionality,
)
# The one import a program needs that uses nothing of Kombu but its Connection.
import kombu_restante

URL = os.environ["TEST_BROKER"]
NOWHERE = URL.partition("://")[0] + "://localhost:1"


@pytest.fixture(params=[None, {"global_keyprefix": "prefixed_"}], ids=["plain", "prefixed"])
def connection(request):
    return kombu.Connection(URL, transport_options=request.param)


@pytest.fixture
def failover_connection():
    return kombu.Connection(f"{NOWHERE};{URL}")


@pytest.fixture
def invalid_connection():
    return kombu.Connection(NOWHERE)


class test_Basic(BasicFunctionality): pass
class test_ExchangeTypes(BaseExchangeTypes): pass
class test_TimeToLive(BaseTimeToLive): pass
class test_Message(BaseMessage): pass
class test_EventLoop(BaseEventLoop): pass
class test_Failover(BaseFailover): pass
class test_Priority(BasePriority):
    PRIORITY_ORDER = "desc" if URL.startswith("redis:") else "asc"
"""

#: A plugin that writes each test's outcome down at once, so that a run that is cut off has told what it knew.
OUTCOMES = """
import os

def pytest_runtest_logreport(report):
    if "Subtest" in type(report).__name__:
        return
    if report.when == "call" or report.outcome != "passed":
        word = report.outcome
        if hasattr(report, "wasxfail"):
            word = "xpassed" if report.outcome == "passed" else "xfailed"
        elif report.outcome == "failed" and report.when != "call":
            word = "error"
        with open(os.environ["OUTCOMES"], "a") as file:
            file.write(f"{word} {report.nodeid}\\n")
"""


@dataclass(frozen=True)
class Suite:
    """A package whose integration tests are run."""

    name: str
    files: tuple[str, ...]
    #: Seconds one run may take.
    limit: float
    options: tuple[str, ...] = ()
    #: A test that starts what the others share, put before tests that are repeated alone.
    first: str = ""

    @property
    def folder(self) -> Path:
        return SCRATCH / f"{self.name}-{version(self.name)}"


SUITES = (
    Suite("kombu", ("test_conformance",), 900.0),
    Suite(
        "celery",
        (
            "test_tasks",
            "test_canvas",
            "test_inspect",
            "test_worker",
            "test_loader",
            "test_security",
            "test_serialization",
        ),
        5400.0,
        ("-p", "celery.contrib.pytest"),
        "t/integration/test_inspect.py::test_Inspect::test_ping",
    ),
)


@dataclass
class Run:
    """The outcome of every test on one broker."""

    broker: str
    outcomes: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    #: Why it ended before its last test.
    cut: str = ""

    def passed(self, test: str) -> bool:
        return self.outcomes.get(test) in ("passed", "xpassed")


# -- the scratch folder ----------------------------------------------------------------------------------------------


def prepare(suite: Suite) -> None:
    """Fetches a source distribution and keeps its tests alone: what they import is the installed package."""
    if not suite.folder.exists():
        console.print(f"fetching {suite.folder.name}")
        wanted = f"{suite.name}=={version(suite.name)}"
        _pip(
            Path(sys.executable),
            "download",
            "--no-deps",
            "--no-binary",
            suite.name,
            "--no-build-isolation",
            "--dest",
            str(SCRATCH),
            wanted,
        )
        (packed,) = SCRATCH.glob(f"{suite.name}-{version(suite.name)}*.tar.gz")
        with tarfile.open(packed) as archive:
            archive.extractall(SCRATCH, filter="data")
    shutil.rmtree(suite.folder / suite.name, ignore_errors=True)
    if suite.name == "kombu":
        (suite.folder / "t/integration/test_conformance.py").write_text(KOMBU_CASES)


def environment() -> Path:
    """The Python of an environment with the locked packages, this project and what the suites need."""
    pins = sorted(_pins())
    wanted = [
        f"celery[auth,pydantic]=={version('celery')}",
        f"kombu=={version('kombu')}",
        f"redis=={version('redis')}",
        f"hiredis=={version('hiredis')}",
        f"orjson=={version('orjson')}",
        "django",
        "hatchling",
        "editables",
        "rich",
        "typer",
        *pins,
    ]
    home, python = SCRATCH / "environment", SCRATCH / "environment/bin/python"
    marker, told = home / "installed", hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    if not marker.exists() or marker.read_text() != told:
        console.print("installing what the suites need")
        venv.create(home, with_pip=True, clear=True)
        _pip(python, "install", *wanted)
        # As its users install it: the URL scheme is found by the entry point.
        _pip(python, "install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
        marker.write_text(told)
    (SCRATCH / "conformance_outcomes.py").write_text(OUTCOMES)
    return python


def _pins() -> Iterator[str]:
    """What Celery's own requirements say of the plugins."""
    told = "\n".join(path.read_text() for path in (SUITES[1].folder / "requirements").glob("test*.txt"))
    for name in PLUGINS:
        found = re.search(rf"^{name}\s*([=<>~][^;\s#]*)", told, re.MULTILINE)
        yield f"{name}{found[1] if found else ''}"


def _pip(python: Path, *words: str) -> None:
    done = subprocess.run([str(python), "-m", "pip", *words, "--quiet"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pip {words[0]} failed:\n{done.stderr[-3000:]}")


# -- runs --------------------------------------------------------------------------------------------------------------


def run(suite: Suite, broker: str, python: Path, tests: list[str], label: str = "") -> Run:
    """Runs tests of a suite on a broker, on an empty server, and shows how far it is."""
    name = f"{suite.name}-{broker}{label}"
    outcomes, written = SCRATCH / f"{name}.outcomes", SCRATCH / f"{name}.log"
    outcomes.write_text("")
    made = Run(broker)
    with RedisServer() as server, written.open("w") as log:
        told = {
            "TEST_BROKER": f"{broker}://127.0.0.1:{server.port}/0",
            "TEST_BACKEND": f"redis://127.0.0.1:{server.port}/1",
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(server.port),
            "OUTCOMES": str(outcomes),
            "PYTHONPATH": str(SCRATCH),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "WORKER_LOGLEVEL": "INFO",
        }
        command = [
            str(python),
            "-m",
            "pytest",
            "-q",
            "-rfE",
            "--tb=short",
            "-p",
            "no:cacheprovider",
            "-p",
            "conformance_outcomes",
            "-W",
            "ignore::pytest.PytestUnknownMarkWarning",
            *suite.options,
            *tests,
        ]
        begun = shown = time.monotonic()
        process = subprocess.Popen(
            dying_with_parent(command),
            cwd=suite.folder,
            env={**os.environ, **told},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                time.sleep(0.5)
                now = time.monotonic()
                if now - begun > suite.limit:
                    made.cut = f"cut off after {suite.limit:.0f} s"
                    break
                if now - shown >= PROGRESS_SECONDS:
                    shown = now
                    console.print(f"  {name} {now - begun:5.0f} s  {_line(read(outcomes))}")
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        made.seconds = time.monotonic() - begun
        if not made.cut and process.returncode not in (0, 1):
            made.cut = f"pytest ended with status {process.returncode}: see {written}"
    made.outcomes = read(outcomes)
    console.print(f"  {name} {made.seconds:5.0f} s  {_line(made.outcomes)}  {made.cut}")
    return made


def read(outcomes: Path) -> dict[str, str]:
    """The last word on every test; an error at its end counts over a pass."""
    made: dict[str, str] = {}
    for line in outcomes.read_text().splitlines():
        word, _, test = line.partition(" ")
        if not (word == "rerun" and test in made):
            made[test] = word
    return made


def _line(outcomes: dict[str, str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(Counter(outcomes.values()).items()))


# -- the comparison ----------------------------------------------------------------------------------------------------


def compare(suite: Suite, python: Path, brokers: tuple[str, ...]) -> bool:
    """Runs one suite on each broker; True unless something passes on Kombu's transport alone."""
    tests = [f"t/integration/{file}.py" for file in suite.files]
    runs = {broker: run(suite, broker, python, tests) for broker in brokers}
    table = Table(title=f"{suite.folder.name}: integration tests", title_justify="left")
    words = sorted({word for one in runs.values() for word in one.outcomes.values()} | {"passed", "failed"})
    for word in ("broker", *words, "seconds"):
        table.add_column(word, justify="left" if word == "broker" else "right")
    for broker, one in runs.items():
        counts = Counter(one.outcomes.values())
        table.add_row(f"{broker}://", *(str(counts[word]) for word in words), f"{one.seconds:.0f}")
    console.print(table)
    for one in runs.values():
        if one.cut:
            console.print(f"{one.broker}:// {one.cut}")
    if len(runs) < 2:
        return not any(one.cut for one in runs.values())
    theirs, ours = runs["redis"], runs["restante"]
    lost = sorted(test for test in theirs.outcomes if theirs.passed(test) and not ours.passed(test))
    kept = _repeat(suite, python, lost) if lost else {}
    _list(
        "passes on restante:// alone",
        sorted(
            f"{test}  (redis:// {theirs.outcomes.get(test, 'not run')})"
            for test in ours.outcomes
            if ours.passed(test) and not theirs.passed(test)
        ),
    )
    _list("failed on restante:// once, passed when repeated", [test for test in lost if kept[test]])
    faults = [test for test in lost if not kept[test]]
    _list("passes on redis://, fails on restante://", [f"{test}  ({ours.outcomes.get(test)})" for test in faults])
    _list(
        "passes on neither",
        sorted(
            f"{test}  (redis:// {theirs.outcomes[test]}, restante:// {ours.outcomes.get(test)})"
            for test in theirs.outcomes
            if not theirs.passed(test)
            and not ours.passed(test)
            and {theirs.outcomes[test], ours.outcomes.get(test)} != {"skipped"}
        ),
    )
    return not faults and not any(one.cut for one in runs.values())


def _repeat(suite: Suite, python: Path, tests: list[str]) -> dict[str, bool]:
    """Which of these pass on ours when they are repeated."""
    passed: dict[str, bool] = dict.fromkeys(tests, False)
    for turn in range(REPEATS):
        left = [test for test in tests if not passed[test]]
        if left:
            first = [suite.first] if suite.first else []
            again = run(suite, "restante", python, [*first, *left], f"-again-{turn + 1}")
            passed.update({test: True for test in left if again.passed(test)})
    return passed


def _list(title: str, lines: list[str]) -> None:
    console.print(f"{title}: {len(lines)}")
    for line in lines:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=[suite.name for suite in SUITES], help="one of them; both unless said")
    parser.add_argument("--broker", choices=BROKERS, help="one of them, without a comparison")
    told = parser.parse_args()
    console.print(f"redis-py {redis.__version__}, celery {version('celery')}, kombu {version('kombu')}")
    SCRATCH.mkdir(parents=True, exist_ok=True)
    for suite in SUITES:
        prepare(suite)
    python = environment()
    chosen = [suite for suite in SUITES if told.suite in (None, suite.name)]
    brokers = (told.broker,) if told.broker else BROKERS
    verdicts = [compare(suite, python, brokers) for suite in chosen]
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
