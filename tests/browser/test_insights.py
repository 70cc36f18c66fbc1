"""The Insights page while the first report is made: which step, how far, what went wrong, then the report itself."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import expect

from restante.core.errors import JournalLost
from restante.spark import schemas
from restante.spark.lake import Lake
from restante.spark.progress import RunProgress
from restante.spark.report import write
from tests.browser.conftest import Watched
from tests.spark.sample_gold import DAY, events, put


def test_the_page_follows_the_first_report_until_it_is_there(watched: Watched, tmp_path: Path) -> None:
    watched.go("/insights")
    expect(watched.page.locator("main")).to_contain_text("No report yet")
    expect(watched.page.locator("main")).to_contain_text(f"restante pipeline run --lake {tmp_path}")
    status = RunProgress(Lake(str(tmp_path)))
    with status.running("starting Spark", report=True):
        building = watched.find("first-report")
        expect(building).to_contain_text("The pipeline is building the first report")
        expect(watched.find("step", state="now")).to_contain_text("Start Spark")
        status.rows(1200, 5000)
        status.tell("bronze")
        expect(watched.find("step", state="now")).to_contain_text("1,200 of 5,000 lines")
        expect(watched.find("step", state="done")).to_have_count(1)
        status.tell("silver and gold", 4, 11)
        expect(watched.find("step", state="now")).to_contain_text("4 of 11 tables")
        expect(watched.find("step", state="done")).to_have_count(2)
        (tmp_path / "report.html").write_text("<!doctype html><title>r</title><h1>Figures of the shop</h1>")
        expect(watched.page.frame_locator("iframe").locator("h1")).to_have_text("Figures of the shop")
        expect(watched.page.locator(".page-head")).to_contain_text("4 of 11 tables")


def test_an_error_of_the_pipeline_is_shown_with_and_without_a_report(watched: Watched, tmp_path: Path) -> None:
    try:
        with RunProgress(Lake(str(tmp_path))).running("bronze", report=True):
            raise JournalLost("lines 1 to 9 of orders are gone")
    except JournalLost:
        pass
    watched.go("/insights")
    expect(watched.find("pipeline-stopped")).to_contain_text("lines 1 to 9 of orders are gone")
    (tmp_path / "report.html").write_text("<!doctype html><title>r</title><h1>Older figures</h1>")
    expect(watched.page.frame_locator("iframe").locator("h1")).to_have_text("Older figures")
    expect(watched.find("pipeline-stopped")).to_contain_text("lines 1 to 9 of orders are gone")


def test_a_run_that_draws_no_report_says_what_will(watched: Watched, tmp_path: Path) -> None:
    status = RunProgress(Lake(str(tmp_path)))
    with status.running("bronze"):
        watched.go("/insights")
        expect(watched.find("first-report")).to_contain_text("The pipeline is loading the journals")
        expect(watched.find("step")).to_have_count(3)
        status.rows(7)
    expect(watched.page.locator("main")).to_contain_text("The journals are loaded, but there is no report yet")
    expect(watched.page.locator("main")).to_contain_text(f"restante pipeline report --lake {tmp_path}")


def test_the_report_follows_the_theme_of_the_dashboard(watched: Watched, tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(0, sent=1)], DAY)
    write(str(tmp_path), tmp_path / "report.html")
    watched.page.emulate_media(color_scheme="light")
    watched.go("/")
    watched.find("theme-toggle").click()
    watched.go("/insights")
    report = watched.page.frame_locator("iframe")
    expect(report.locator("h1")).to_have_text("Restante: pipeline report")
    expect(report.locator("html")).to_have_css("color-scheme", "dark")
    expect(report.locator("#theme")).to_be_hidden()
    report.locator("#theme").evaluate("(button) => { button.ownerDocument.title = 'as it was' }")
    for theme in ("light", "dark"):
        watched.find("theme-toggle").click()
        expect(report.locator("html")).to_have_css("color-scheme", theme)
    assert report.locator("html").evaluate("(root) => root.ownerDocument.title") == "as it was"
    watched.page.evaluate("frames[0].postMessage('<b>', '*')")
    watched.page.evaluate("frames[0].postMessage('light', '*')")
    expect(report.locator("html")).to_have_css("color-scheme", "light")


def test_a_report_opened_by_itself_has_its_own_button_and_hears_nobody(watched: Watched, tmp_path: Path) -> None:
    put(tmp_path, schemas.THROUGHPUT, [events(0, sent=1)], DAY)
    write(str(tmp_path), tmp_path / "report.html")
    watched.page.emulate_media(color_scheme="light")
    watched.go("/insights/report#theme-dark")
    expect(watched.page.locator("html")).to_have_css("color-scheme", "light dark")
    watched.page.evaluate("postMessage('dark', '*')")
    watched.page.locator("#theme").click()
    expect(watched.page.locator("#theme")).to_have_text("\u2600 Light")
    watched.page.locator("#theme").click()
    expect(watched.page.locator("html")).to_have_css("color-scheme", "light")
