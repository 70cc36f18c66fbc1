"""The dashboard stops work and follows it: messages taken back and cancelled, a live progress bar, and results."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import expect

from restante import Admin, Client
from tests.browser.conftest import Watched


def test_progress_is_a_bar_that_moves_and_then_a_result(watched: Watched, post: Client) -> None:
    reports = post.queue("reports", keep_done=5, lease=60)
    id = reports.send({"month": "2026-10"})
    message = reports.receive()
    assert message is not None
    message.progress(0.25, "reading orders")
    watched.go(f"/queues/reports/messages/{id}")
    panel = watched.page.get_by_role("region", name="Progress")
    expect(panel).to_contain_text("25 %")
    expect(panel).to_contain_text("reading orders")
    message.progress(0.75, "drawing")
    expect(panel).to_contain_text("75 %")
    expect(panel.get_by_role("progressbar")).to_have_attribute("value", "0.75")
    message.ack(result={"total": 1240})
    expect(watched.page.get_by_role("region", name="Result")).to_contain_text("1240")
    expect(panel).to_have_count(0)


def test_round_progress_and_a_time_limit_are_shown_beside_a_payload_with_its_own_digits(
    watched: Watched, post: Client
) -> None:
    reports = post.queue("reports", lease=60)
    id = reports.send({"share": 90.0}, timeout=90)
    message = reports.receive()
    assert message is not None
    for fraction, percent in ((0.0, "0 %"), (1.0, "100 %")):
        message.progress(fraction)
        watched.go(f"/queues/reports/messages/{id}")
        expect(watched.page.get_by_role("region", name="Progress")).to_contain_text(percent)
        expect(watched.page.locator(".facts")).to_contain_text("Time limit1 min 30 s")
        expect(watched.page.locator(".source").first).to_contain_text("90.0")


def test_the_page_of_a_cancelled_message_says_by_whom(watched: Watched, post: Client, admin: Admin) -> None:
    orders = post.queue("orders")
    id = orders.send("x")
    admin.cancel("orders", [id], detail="ordered twice")
    watched.go(f"/queues/orders/messages/{id}")
    expect(watched.page.locator(".page-head")).to_contain_text("it was cancelled by tester.")
    expect(watched.find("journal-line", event="cancelled")).to_contain_text("ready, ordered twice")
    watched.errors[:] = [error for error in watched.errors if "404" not in error]  # the message itself


def test_the_list_of_leased_messages_shows_progress_once_there_is_some(watched: Watched, post: Client) -> None:
    reports = post.queue("reports", lease=60)
    reports.send_many([1, 2])
    first, _ = reports.receive_many(2)
    watched.go("/queues/reports?state=leased")
    expect(watched.find("message-row")).to_have_count(2)
    expect(watched.find("progress")).to_have_count(0)
    first.progress(0.5, "half")
    first.extend()
    expect(watched.find("progress")).to_contain_text("50 %")
    first.progress(0.9)
    expect(watched.find("progress")).to_contain_text("90 %")


def test_a_held_message_is_taken_back_from_its_page(watched: Watched, post: Client, admin: Admin) -> None:
    orders = post.queue("orders", lease=60)
    id = orders.send("x")
    held = orders.receive()
    assert held is not None
    watched.go(f"/queues/orders/messages/{id}")
    watched.find("revoke").click()
    expect(watched.find("confirm-dialog")).to_contain_text("Take 1 message of orders back from its consumer?")
    watched.find("confirm-yes").click()
    expect(watched.page.get_by_text("Took back 1 message of orders.")).to_be_visible()
    expect(watched.find("revoke")).to_have_count(0)
    expect(watched.page.get_by_role("img", name="States of this message")).to_contain_text("revoked")
    assert admin.counts("orders").ready == 1
    assert orders.extend_many([held]) == [id]


def test_a_running_message_is_cancelled_from_its_page(watched: Watched, post: Client, admin: Admin) -> None:
    orders = post.queue("orders", lease=60)
    id = orders.send("x")
    held = orders.receive()
    assert held is not None
    watched.expected = "404"  # the page may look for the message once more before it is left
    watched.go(f"/queues/orders/messages/{id}")
    watched.find("cancel").click()
    expect(watched.find("confirm-dialog")).to_contain_text("Cancel 1 message of orders?")
    watched.page.get_by_role("button", name="Keep").click()
    expect(watched.find("confirm-dialog")).to_have_count(0)
    assert admin.counts("orders").leased == 1
    watched.find("cancel").click()
    watched.find("confirm-yes").click()
    expect(watched.page.get_by_text("Cancelled 1 message of orders.")).to_be_visible()
    expect(watched.page.get_by_role("heading", name="orders")).to_be_visible()
    orders.extend_many([held])
    assert held.cancelled


@pytest.mark.parametrize("verb", ["revoke", "cancel"])
def test_a_selection_is_stopped_at_once(watched: Watched, post: Client, admin: Admin, verb: str) -> None:
    orders = post.queue("orders", lease=60)
    orders.send_many(list(range(3)))
    orders.receive_many(3)
    watched.go("/queues/orders?state=leased")
    for row in range(2):
        watched.find("message-row").nth(row).get_by_role("checkbox").check()
    watched.find(f"bulk-{verb}").click()
    watched.find("confirm-yes").click()
    expect(watched.find("message-row", state="leased")).to_have_count(1)
    counts = admin.counts("orders")
    assert (counts.leased, counts.ready) == (1, 2 if verb == "revoke" else 0)


def test_the_new_parts_are_accessible(watched: Watched, post: Client) -> None:
    reports = post.queue("reports", keep_done=5, lease=60)
    reports.send_many([1, 2])
    first, second = reports.receive_many(2)
    first.progress(0.25, "reading orders")
    second.ack(result=[1])
    for id in (first.id, second.id):
        watched.go(f"/queues/reports/messages/{id}")
        expect(watched.page.get_by_role("heading", name="States")).to_be_visible()
        assert Axe().run(watched.page).response["violations"] == []
