"""A Redis, a server with the built dashboard, Debian's Chromium, and a page that notes every error and request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import restante
from restante import Admin, Client
from restante.server import ServerSettings, Serving
from restante.server.app import static
from tests.harness.chromium import FLAGS
from tests.harness.deadlines import PATIENCE
from tests.harness.rabbitmq import RabbitServer
from tests.harness.requirements import lack, require
from tests.harness.servers import RedisServer, call


# Not for the whole session: its driver keeps an event loop running in the process, where no other may run.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    executable = require("chromium")
    if not (static() / "index.html").is_file():
        lack("the dashboard is not built: make dashboard")
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=str(executable), args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="package")
def rabbit() -> Iterator[RabbitServer]:
    """Not the process's own: the page shows every service of a broker."""
    with RabbitServer() as running:
        yield running


@pytest.fixture(scope="session")
def _redis() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def serving(_redis: RedisServer, tmp_path: Path) -> Iterator[Serving]:
    call(_redis.client(), "FLUSHALL")
    with Serving(_redis.url, ServerSettings(port=0, lake=tmp_path)) as running:
        yield running


@pytest.fixture
def post(serving: Serving) -> Iterator[Client]:
    with restante.connect(serving.state.client.url, consumer="shop-1") as opened:
        yield opened


@pytest.fixture
def admin(post: Client) -> Admin:
    return Admin(post, operator="tester")


class Watched:
    """A page and what went wrong on it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.errors: list[str] = []
        #: Part of an error that a test may meet at any time, also after its end.
        self.expected: str | None = None
        self.elsewhere: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        page.on("dialog", lambda dialog: self.errors.append(f"a dialog opened: {dialog.message}"))
        page.on("request", self._note)

    def _note(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:")):
            self.elsewhere.append(request.url)

    def go(self, path: str) -> Page:
        self.page.goto(self.address + path)
        return self.page

    def find(self, name: str, **facts: str) -> Any:
        words = "".join(f'[data-{fact}="{value}"]' for fact, value in facts.items())
        return self.page.locator(f'[data-part="{name}"]{words}')


@pytest.fixture
def watched(browser: Browser, serving: Serving) -> Iterator[Watched]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    made = Watched(context.new_page(), serving.address)
    made.page.set_default_timeout(PATIENCE * 1000)
    yield made
    context.close()
    assert [error for error in made.errors if made.expected is None or made.expected not in error] == []
    assert made.elsewhere == []
