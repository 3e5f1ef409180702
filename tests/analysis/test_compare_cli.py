"""``compare`` as a user and a CI service run it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from analysis import baseline, side
from analysis.compare_cli import main, percent
from analysis.gate import DEFAULT_METRICS

Done = tuple[int, str, str]
Command = Callable[..., Done]


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Done:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(str(ended.value.code)), captured.out, captured.err

    return run


def test_without_a_gate_it_shows_and_exits_0(compare: Command, three: Path) -> None:
    status, out, err = compare(three / "ostinato", three / "llamacpp")
    assert (status, err) == (0, "")
    assert "total request time" in out
    assert "regression:" not in out
    assert "verdict" not in out


@pytest.mark.parametrize(
    ("base", "candidate", "status", "told"),
    [
        ("ostinato", "llamacpp", 1, "regression: llama.cpp against Ostinato, 8 sessions: total request time +6"),
        ("llamacpp", "ostinato", 0, "pass: Ostinato against llama.cpp, 8 sessions: nothing got worse by more than"),
    ],
)
def test_a_gate_exits_with_its_verdict(
    compare: Command, three: Path, base: str, candidate: str, status: int, told: str
) -> None:
    done = compare(three / base, three / candidate, "--gate")
    assert (done[0], done[2]) == (status, "")
    assert told in done[1]


def test_an_inconclusive_gate_exits_3_and_says_how_many_more_would_decide(
    compare: Command, world: Any, speed: Any
) -> None:
    folder = world({"llamacpp": speed(spread=0.2), "ostinato": speed(spread=0.2)}, sessions=10)
    status, out, _ = compare(folder / "llamacpp", folder / "ostinato", "--gate")
    assert status == 3
    last = out.splitlines()[-1]
    assert last.startswith("inconclusive: Ostinato against llama.cpp, 10 sessions (margin 3 %): ")
    assert last.endswith(" more sessions like these would decide")


def test_no_word_of_the_table_is_broken_in_a_narrow_terminal_or_in_a_log(
    compare: Command, three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = three / "ostinato", three / "llamacpp", "--gate"
    for width, columns in (("80", 6), ("120", 8)):
        monkeypatch.setenv("COLUMNS", width)
        lines = compare(*pair)[1].splitlines()
        head = next(line for line in lines if "metric" in line)
        assert len(head.strip("┃ ").split("┃")) == columns
        assert "candidate" in head
        assert sum(line.startswith("│") and "regression" in line for line in lines) == 5


def test_the_margin_and_the_metrics_are_the_users(compare: Command, three: Path) -> None:
    """ik_llama.cpp takes 1.5 times as long as Ostinato."""
    pair = three / "ostinato", three / "ik_llamacpp", "--gate"
    assert compare(*pair, "--margin", "80")[0] == 0
    status, out, _ = compare(*pair, "--margin", "10%", "--metric", "tpot_s", "--metric", "ttft_s:tool")
    assert status == 1
    assert "TTFT after tool, median" in out
    assert "TTFT first" not in out


def test_one_folder_holds_both_engines(compare: Command, three: Path) -> None:
    status, out, _ = compare(three, three, "--engine", "llamacpp", "--engine", "ostinato", "--gate")
    assert status == 0
    assert "base: llama.cpp (" in out


def test_a_baseline_file_stands_for_its_folder(compare: Command, three: Path, tmp_path: Path) -> None:
    file = tmp_path / "base.json"
    baseline.write(file, side.read_folder(three / "ostinato", DEFAULT_METRICS))
    assert compare(file, three / "llamacpp", "--gate")[0] == 1
    assert compare(file, file, "--gate")[0] == 0


def test_other_machines_are_shown_without_a_verdict(compare: Command, world: Any, speed: Any) -> None:
    elsewhere = {
        "environment": {"machine": "9c01", "cpu": "Made-up 9000", "cores": 2, "gpus": None, "kernel": "6.1.0"}
    }
    folder = world({"a": speed(), "b": speed(2)}, results={"b": elsewhere})
    status, out, err = compare(folder / "a", folder / "b", "--gate")
    assert (status, out) == (2, "")
    assert err == (
        "compare: not comparable: environment.machine: 3f2a in the base, 9c01 in the candidate; "
        "--across-machines shows them without a verdict\n"
    )
    status, out, _ = compare(folder / "a", folder / "b", "--across-machines")
    assert status == 0
    assert "no verdict: B against A" in out.replace("b against", "B against")
    assert compare(folder / "a", folder / "b", "--across-machines", "--gate")[0] == 3


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere", "{three}/ostinato"], "compare: nowhere: No such file or directory; name a folder that `replay`"),
        (["{three}", "{three}/ostinato"], "3 engines (ik_llamacpp, llamacpp, ostinato); name one with --engine"),
        (["{three}/ostinato", "{three}/ostinato", "--metric", "speed"], "compare: --metric speed: no metric that"),
        (
            ["{three}/ostinato", "{three}/ostinato", "--margin", "0.03"],
            "'0.03' is in percent: write 3, or 0.03% for that",
        ),
        (["{three}/ostinato", "{three}/ostinato", "--margin", "-3"], "'-3' is not between 0 and 100 percent"),
        (["{three}/ostinato", "{three}/ostinato", "--margin", "nan"], "'nan' is not between 0 and 100 percent"),
        (["{three}/ostinato", "{three}/ostinato", "--margin", "some"], "'some' is no number of percent, as 3"),
        (["{three}/ostinato"], "the following arguments are required: CANDIDATE; see compare --help"),
        (["{three}/ostinato", "{three}/ostinato", *["--engine", "x"] * 3], "--engine is given at most twice"),
        (["{three}/ostinato", "{three}/ostinato", "--junit", "/dev/null/x"], "name a file that can be written"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_2(compare: Command, three: Path, arguments: list[str], told: str) -> None:
    status, _, err = compare(*(text.format(three=three) for text in arguments))
    assert status == 2
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("text", "share"), [("3", 0.03), ("2.5%", 0.025), (" 10 % ", 0.1), ("0.05%", 0.0005)])
def test_a_margin_is_in_percent(text: str, share: float) -> None:
    assert percent(text) == pytest.approx(share)


# -- for a CI service -----------------------------------------------------------------------------------------------


OUTCOMES = {"failure", "error", "skipped"}


def check_junit(path: Path) -> ET.Element:
    """What the JUnit schema that CI services share asks of a file; returns the suite."""
    root = ET.parse(path).getroot()
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite"
    assert set(suite.keys()) >= {"name", "tests", "failures", "errors", "skipped", "time"}
    cases = list(suite)
    names = set()
    for case in cases:
        assert case.tag == "testcase"
        assert case.get("classname")
        assert float(case.get("time", "x")) >= 0
        names.add(case.get("name"))
        outcomes = [child for child in case if child.tag in OUTCOMES]
        assert len(outcomes) <= 1
        assert {child.tag for child in case} <= OUTCOMES | {"system-out"}
        assert all(child.get("message") and child.get("type") for child in outcomes)
    assert len(names) == len(cases) == int(suite.get("tests", "x"))
    for tag, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert int(suite.get(count, "x")) == len(suite.findall(f"testcase/{tag}"))
    return suite


def test_junit_has_a_case_a_row_and_one_for_the_gate(compare: Command, three: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "gate.xml"
    assert compare(three / "ostinato", three / "llamacpp", "--gate", "--junit", path)[0] == 1
    suite = check_junit(path)
    assert [case.get("name") for case in suite] == [
        "stream_s", "ttft_s:first", "ttft_s:tool", "ttft_s:user", "tpot_s", "gate",
    ]  # fmt: skip
    assert (suite.get("failures"), suite.get("errors")) == ("6", "0")
    assert compare(three / "llamacpp", three / "ostinato", "--gate", "--junit", path)[0] == 0
    assert check_junit(path).get("failures") == "0"


def test_junit_of_few_sessions_skips_the_rows_and_holds_names_that_xml_can_not(
    compare: Command, world: Any, speed: Any, tmp_path: Path
) -> None:
    odd = {"engine": {"name": "a", "label": "A\x01<&\ud800".encode("utf-8", "replace").decode(), "settings": {}}}
    folder = world({"a": speed(), "b": speed()}, sessions=3, results={"a": odd})
    path = tmp_path / "gate.xml"
    assert compare(folder / "a", folder / "b", "--gate", "--junit", path)[0] == 3
    suite = check_junit(path)
    assert (suite.get("skipped"), suite.get("errors")) == ("5", "1")


def test_github_gets_annotations_and_a_summary(
    compare: Command, three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    pair = three / "ostinato", three / "llamacpp", "--gate"
    assert "::error" not in compare(*pair)[1]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    status, out, _ = compare(*pair)
    assert status == 1
    said = [line for line in out.splitlines() if line.startswith("::")]
    assert said[0].startswith("::error title=compare%3A regression::regression: llama.cpp against Ostinato, 8 ")
    assert len(said) == 6
    assert any(line.startswith("::error title=regression%3A TTFT first%2C median::+") for line in said)
    assert all("%25" in line and " % " not in line for line in said)
    text = summary.read_text()
    assert text.startswith("before\n**❌ regression: llama.cpp against Ostinato")
    assert text.count("\n| ") == 7
    assert "❌ regression: " in text


def test_help_has_examples_and_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom analysis.compare_cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('numpy', 'pandas', 'plotly', 'scipy', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "compare baseline.json" in done.stdout
    assert done.stdout.endswith("[]\n")
