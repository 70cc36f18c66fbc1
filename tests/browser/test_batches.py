"""The dashboard's page of batches: progress that moves, what failed, cancel and resume."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import expect

from restante import Client
from restante.core.batch_calls import BatchName, adding, opening
from tests.browser.conftest import Watched


def test_a_batch_moves_on_and_names_what_failed(watched: Watched, post: Client) -> None:
    orders = post.queue("orders", max_attempts=1)
    with post.batch("reports", title="nightly", on_complete=1) as batch:
        for number in range(4):
            batch.send(orders, number)
    watched.go("/batches")
    row = watched.find("batch-row")
    expect(row).to_contain_text("nightly")
    expect(row).to_contain_text("0 %")
    for message in orders.receive_many(3):
        if message.payload == 1:
            message.nack(error=ValueError("no"))
        else:
            message.ack()
    expect(row).to_contain_text("75 %")
    expect(row.get_by_role("link", name="ValueError")).to_be_visible()
    assert Axe().run(watched.page).response["violations"] == []
    (last,) = orders.receive_many(1)
    last.ack()
    expect(row).to_have_count(0)
    watched.page.get_by_role("button", name="Show ended").click()
    expect(watched.find("batch-row")).to_contain_text("complete")


def test_an_operator_seals_one_whose_producer_died_and_cancels_another(watched: Watched, post: Client) -> None:
    name = BatchName("reports", "abandoned")
    post.queue("reports").ensure_open()
    post.connection.run(opening(name, "n", {"title": "abandoned", "parent": "", "keep_ms": 60_000}))
    post.connection.run(adding(name, [("orders", "never")]))
    with post.batch("reports", title="running") as batch:
        batch.send("orders", 1)
    watched.go("/batches")
    open_ = watched.find("batch-row").filter(has_text="abandoned")
    open_.get_by_role("button", name="Resume").click()
    watched.page.get_by_role("button", name="Seal").click()
    expect(open_).to_have_count(0)
    running = watched.find("batch-row").filter(has_text="running")
    running.get_by_role("button", name="Cancel").click()
    watched.page.get_by_role("button", name="Cancel the batch").click()
    expect(watched.find("batch-row")).to_have_count(0)
    assert post.queue("orders").receive() is None
    assert batch.status().state == "cancelled"
