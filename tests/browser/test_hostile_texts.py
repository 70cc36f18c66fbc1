"""Texts that would run, mislead or break a page: shown on every page of the dashboard, and never run.

The pages are opened with the content security policy switched off: what keeps the texts from running must be the way
they are drawn. That the policy would stop them too is tested beside the dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from restante import Admin, Client
from restante.bus import Bus, BusClient
from restante.rsmq.client import Rsmq
from restante.server import Serving
from tests.browser.conftest import Watched
from tests.harness.deadlines import PATIENCE

HOSTILE = {
    "script": "<script>alert('ran')</script>",
    "end of script": "</script><script>alert('ran')</script>",
    "end of title and style": "</title></style></textarea><script>alert('ran')</script>",
    "image": "<img src=x onerror=alert('ran')>",
    "image in upper case": "<IMG SRC=x ONERROR=alert('ran')>",
    "svg": "<svg onload=alert('ran')>",
    "svg with script": "<svg><script>alert('ran')</script></svg>",
    "svg that animates": "<svg><animate onbegin=alert('ran') attributeName=x dur=1s></svg>",
    "math": "<math><mtext><table><mglyph><style><img src=x onerror=alert('ran')>",
    "frame": "<iframe src=\"javascript:alert('ran')\"></iframe>",
    "frame with a document": "<iframe srcdoc=\"<script>alert('ran')</script>\"></iframe>",
    "object": "<object data=\"data:text/html,<script>alert('ran')</script>\"></object>",
    "link": "<a href=\"javascript:alert('ran')\">click</a>",
    "javascript url": "javascript:alert('ran')",
    "javascript url with a tab": "java\tscript:alert('ran')",
    "data url": "data:text/html,<script>alert('ran')</script>",
    "meta": "<meta http-equiv=refresh content=\"0;url=javascript:alert('ran')\">",
    "base": "<base href=https://evil.example/>",
    "form": "<form action=https://evil.example/><button autofocus onfocus=alert('ran')>",
    "style": "<style>@import 'https://evil.example/a.css';*{background:url(https://evil.example/b)}</style>",
    "details": "<details open ontoggle=alert('ran')>",
    "end of an attribute": "\" autofocus onfocus=alert('ran') x=\"",
    "end of an attribute in single quotes": "' onmouseover=alert('ran') '",
    "template": "{{constructor.constructor('alert(1)')()}}${alert('ran')}<%= alert('ran') %>#{alert('ran')}",
    "entities": "&lt;script&gt;alert('ran')&lt;/script&gt;&#x3c;script&#x3e;",
    "comment": "<!--><script>alert('ran')</script>-->",
    "null bytes": "<scr\0ipt>alert('ran')</scr\0ipt>\0",
    "right to left": "invoice\u202egpj.exe\u202c \u2066hidden\u2069 \u200f\u061c",
    "line separators": "a\u2028alert('ran')\u2029b\x85c\x0bd",
    "control codes": "\x1b[31mred\x1b[0m\x07\x08",
    "combining marks": "Z" + "\u0301" * 300,
    "prototype": "__proto__",
    "huge number": "9" * 400,
    "long word": "w" * 5000,
    "wide letters": "\U0001f469\u200d\U0001f469\u200d\U0001f466\ufeff\U000e0041",
}
#: Names are of letters, digits and a few signs; these are the worst that remain.
NAMES = ["javascript:alert", "data:text/html", "..", "constructor", "__proto__", "a/../../b", "//evil.example/x"]


@pytest.fixture
def unguarded(browser: Browser, serving: Serving) -> Iterator[Watched]:
    """A page without the policy's protection."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, bypass_csp=True)
    made = Watched(context.new_page(), serving.address)
    made.page.set_default_timeout(PATIENCE * 1000)
    yield made
    context.close()


def handle(data: object) -> None:
    """Never runs here."""


def fill(post: Client, admin: Admin, url: str) -> dict[str, str]:
    """One dead message per text, which is its payload, its header, its unique key and its error; returns their ids."""
    queue = post.queue("orders", max_attempts=1, lease=600)
    ids = {}
    for number, (name, text) in enumerate(HOSTILE.items()):
        payload = {"text": text, text: [text, {"__proto__": {"polluted": True}, "n": 10**300}]}
        kind = NAMES[number % len(NAMES)]
        ids[name] = str(queue.send(payload, headers={text or "x": text}, kind=kind, unique=f"u{number}"))
    for message in queue.receive_many(len(HOSTILE)):
        (text,) = (HOSTILE[name] for name, id in ids.items() if id == message.id)
        message.bury(error=type("Hostile", (Exception,), {})(text))
    for name in NAMES:
        post.queue(name).send(name, kind=name)
    post.queue("bytes").send(HOSTILE["script"].encode() + b"\xff", content_type="text/html<script>")
    rsmq = Rsmq(post=post)
    rsmq.create_queue("hostile")
    bus = Bus("billing", f"{url}/0")
    bus.subscribe("shop.order.paid", name="invoice")(handle)
    bus.declare()
    with BusClient(f"{url}/0", source="<script>alert('ran')</script>") as client:
        for text in HOSTILE.values():
            rsmq.send_message("hostile", text)
            client.publish("shop.order.paid", {"note": text})
    for message in post.queue("billing.invoice").receive_many(len(HOSTILE)):
        message.bury(error=ValueError(HOSTILE["image"]))
    bus.close()
    admin.delete("orders", [ids.pop("meta")], detail=HOSTILE["image"])
    return ids


#: Elements that only a text that became markup can have made.
PLANTED = """() => {
  const runs = /^\\s*(java\\s*script|data|vbscript):/i;
  const linked = ['href', 'src', 'action', 'xlink:href'];
  const isPlanted = ({ name, value }) =>
    name.startsWith('on') || name === 'srcdoc' || (linked.includes(name) && runs.test(value));
  return [
    ...document.querySelectorAll('main script, main iframe, main object, main embed, main base, main meta, main style'),
    ...document.querySelectorAll('main form[action], main img, main math, main details[ontoggle], main animate'),
    ...[...document.querySelectorAll('body *')].filter(one => [...one.attributes].some(isPlanted)),
  ].map(one => one.outerHTML.slice(0, 120));
}"""
#: Goes to another page as a click on a link does.
GO = "path => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')); }"


def test_no_page_runs_what_others_wrote(unguarded: Watched, post: Client, admin: Admin, serving: Serving) -> None:
    ids = fill(post, admin, serving.state.client.url)
    assert len(HOSTILE) >= 30
    page = unguarded.go("/")
    expect(unguarded.find("verdict")).to_be_visible()
    texts = [HOSTILE["script"], HOSTILE["end of an attribute"], HOSTILE["image"]]
    paths = [
        *("/", "/queues/orders?state=dead", "/dead", "/consumers", "/journal", "/anomalies", "/audit", "/topics"),
        *("/topics?open=billing", "/rsmq", "/rsmq/hostile", "/insights"),
        *(f"/queues/{quote(name, safe='')}?state=ready" for name in NAMES),
        *(f"/queues/orders?state=dead&q={quote(text)}" for text in texts),
        *(f"/queues/{quote(text, safe='')}" for text in texts),
        *(f"/queues/orders/messages/{quote(text, safe='')}" for text in texts),
        *(f"/queues/orders/messages/{id}" for id in ids.values()),
    ]
    for path in paths:
        # The page itself stays, so that what one text left behind meets the next.
        page.evaluate(GO, path)
        id = path.rpartition("/messages/")[2]
        if id in ids.values():
            expect(page.locator("main h1")).to_have_text(id)
            expect(unguarded.find("payload")).to_be_visible()
        expect(page.locator("main h1, main [role=alert]").first).to_be_visible()
        expect(page.locator("main .loading")).to_have_count(0)
        # At once: a text that became markup may keep the page from showing anything after it.
        assert page.evaluate(PLANTED) == [], path
    assert page.evaluate("() => ({}).polluted") is None
    assert [error for error in unguarded.errors if "ran" in error or "dialog" in error] == []
    assert unguarded.elsewhere == []
    assert page.url.startswith(serving.address)


def test_texts_are_shown_as_they_are_and_controls_are_written_out(
    unguarded: Watched, post: Client, admin: Admin, serving: Serving
) -> None:
    ids = fill(post, admin, serving.state.client.url)
    for name in ("script", "end of an attribute", "template", "entities", "line separators"):
        unguarded.go(f"/queues/orders/messages/{ids[name]}")
        shown = unguarded.find("payload").text_content()
        assert shown is not None
        assert (
            HOSTILE[name].split("\x85")[0].replace('"', '\\"').replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
            in shown
        ), name
    # A text that turns its own direction round could show another file or amount than it holds.
    unguarded.go(f"/queues/orders/messages/{ids['right to left']}")
    shown = unguarded.find("payload").text_content()
    assert shown is not None
    assert "invoice\\u202egpj.exe\\u202c" in shown
    assert "\u202e" not in shown
    unguarded.go(f"/queues/orders/messages/{ids['null bytes']}")
    expect(unguarded.find("payload")).to_contain_text("<scr\\u0000ipt>")
