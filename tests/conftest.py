"""What every test folder shares: the tests that run in one process, and its one Spark session and one RabbitMQ."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.harness import deadlines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.harness.rabbitmq import RabbitServer

_TESTS: Final = Path(__file__).parent
#: Files whose tests share the second Spark session: about half of the work.
_SECOND_SPARK: Final = {"test_cluster.py", "test_pipeline.py", "test_pipeline_cli.py", "test_writers.py"}
#: Folders in the order in which their tests begin: what takes minutes first, so that no process is left with it alone.
_FIRST: Final = (
    "mutants",
    "spark",
    "docs",
    "faults",
    "celery",
    "bus",
    "rabbitmq",
    "compat",
    "cli",
    "browser",
    "server",
    "rsmq",
)
#: Makes every JVM that a test starts through Spark's scripts use the fast compiler only.
_QUICK_JAVA: Final = {
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
    "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1",
}
#: The group of folders with few tests on RabbitMQ, which share one.
_SMALL_RABBIT: Final = "rabbitmq"
#: Characters of a parameter that may be part of a test's name.
_LONG_PARAMETER: Final = 100
#: With fewer tests than this the class archive of Spark costs more than it saves.
_MANY: Final = 50


def pytest_configure(config: pytest.Config) -> None:
    for name, value in _QUICK_JAVA.items():
        os.environ.setdefault(name, value)
    config.addinivalue_line("markers", "needs(*capabilities): the rooms of the contract this test is for")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Names a long parameter by its length: a test's name is in the environment, and an environment variable of more
    than 128 KiB keeps every program from starting."""
    return f"{argname}-of-{len(val)}" if isinstance(val, (str, bytes)) and len(val) > _LONG_PARAMETER else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share something slow to start run in one process, all others anywhere.

    Groups begin first: each of them keeps a process for minutes, and the many small tests fill the others meanwhile.
    """
    for item in items:
        if (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[bool, int]:
    folder = _folder(item)
    alone = item.get_closest_marker("xdist_group") is None
    return alone, _FIRST.index(folder) if folder in _FIRST else len(_FIRST)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fails if xdist ignores the groups: the tests would pass, but each process would start every server and Spark."""
    gc.freeze()  # keeps collections short: they skip the thousands of test items and modules
    if not session.config.getoption("loadgroup", default=False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") is not None and "@" not in item.nodeid:
            raise pytest.UsageError("pytest-xdist passes over the groups of tests: this pytest is newer than it knows")


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(_TESTS).parts[0]


def _group(item: pytest.Item) -> str | None:
    fixtures = getattr(item, "fixturenames", ())
    if "spark" in fixtures:
        return "spark-2" if item.path.name in _SECOND_SPARK else "spark-1"
    if "browser" in fixtures:
        return "browser"
    folder = _folder(item)
    if folder == "spark":
        return f"spark-{item.path.stem}"  # a lake that serves all tests of a file
    if folder == "compat":
        return _SMALL_RABBIT
    params = getattr(getattr(item, "callspec", None), "params", {})
    node = "server" if folder == "rabbitmq" or item.path.name == "test_rabbitmq.py" else "rabbit"
    if node not in fixtures and "rabbitmq" not in params.values():
        return None
    return f"{folder}-rabbitmq" if folder in ("bus", "rabbitmq", "harness") else _SMALL_RABBIT


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    deadlines.timed = any(item.get_closest_marker(name) for name in ("timed", "chaos"))
    starts_spark = "spark" in getattr(item, "fixturenames", ()) or item.path.parent.name == "spark"
    # At the first test that needs it, so that other processes go on meanwhile.
    if starts_spark and len(item.session.items) > _MANY and shutil.which("java"):
        from tests.harness.spark_archive import make_archive

        make_archive()


@pytest.fixture(scope="session")
def rabbit() -> Iterator[RabbitServer]:
    """The one RabbitMQ of a process, for folders without one of their own."""
    from tests.harness.rabbitmq import RabbitServer

    with RabbitServer() as running:
        yield running


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of a process; the first run of all leaves the class archive for the next."""
    from tests.harness.spark_session import quick_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESTANTE_SPARK_ARCHIVE", os.environ.get("RESTANTE_SPARK_ARCHIVE", "1"))
        running = quick_session()
    yield running
    running.stop()
