"""The three files of a report: complete, offline, honest about what is not valid, the same for the same records."""

import errno
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest

from analysis import tables, wording
from analysis.figures import colours
from analysis.report import page, summary_markdown, write_report
from analysis.results import results
from analysis.summary import Summary, summarise

VOID = {"meta", "link", "br", "wbr", "img"}


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
        self.plots: dict[str, Any] = {}
        self.text = ""
        self._plot: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if named.get("id"):
            self.ids.append(str(named["id"]))
        self.loads += [str(named[name]) for name in ("src", "href") if named.get(name)]
        self._plot = named.get("data-plot")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._plot = None

    def handle_data(self, data: str) -> None:
        if self._plot:
            self.plots[self._plot] = orjson.loads(data)
        elif self.open and self.open[-1] not in ("script", "style"):
            self.text += data.replace("\u00a0", " ")
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def text(summary: Summary) -> str:
    return page(summary)


@pytest.fixture(scope="module")
def shown(text: str) -> Page:
    return Page(text)


def test_the_page_is_whole_and_loads_nothing(text: str, shown: Page) -> None:
    assert shown.open == []
    assert shown.loads == ["data:,"]
    assert "Plotly.react" in text
    assert len(text.encode()) < 6_000_000
    assert len(shown.ids) == len(set(shown.ids))
    assert set(shown.plots) == {f"plot-{n}" for n in ("savings", "ttft-first", "ttft-tool", "ttft-user", "phases")}
    assert set(shown.plots) <= set(shown.ids)


def test_the_page_opens_with_the_verdict_and_then_validity(summary: Summary, shown: Page) -> None:
    verdict, *others = wording.verdicts(summary)
    assert verdict in shown.text
    assert all(other in shown.text for other in others)
    assert shown.text.index(verdict) < shown.text.index("Validity") < shown.text.index("total request time")
    assert shown.headings == ["Validity", "Numbers", "Figures", "Machine and software", "How to run this again"]


def test_every_table_has_its_formulas_on_the_page(summary: Summary, shown: Page) -> None:
    for table in tables.tables(summary):
        assert table.formulas
        assert all(formula in shown.text for formula in table.formulas)
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_a_figure_draws_what_the_records_hold(summary: Summary, shown: Page) -> None:
    plots = shown.plots
    curves = [trace for trace in plots["plot-ttft-tool"]["data"] if trace["mode"] == "lines"]
    assert [trace["name"] for trace in curves] == ["ik_llama.cpp", "llama.cpp", "Ostinato"]
    for trace in curves:
        assert trace["x"] == sorted(trace["x"])
        assert (trace["y"][0], trace["y"][-1]) == (0, 1)
        assert len(trace["x"]) == 1 + len(summary.turns.query("engine == 'llamacpp' and kind == 'tool'"))
    bars = [trace for trace in plots["plot-phases"]["data"] if trace["x"] != [None]]
    totals = [sum(column) for column in zip(*(trace["x"] for trace in bars), strict=True)]
    assert totals == pytest.approx([engine.total_request_s for engine in reversed(summary.engines)], rel=1e-4)


def test_an_engine_has_one_colour_everywhere() -> None:
    assert colours(["ostinato", "vllm"])["ostinato"] == colours(["llamacpp", "ostinato"])["ostinato"]
    many = colours(["ostinato", "llamacpp", "ik_llamacpp", "a", "b", "c", "d", "e", "f", "g"])
    assert len(set(many.values())) == len(many)


def test_a_name_cannot_break_the_page_or_the_summary(world: Any, speed: Any) -> None:
    evil = {"name": "llamacpp", "label": "</script><b>|x|", "note": "a | b <i>", "settings": {}, "server": {}}
    summary = summarise(world({"llamacpp": speed()}, sessions=2, results={"llamacpp": {"engine": evil}}))
    shown = Page(page(summary))
    assert shown.open == []
    assert "</script><b>|x|" in shown.text
    assert r"\</script\>\<b\>\|x\|" in summary_markdown(summary)


def test_the_three_files_agree_and_come_out_the_same_twice(three: Path) -> None:
    report = write_report(three)
    assert report == three / "report.html"
    first = {path.name: path.read_bytes() for path in three.iterdir() if path.is_file()}
    assert set(first) == {"report.html", "summary.md", "results.json"}
    write_report(three)
    assert {path.name: path.read_bytes() for path in three.iterdir() if path.is_file()} == first
    numbers = orjson.loads(first["results.json"])
    assert numbers["version"] == 1
    assert numbers["valid"] is True
    saved = wording.percent(numbers["comparisons"][0]["saved"])
    assert saved in numbers["verdicts"][0]
    assert saved in first["summary.md"].decode()
    assert saved in Page(first["report.html"].decode()).text
    assert len(first["summary.md"]) < 60_000  # a comment may hold 65,536 characters


def test_the_results_hold_every_number_and_null_for_what_is_absent(world: Any, speed: Any) -> None:
    numbers = results(summarise(world({"llamacpp": speed(), "ostinato": speed(0.5)}, sessions=3, turns=1)))
    engine = numbers["engines"]["ostinato"]
    assert engine["ttft_s"]["first"]["turns"] == 3
    assert engine["ttft_s"]["first"]["low"] is None
    assert "tool" not in engine["ttft_s"]
    (comparison,) = numbers["comparisons"]
    assert comparison["low"] is None
    assert comparison["p_value"] is None
    assert comparison["saved"] == pytest.approx(0.5, abs=2e-3)
    orjson.dumps(numbers)


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


def test_sessions_left_out_are_counted_and_named(world: Any, speed: Any, fail_turn: Any) -> None:
    summary = summarise(
        world(
            {"llamacpp": speed(), "ostinato": speed()}, sessions=3, records={"ostinato": fail_turn("session-02", 0)}
        )
    )
    (said,) = [warning for warning in wording.warnings(summary) if "left out" in warning]
    assert said.startswith(
        "1 session left out of the comparison, not finished by every engine: session-02 (Ostinato: "
    )
    assert "expected 7, got 9" in said


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (7119.04, "7,119.0 s"),
        (1.256, "1.26 s"),
        (0.0342, "34.2 ms"),
        (-0.002, "−2.00 ms"),
        (-1e-9, "0.00 ms"),
    ],
)
def test_times_are_said_with_the_digits_they_have(value: float | None, text: str) -> None:
    assert wording.seconds(value) == text


def test_markdown_cells_stay_cells() -> None:
    table = tables.Table(title="t", columns=("engine", "a|b"), rows=(("x_1", "2"),))
    assert tables.markdown(table) == "| engine | a\\|b |\n| :-- | --: |\n| x\\_1 | 2 |"


def test_a_disk_that_gets_full_leaves_the_earlier_report_whole(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(three, tmp_path / "runs"))
    write_report(folder)
    for name in ("results.json", "summary.md", "report.html"):
        (folder / name).write_text("earlier")
    before = sorted(folder.iterdir())
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        write(path, data[:10])
        if path.name.startswith("report.html"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left") as failure:
        write_report(folder)
    assert failure.value.filename == str(folder / "report.html")
    assert sorted(folder.iterdir()) == before
    assert {(folder / name).read_text() for name in ("results.json", "summary.md", "report.html")} == {"earlier"}
