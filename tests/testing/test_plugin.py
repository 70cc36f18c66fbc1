"""The pytest plugin, in runs of pytest as users have them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

APP = """
import restante

client = restante.connect()
orders = client.queue("orders", max_attempts=2)
shipped = []

@orders.handler
def ship(message):
    shipped.append(message.payload)
"""


def run_pytest(place: Path, *args: str, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args],
        cwd=place,
        env={name: value for name, value in os.environ.items() if name[:9] != "RESTANTE_"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose application connects when it is imported, also by conftest.py."""
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "conftest.py").write_text("import shop\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nrestante_private = true\npythonpath = .\n")
    return tmp_path


def test_an_application_that_connects_when_imported_is_on_the_private_server(project: Path) -> None:
    (project / "test_shop.py").write_text(
        """
import restante, shop
from restante.testing import assert_sent, drain, sent_messages

def test_one():
    shop.orders.send(1)
    drain(shop.orders)
    assert shop.shipped == [1]
    shop.orders.send(2)

def test_two(restante_client, restante_server):
    assert shop.client.url == restante_client.url == restante_server.url
    assert sent_messages(shop.orders) == []
    shop.orders.send(3)
    assert restante.Admin(restante_client).counts("orders").settings.max_attempts == 2
    assert_sent(restante_client.queue("orders"), payload=3)

def test_three(restante_client):
    restante_client.queue("orders", max_attempts=7).send(4)
    assert restante.Admin(restante_client).counts("orders").settings.max_attempts == 7

def test_four(restante_client):
    assert sent_messages(shop.orders) == []
    assert restante.Admin(restante_client).queues() == []
    restante_client.queue("orders").send(5)
    assert restante.Admin(restante_client).counts("orders").settings.max_attempts == 5
"""
    )
    assert "4 passed" in run_pytest(project, RESTANTE_URL="redis://never.invalid:1", RESTANTE_BROKER="amqp://never")
    assert not (project / ".restante").exists()


def test_the_server_is_gone_after_the_run_though_the_application_never_closes(project: Path) -> None:
    (project / "test_shop.py").write_text(
        """
import shop

def test_one(restante_server):
    shop.orders.send(1)
    open("directory", "w").write(restante_server.directory)
"""
    )
    run_pytest(project)
    directory = Path((project / "directory").read_text())
    assert directory.name.startswith("restante-")
    assert not directory.exists()


def test_without_the_option_only_the_tests_that_ask_reach_the_private_server(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        """
import os, restante

def test_inside(restante_client):
    with restante.connect() as client:
        assert client.url == restante_client.url

def test_outside():
    assert os.environ["RESTANTE_URL"] == "redis://elsewhere"
    assert "RESTANTE_DIRECTORY" not in os.environ
"""
    )
    assert "2 passed" in run_pytest(tmp_path, RESTANTE_URL="redis://elsewhere")


def test_a_moved_clock_does_not_reach_the_next_test(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        """
from datetime import UTC, datetime, timedelta
from restante import Admin

def test_moves(restante_clock):
    restante_clock.freeze(datetime(2050, 1, 1, tzinfo=UTC))

def test_starts_now(restante_client):
    seen = datetime.fromtimestamp(Admin(restante_client).now_ms() / 1000, UTC)
    assert abs(seen - datetime.now(UTC)) < timedelta(hours=1)
"""
    )
    assert "2 passed" in run_pytest(tmp_path)


def test_processes_of_xdist_have_a_server_each(project: Path) -> None:
    (project / "test_shop.py").write_text(
        """
import pytest, shop
from restante.testing import sent_messages

@pytest.mark.parametrize("n", range(8))
def test_alone(n, restante_client):
    shop.orders.send(n)
    assert [message.payload for message in sent_messages(shop.orders)] == [n]
"""
    )
    assert "8 passed" in run_pytest(project, "-n", "2")


def test_a_run_without_its_fixtures_does_not_import_restante(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        """
import sys

def test_nothing_but_the_plugin_is_imported():
    assert not {"redis", "restante.core.queue", "restante.testing"} & set(sys.modules)
"""
    )
    assert "1 passed" in run_pytest(tmp_path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("restante_privat = true", "pytest.ini has restante_privat: did you mean restante_private?"),
        ("restante_private = yess", "restante_private must be true or false: "),
    ],
)
def test_a_slip_in_the_option_ends_the_run_before_a_test_reaches_another_server(
    tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\n{line}\n")
    (tmp_path / "test_app.py").write_text("def test_alone():\n    print('ran')\n")
    output = run_pytest(tmp_path, "-s", code=4)
    assert said in output
    assert "ran" not in output.replace("restante_private", "")
