"""The report as a reader meets it: in a real Chromium, with mouse and keyboard, light, dark and narrow."""

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.summary import summarise
from analysis.tables.catalogue import tables
from analysis.tables.engines import engine_table
from analysis.tables.table import markdown

pytestmark = pytest.mark.slow
ENGINE_TABLE = "#table-engines"
COLUMN = f"{ENGINE_TABLE} tbody tr > :nth-child(2)"
SORT = f"{ENGINE_TABLE} thead th:nth-child(2) button"
SESSION = ".sessions tbody button"
TEXTS = "[...document.querySelectorAll({selector!r})].map((e) => e.textContent.trim())"
CONTRASTS = (Path(__file__).parent / "contrasts.js").read_text()


def texts(page: Any, selector: str) -> list[str]:
    found: list[str] = page.run(TEXTS.format(selector=selector))
    return found


def draw_all(page: Any) -> int:
    """Scroll to each figure in turn and wait until it is drawn; how many there are."""
    count: int = page.run("document.querySelectorAll('.plot').length")
    for number in range(count):
        page.run(f"document.querySelectorAll('.plot')[{number}].scrollIntoView()")
        page.wait(f"document.querySelectorAll('.plot')[{number}].dataset.drawn")
    page.run("scrollTo(0, 0)")
    return count


def test_it_opens_without_a_complaint_and_asks_the_network_for_nothing(page: Any, report: Path) -> None:
    draw_all(page)
    page.click(SESSION)
    page.wait("document.getElementById('turns').dataset.session")
    assert page.console == []
    assert {address for address in page.requests if not address.startswith(("data:", "blob:"))} == {report.as_uri()}


def test_every_figure_is_drawn_with_its_traces_and_has_a_text_alternative(page: Any) -> None:
    assert draw_all(page) >= 5
    marks = page.run(
        "[...document.querySelectorAll('.plot')].map((plot) => [plot.id, plot.data.length,"
        " plot.querySelectorAll('svg.main-svg').length,"
        " plot.querySelectorAll('.trace, .bars .point, .points path').length])"
    )
    assert all(traces > 0 and pictures > 0 and drawn > 0 for _, traces, pictures, drawn in marks), marks
    for number in range(len(marks)):
        plot = f"document.querySelectorAll('.plot')[{number}]"
        assert page.run(f"document.getElementById({plot}.getAttribute('aria-labelledby')).textContent.length") > 5
        assert page.run(f"document.getElementById({plot}.getAttribute('aria-describedby')).textContent.length") > 20


def test_figures_wait_until_they_come_near(page: Any) -> None:
    drawn = "document.querySelectorAll('.plot[data-drawn]').length"
    assert page.run("document.querySelector('.plot').getBoundingClientRect().top") > 900
    assert page.run(drawn) == 0
    draw_all(page)
    assert page.run(drawn) > 0


def test_a_column_sorts_by_its_numbers_and_says_so(page: Any, report: Path) -> None:
    totals = {engine.label: engine.total_request_s or 0.0 for engine in summarise(report.parent).engines}
    as_reported = texts(page, COLUMN)
    names = f"{ENGINE_TABLE} tbody th"

    def order() -> list[float]:
        return [totals[name.removesuffix(" (baseline)")] for name in texts(page, names)]

    page.click(SORT)
    assert order() == sorted(totals.values())
    page.click(SORT)
    assert order() == sorted(totals.values(), reverse=True)
    assert page.run(f"document.querySelector('{SORT}').parentElement.getAttribute('aria-sort')") == "descending"
    page.click(SORT)
    assert texts(page, COLUMN) == as_reported
    assert page.run(f"document.querySelector('{SORT}').parentElement.getAttribute('aria-sort')") is None


def test_a_column_sorts_by_keyboard(page: Any) -> None:
    page.run(f"document.querySelector('{SORT}').focus()")
    page.press("Enter")
    assert page.run(f"document.querySelector('{SORT}').parentElement.getAttribute('aria-sort')") == "ascending"
    assert page.run("document.getElementById('status').textContent").startswith("Sorted by total request time")


def test_a_formula_shows_on_hover_and_on_focus_until_escape(page: Any) -> None:
    tip = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    page.run(f"document.querySelector('{SORT}').focus()")
    assert page.wait(tip).startswith("total request time = Σ")
    page.press("Escape")
    assert page.run(tip) == ""
    assert page.run(
        f"document.getElementById(document.querySelector('{SORT}').getAttribute('aria-describedby')).textContent"
    )
    page.hover(f"{ENGINE_TABLE} thead th:nth-child(3)")
    assert page.wait(tip).startswith("saved = 1 − ")


def test_the_mouse_opens_a_session_and_shows_its_turns_on_every_engine(page: Any, report: Path) -> None:
    page.click(SESSION)
    assert page.wait("document.getElementById('turns').dataset.session") == "session-00"
    assert page.run("document.querySelectorAll('#turns-body tbody').length") == 5
    assert texts(page, "#turns-body tbody:nth-of-type(2) tr.turn strong") == ["Turn 2, after tool"]
    shown = texts(page, "#turns-body tbody:nth-of-type(2) tr:not(.turn) th")
    assert shown == [run.label for run in summarise(report.parent).runs]
    times = texts(page, "#turns-body tbody:nth-of-type(2) tr:not(.turn) td:nth-child(3)")
    assert all(time.endswith(" ms") for time in times)
    assert "new" in texts(page, "#turns-body tr.turn span")[0]


def test_the_keyboard_opens_a_session_goes_on_and_comes_back(page: Any) -> None:
    page.run(f"document.querySelector('{SESSION}').focus()")
    page.press("Enter")
    assert page.wait("document.getElementById('turns').dataset.session") == "session-00"
    page.run("document.getElementById('turns-next').focus()")
    page.press("Enter")
    page.wait("document.getElementById('turns').dataset.session === 'session-01'")
    page.press("Escape")
    page.wait("!document.getElementById('turns').open")
    assert page.run("document.activeElement.textContent") == "session-00"


def test_a_turn_that_failed_says_what_the_server_said(page: Any) -> None:
    page.run(f"[...document.querySelectorAll('{SESSION}')].find((b) => b.textContent === 'session-08').click()")
    page.wait("document.getElementById('turns').dataset.session")
    assert texts(page, "#turns-body td.error") == ['token 3: expected 7, got 9 <b>"HTTP 500"</b>']
    assert "✗ tokens" in texts(page, "#turns-body td.no")
    assert len(texts(page, "#turns-body tbody:nth-of-type(4) tr:not(.turn)")) == 3


def test_a_table_is_copied_as_the_markdown_of_the_summary(page: Any, report: Path) -> None:
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    summary = summarise(report.parent)
    for table in tables(summary):
        page.run("navigator.clipboard.writeText('')")
        page.click(f"button[data-copy='table-{table.name}']")
        assert page.wait("navigator.clipboard.readText()") == markdown(table)
    assert markdown(engine_table(summary)) in (report.parent / "summary.md").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(page: Any, scheme: str) -> None:
    page.prefer(scheme)
    page.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    draw_all(page)
    assert readable(page) > 300
    page.click(SESSION)
    page.wait("document.getElementById('turns').dataset.session")
    assert readable(page) > 300


def readable(page: Any) -> int:
    found = page.run(CONTRASTS)
    weak = [(round(ratio, 2), text) for ratio, text in found if ratio < 4.5]
    assert weak == []
    return len(found)


def test_the_theme_follows_the_system_until_the_reader_chooses(page: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    page.prefer("dark")
    dark = page.wait(f"{ground} !== '{light}' && {ground}")
    draw_all(page)
    page.click("#theme")
    assert page.run(ground) == light
    axis = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    assert page.wait(f"{axis} === getComputedStyle(document.body).color")
    page.click("#theme")
    assert page.run(ground) == dark
    page.run("localStorage.clear()")


def test_a_narrow_window_scrolls_its_tables_and_never_the_page(page: Any, report: Path) -> None:
    page.resize(400, 800)
    page.open(report.as_uri())
    draw_all(page)
    page.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.run(f"document.querySelector('{ENGINE_TABLE}').parentElement.scrollWidth > 400")
    page.click(SESSION)
    page.wait("document.getElementById('turns').dataset.session")
    assert page.run("document.getElementById('turns').scrollWidth <= document.getElementById('turns').clientWidth")


def test_the_page_has_landmarks_one_main_heading_and_steps_of_one_level(page: Any) -> None:
    assert page.run("['main', 'nav', 'header'].every((name) => document.querySelector(name))")
    levels = page.run(
        "[...document.querySelectorAll('main h1, main h2, main h3, main h4')].map((e) => Number(e.tagName[1]))"
    )
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.run("[...document.querySelectorAll('table')].every((table) => table.caption)")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    unnamed = [
        node for node in tree
        if node.get("role", {}).get("value") in ("button", "link", "image", "table", "region", "dialog")
        and not node.get("ignored") and not node.get("name", {}).get("value")
    ]  # fmt: skip
    assert unnamed == []


def test_what_has_the_focus_is_outlined(page: Any) -> None:
    for _ in range(3):
        page.press("Tab")
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize(
    ("name", "scheme", "width"), [("light", "light", 1280), ("dark", "dark", 1280), ("narrow", "light", 400)]
)
def test_a_screenshot_is_kept(
    page: Any, report: Path, capsys: pytest.CaptureFixture[str], name: str, scheme: str, width: int
) -> None:
    """In ``$SCREENSHOTS``, or beside the report; where is printed."""
    page.prefer(scheme)
    page.resize(width, 900)
    page.open(report.as_uri())
    draw_all(page)
    folder = Path(os.environ.get("SCREENSHOTS") or report.parent)
    folder.mkdir(parents=True, exist_ok=True)
    picture = page.screenshot(folder / f"report-{name}.png")
    with capsys.disabled():
        print(f"\nscreenshot: {picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000
