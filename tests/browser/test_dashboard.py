"""The dashboard in a real browser: what an operator sees and does, live, by keyboard, in light and dark."""

from __future__ import annotations

import gzip
import re
import time
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import expect

from restante import Admin, Client, State
from restante.server import Serving
from restante.server.access import Tokens
from restante.server.app import static
from tests.browser.conftest import Watched
from tests.harness.chromium import RECORD_JOURNAL

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">{{7*7}}${alert(3)}'


def shop(post: Client, admin: Admin, dead: int = 5) -> None:
    """Every state alive."""
    payments = post.queue("payments", lease=60, max_attempts=3, keep_done=10)
    payments.send_many([{"order": n, "total": n * 1.5} for n in range(dead)], kind="payment.due")
    for message in payments.receive_many(dead):
        message.bury(error=TimeoutError("the bank took more than its time"))
    payments.send_many([{"order": n} for n in range(20)], kind="payment.due")
    payments.receive_many(2)
    failed = payments.receive_many(2)
    payments.nack_many(failed, delay=600, error=ConnectionError("no route"))
    for message in payments.receive_many(3):
        message.ack()
    payments.send({"later": True}, delay=900)
    post.queue("emails").send({"to": "a@b.c"})


class TestLooking:
    def test_the_overview_says_what_is_wrong_and_leads_to_it(
        self, watched: Watched, post: Client, admin: Admin
    ) -> None:
        shop(post, admin)
        watched.go("/")
        expect(watched.find("verdict")).to_contain_text("1 queue needs attention")
        expect(watched.find("tile-dead")).to_contain_text("5")
        rows = watched.find("queue-row")
        expect(rows.first).to_have_attribute("data-queue", "payments")
        rows.first.get_by_role("link", name="payments", exact=True).click()
        expect(watched.page).to_have_url(re.compile("/queues/payments"))
        watched.find("tab-dead").click()
        expect(watched.find("message-row")).to_have_count(5)
        watched.find("message-row").first.get_by_role("link").first.click()
        expect(watched.page.get_by_text("the bank took more than its time").first).to_be_visible()
        expect(watched.find("payload")).to_contain_text("order")

    def test_counts_are_live(self, watched: Watched, post: Client, admin: Admin) -> None:
        post.queue("orders").send(1)
        watched.go("/")
        expect(watched.find("tile-ready")).to_contain_text("1")
        post.queue("orders").send_many(list(range(41)))
        expect(watched.find("tile-ready")).to_contain_text("42")

    def test_every_page_opens_without_an_error(self, watched: Watched, post: Client, admin: Admin) -> None:
        shop(post, admin)
        admin.pause("emails")
        for path in (
            "/",
            "/queues/payments",
            "/dead",
            "/consumers",
            "/schedules",
            "/journal",
            "/anomalies",
            "/audit",
            "/topics",
            "/rsmq",
            "/insights",
        ):
            page = watched.go(path)
            expect(page.locator("main h1").first).to_be_visible()
        expect(watched.page.locator("main")).to_contain_text("pipeline")

    def test_the_report_of_spark_is_shown_in_a_box(self, watched: Watched, tmp_path: Path) -> None:
        (tmp_path / "report.html").write_text("<!doctype html><title>r</title><h1>Figures of the shop</h1>")
        watched.go("/insights")
        expect(watched.page.frame_locator("iframe").locator("h1")).to_have_text("Figures of the shop")

    def test_a_hundred_thousand_messages_are_counted_truly_and_paged(self, watched: Watched, post: Client) -> None:
        queue = post.queue("orders")
        for start in range(0, 100_000, 1000):
            queue.send_many(list(range(start, start + 1000)))
        watched.go("/queues/orders?state=ready")
        expect(watched.find("tab-ready")).to_contain_text("100,000")
        seen: set[str] = set()
        for _ in range(3):
            rows = watched.find("message-row")
            expect(rows.first).to_be_visible()
            ids = rows.evaluate_all("rows => rows.map(row => row.dataset.id)")
            assert seen.isdisjoint(ids)
            seen |= set(ids)
            watched.find("next-page").first.click()
            expect(watched.find("message-row").first).not_to_have_attribute("data-id", ids[0])
        watched.page.go_back()
        expect(watched.find("message-row").first).to_have_attribute("data-id", ids[0])

    def test_filters_live_in_the_address(self, watched: Watched, post: Client) -> None:
        queue = post.queue("orders")
        queue.send_many([{"n": n} for n in range(30)], kind="a")
        queue.send({"needle": 1}, kind="b")
        watched.go("/queues/orders?state=ready&q=needle")
        expect(watched.find("message-row")).to_have_count(1)
        watched.page.reload()
        expect(watched.find("message-row")).to_have_count(1)


class TestDoing:
    def test_dead_letters_are_put_back_by_keyboard_alone(self, watched: Watched, post: Client, admin: Admin) -> None:
        shop(post, admin)
        page = watched.go("/queues/payments?state=dead")
        expect(watched.find("message-row")).to_have_count(5)
        for key in ("j", "x", "j", "x", "Shift+R"):
            page.keyboard.press(key)
        dialog = watched.find("confirm-dialog")
        expect(dialog).to_contain_text("2")
        page.keyboard.press("Escape")
        expect(dialog).not_to_be_visible()
        page.keyboard.press("Shift+R")
        expect(dialog).to_contain_text("2")
        assert (admin.counts("payments").dead, admin.audit()) == (5, [])
        page.keyboard.press("Enter")
        expect(watched.find("toast").first).to_contain_text("2")
        expect(watched.find("message-row")).to_have_count(3)
        assert admin.counts("payments").dead == 3
        assert admin.audit()[0].verb == "replay"

    def test_a_group_of_dead_letters_is_put_back(self, watched: Watched, post: Client, admin: Admin) -> None:
        shop(post, admin, dead=7)
        post.queue("payments").receive_many(1)[0].bury(error=KeyError("price"))
        watched.go("/dead")
        group = watched.find("dead-group").first
        expect(group).to_contain_text("TimeoutError")
        watched.find("dead-replay").first.click()
        expect(watched.find("confirm-dialog")).to_contain_text("7")
        watched.find("confirm-yes").click()
        expect(watched.find("dead-group")).to_have_count(1)
        expect(watched.find("dead-group")).to_contain_text("KeyError")
        assert [message.history[-1].error_class for message in admin.walk("payments", State.DEAD)] == ["KeyError"]

    def test_a_range_is_selected_survives_live_updates_and_is_deleted(
        self, watched: Watched, post: Client, admin: Admin
    ) -> None:
        queue = post.queue("orders")
        ids = queue.send_many(list(range(10)))
        page = watched.go("/queues/orders?state=ready")
        expect(watched.find("message-row")).to_have_count(10)
        boxes = watched.find("row-select")
        boxes.nth(1).click()
        boxes.nth(4).click(modifiers=["Shift"])
        expect(watched.find("bulk-bar")).to_contain_text("4")
        queue.send_many(list(range(5)))
        time.sleep(1.5)
        expect(watched.find("bulk-bar")).to_contain_text("4")
        expect(watched.find("live-status")).to_have_attribute("data-status", "paused")
        watched.find("bulk-delete").click()
        expect(watched.find("confirm-dialog")).to_contain_text("4")
        page.keyboard.press("Escape")
        assert admin.counts("orders").ready == 15
        watched.find("bulk-delete").click()
        watched.find("confirm-yes").click()
        expect(watched.find("toast").first).to_contain_text("4")
        left = {message.id for message in admin.walk("orders", State.READY)}
        assert left.isdisjoint(ids[1:5])
        assert len(left) == 11

    def test_roles_hide_what_may_not_be_done(
        self, watched: Watched, post: Client, admin: Admin, serving: Serving
    ) -> None:
        shop(post, admin)
        text = Tokens(post).create("looker", ["read"])[1]
        Tokens(post).create("ops", ["operate"])
        serving.state.tokens._asked_at = float("-inf")
        watched.go("/")
        watched.find("sign-in-token").fill("rst_wrong")
        watched.page.keyboard.press("Enter")
        expect(watched.page.get_by_text("not valid")).to_be_visible()
        watched.find("sign-in-token").fill(text)
        watched.page.keyboard.press("Enter")
        expect(watched.find("verdict")).to_be_visible()
        watched.go("/queues/payments?state=dead")
        expect(watched.find("message-row")).to_have_count(5)
        acting = re.compile("purge|pause|replay", re.IGNORECASE)
        expect(watched.page.get_by_role("button", name=acting)).to_have_count(0)
        watched.errors[:] = [error for error in watched.errors if "401" not in error]

    def test_help_and_theme_by_key(self, watched: Watched) -> None:
        page = watched.go("/")
        expect(watched.find("verdict")).to_be_visible()
        before = page.locator("html").get_attribute("data-theme")
        page.keyboard.press("t")
        assert page.locator("html").get_attribute("data-theme") != before
        page.keyboard.press("Shift+?")
        expect(watched.find("help-dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(watched.find("help-dialog")).not_to_be_visible()


class TestLive:
    def test_a_real_lease_is_watched_through_overdue_to_ready(
        self, watched: Watched, post: Client, admin: Admin
    ) -> None:
        watched.page.add_init_script(RECORD_JOURNAL)
        queue = post.queue("orders", lease=3)
        queue.send("x")
        time.sleep(1.5)
        page = watched.go("/queues/orders?state=leased")
        expect(watched.find("tab-leased")).to_be_visible()
        expect(watched.find("live-status")).to_have_attribute("data-status", "live")
        message = queue.receive()
        assert message is not None
        countdown = watched.find("countdown").first
        expect(countdown).to_be_visible()
        page.evaluate("""() => {
            window.__texts = [];
            const look = () => {
                const one = document.querySelector('[data-part="countdown"]');
                const text = one ? one.textContent : '';
                if (text && window.__texts.at(-1) !== text) window.__texts.push(text);
                requestAnimationFrame(look);
            };
            look();
        }""")
        page.wait_for_function("() => window.recorded.some(one => one.event === 'expired')")
        texts = page.evaluate("() => window.__texts")
        numbers = [float(found[0]) for text in texts if (found := re.match(r"^(\d+(\.\d+)?)", text))]
        assert numbers[0] <= 3.0
        assert min(numbers) <= 0.3
        assert numbers == sorted(numbers, reverse=True)
        expect(watched.find("tab-ready")).to_contain_text("1")
        (gap,) = page.evaluate(
            "() => window.recorded.filter(one => one.event === 'expired').map(one => one.seen_at - one.at)"
        )
        assert gap < 1000

    @pytest.mark.parametrize("wrong", [-3600, 3600], ids=["an hour slow", "an hour fast"])
    def test_a_countdown_goes_by_the_servers_clock(self, watched: Watched, post: Client, wrong: int) -> None:
        watched.page.add_init_script(f"const right = Date.now; Date.now = () => right() + {wrong * 1000};")
        queue = post.queue("orders")
        queue.send("x")
        assert queue.receive(lease=1200) is not None
        watched.go("/queues/orders?state=leased")
        expect(watched.find("countdown").first).to_have_text(re.compile(r"^(20|1\d|\d) min"))

    def test_a_gap_in_the_live_feed_is_filled_by_reading_again(
        self, watched: Watched, post: Client, serving: Serving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = post.queue("orders")
        queue.send("before")
        read: list[str] = []
        watched.page.on("response", lambda answer: read.append(answer.url) if "limit=500" in answer.url else None)
        page = watched.go("/journal")
        while len(read) < 2:  # at first, and again once the feed is open
            page.wait_for_timeout(20)
        expect(watched.find("live-status")).to_have_attribute("data-status", "live")
        expect(watched.find("journal-line")).to_have_count(1)
        monkeypatch.setattr("restante.server.journal_feed.BUFFER", 10)  # so the server drops what follows and says so
        queue.send_many(list(range(50)))
        expect(watched.find("journal-line")).to_have_count(51)

    def test_the_tail_survives_a_dropped_connection_without_gap(
        self, watched: Watched, post: Client, serving: Serving
    ) -> None:
        watched.page.add_init_script(RECORD_JOURNAL)
        queue = post.queue("orders")
        queue.send(0)
        time.sleep(1.5)
        page = watched.go("/journal")
        expect(watched.find("live-status")).to_have_attribute("data-status", "live")
        for number in range(10):
            queue.send(number)
        expect(watched.find("journal-line")).to_have_count(11)
        page.context.set_offline(True)
        time.sleep(0.5)
        for number in range(10, 20):
            queue.send(number)
        time.sleep(0.5)
        page.context.set_offline(False)
        for number in range(20, 30):
            queue.send(number)
        page.wait_for_function("""() => document.querySelectorAll('[data-part="journal-line"]').length >= 31""")
        places = watched.find("journal-line").evaluate_all("rows => rows.map(row => Number(row.dataset.position))")
        assert len(set(places)) == len(places)
        assert sorted(places)[-31:] == list(range(max(places) - 30, max(places) + 1))
        watched.errors.clear()  # the browser tells of the connection that was cut


class TestSafety:
    def test_numbers_too_large_for_a_browser_are_shown_and_edited_exactly(
        self, watched: Watched, post: Client, admin: Admin
    ) -> None:
        id = post.queue("orders").send({"n": 12345678901234567890, "text": "old"})
        page = watched.go(f"/queues/orders/messages/{id}")
        expect(watched.find("payload")).to_contain_text("12345678901234567890")
        page.get_by_role("button", name="Edit", exact=True).click()
        field = page.locator("[name=payload]")
        field.fill(field.input_value().replace("old", "new"))
        page.get_by_role("button", name="Save", exact=True).click()
        expect(watched.find("payload")).to_contain_text("new")
        assert admin.show("orders", id).payload == {"n": 12345678901234567890, "text": "new"}

    def test_hostile_texts_are_shown_and_never_run(self, watched: Watched, post: Client, admin: Admin) -> None:
        queue = post.queue("orders", max_attempts=1)
        queue.send({"x": HOSTILE, HOSTILE: 1}, headers={HOSTILE: HOSTILE}, unique="'><svg/onload=alert(4)>")
        message = queue.receive()
        assert message is not None
        message.nack(error=HOSTILE)
        post.queue("javascript:alert").send(b"\xff<script>alert(6)</script>", content_type="text/html")
        for path in (
            "/",
            "/queues/orders?state=dead",
            f"/queues/orders/messages/{message.id}",
            "/dead",
            "/journal",
            "/queues/javascript%3Aalert",
            f"/queues/orders?q={HOSTILE}",
            f"/queues/{HOSTILE}",
        ):
            page = watched.go(path.replace("#", "%23"))
            page.wait_for_timeout(700)
        watched.go(f"/queues/orders/messages/{message.id}")
        expect(watched.find("payload")).to_contain_text("<script>alert(1)</script>")
        planted = "() => document.querySelectorAll('main script, main img, main svg[onload]').length"
        assert watched.page.evaluate(planted) == 0
        watched.errors[:] = [error for error in watched.errors if "40" not in error and "422" not in error]

    def test_an_inline_script_would_be_stopped_by_the_policy(self, watched: Watched) -> None:
        page = watched.go("/")
        page.evaluate("""() => {
            const script = document.createElement('script');
            script.textContent = 'window.__ran = true';
            document.body.append(script);
        }""")
        assert page.evaluate("() => window.__ran") is None
        assert any("Content Security Policy" in error for error in watched.errors)
        watched.errors.clear()


def test_pages_are_accessible_in_both_themes(watched: Watched, post: Client, admin: Admin) -> None:
    shop(post, admin)
    admin.pause("emails")
    watched.page.add_init_script("localStorage.setItem('restante-theme', 'light')")
    dead = admin.messages("payments", State.DEAD, limit=1).messages[0]
    found: list[Any] = []
    post.queue("payments").schedule("nightly", "0 3 * * *", tz="Europe/Berlin")
    for path in (
        "/",
        "/queues/payments?state=dead",
        "/queues/payments?state=leased",
        f"/queues/payments/messages/{dead.id}",
        "/dead",
        "/consumers",
        "/schedules",
        "/journal",
        "/anomalies",
        "/audit",
        "/topics",
    ):
        page = watched.go(path)
        page.wait_for_timeout(1200)
        light = Axe().run(page)
        page.evaluate("document.documentElement.dataset.theme = 'dark'")
        page.wait_for_timeout(300)  # colours fade
        dark = Axe().run(page, options={"resultTypes": ["violations"], "runOnly": ["color-contrast"]})
        found += [
            (path, theme, one["id"], [node["html"][:120] for node in one["nodes"][:2]])
            for theme, result in (("light", light), ("dark", dark))
            for one in result.response["violations"]
            if one["impact"] in ("serious", "critical")
        ]
    assert found == []


def test_the_bundle_is_small_and_complete() -> None:
    files = [path for path in static().rglob("*") if path.is_file() and path.name != ".built"]
    size = sum(len(gzip.compress(path.read_bytes())) for path in files)
    assert 20_000 < size < 120 * 1024


def test_the_built_files_hold_no_hook_for_tests(watched: Watched) -> None:
    built = {path.name: path.read_text() for path in static().rglob("*") if path.suffix in {".js", ".css", ".html"}}
    assert {Path(name).suffix for name in built} == {".js", ".css", ".html"}
    # @preact/signals looks for its own developer tools.
    name = r"__(?!PREACT_SIGNALS_DEVTOOLS__)\w+"
    hook = re.compile(rf"\b(window|globalThis|self)(\?\.|\.|\[[\"'`]){name}|test-?id", re.IGNORECASE)
    assert {name: found for name, text in built.items() if (found := hook.search(text))} == {}
    watched.page.add_init_script("window.initial = Object.getOwnPropertyNames(window)")
    page = watched.go("/journal")
    expect(watched.find("live-status")).to_have_attribute("data-status", "live")
    added = page.evaluate("() => Object.getOwnPropertyNames(window).filter(name => !window.initial.includes(name))")
    assert set(added) - {"initial"} == set()
