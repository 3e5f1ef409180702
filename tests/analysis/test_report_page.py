"""The page: whole, offline, verdict first, what it shows agrees with the records, a name can't break it."""

import base64
import gzip
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest

from analysis import wording
from analysis.comment import summary_markdown
from analysis.figures.catalogue import figures
from analysis.figures.figure import plotly_js
from analysis.page.formulas import column_formulas
from analysis.page.render import page
from analysis.results import results
from analysis.summary import Summary, summarise
from analysis.tables.catalogue import tables
from analysis.tables.engines import engine_table
from analysis.tables.table import Column, Table

VOID = {"meta", "link", "br", "wbr", "img"}
REFERENCES = ("aria-labelledby", "aria-describedby", "data-formula", "data-copy")


@pytest.fixture(scope="module")
def summary(three: Path) -> Summary:
    return summarise(three)


class Page(HTMLParser):
    """What a browser would find: elements opened and closed, ids, text outside scripts, addresses to load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.headings: list[str] = []
        self.refers: list[str] = []
        self.plots: dict[str, Any] = {}
        self.packed: dict[str, bytes] = {}
        self.text = ""
        self._plot: str | None = None
        self._packed: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if named.get("id"):
            self.ids.append(str(named["id"]))
        self.loads += [str(named[name]) for name in ("src", "href") if named.get(name)]
        self.refers += [str(named[name]) for name in REFERENCES if named.get(name)]
        self._plot = named.get("data-plot")
        self._packed = named.get("id") if named.get("type") == "text/plain" else None

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._plot = self._packed = None

    def handle_data(self, data: str) -> None:
        if self._plot:
            self.plots[self._plot] = orjson.loads(data)
        elif self._packed:
            self.packed[self._packed] = gzip.decompress(base64.b64decode(data))
        elif self.open and self.open[-1] not in ("script", "style") and not {"nav", "dialog"} & set(self.open):
            self.text += data.replace("\u00a0", " ")
        if self.open and self.open[-1] == "h2" and "dialog" not in self.open:
            self.headings.append(data)


@pytest.fixture(scope="module")
def text(summary: Summary) -> str:
    return page(summary)


@pytest.fixture(scope="module")
def shown(text: str) -> Page:
    return Page(text)


def test_the_page_is_whole_and_loads_nothing(summary: Summary, text: str, shown: Page) -> None:
    assert shown.open == []
    assert [address for address in shown.loads if not address.startswith("#")] == ["data:,"]
    assert len(text.encode()) < 6_000_000
    assert len(shown.ids) == len(set(shown.ids))
    assert {address[1:] for address in shown.loads if address.startswith("#")} <= set(shown.ids)
    assert set(shown.refers) <= set(shown.ids)
    assert set(shown.plots) == {f"plot-{figure.name}" for figure in figures(summary)} <= set(shown.ids)
    assert shown.packed["plotly"].decode() == plotly_js()


def test_the_page_opens_with_the_verdict_then_validity_tables_and_figures(summary: Summary, shown: Page) -> None:
    verdict, *others = wording.verdicts(summary)
    assert verdict in shown.text
    assert all(other in shown.text for other in others)
    assert shown.headings == [
        "Validity", "Numbers", "Sessions", "Figures", "Machine and software", "How to run this again", "Formulas",
    ]  # fmt: skip
    assert shown.text.index(verdict) < shown.text.index("Validity") < shown.text.index("total request time")


def test_every_table_has_its_formulas_on_the_page(summary: Summary, shown: Page) -> None:
    for table in tables(summary):
        assert table.formulas
        assert all(formula in shown.text for formula in table.formulas)
        assert all(len(line) == len(table.heads) for line in table.lines)


def test_experiments_beside_each_other_have_their_own_verdicts_and_sessions(world: Any, speed: Any) -> None:
    folder = world({"llamacpp": speed(), "ostinato": speed(0.5)}, sessions=3, turns=2)
    for result in list(folder.glob("*/result.json")):
        other = folder / "other" / result.parent.name
        shutil.copytree(result.parent, other)
        changed = orjson.loads(result.read_bytes())
        changed["workload"] |= {"name": "other", "hash": "07e4"}
        (other / "result.json").write_bytes(orjson.dumps(changed))
    summary = summarise(folder)
    assert len(summary.panels) == 2
    shown = Page(page(summary))
    assert shown.open == []
    assert len(shown.ids) == len(set(shown.ids))
    for number, part in enumerate(summary.panels):
        experiment = wording.experiment(part)
        assert f"Total request time at a glance: {experiment}" in shown.text
        assert all(f"{experiment}: {verdict}" in shown.text for verdict in wording.verdicts(part))
        assert orjson.loads(shown.packed[f"turn-data-{number}"])["sessions"] == list(part.pairing.sessions)


def test_a_column_shows_the_formula_that_defines_it(summary: Summary) -> None:
    table = engine_table(summary)
    found = dict(zip(table.columns, column_formulas(table), strict=True))
    assert found["engine"] is None
    for column, formula in found.items():
        if column != "engine":
            assert formula is not None
            assert column.split()[0] in formula
    assert str(found["saved"]).startswith("saved = 1 − Σ candidate / Σ baseline")
    assert str(found["percentile"]).startswith("95 % interval: bootstrap-t")


def test_the_longest_term_in_a_columns_name_defines_it() -> None:
    formulas = ("time = end − start; total time: Σ time", "saved, won: against the baseline", "unsaved: not this one")
    heads = tuple(Column(name) for name in ("engine", "total time (s)", "time", "won", "saved", "mistimed"))
    table = Table(name="t", title="t", heads=heads, lines=(), formulas=formulas)
    first, second, _ = formulas
    assert column_formulas(table) == [None, first, first, second, second, None]


def test_an_absent_number_says_why_below_its_table(world: Any, speed: Any) -> None:
    summary = summarise(world({"llamacpp": speed(), "ostinato": speed(0.5)}, sessions=3))
    reasons = {cell.why for line in engine_table(summary).lines for cell in line if cell.why}
    assert reasons
    text = Page(page(summary)).text
    assert all(why in text for why in reasons)


def test_a_figure_draws_what_the_records_hold(summary: Summary, shown: Page) -> None:
    plots = shown.plots
    curves = [trace for trace in plots["plot-ttft-tool"]["data"] if trace["mode"] == "lines"]
    assert [trace["name"] for trace in curves] == [run.label for run in summary.runs]
    for trace in curves:
        assert trace["x"] == sorted(trace["x"])
        assert (trace["y"][0], trace["y"][-1]) == (0, 1)
        assert len(trace["x"]) == 1 + len(summary.turns.query("engine == 'llamacpp' and kind == 'tool'"))
    bars = [trace for trace in plots["plot-phases"]["data"] if trace["x"] != [None]]
    totals = [sum(column) for column in zip(*(trace["x"] for trace in bars), strict=True)]
    assert totals == pytest.approx([engine.total_request_s for engine in reversed(summary.engines)], rel=1e-4)


def test_a_name_cannot_break_the_page_or_the_summary(world: Any, speed: Any) -> None:
    evil = {"name": "llamacpp", "label": "</script><b>|x|", "note": "a | b <i>", "settings": {}, "server": {}}
    summary = summarise(world({"llamacpp": speed()}, sessions=2, results={"llamacpp": {"engine": evil}}))
    shown = Page(page(summary))
    assert shown.open == []
    assert "</script><b>|x|" in shown.text
    assert r"\</script\>\<b\>\|x\|" in summary_markdown(summary)


@pytest.mark.parametrize(
    ("change", "flag", "said"),
    [
        ({"status": "interrupted"}, "INTERRUPTED", "Ostinato: the run is interrupted."),
        ({"status": "failed", "error": "disk full"}, "FAILED", "Ostinato: the run is failed: disk full."),
        (
            {"validity": [{"name": "cache reused", "ok": False, "value": "3 of 9", "advice": "use one slot"}]},
            "NOT VALID",
            "Ostinato: not valid: cache reused: 3 of 9; use one slot.",
        ),
        (
            {"model": {"name": "tiny", "hash": "zz"}},
            "NOT VALID",
            "Not compared: the runs are not alike. model.hash: llama.cpp ab12, Ostinato zz.",
        ),
    ],
)
def test_a_run_that_is_not_valid_says_so_in_the_title_and_at_the_top(
    world: Any, speed: Any, change: dict[str, Any], flag: str, said: str
) -> None:
    summary = summarise(world({"llamacpp": speed(), "ostinato": speed()}, sessions=2, results={"ostinato": change}))
    assert not summary.valid
    text = page(summary)
    assert re.search(rf"<title>{flag} · made-up", text)
    shown = Page(text)
    assert shown.text.index(said) < shown.text.index("Validity")
    assert f"### {flag} · made-up" in summary_markdown(summary)


def test_the_warnings_of_many_engines_do_not_hide_the_numbers(world: Any, speed: Any) -> None:
    noisy = {"validity": [{**NOISY, "name": f"check {number}"} for number in range(9)]}
    summary = summarise(world({"ostinato": speed()}, sessions=1, results={"ostinato": noisy}))
    text = Page(page(summary)).text
    assert "and 3 more" in text
    assert all(warning in text for warning in wording.warnings(summary))


NOISY = {
    "name": "background load", "ok": False, "value": "1.92 cores", "threshold": "at most 5% of 2 cores",
    "severity": "warning", "advice": "end other programs",
}  # fmt: skip


def test_a_noisy_run_is_valid_and_says_what_made_it_noisy(world: Any, speed: Any) -> None:
    summary = summarise(world({"ostinato": speed()}, sessions=1, results={"ostinato": {"validity": [NOISY]}}))
    assert summary.valid
    assert wording.title(summary) == "made-up: Ostinato"
    assert wording.warnings(summary) == [
        "Ostinato: warning: background load: 1.92 cores (wanted: at most 5% of 2 cores); end other programs."
    ]
    assert "✗ no, warning" in Page(page(summary)).text
    assert results(summary)["checks"][0]["severity"] == "warning"


def test_what_makes_numbers_wrong_is_said_before_what_makes_them_noisy(world: Any, speed: Any) -> None:
    wrong = {**NOISY, "name": "tokens verified", "severity": "invalid"}
    summary = summarise(world({"ostinato": speed()}, sessions=1, results={"ostinato": {"validity": [NOISY, wrong]}}))
    assert wording.title(summary).startswith("NOT VALID")
    assert [check.name for check in summary.failed_checks] == ["tokens verified", "background load"]


def test_the_command_that_made_a_run_can_be_copied_from_the_page(world: Any, speed: Any) -> None:
    command = ["replay", "engine=ostinato", "engine.command=[a,b c]"]
    summary = summarise(world({"ostinato": speed()}, sessions=1, results={"ostinato": {"command": command}}))
    assert "replay engine=ostinato 'engine.command=[a,b c]'" in Page(page(summary)).text


def test_a_check_that_could_not_be_told_is_no_failure(world: Any, speed: Any) -> None:
    unknown = {"validity": [{"name": "cache reused", "ok": None, "value": "not reported", "advice": ""}]}
    summary = summarise(world({"ostinato": speed()}, sessions=1, results={"ostinato": unknown}))
    assert summary.valid
    assert "not told" in Page(page(summary)).text
