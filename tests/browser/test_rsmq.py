"""The RSMQ pages in a real browser: queues, messages that count down, deleting and moving by click and by key."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import expect

from restante import Admin, Client
from restante.rsmq import inspector
from restante.rsmq.client import Rsmq
from restante.server import Serving
from restante.server.access import Tokens
from tests.browser.conftest import Watched

HOSTILE = "</td><script>alert(1)</script>"


@pytest.fixture
def rsmq(post: Client) -> Rsmq:
    """Three messages, one of them held, one scheduled."""
    made = Rsmq(post=post)
    made.create_queue("orders", vt=600)
    made.create_queue("mail")
    made.send_message("orders", '{"order": 1}')
    assert made.receive_message("orders") is not None
    made.send_message("orders", HOSTILE)
    made.send_message("orders", "later", delay=900)
    return made


def test_queues_lead_to_messages_that_count_down_and_to_one_whole(watched: Watched, rsmq: Rsmq) -> None:
    page = watched.go("/")
    page.get_by_role("navigation").get_by_role("link", name="RSMQ").click()
    expect(watched.find("rsmq-row")).to_have_count(2)
    row = watched.find("rsmq-row", queue="orders")
    expect(row.locator("[data-part=messages]")).to_have_text("3")
    row.get_by_role("link").click()
    expect(watched.find("rsmq-facts")).to_contain_text("3 messages, 2 hidden")
    expect(watched.find("message-row")).to_have_count(3)
    states = watched.find("message-row").evaluate_all("rows => rows.map(row => row.dataset.state)")
    assert states == ["ready", "leased", "scheduled"]
    expect(watched.find("message-row").first).to_contain_text(HOSTILE)
    leased = watched.find("message-row", state="leased").locator("[data-part=countdown]")
    expect(leased).to_have_text(re.compile(r"^in (9 min \d+ s|10 min)$"))
    before = leased.text_content()
    expect(leased).not_to_have_text(before or "")
    rsmq.send_message("orders", "came while we look")
    expect(watched.find("message-row")).to_have_count(4)
    watched.find("message-row", state="leased").get_by_role("link").click()
    expect(watched.find("payload")).to_have_text('{\n  "order": 1\n}')
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_chosen_messages_are_moved_and_deleted_by_click(
    watched: Watched, rsmq: Rsmq, post: Client, admin: Admin
) -> None:
    watched.go("/rsmq/orders")
    watched.find("message-row", state="ready").locator("[data-part=row-select]").click()
    watched.find("bulk-move").click()
    watched.page.locator("[name=to]").fill("shop")
    watched.find("confirm-yes").click()
    expect(watched.find("toast").first).to_contain_text("Moved 1 message from orders to shop.")
    expect(watched.find("message-row")).to_have_count(2)
    assert [message.payload for message in admin.peek("shop", 5)] == [HOSTILE]
    watched.find("message-row", state="scheduled").locator("[data-part=row-select]").click()
    watched.find("bulk-move").click()
    watched.find("move-kind").select_option("rsmq")
    watched.page.locator("[name=to]").fill("mail")
    watched.find("confirm-yes").click()
    expect(watched.find("message-row")).to_have_count(1)
    assert inspector.counts(post, "mail").messages == 1
    watched.find("row-select").click()
    watched.find("bulk-delete").click()
    watched.find("confirm-yes").click()
    expect(watched.find("message-row")).to_have_count(0)
    assert [(line.verb, line.queue) for line in admin.audit()] == [
        ("delete", "rsmq:orders"),
        ("move", "rsmq:orders"),
        ("move", "rsmq:orders"),
    ]


def test_rows_are_reached_and_deleted_by_key_alone(watched: Watched, rsmq: Rsmq) -> None:
    page = watched.go("/rsmq")
    expect(watched.find("rsmq-row")).to_have_count(2)
    for key in ("j", "j", "Enter"):
        page.keyboard.press(key)
    expect(watched.find("message-row")).to_have_count(3)
    for key in ("j", "x", "j", "x", "#"):
        page.keyboard.press(key)
    expect(watched.find("confirm-dialog")).to_contain_text("Delete 2 messages from the RSMQ queue orders?")
    page.keyboard.press("Enter")
    expect(watched.find("message-row")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(watched.find("rsmq-row")).to_have_count(2)


@pytest.mark.usefixtures("rsmq")
def test_a_reader_is_offered_nothing_that_changes(watched: Watched, post: Client, serving: Serving) -> None:
    text = Tokens(post).create("looker", ["read"])[1]
    serving.state.tokens._asked_at = float("-inf")
    watched.go("/rsmq/orders")
    watched.find("sign-in-token").fill(text)
    watched.page.keyboard.press("Enter")
    expect(watched.find("message-row")).to_have_count(3)
    expect(watched.find("row-select")).to_have_count(0)
    watched.errors[:] = [error for error in watched.errors if "401" not in error]


@pytest.mark.usefixtures("rsmq")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_pages_are_accessible(watched: Watched, theme: str) -> None:
    watched.page.add_init_script(f"localStorage.setItem('restante-theme', '{theme}')")
    for path in ("/rsmq", "/rsmq/orders"):
        page = watched.go(path)
        expect(page.locator("tbody tr").first).to_be_visible()
        if path != "/rsmq":
            watched.find("row-select").first.click()
        page.wait_for_timeout(300)
        violations = Axe().run(page).response["violations"]
        serious = [one for one in violations if one["impact"] in ("serious", "critical")]
        assert [(one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in serious] == []
