"""Sweeps: what they are made of, how they end, and that one run's failure is only its own."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from analysis.report import write_report
from replay import cli, job, launchers
from replay.batch import Batch, Row, with_hashes
from replay.config import CONF, SUBDIR, NoteBatch, SweepNoted, resolved
from replay.expand import expand
from replay.record import RESULT_FILE, read_result
from replay.rows import FAILED, INVALID, NOISE, note_failure, status
from replay.validity.checks import checks
from replay.watch import Observed

Command = Callable[..., Any]
Fake = Callable[..., list[str]]
Runs = Callable[[], list[Path]]
Due = Callable[[], int]


def rows(monkeypatch: pytest.MonkeyPatch, *words: str) -> Batch:
    """As ``replay -m …`` notes them."""
    monkeypatch.setattr("sys.argv", ["replay", "-m", *words])
    with pytest.raises(SweepNoted):
        cli.job()
    assert NoteBatch.noted is not None
    assert NoteBatch.sweep is not None
    expand(NoteBatch.noted, *NoteBatch.sweep)
    return NoteBatch.noted


def as_hydra_has_it(words: list[str]) -> Any:
    """The configuration of one run, composed by Hydra alone."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return OmegaConf.to_container(compose("config", words))


@pytest.mark.parametrize(
    "words",
    [
        ["engine=fake,llamacpp", "engine.threads=1,2", "repeat=0,1", "workload=synthetic"],
        ["engine=fake", "workload=synthetic,sample", "workload.max_turns=1,2", "+engine.env.A=a,b"],
        ["engine=fake", "engine.options={decode_ms:5},{prefill_ms:1}", "workload=synthetic"],
        ["+experiment=ci_regression", "workload.turns=3,4"],
        ["engine=fake", "engine.threads=3", "repeat=range(2)", "+engine.env={A:b}", "launch=attach,process"],
    ],
    ids=lambda words: words[0],
)
def test_every_run_is_composed_as_hydra_would(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    batch = rows(monkeypatch, *words)
    assert len(batch.rows) > 1
    assert len({row.folder for row in batch.rows}) == len({row.config_hash for row in batch.rows}) == len(batch.rows)
    for row in batch.rows:
        assert row.config == as_hydra_has_it(list(row.command[1:]))


def test_five_hundred_runs_have_folders_and_configurations_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    batch = rows(monkeypatch, "engine=fake", "engine.threads=range(1,26)", "repeat=range(20)", "workload=synthetic")
    assert len({row.folder for row in batch.rows}) == len({row.config_hash for row in batch.rows}) == 500
    last = batch.rows[-1]
    assert (last.config["engine"]["threads"], last.config["repeat"]) == (25, 19)
    assert last.folder.name == "fake,engine.threads=25,repeat=19"


def test_names_that_a_path_cannot_tell_apart_are_numbered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    batch = rows(monkeypatch, "engine=fake", "workload=synthetic", "engine.label='a b','a:b','a-b'")
    names = [row.folder.name for row in batch.rows]
    assert len(set(names)) == 3
    assert names[1:] == [f"{names[0]}~2", f"{names[0]}~3"]


def test_the_folders_name_is_the_configurations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert OmegaConf.load(CONF / "config.yaml").hydra.sweep._get_node("subdir")._value() == SUBDIR
    monkeypatch.chdir(tmp_path)
    words = ("engine=fake", "workload=synthetic", "repeat=3,4")
    batch = rows(monkeypatch, *words, "hydra.sweep.subdir=${hydra.job.num}-${repeat}")
    assert [row.folder.name for row in batch.rows] == ["0-3", "1-4"]


def test_what_depends_on_the_machine_is_left_to_the_one_that_runs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    row = rows(monkeypatch, "engine=fake", "workload=synthetic", "repeat=0,1").rows[0]
    assert row.config["hardware"]["threads"] == "${usable_cores:}"
    settings, plain = resolved(row.config)
    assert settings.hardware.threads == plain["hardware"]["threads"] >= 1


def test_the_hash_is_of_what_is_measured_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("engine=fake", "workload=synthetic", "repeat=0,1")
    first = rows(monkeypatch, *words).rows[0].config_hash
    same = ("name=other", "retries=3", "on_failure=stop", "report=null", "lock=off", "order.engines=shuffled")
    assert rows(monkeypatch, *words, *same).rows[0].config_hash == first
    assert rows(monkeypatch, *words, "engine.threads=7", "workload.seed=9").rows[0].config_hash != first
    row = rows(monkeypatch, *words).rows[0]
    for place, value in (("engine", "threads"), ("workload", "seed"), ("order", "sessions"), ("arrival", "seed")):
        other = replace(row, config={**row.config, place: {**row.config[place], value: "other"}})
        assert with_hashes([other])[0].config_hash != first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["repeat=0,many"], "Value 'many' of type 'str' could not be converted to Integer"),
        (["repeat=0,1", "engine.colour=red,blue"], "Key 'colour' not in 'EngineSettings'"),
        (["repeat=0,1", "+engine.options.delay=1"], "engine.options.delay: nothing of engine fake uses it"),
        (["repeat=interval(0,3)"], "a sweep names its values"),
        (["repeat=0,1", "order.engines=chaos"], "order.engines=chaos is not known"),
        (["repeat=0,1", "hydra.sweeper._target_=hydra_plugins.optuna.OptunaSweeper"], "leave hydra/sweeper out"),
        (["repeat=0,1", "hydra.launcher._target_=hydra_plugins.nowhere.launcher.JoblibLauncher"], "[sweeps]"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[:30],
)
def test_a_sweep_that_cannot_be_is_one_line_and_leaves_nothing(
    replay: Command, fake: Fake, tmp_path: Path, words: list[str], message: str
) -> None:
    done = replay("-m", *fake(), *words)
    assert done.code == 2
    assert message in done.complaint
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "hydra/launcher").glob("*.yaml")))
def test_every_launcher_is_one_that_the_extra_installs(name: str) -> None:
    GlobalHydra.instance().clear()
    with warnings.catch_warnings(), initialize_config_dir(str(CONF), version_base="1.3"):
        warnings.simplefilter("ignore")  # a plugin that is installed has a schema of the same name
        config = compose("config", [f"hydra/launcher={name}"], return_hydra_config=True)
    OmegaConf.set_struct(config, False)
    launcher: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    assert launchers.kind(launcher) in launchers.NEEDS
    if "ray" in launcher:
        remote, init = launcher["ray"]["remote"], launcher["ray"]["init"]
        assert (remote["max_retries"], remote["resources"]) == (0, {"bench_host": 1})
        assert (init["object_store_memory"] is None) == (init["address"] != "local")


@pytest.mark.parametrize(("lock", "out"), [("wait", 1), ("fail", 1), ("off", 3)])
def test_a_machine_is_given_one_run_at_a_time_unless_times_do_not_matter(tmp_path: Path, lock: str, out: int) -> None:
    given = [Row(folder=tmp_path / str(number), config={"lock": lock}) for number in range(5)]
    batch = Batch(folder=tmp_path, report=None, rows=given, sweep=True)
    joblib = {"_target_": "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher", "n_jobs": 3}
    assert launchers.Launching(batch, given, joblib).width(dict(joblib)) == out


def test_every_failure_is_a_row_with_a_status_and_the_others_are_run(
    replay: Command, fake: Fake, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four: settings that nothing can be made of, a mistake in this program, both, and a good one."""
    real = job.execute

    def mistaken(run: Any, progress: Any) -> None:
        if run.repeat == 2:
            raise ZeroDivisionError("division by zero")
        real(run, progress)

    monkeypatch.setattr(job, "execute", mistaken)
    done = replay("-m", *fake(), "repeat=0,2", "retries=1,-1", "telemetry.every_s=null")
    assert done.code == 1
    found = {folder.name: read_result(folder) for folder in runs()}
    assert {name: result["status"] for name, result in found.items()} == {
        "fake,repeat=0,retries=-1": "failed",
        "fake,repeat=0,retries=1": "complete",
        "fake,repeat=2,retries=-1": "failed",
        "fake,repeat=2,retries=1": "failed",
    }
    assert "retries=-1 is negative" in found["fake,repeat=0,retries=-1"]["error"]
    assert found["fake,repeat=2,retries=1"]["error"] == "ZeroDivisionError: division by zero"
    assert "failed fake,repeat=2,retries=1: ZeroDivisionError" in done.err
    assert (runs()[0].parent / "report.html").is_file()


def test_a_row_that_never_began_does_not_spoil_the_comparison_of_two_workloads(
    replay: Command, fake: Fake, runs: Runs
) -> None:
    """Two workloads on two settings; the sample does not fit the smaller context."""
    command = [word for word in fake() if not word.startswith("workload")]
    few = ["workload.max_sessions=1", "workload.max_turns=2", "telemetry.every_s=null"]
    done = replay("-m", *command, "workload=synthetic,sample", *few, "engine.context=1500,32768")
    assert done.code == 1, done.err
    assert sorted(read_result(folder)["status"] for folder in runs()) == [
        "complete",
        "complete",
        "complete",
        "failed",
    ]
    above = runs()[0].parent
    assert "FAILED" in (above / "report.html").read_text()
    assert "set engine.context=" in (above / "summary.md").read_text()


def test_the_comparison_is_built_from_the_disk_again(replay: Command, fake: Fake, runs: Runs, due: Due) -> None:
    done = replay("-m", *fake(), "engine.label=A,B", "workload.turns=1", "report=null", "telemetry.every_s=null")
    assert done.code == due()
    above = runs()[0].parent
    note_failure(above / "gone", "the worker died", config={"engine": {"name": "fake"}}, config_hash="0")
    page = write_report(above).read_text()
    assert "the worker died" in page


def test_an_invalid_row_ends_a_sweep_with_1_and_is_finished_all_the_same(
    replay: Command, fake: Fake, runs: Runs
) -> None:
    replay("-m", *fake(), "repeat=0,1", "report=null", "telemetry.every_s=null")
    folder = runs()[-1]
    result = read_result(folder)
    result["validity"] = [{"name": "cache reused", "ok": False, "value": "0 of 6 later turns", "severity": "invalid"}]
    (folder / RESULT_FILE).write_bytes(orjson.dumps(result))
    assert status(folder).name == INVALID
    again = replay(f"resume={folder.parent}")
    assert again.code == 1
    assert "2 of 2 runs are complete" in again.err
    assert "invalid fake,repeat=1: cache reused: 0 of 6 later turns" in again.err
    assert replay(f"resume={folder.parent}", "on_noise=warn").code == 1


@pytest.mark.parametrize(("on_noise", "code"), [("fail", 1), ("warn", 0)])
def test_a_row_that_other_programs_spoilt_may_be_only_said(
    replay: Command, fake: Fake, runs: Runs, on_noise: str, code: int
) -> None:
    words = ["repeat=0,1", "report=null", "telemetry.every_s=null", f"on_noise={on_noise}"]
    replay("-m", *fake(), *words)
    for folder in runs():
        result = read_result(folder)
        result["validity"] = [{"name": "event-loop lag", "ok": False, "value": "9 ms", "severity": "invalid"}]
        (folder / RESULT_FILE).write_bytes(orjson.dumps(result))
    again = replay(f"resume={folder.parent}")
    assert again.code == code
    assert "invalid fake,repeat=1: event-loop lag: 9 ms" in again.err


def test_the_checks_that_noise_can_fail_are_there() -> None:
    found = checks([], {}, expected_sessions=0, warmed_up=True, losses={}, cache_block_tokens=1, observed=Observed())
    assert set(NOISE) <= {check.name for check in found}


def test_what_says_how_it_ended_is_not_overwritten(tmp_path: Path) -> None:
    note_failure(tmp_path, "first", config={}, config_hash="0")
    note_failure(tmp_path, "second", config={}, config_hash="0")
    assert (status(tmp_path).name, status(tmp_path).why) == (FAILED, "first")
