"""The Topics page in a real browser: who is behind, what died, and putting it back by click and by key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import amqp
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import expect

from restante import Admin, Client, exponential, fixed
from restante.bus import Bus, BusClient
from restante.server import Serving
from restante.server.access import Tokens
from tests.browser.conftest import Watched
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import HOST

HOSTILE = "</td><script>alert(1)</script>"


def handle(data: Any) -> None:
    """No worker runs here: what a handler would do to its events, the tests do."""


@pytest.fixture
def services(serving: Serving, post: Client) -> Iterator[BusClient]:
    """Two services; of six events one subscription has two dead, another one, all others wait."""
    billing = Bus("billing", f"{serving.state.client.url}/0", max_attempts=4, retry=fixed(1, 5, 30))
    billing.subscribe("shop.order.paid", name="invoice")(handle)
    billing.subscribe("shop.order.*", name="books", retry=exponential(2, cap=60), max_attempts=11)(handle)
    billing.answer("shop.price.get", name="price")(handle)
    mail = Bus("mail", f"{serving.state.client.url}/0")
    mail.subscribe("shop.order.paid", name="thank")(handle)
    for one in (billing, mail):
        one.declare()
    with BusClient(f"{serving.state.client.url}/0", source="shop") as client:
        for number in range(6):
            client.publish("shop.order.paid", {"order": number, "note": HOSTILE})
        client.publish("shop.nobody.there", 1)
        for message in post.queue("billing.invoice").receive_many(2):
            message.bury(error=TimeoutError("the bank took more than its time"))
        for message in post.queue("billing.books").receive_many(1):
            message.bury(error=ValueError(HOSTILE))
        yield client
    for one in (billing, mail):
        one.close()


def test_before_the_first_service_the_page_says_how_to_begin(watched: Watched) -> None:
    watched.go("/topics")
    expect(watched.page.locator("main")).to_contain_text("@bus.subscribe")
    expect(watched.page.locator("main")).to_contain_text("celery -A")


def test_who_is_behind_is_seen_and_counts_are_live(watched: Watched, services: BusClient, post: Client) -> None:
    page = watched.go("/")
    page.get_by_role("navigation").get_by_role("link", name="Topics").click()
    expect(watched.find("topic-totals")).to_contain_text("3 subscriptions of 2 services")
    expect(watched.find("topic-totals")).to_contain_text("15 waiting")
    expect(watched.find("topic-totals")).to_contain_text("3 dead")
    expect(watched.find("topic-totals")).to_contain_text("1 unrouted event")
    # The dead first, then who is most behind; a topic's subscriptions stay together.
    order = watched.find("subscription-row").evaluate_all("rows => rows.map(row => row.dataset.subscription)")
    assert order == ["billing.invoice", "mail.thank", "billing.books"]
    invoice = watched.find("subscription-row", subscription="billing.invoice")
    expect(invoice).to_contain_text("1 s, 5 s, 30 s")
    expect(invoice).to_contain_text("4 attempts")
    books = watched.find("subscription-row", subscription="billing.books")
    expect(books).to_contain_text("2 s, 4 s, 8 s … 1 min")
    waiting = invoice.locator("[data-part=waiting]")
    expect(waiting).to_contain_text(re.compile(r"^4oldest"))
    services.publish("shop.order.paid", {"order": 7})
    expect(waiting).to_contain_text(re.compile(r"^5oldest"))
    expect(watched.find("call-row", topic="shop.price.get")).to_contain_text("billing.price")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    invoice.get_by_role("link", name="invoice").click()
    expect(page).to_have_url(re.compile("/queues/billing.invoice"))


@pytest.mark.usefixtures("services")
def test_dead_events_are_shown_and_put_back_by_click_without_a_reload(watched: Watched, admin: Admin) -> None:
    page = watched.go("/topics")
    watched.find("subscription-row", subscription="billing.invoice").get_by_role("link", name="2").click()
    expect(watched.find("dead-row")).to_have_count(2)
    expect(watched.find("archive", service="billing")).to_be_focused()
    watched.find("filter-subscription").select_option("")
    expect(watched.find("dead-row")).to_have_count(3)
    expect(watched.find("dead-row").filter(has_text="TimeoutError")).to_have_count(2)
    watched.find("filter-error_class").select_option("ValueError")
    expect(watched.find("dead-row")).to_have_count(1)
    expect(watched.find("dead-row")).to_contain_text(HOSTILE)
    expect(page).to_have_url(re.compile("open=billing.*error_class=ValueError"))
    watched.find("filter-error_class").select_option("")
    page.evaluate("window.__same = true")
    watched.find("dead-row").filter(has_text="TimeoutError").first.locator("[data-part=row-select]").click()
    expect(watched.find("live-status")).to_have_attribute("data-status", "paused")
    watched.find("bulk-replay").click()
    expect(watched.find("confirm-dialog")).to_contain_text("Replay 1 dead event of billing?")
    watched.find("confirm-yes").click()
    expect(watched.find("toast").first).to_contain_text("Replayed 1 event")
    expect(watched.find("archive-count")).to_have_text("2 dead events")
    expect(watched.find("dead-row")).to_have_count(2)
    watched.find("archive-replay").click()
    expect(watched.find("confirm-dialog")).to_contain_text("Replay 2 dead events of billing?")
    page.keyboard.press("Escape")
    assert admin.counts("billing.invoice").dead == 1
    watched.find("archive-replay").click()
    watched.find("confirm-yes").click()
    expect(watched.find("archive")).to_have_count(0)
    expect(watched.find("topic-totals")).to_contain_text("0 dead")
    assert (admin.counts("billing.invoice").ready, admin.counts("billing.books").ready) == (6, 6)
    assert page.evaluate("window.__same") is True
    assert {line.verb for line in admin.audit()} == {"replay"}


@pytest.mark.usefixtures("services")
def test_rows_filter_and_archive_by_key_alone(watched: Watched, admin: Admin) -> None:
    page = watched.go("/topics")
    expect(watched.find("subscription-row")).to_have_count(3)
    page.keyboard.press("/")
    page.keyboard.type("books")
    expect(watched.find("subscription-row")).to_have_count(1)
    expect(page).to_have_url(re.compile("q=books"))
    page.reload()
    expect(watched.find("subscription-row")).to_have_count(1)
    page.keyboard.press("j")
    expect(watched.find("subscription-row")).to_be_focused()
    page.keyboard.press("j")
    expect(watched.find("archive")).to_be_focused()
    page.keyboard.press("Enter")
    expect(watched.find("dead-row")).to_have_count(3)
    for key in ("j", "x", "j", "j", "k", "x"):
        page.keyboard.press(key)
    expect(watched.find("bulk-bar")).to_contain_text("2 selected")
    page.keyboard.press("Escape")
    expect(watched.find("bulk-bar")).to_have_count(0)
    page.keyboard.press("Shift+R")
    expect(watched.find("confirm-dialog")).to_contain_text("Replay 3 dead events")
    page.keyboard.press("Enter")
    expect(watched.find("archive")).to_have_count(0)
    assert admin.counts("billing.invoice").dead == 0


@pytest.mark.usefixtures("services")
def test_a_reader_sees_what_died_and_is_offered_no_replay(watched: Watched, post: Client, serving: Serving) -> None:
    text = Tokens(post).create("looker", ["read"])[1]
    serving.state.tokens._asked_at = float("-inf")
    watched.go("/topics?open=billing")
    watched.find("sign-in-token").fill(text)
    watched.page.keyboard.press("Enter")
    expect(watched.find("dead-row")).to_have_count(3)
    expect(watched.page.get_by_role("button", name=re.compile("replay", re.IGNORECASE))).to_have_count(0)
    expect(watched.find("row-select")).to_have_count(0)
    watched.errors[:] = [error for error in watched.errors if "401" not in error]


@pytest.mark.usefixtures("services")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_accessible(watched: Watched, theme: str) -> None:
    watched.page.add_init_script(f"localStorage.setItem('restante-theme', '{theme}')")
    page = watched.go("/topics?open=billing")
    expect(watched.find("dead-row")).to_have_count(3)
    watched.find("row-select").first.click()
    page.wait_for_timeout(500)
    violations = Axe().run(page).response["violations"]
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in serious] == []


@pytest.fixture
def far(serving: Serving, rabbit: RabbitServer) -> Iterator[BusClient]:
    """A service on RabbitMQ whose bus has no store: its archive is nearly full, and events wait on the ladder."""
    parcels = Bus("parcels", rabbit.url, dedup=0, rabbitmq={"archive_length": 5})
    parcels.subscribe("shop.order.paid", name="weigh")(handle)
    parcels.answer("parcel.price.get", name="price")(handle)
    parcels.declare()
    with BusClient(rabbit.url, source="shop") as client, amqp.Connection(f"{HOST}:{rabbit.port}") as connection:
        channel = connection.channel()
        for queue in ("parcels.archive", "parcels.weigh", *(f"ladder:quorum.{rung}" for rung in ("2048s", "4096s"))):
            channel.queue_purge(queue)
        client.publish("shop.order.paid", 1)
        for number in range(7):
            client.publish("shop.order.paid", number, delay=3600 if number < 2 else 7200)
        for number in range(4):
            headers = {
                "cloudEvents_id": f"e{number}",
                "cloudEvents_type": "shop.order.paid",
                "restante_attempts": 4,
                "restante_subscription": "parcels.weigh",
                "restante_error_class": "TimeoutError",
                "restante_archived_at": "2026-01-01T00:00:00.000+00:00",
                "restante_errors": [{"error": "no scales"}],
            }
            channel.basic_publish(amqp.Message("1", application_headers=headers), "", "parcels.archive")
        channel.queue_declare("parcels.archive", passive=True)
        serving.state.rabbitmq.url = rabbit.url
        yield client
    parcels.close()


@pytest.mark.parametrize(("theme", "wide"), [("light", 1280), ("dark", 390)])
def test_rungs_and_a_nearly_full_archive_on_rabbitmq_are_seen(
    watched: Watched, far: BusClient, theme: str, wide: int, serving: Serving
) -> None:
    watched.page.add_init_script(f"localStorage.setItem('restante-theme', '{theme}')")
    watched.page.set_viewport_size({"width": wide, "height": 900})
    page = watched.go("/topics")
    expect(watched.find("rung")).to_have_count(20)
    expect(watched.find("ladder")).to_contain_text("7 messages wait on RabbitMQ")
    expect(watched.find("rung", queue="ladder:quorum.2048s")).to_contain_text("2")
    expect(watched.find("rung", queue="ladder:quorum.4096s")).to_contain_text("5")
    row = watched.find("subscription-row", subscription="parcels.weigh")
    expect(row.locator("[data-part=waiting]")).to_contain_text("1")
    expect(watched.find("archive-fill")).to_contain_text("80 % of 5 · nearly full")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    watched.find("archive-open").click()
    expect(watched.find("dead-row")).to_have_count(4)
    if shots := os.environ.get("RESTANTE_SHOTS"):
        page.screenshot(path=f"{shots}/topics-{theme}-{wide}.png", full_page=True)
    violations = Axe().run(page).response["violations"]
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    assert [(one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in serious] == []
    page.goto(watched.address + "/anomalies")
    expect(page.locator("main")).to_contain_text("4 of at most 5 dead events")
    if shots:
        page.screenshot(path=f"{shots}/anomalies-{theme}-{wide}.png", full_page=True)
