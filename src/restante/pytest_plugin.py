"""The pytest plugin: `restante_client`, `restante_server` and `restante_clock`, on one private server per session.

It imports Restante only when a fixture is used or the option `restante_private` is set: every run of pytest where
Restante is installed loads this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from restante import Client
    from restante.testing import Clock, PrivateServer

    _KEY: pytest.StashKey[PrivateServer]
_KEY = pytest.StashKey()

_OPTION = "restante_private"
#: Lines of an INI or TOML file that set something of ours.
_OURS = re.compile(r"^\s*(restante_\w+)\s*=", re.MULTILINE)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        _OPTION,
        "true: a connect() without a URL reaches a private server from the start of the run, also in modules that "
        "connect when they are imported, and every test begins with an empty server",
        type="bool",
        default=False,
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Sets the environment before the first conftest.py is imported: it may import a module that connects.

    A slip in the option ends the run: the tests would reach the server that the environment names.
    """
    if early_config.inipath is not None:
        # pytest itself only warns of an unknown option, at the end of the run.
        for name in _OURS.findall(early_config.inipath.read_text(encoding="utf-8", errors="replace")):
            if name != _OPTION:
                raise pytest.UsageError(f"{early_config.inipath.name} has {name}: did you mean {_OPTION}?")
    try:
        private = early_config.getini(_OPTION)
    except ValueError as error:
        raise pytest.UsageError(f"{_OPTION} must be true or false: {error}") from None
    if private:
        _server(early_config).use()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _KEY in config.stash:
        config.stash[_KEY].close()


def _server(config: pytest.Config) -> PrivateServer:
    """The server of this run. It starts when it is first used."""
    if _KEY not in config.stash:
        from restante.testing import PrivateServer

        config.stash[_KEY] = PrivateServer()
    return config.stash[_KEY]


@pytest.fixture(autouse=True)
def _restante_clean(request: pytest.FixtureRequest) -> None:
    """With `restante_private`: empties the server before each test, if anything has used it."""
    if request.config.getini(_OPTION) and (server := _server(request.config)).running:
        server.clear()


@pytest.fixture
def restante_server(request: pytest.FixtureRequest, _restante_clean: None) -> Iterator[PrivateServer]:
    """The private server of this test run, empty. A `connect()` without a URL reaches it during the test."""
    server = _server(request.config)
    server.start()
    server.clear()
    server.use()
    yield server
    if not request.config.getini(_OPTION):
        server.leave_environment()


@pytest.fixture
def restante_client(restante_server: PrivateServer) -> Iterator[Client]:
    """A client of the private server, which is empty when the test begins."""
    with restante_server.client() as client:
        yield client


@pytest.fixture
def restante_clock(restante_server: PrivateServer) -> Iterator[Clock]:
    """The clock of the private server, at the real time when the test begins."""
    clock = restante_server.clock
    yield clock
    clock.reset()
