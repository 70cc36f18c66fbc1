"""What every test folder shares: which tests run in one process, and the one Spark session of a process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.harness import deadlines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TESTS: Final = Path(__file__).parent
#: Files whose tests share the second Spark session: about half of the work.
_SECOND_SPARK: Final = {"test_cluster.py", "test_pipeline.py", "test_pipeline_cli.py", "test_writers.py"}
#: Folders in the order in which their tests begin: what takes minutes first, so that no process is left with it alone.
_FIRST: Final = ("spark", "docs", "faults", "celery", "bus", "rabbitmq", "compat", "cli", "browser", "server", "rsmq")
#: With fewer tests than this the class archive of Spark costs more than it saves.
_MANY: Final = 50


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): the rooms of the contract this test is for")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share something slow to start run in one process, all others anywhere; slow ones begin first."""
    items.sort(key=lambda item: _FIRST.index(_folder(item)) if _folder(item) in _FIRST else len(_FIRST))
    for item in items:
        if (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(_TESTS).parts[0]


def _group(item: pytest.Item) -> str | None:
    fixtures = getattr(item, "fixturenames", ())
    if "spark" in fixtures:
        return "spark-2" if item.path.name in _SECOND_SPARK else "spark-1"
    if "browser" in fixtures:
        return "browser"
    folder = _folder(item)
    if folder in ("compat", "spark"):
        return f"{folder}-{item.path.stem}"  # workers or a lake that serve all tests of a file
    params = getattr(getattr(item, "callspec", None), "params", {})
    node = "server" if folder == "rabbitmq" or item.path.name == "test_rabbitmq.py" else "rabbit"
    return f"{folder}-rabbitmq" if node in fixtures or "rabbitmq" in params.values() else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    deadlines.timed = any(item.get_closest_marker(name) for name in ("timed", "chaos"))
    starts_spark = "spark" in getattr(item, "fixturenames", ()) or item.path.parent.name == "spark"
    # At the first test that needs it, so that other processes go on meanwhile.
    if starts_spark and len(item.session.items) > _MANY and shutil.which("java"):
        from tests.harness.spark_archive import make_archive

        make_archive()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of a process; the first run of all leaves the class archive for the next."""
    from tests.harness.spark_session import quick_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESTANTE_SPARK_ARCHIVE", os.environ.get("RESTANTE_SPARK_ARCHIVE", "1"))
        running = quick_session()
    yield running
    running.stop()
