"""Metrics as data: what each says of itself, the page made from them, and one that a user's package brings."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from analysis import metric_docs, registry
from analysis.frame import turn_frame
from analysis.metric import Direction, Metric
from analysis.metrics import BUILT_IN, METRICS
from replay.record import RecordError, TurnRecord

ROOT = Path(__file__).parents[2]
MODULE = """
from analysis.metric import Direction, Metric, Over


def wait_s(turn):
    return (turn.token_ns[-1] - turn.due_ns) / 1e9 if turn.token_ns else None


WAIT = Metric(name="wait_s", label="wait", unit="s", formula="token_ns[-1] - due_ns",
              direction=Direction.LOWER, absent="the turn failed", of=wait_s, over=Over.SUM)
NOT_FINITE = Metric(name="endless", label="endless", unit="", formula="inf", direction=Direction.NONE,
                    absent="never", of=lambda turn: float("inf"))
TAKEN = Metric(name="ttft_s", label="mine", unit="s", formula="1", direction=Direction.LOWER, absent="", of=wait_s)
A_COLUMN = Metric(name="kind", label="mine", unit="s", formula="1", direction=Direction.LOWER, absent="", of=wait_s)
"""


def test_every_metric_says_what_it_is() -> None:
    for metric in BUILT_IN:
        assert metric.name.isidentifier()
        assert metric.label
        assert metric.formula
        assert metric.absent
        assert metric.of.__doc__
        assert not metric.name.endswith("_s") or metric.unit == "s"
    assert {m.name for m in BUILT_IN if m.direction is Direction.NONE} == {
        "first_chunk_tokens", "prefilled_as_expected",
    }  # fmt: skip
    assert len(METRICS) == len(BUILT_IN)


def test_the_page_of_metrics_is_current() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == metric_docs.page(), (
        "run: python -m analysis.metric_docs > docs/metrics.md"
    )


def test_the_page_names_every_metric_and_its_example_runs() -> None:
    page = metric_docs.page()
    assert all(f"| `{metric.name}` | {metric.label} | " in page for metric in BUILT_IN)
    space: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], space)
    assert isinstance(space["WAIT"], Metric)
    assert {field.name for field in fields(Metric)} > {"name", "unit", "formula", "direction"}


Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package with one entry point, as pip would lay it down, into a folder of its own on the path."""

    def lay_down(name: str, target: str) -> Path:
        site = tmp_path / "site-packages"
        info = site / "waiting_metric-1.0.dist-info"
        info.mkdir(parents=True)
        (site / "waiting_metric.py").write_text(MODULE)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: waiting-metric\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[ostinato_replay.metrics]\n{name} = {target}\n")
        (info / "RECORD").write_text("waiting_metric.py,,\n")
        monkeypatch.syspath_prepend(str(site))
        return site

    monkeypatch.delitem(sys.modules, "waiting_metric", raising=False)
    return lay_down


def test_an_installed_metric_is_a_column_and_can_be_judged(
    install: Install, world: Any, speed: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from analysis.compare_cli import main

    folder = world({"a": speed(), "b": speed(2.0)})
    assert "wait_s" not in turn_frame(folder / "a", "a").columns
    install("wait_s", "waiting_metric:WAIT")
    frame = turn_frame(folder / "a", "a")
    assert (frame["wait_s"] - frame["request_s"] - frame["queue_s"]).abs().max() < 1e-9
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main([str(folder / "a"), str(folder / "b"), "--gate", "--metric", "wait_s"])
    assert ended.value.code == 1
    assert "regression: b against A, 8 sessions: wait +100.0 %" in capsys.readouterr().out


def test_another_process_finds_it_too(install: Install, world: Any, speed: Any) -> None:
    site = install("wait_s", "waiting_metric:WAIT")
    folder = world({"a": speed()})
    command = [sys.executable, "-m", "analysis.cli", "export-baseline", str(folder), "--out", str(folder / "b.json")]
    path = f"{site}:{ROOT}"
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    assert '"wait_s":"token_ns[-1] - due_ns"' in (folder / "b.json").read_text()


@pytest.mark.parametrize(
    ("name", "target", "told"),
    [
        ("wait_s", "waiting_metric:NOTHING", "the metric 'wait_s' of waiting-metric can't be loaded"),
        ("wait_s", "no_such_module:WAIT", "can't be loaded (No module named 'no_such_module'); repair or uninstall"),
        ("wait_s", "waiting_metric:wait_s", "is a function; it must be an analysis.metric.Metric"),
        ("other_s", "waiting_metric:WAIT", "holds a metric named 'wait_s'; give both the same name"),
        ("ttft_s", "waiting_metric:TAKEN", "there is a metric 'ttft_s' already; rename one of them"),
        ("kind", "waiting_metric:A_COLUMN", "no name for a metric; choose a word that is no field of a record"),
    ],
)
def test_an_entry_point_that_is_no_metric_is_refused_and_named(
    install: Install, name: str, target: str, told: str
) -> None:
    install(name, target)
    with pytest.raises(RecordError) as refused:
        registry.metrics()
    assert told in str(refused.value)


def test_a_value_that_is_no_number_is_refused_with_its_turn(install: Install, world: Any, speed: Any) -> None:
    folder = world({"a": speed()}, sessions=1)
    install("endless", "waiting_metric:NOT_FINITE")
    with pytest.raises(RecordError, match="the metric 'endless' gives inf for session 'session-00' turn 0; it must"):
        turn_frame(folder / "a", "a")


def test_a_metric_is_called_like_its_function() -> None:
    turn = TurnRecord(
        engine="fake", session_id="s", turn=0, kind="first", attempt=0, status="ok", prompt_tokens=3, new_tokens=3,
        output_tokens=1, due_ns=0, sent_ns=10, token_ns=(1_000_000_010,), end_ns=1_000_000_020,
    )  # fmt: skip
    assert METRICS["ttft_s"](turn) == METRICS["ttft_s"].of(turn) == 1.0
