"""The Schedules page in a real browser: next ticks, last results, and what an operator does about them."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from restante import Client
from tests.browser.conftest import Watched


@pytest.fixture
def page(watched: Watched, post: Client) -> Watched:
    orders = post.queue("orders")
    orders.schedule("nightly", "0 3 * * *", tz="Europe/Berlin", payload=7)
    orders.schedule("<script>alert(1)</script>".translate(str.maketrans("<>()", "....")), every="90d")
    watched.go("/schedules")
    return watched


def test_before_the_first_schedule_the_page_says_how_to_begin(watched: Watched) -> None:
    watched.go("/schedules")
    expect(watched.page.locator("main")).to_contain_text("restante schedule add")


def test_next_ticks_count_down_and_the_last_result_is_shown(page: Watched, post: Client) -> None:
    row = page.page.locator('[data-part="schedule-row"][data-name="nightly"]')
    expect(row).to_contain_text("0 3 * * * Europe/Berlin")
    expect(row.locator('[data-part="countdown"]')).to_have_text(re.compile(r"in \d"))
    post.queue("orders").schedule("second", every="1s")
    second = page.page.locator('[data-part="schedule-row"][data-name="second"]')
    expect(second).to_contain_text("Ready")
    message = post.queue("orders").receive(timeout=60)
    assert message is not None
    message.bury(error="no")
    post.queue("orders").unschedule("second")
    expect(second).to_have_count(0)


def test_an_operator_pauses_resumes_runs_and_deletes(page: Watched, post: Client) -> None:
    row = page.page.locator('[data-part="schedule-row"][data-name="nightly"]')

    def choose(what: str) -> None:
        row.locator("summary").click()
        row.get_by_role("button", name=what).click()

    choose("Pause")
    expect(row).to_contain_text("paused")
    choose("Resume")
    expect(row.locator('[data-part="countdown"]')).to_be_visible()
    choose("Run now")
    expect(row).to_contain_text("Ready")
    assert post.queue("orders").receive() is not None
    choose("Delete")
    page.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    assert "nightly" not in [one.name for one in post.queue("orders").schedules()]
