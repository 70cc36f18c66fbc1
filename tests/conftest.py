"""What every test folder shares."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.harness import deadlines

#: Folders and modules whose tests start Spark.
_SPARK = ("tests/spark/", "tests/docs/")


def pytest_collection_finish(session: pytest.Session) -> None:
    found = [Path(item.path).as_posix() for item in session.items]
    if shutil.which("java") and len(found) > 50 and any(part in path for path in found for part in _SPARK):
        from tests.harness.spark_archive import make_archive

        make_archive()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*capabilities): the rooms of the contract this test is for")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    deadlines.timed = any(item.get_closest_marker(name) for name in ("timed", "chaos"))
