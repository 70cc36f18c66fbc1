"""The report of a lake: what it finds, the file it writes, and its page in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from restante.core.errors import InvalidInput, RestanteError
from restante.spark import report, schemas
from restante.spark.report import formats, load
from restante.spark.report.findings import Finding, Level, findings, troubled
from restante.spark.report.load import load_figures, open_lake
from restante.spark.report.model import ALL, Figures
from tests.harness.chromium import FLAGS
from tests.harness.deadlines import at_most
from tests.harness.requirements import require
from tests.spark.sample_gold import DAY, END, HOSTILE, NOON, at, events, failed, huge, lose, put, sample_day

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pipeline runs beside these tests: what is not there will not come."""
    monkeypatch.setattr(load, "PAUSE", 0)


# -- what is wrong ---------------------------------------------------------------------------------------------------


def said(found: list[Finding], queue: str) -> list[tuple[Level, str]]:
    return [(one.level, one.text.split(":")[0].split(";")[0]) for one in found if one.queue == queue]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("lake")
    sample_day(lake)
    lose(lake, "webhooks@partners", 3)
    return lake


@pytest.fixture(scope="module")
def figures(shop: Path) -> Figures:
    return load_figures(open_lake(str(shop)))


def test_the_sample_days_troubles_are_found_and_its_healthy_queues_are_left_alone(figures: Figures) -> None:
    found = findings(figures, END)
    assert (Level.WRONG, "Retry storm") in said(found, "emails")
    assert (Level.WARNING, "More messages arrive than leave") in said(found, "thumbnails")
    assert (Level.WRONG, "The audit does not add up") in said(found, "webhooks@partners")
    assert said(found, "audit.log") == []
    assert [one.name for one in troubled(figures, found)][:3] == ["emails", "webhooks@partners", "thumbnails"]


def test_a_lake_that_ended_long_ago_is_said_to_be_old(figures: Figures) -> None:
    assert said(findings(figures, END + timedelta(minutes=5)), ALL) == []
    assert said(findings(figures, END + timedelta(hours=3)), ALL)[0][0] is Level.WARNING


# -- the file --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page_file(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    summary = report.write(str(shop), out, title="Shop <b>& co", now=END)
    assert summary.path == out
    assert summary.queues == 8
    assert summary.adds_up is False
    assert ("webhooks@partners", "") in {(queue, "") for queue, _ in summary.wrong}
    assert (summary.step, summary.missing) == (300, ())
    return out


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.03112, "0.0311"), (9.876, "9.88"), (123.4, "123"), (1891.5, "1,892")]
)
def test_rates_are_written_without_an_exponent(value: float, text: str) -> None:
    assert formats.rate(value) == text


def test_nothing_but_the_report_is_left_in_its_folder(page_file: Path) -> None:
    assert [one.name for one in page_file.parent.iterdir()] == ["report.html"]


def test_the_page_names_no_address_elsewhere(page_file: Path) -> None:
    text = page_file.read_text()
    assert re.findall(r"""(?:src|href|url|@import)\W{1,2}(?:https?:)?//""", text) == []


def test_other_peoples_text_is_escaped(page_file: Path) -> None:
    text = page_file.read_text()
    assert HOSTILE not in text
    assert "&lt;script&gt;document.title" in text
    assert "<title>Shop &lt;b&gt;&amp; co</title>" in text


def test_hostile_names_of_queues_kinds_and_consumers_are_escaped(tmp_path: Path) -> None:
    bad = """"><img src=x onerror="document.title='owned'">'"""
    put(tmp_path, schemas.THROUGHPUT, [events(0, bad, sent=1)], DAY)
    put(tmp_path, schemas.RETRIES, [failed(0, 20, queue=bad, error=bad)], DAY)
    row = {"consumer": bad, "queue": bad, "minute": at(0), "leases": 1, "acked": 1, "failed": 0, "busy_seconds": 1.0}
    put(tmp_path, schemas.CONSUMERS, [row], DAY)
    cause = {"queue": bad, "kind": bad, "error_class": bad, "event": bad, "dead": 1, "first_at": NOON, "last_at": NOON}
    put(tmp_path, schemas.CAUSES, [cause | {"example_id": bad}], DAY)
    report.write(str(tmp_path), tmp_path / "report.html", title=bad)
    assert "<img" not in (tmp_path / "report.html").read_text()


def test_a_lake_without_tables_gives_a_page_that_says_so(tmp_path: Path) -> None:
    summary = report.write(str(tmp_path), tmp_path / "report.html")
    assert "The lake has no gold tables yet." in (tmp_path / "report.html").read_text()
    assert (summary.begin, summary.queues, summary.adds_up) == (None, 0, None)
    assert len(summary.missing) == len((*schemas.GOLD, *schemas.SUMMED))


@pytest.mark.parametrize("table", [*schemas.GOLD, *schemas.SUMMED], ids=lambda table: table.name)
def test_a_young_lake_with_one_table_gives_a_page(shop: Path, tmp_path: Path, table: schemas.Table) -> None:
    (tmp_path / "gold").mkdir()
    (tmp_path / "gold" / table.name).symlink_to(shop / "gold" / table.name)
    summary = report.write(str(tmp_path), tmp_path / "report.html", now=END)
    assert table.name not in summary.missing
    text = (tmp_path / "report.html").read_text()
    if summary.begin is not None and table is not schemas.LATENCY:
        assert "The lake has no latency table yet." in text


def test_a_lake_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no lake at"):
        report.write(str(tmp_path / "nowhere"), tmp_path / "report.html")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gold" / "throughput" / f"dt={DAY}"
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(RestanteError, match="cannot read gold/throughput"):
        report.write(str(tmp_path), tmp_path / "report.html")


@pytest.mark.timed
def test_a_month_of_twenty_queues_is_a_small_page_made_in_seconds(tmp_path: Path) -> None:
    huge(tmp_path)
    with at_most(20):
        summary = report.write(str(tmp_path), tmp_path / "report.html", now=END)
    assert (summary.queues, summary.step) == (20, 10800)
    assert summary.size < 3_000_000


# -- in a browser ----------------------------------------------------------------------------------------------------

SECTIONS = ("verdict", "tiles", "queues", "charts", "drain", "deaths", "failures", "consumers", "audit")
CHARTS = [
    "Latency: wait",
    "Latency: run",
    "Latency: total",
    "Throughput",
    "Backlog: waiting",
    "Backlog: dead",
    "Retries",
    "Overdue",
    "Why messages died",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = require("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield started
        started.close()


class Visit:
    """An open page and everything it complained about or asked for."""

    def __init__(
        self, browser: Browser, file: Path, theme: str = "light", width: int = 1440, script: bool = True
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if theme == "dark" else "light",
            java_script_enabled=script,
        )
        self.page: Page = self.context.new_page()
        self.noise: list[str] = []
        self.page.on("console", lambda message: self.noise.append(message.text))
        self.page.on("pageerror", lambda error: self.noise.append(str(error)))
        self.page.on("request", lambda request: self.noise.append(request.url))
        self.page.goto(file.as_uri())
        # The page itself is the one thing asked for.
        self.noise.remove(file.as_uri())

    def colour(self, of: str = "body", which: str = "background-color") -> str:
        return str(self.page.evaluate(f"getComputedStyle(document.querySelector('{of}')).getPropertyValue('{which}')"))

    def hover(self, selector: str, place: float) -> str:
        """What the read-out says at a part of the width of the first such element that is seen."""
        plot = self.page.locator(selector).first
        plot.scroll_into_view_if_needed()
        # Scrolling hides the read-out, and the page learns of it when it draws.
        self.page.evaluate("() => new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
        box = plot.bounding_box()
        assert box is not None
        self.page.mouse.move(box["x"] + box["width"] * place, box["y"] + box["height"] / 2)
        self.page.locator("#tip").wait_for(state="visible")
        return self.page.locator("#tip").inner_text()


@pytest.fixture
def visit(browser: Browser, page_file: Path) -> Iterator[Visit]:
    opened = Visit(browser, page_file)
    yield opened
    assert opened.noise == []
    opened.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_every_section_is_there_without_noise_or_requests(
    browser: Browser, page_file: Path, theme: str, width: int
) -> None:
    opened = Visit(browser, page_file, theme, width)
    for id in SECTIONS:
        assert opened.page.locator(f"#{id}").is_visible(), id
    assert (
        opened.page.locator(".panel:visible h4").evaluate_all("all => all.map(one => one.firstChild.data.trim())")
        == CHARTS
    )
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    dark = opened.colour() == "rgb(13, 17, 23)"
    assert dark == (theme == "dark")
    assert opened.noise == []
    opened.context.close()


def test_the_verdict_comes_first_and_the_worst_queue_leads(visit: Visit) -> None:
    assert "wrong" in visit.page.locator("#verdict h2").inner_text()
    assert visit.page.locator("#verdict li").first.inner_text().startswith("emails")
    assert visit.page.locator("#queues tbody tr").first.inner_text().startswith("emails")
    assert "Does not add up" in visit.page.locator("#audit").inner_text()


def test_the_button_changes_the_theme(visit: Visit) -> None:
    light = visit.colour()
    visit.page.click("#theme")
    assert visit.colour() != light
    visit.page.click("#theme")
    assert visit.colour() == light


def test_states_have_their_colours(visit: Visit) -> None:
    dead = visit.page.locator(".panel:visible path[data-name=dead]").first
    assert dead.evaluate("one => getComputedStyle(one).stroke") == "rgb(225, 29, 72)"
    visit.page.click("#theme")
    assert dead.evaluate("one => getComputedStyle(one).stroke") == "rgb(244, 63, 94)"


def test_the_read_out_says_what_the_figures_say(visit: Visit, figures: Figures) -> None:
    text = visit.hover(".panel:visible .chart:nth-child(4) .plot", 100.5 / 288)
    assert "14 Nov 17:50–17:55 UTC" in text
    sent = figures.everything.counts["sent"][100] / 5
    assert f"{sent:.0f} / min" in text
    assert visit.page.locator(".panel:visible .cross").count() == 8
    visit.page.mouse.move(2, 2)
    assert visit.page.locator("#tip").is_hidden()
    assert visit.page.locator(".cross").count() == 0


def test_the_read_out_names_storm_minutes_and_loads(visit: Visit) -> None:
    assert re.search(r"storm minutes\s+5", visit.hover(".panel:visible .chart:nth-child(7) .plot", 0.995))
    assert re.search(r"thumbnails-1@host-0\s+[\d.]+ %", visit.hover(".strip", 0.3))


def test_the_read_out_follows_the_keys(visit: Visit) -> None:
    visit.page.locator(".panel:visible .plot").first.focus()
    visit.page.keyboard.press("Home")
    first = visit.page.locator("#tip time").inner_text()
    visit.page.keyboard.press("ArrowRight")
    assert first == "14 Nov 09:30–09:35 UTC"
    assert visit.page.locator("#tip time").inner_text() == "14 Nov 09:35–09:40 UTC"


def test_choosing_a_queue_shows_its_charts_and_its_rows_alone(visit: Visit) -> None:
    assert visit.page.locator(".panel:visible h3").all_inner_texts() == ["All queues together"]
    visit.page.select_option("#queue", index=1)
    assert visit.page.locator(".panel:visible h3").all_inner_texts() == ["emails"]
    assert set(visit.page.locator("#deaths tbody th:visible").all_inner_texts()) == {"emails"}
    assert visit.page.locator("#consumers li[data-q]:visible").count() == 3
    visit.page.click("#verdict a:text('thumbnails')")
    # The browser reports the new address to the page after the click.
    visit.page.locator(".panel:visible h3", has_text="thumbnails").wait_for()
    assert visit.page.locator(".panel:visible h3").all_inner_texts() == ["thumbnails"]
    visit.page.select_option("#queue", label="✓ audit.log")
    assert visit.page.locator("#deaths .for-none").is_visible()


def test_hostile_text_is_shown_and_does_not_run(visit: Visit) -> None:
    assert HOSTILE in visit.page.locator("#deaths").inner_text()
    assert visit.page.title() == "Shop <b>& co"
    assert visit.page.locator("script").count() == 1


def test_without_scripts_all_queues_are_shown(browser: Browser, page_file: Path) -> None:
    opened = Visit(browser, page_file, script=False)
    assert opened.page.locator(".panel:visible").count() == 9
    assert opened.page.locator("nav").is_hidden()
    opened.context.close()


def test_a_viewer_without_the_style_sheet_shows_lines_of_a_readable_size(visit: Visit) -> None:
    visit.page.evaluate("document.querySelector('style').remove()")
    drawn = visit.page.locator("#all svg").first
    box = drawn.bounding_box()
    assert box is not None
    assert (box["width"], box["height"]) == (480, 80)
    assert visit.colour("#all svg path:last-child", "fill") == "none"
    assert visit.colour("#all svg path:last-child", "stroke") == "rgb(0, 0, 0)"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_printed_report_is_light_keeps_the_legends_colours_and_cuts_no_table_off(
    browser: Browser, page_file: Path, theme: str
) -> None:
    opened = Visit(browser, page_file, theme, width=718)  # A4 without its margins
    opened.page.emulate_media(media="print")
    assert opened.colour() == "rgb(255, 255, 255)"
    assert opened.colour("figcaption i", "print-color-adjust") == "exact"
    tables = opened.page.locator(".table:visible")
    assert tables.count() >= 4
    for place in range(tables.count()):
        assert tables.nth(place).evaluate("one => one.scrollWidth <= one.clientWidth"), place
    assert opened.noise == []
    opened.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_accessible(browser: Browser, page_file: Path, theme: str) -> None:
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    # The page's policy would refuse the checker's own script.
    context = browser.new_context(color_scheme="dark" if theme == "dark" else "light", bypass_csp=True)
    page = context.new_page()
    page.goto(page_file.as_uri())
    violations = Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in violations] == []
    context.close()


def test_an_empty_lake_opens_without_noise(browser: Browser, tmp_path: Path) -> None:
    report.write(str(tmp_path), tmp_path / "report.html")
    opened = Visit(browser, tmp_path / "report.html")
    assert opened.page.locator("#verdict").inner_text().startswith("The lake has no gold tables yet.")
    opened.page.click("#theme")
    assert opened.noise == []
    opened.context.close()
