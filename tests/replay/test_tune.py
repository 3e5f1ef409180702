"""A setting is chosen on development sessions, from records, and nowhere else."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.summary import summarise
from analysis.tuning import tunings, value_of
from analysis.wording import verdicts
from replay.record import read_result, write_result
from replay.tune import TuneSettings, refusal
from workloads.settings import WorkloadSettings

Command = Callable[..., Any]
Runs = Callable[[], list[Path]]
SMALL = ["workload.max_sessions=2", "workload.max_turns=1", "engine.options.prefill_ms=0"]
FAKE = [
    "engine=fake",
    "engine.options.prefill_ms_per_token=0",
    "telemetry.every_s=null",
    *SMALL,
]
TUNE = [
    "-m",
    "engine.options.decode_ms=9,1,3",
    "tune.name=t",
    "tune.setting=engine.options.decode_ms",
    "name=tune",
]


def settings(preset: str | None) -> WorkloadSettings:
    return WorkloadSettings(name="w", format="synthetic", preset=preset)


def test_held_out_sessions_are_refused_before_anything_runs(replay: Command, tmp_path: Path) -> None:
    done = replay(*TUNE, *FAKE, "workload=synthetic_swe_heldout")
    assert done.code == 2
    assert done.complaint.endswith("`prepare split` wrote>")
    assert "workload synthetic_swe_heldout holds held_out sessions" in done.complaint
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("preset", "refused"),
    [
        ("swe_development", False),
        ("swe_screening", False),
        ("tau2_heldout", True),
        ("sweep_prompts", True),
        (None, True),
    ],
)
def test_what_may_be_tuned_on(preset: str | None, refused: bool) -> None:
    assert (refusal(TuneSettings(name="t", setting="engine.threads"), settings(preset)) is not None) == refused
    assert refusal(TuneSettings(), settings(preset)) is None
    assert "names no split" in (refusal(TuneSettings(name="t", setting="engine.threads"), settings(None)) or "")


def test_a_session_file_says_its_split_itself(tmp_path: Path) -> None:
    tune = TuneSettings(name="t", setting="engine.threads")
    missing = WorkloadSettings(name="w", format="sessions", path=str(tmp_path / "none.parquet"))
    assert "none.parquet" in (refusal(tune, missing) or "")


def test_the_report_says_what_was_chosen_the_curve_and_the_guard(
    replay: Command, runs: Runs, due: Callable[[], int]
) -> None:
    done = replay(*TUNE, *FAKE, "workload=synthetic_tau2_development")
    assert done.code == due(), done.err
    folder = runs()[0].parent
    assert {read_result(run)["workload"]["split"] for run in runs()} == {"development"}
    found = json.loads((folder / "results.json").read_text())
    (tuning,) = found["tunings"]
    assert (tuning["engine"], tuning["setting"]) == ("fake", "engine.options.decode_ms")
    assert tuning["guarded"]
    assert tuning["chosen"] == "1"
    assert [trial["value"] for trial in tuning["trials"]] == ["9", "1", "3"]
    totals = {trial["value"]: trial["total_request_s"] for trial in tuning["trials"]}
    assert totals["1"] < totals["3"] < totals["9"]
    assert found["verdicts"][0].startswith("Chosen for fake on 2 development sessions: engine.options.decode_ms=1, ")
    assert "; next 3, " in found["verdicts"][0]
    page = (folder / "report.html").read_text()
    assert "Tuning · engine.options.decode_ms" in page
    assert "held-out sessions were not touched" in page
    table = (folder / "tables" / "tuning.csv").read_text().splitlines()
    assert table[0].startswith("value,total_request_s,prefill_s,decode_s")
    assert len(table) == 4
    _behind_the_guard(runs()[0])


def test_several_settings_that_are_chosen_together_are_named_in_the_value() -> None:
    config = {"engine": {"threads": 2, "options": {"ubatch": "512"}}}
    assert value_of(config, "engine.options.ubatch") == "512"
    assert value_of(config, "engine.options.ubatch,engine.threads") == "ubatch=512 threads=2"


def _behind_the_guard(first: Path) -> None:
    """As if someone had changed a run's configuration after it was checked."""
    result = read_result(first)
    result["workload"]["split"] = "held_out"
    write_result(first, result)
    summary = summarise(first.parent)
    (tuning,) = tunings(summary)
    assert not tuning.guarded
    assert tuning.chosen is None
    assert verdicts(summary)[0].startswith("Nothing chosen for fake")
