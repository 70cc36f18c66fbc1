"""Draws the pictures of the README and the guide: the sample shop runs, a browser looks at it in light and dark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from tests.harness.chromium import FLAGS

OUT = Path(__file__).parent.parent / "docs" / "images"
CHROMIUM = "/usr/bin/chromium"
#: Seconds the shop gets to have something to show: sparklines need a minute or so.
WARM = 75
SIZE: Any = {"width": 1280, "height": 800}


@contextmanager
def shop() -> Iterator[str]:
    """The demo's address."""
    command = [Path(sys.executable).with_name("restante"), "demo", "--port", "8125"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(WARM)
        yield "http://localhost:8125"
    finally:
        running.terminate()
        running.wait(30)


def told(address: str, path: str) -> Any:
    with urllib.request.urlopen(address + path) as answer:
        return json.load(answer)


def dead_message(address: str) -> str:
    """The path of a message that was buried: its error is the shop's own, without the paths of this machine."""
    newest = "state=dead&error_class=CardDeclined&order=newest&limit=1"
    while not (found := told(address, f"/api/queues/payments/messages?{newest}")["messages"]):
        time.sleep(1)
    return f"/queues/payments/messages/{urllib.parse.quote(found[0]['id'], safe='')}"


def draw(page: Page, address: str, theme: str) -> None:
    page.add_init_script(f"localStorage.setItem('restante-theme', '{theme}')")
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    paths = {"overview": "/", "queue": "/queues/payments?state=retrying", "dead": "/dead", "message": ""}
    for name, path in paths.items():
        # Asked for just before its picture: the shop replays dead messages.
        page.goto(address + (path or dead_message(address)))
        page.wait_for_selector("main table, main article, main .panel")
        page.wait_for_timeout(2500)
        page.screenshot(path=OUT / f"{name}-{theme}.png")


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    with shop() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for theme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE)
            draw(page, address, theme)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
