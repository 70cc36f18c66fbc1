"""The filter field of every page that has one: no key is lost, however early or fast it is typed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from restante import Client
from restante.bus import Bus
from restante.server import Serving
from tests.browser.conftest import Watched

#: Each page with a filter, the part of its address that holds the text, and what it reads before it shows the field.
PAGES = [
    pytest.param("/", "q", "**/api/queues*", id="overview"),
    pytest.param("/topics", "q", "**/api/topics*", id="topics"),
    pytest.param("/queues/orders", "q", "**/api/queues/orders*", id="queue"),
    pytest.param("/journal", "queue", None, id="journal"),
]
#: Types the first letter at the moment the field appears, before anything that happens after painting.
FIRST_LETTER = """
new MutationObserver(() => {
  const field = document.querySelector("[data-part=filter]");
  if (!field || window.__typed) return;
  window.__typed = true;
  field.focus();
  document.execCommand("insertText", false, "b");
}).observe(document, {childList: true, subtree: true});
"""


@pytest.fixture(autouse=True)
def something_to_filter(serving: Serving, post: Client) -> None:
    for name in ("orders", "books"):
        post.queue(name).send_many([1, 2])
    with Bus("billing", f"{serving.state.client.url}/0") as bus:
        bus.subscribe("shop.order.paid", name="books")(lambda data: None)
        bus.declare()


@pytest.mark.parametrize(("path", "name", "_read"), PAGES)
def test_a_letter_typed_as_soon_as_the_field_is_there_stays(
    watched: Watched, path: str, name: str, _read: str | None
) -> None:
    watched.page.add_init_script(FIRST_LETTER)
    page = watched.go(path)
    expect(page).to_have_url(re.compile(f"{name}=b(&|$)"))
    expect(watched.find("filter")).to_have_value("b")
    # Between the telling of a text and what follows from it more is typed, a blank too.
    page.evaluate(
        """() => {
          const field = document.querySelector("[data-part=filter]");
          const told = history.replaceState.bind(history);
          history.replaceState = (...words) => {
            told(...words);
            if (field.value === "boo") document.execCommand("insertText", false, "ks ");
          };
          field.focus();
          document.execCommand("insertText", false, "oo");
        }"""
    )
    expect(page).to_have_url(re.compile(f"{name}=books(&|$)"))
    expect(watched.find("filter")).to_have_value("books ")


@pytest.mark.parametrize(("path", "name", "read"), [page for page in PAGES if page.values[2] is not None])
def test_what_is_typed_before_the_field_is_there_is_kept_for_it(
    watched: Watched, path: str, name: str, read: str
) -> None:
    held: list[Route] = []
    holding = True
    watched.page.route(read, lambda route: held.append(route) if holding else route.continue_())
    page = watched.go(path)
    expect(page.locator("main")).to_be_visible()
    while not held:
        page.wait_for_timeout(20)
    expect(watched.find("filter")).to_have_count(0)
    page.keyboard.press("/")
    page.keyboard.type("bokx")
    page.keyboard.press("Backspace")
    holding = False
    for route in held:
        route.continue_()
    expect(watched.find("filter")).to_be_focused()
    page.keyboard.type("s")
    expect(page).to_have_url(re.compile(f"{name}=boks(&|$)"))


@pytest.mark.parametrize(("path", "name", "_read"), PAGES)
def test_the_field_shows_what_the_address_says(watched: Watched, path: str, name: str, _read: Any) -> None:
    page = watched.go(f"{path}?{name}=book")
    expect(watched.find("filter")).to_have_value("book")
    page.keyboard.press("/")
    page.keyboard.type("orders")
    expect(page).to_have_url(re.compile(f"{name}=orders(&|$)"))
    page.evaluate("history.pushState(null, '', location.pathname); dispatchEvent(new PopStateEvent('popstate'))")
    expect(watched.find("filter")).to_have_value("")


def test_a_queue_name_that_is_being_typed_asks_the_server_for_nothing(watched: Watched, post: Client) -> None:
    page = watched.go("/journal?queue=orde")
    expect(page.get_by_text("There is no queue orde.")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.press("End")
    page.keyboard.type("rs")
    expect(watched.find("journal-line").first).to_be_visible()
    page.keyboard.type("-new")
    expect(page.get_by_text("There is no queue orders-new.")).to_be_visible()
    expect(watched.find("journal-line")).to_have_count(0)
    post.queue("orders-new").send(1)
    expect(watched.find("journal-line")).to_have_count(1)
