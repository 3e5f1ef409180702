"""A baseline as a file: small, the same verdict as its folder, refused when it is not what it was."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import baseline, cli, gate, registry, side
from replay.record import RecordError

METRICS = gate.DEFAULT_METRICS


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["export-baseline", *arguments])
    captured = capsys.readouterr()
    return int(str(ended.value.code)), captured.out, captured.err


@pytest.fixture(scope="module")
def exported(three: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("baseline") / "base.json"
    baseline.write(path, side.read_folder(three / "llamacpp", METRICS))
    return path


def test_a_file_says_what_its_folder_says(three: Path, exported: Path) -> None:
    folder, file = side.read_folder(three / "llamacpp", METRICS), baseline.read(exported)
    for name in ("engine", "label", "workload", "model", "started", "fields", "recorded", "unfinished", "concerns"):
        assert getattr(file, name) == getattr(folder, name)
    candidate = side.read_folder(three / "ik_llamacpp", METRICS)
    rows = gate.chosen_rows([], registry.metrics())
    from_file, from_folder = (gate.decide(base, candidate, rows, resamples=500) for base in (file, folder))
    assert [row.verdict for row in from_file.rows] == [row.verdict for row in from_folder.rows]
    for one, other in zip(from_file.rows, from_folder.rows, strict=True):
        assert one.change.change == pytest.approx(other.change.change, abs=1e-5)


def test_a_file_is_small_and_has_a_line_a_session(exported: Path) -> None:
    text = exported.read_text()
    assert len(text) < 200 * 40  # turns
    assert sum(line.startswith('{"id":') for line in text.splitlines()) == 8
    found = json.loads(text)
    assert (found["format"], found["version"]) == (baseline.FORMAT, baseline.VERSION)
    assert found["sessions"][0]["total_s"] == pytest.approx([sum(found["sessions"][0]["turns"]["stream_s"][0])])


def test_the_same_run_gives_the_same_file(three: Path, exported: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    baseline.write(again, side.read_folder(three / "llamacpp", METRICS))
    assert again.read_bytes() == exported.read_bytes()


def test_repeats_and_turns_without_a_value_survive(world: Any, speed: Any, tmp_path: Path) -> None:
    def again(made: list[Any]) -> list[Any]:
        return [replace(r, repeat=1) for r in made]

    def one_token(made: list[Any]) -> list[Any]:
        return [replace(r, token_ns=r.token_ns[:1], output_tokens=1) if r.turn == 1 else r for r in made]

    result = {"engine": {"name": "a", "label": "A", "note": "", "settings": {}, "server": {}}, "repeat": 1}
    folder = world(
        {"a": speed(), "again": speed()},
        sessions=2,
        records={"a": one_token, "again": lambda made: again(one_token(made))},
        results={"again": result},
    )
    found = side.read_folder(folder, METRICS)
    baseline.write(tmp_path / "b.json", found)
    file = baseline.read(tmp_path / "b.json")
    assert len(file.turns) == 20
    assert file.turns["tpot_s"].isna().sum() == found.turns["tpot_s"].isna().sum() == 4
    assert sorted(file.turns["repeat"].unique()) == [0, 1]


def test_the_command_says_what_it_wrote(
    three: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "llamacpp.json"
    status, said, err = run(capsys, str(three), "--engine", "llamacpp", "--out", str(out), "--metric", "queue_s")
    assert (status, err) == (0, "")
    assert said.startswith(f"{out}: 8 sessions of llama.cpp, ")
    assert set(baseline.read(out).metrics) == {*METRICS, "queue_s"}
    monkeypatch.chdir(tmp_path)
    assert run(capsys, str(three / "ostinato"))[0] == 0
    assert baseline.read(Path("baseline.json")).label == "Ostinato"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{three}"], "3 engines (ik_llamacpp, llamacpp, ostinato); name one with --engine, or its folder: "),
        (["{three}", "--engine", "vllm"], "no engine 'vllm' there; name one of ik_llamacpp, llamacpp, ostinato"),
        (["{three}/llamacpp", "--metric", "speed"], "--metric speed: no metric that a gate can judge"),
        (["{three}/llamacpp", "--out", "{three}/no/such/file.json"], "No such file or directory; name a file that"),
        (["nowhere"], "nowhere: no such folder"),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_exit_2(
    three: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    status, out, err = run(capsys, *(text.format(three=three) for text in arguments))
    assert (status, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


Found = dict[str, Any]


def another_version(found: Found) -> None:
    found["version"] = 2


def another_formula(found: Found) -> None:
    found["metrics"]["tpot_s"] = "request_s / n"


def unknown_metric(found: Found) -> None:
    found["metrics"]["wait_s"] = "wait"


def no_metrics(found: Found) -> None:
    del found["metrics"]


def a_word(found: Found) -> None:
    found["sessions"][0]["turns"]["ttft_s"][0][2] = "fast"


def changed_turn(found: Found) -> None:
    found["sessions"][1]["turns"]["stream_s"][0][0] *= 0.5


def a_turn_less(found: Found) -> None:
    found["sessions"][1]["turns"]["ttft_s"][0].pop()


def session_twice(found: Found) -> None:
    found["sessions"].append(found["sessions"][0])


def no_sessions(found: Found) -> None:
    found["sessions"] = []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (another_version, "baseline version 2, this program reads version 1"),
        (another_formula, "tpot_s was computed as 'request_s / n' then; export the baseline again"),
        (unknown_metric, "holds the metric 'wait_s', which is not installed here"),
        (no_metrics, r"damaged \(KeyError: 'metrics'\)"),
        (a_word, "session 'session-00' turn 2 has a value that is no number"),
        (changed_turn, "the turns of session 'session-01' do not add up to its total"),
        (a_turn_less, r"damaged \(ValueError"),
        (session_twice, "a session is there twice"),
        (no_sessions, "no session in it"),
    ],
)
def test_a_file_that_was_changed_is_refused(
    exported: Path, tmp_path: Path, change: Callable[[Found], None], told: str
) -> None:
    found = json.loads(exported.read_text())
    change(found)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(found))
    with pytest.raises(RecordError, match=told):
        baseline.read(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", r"not JSON \("),
        ("[]", "no baseline; make one with `analyse export-baseline FOLDER`"),
        ('{"version": 1, "status": "complete"}', "no baseline; make one with"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=told):
        baseline.read(path)
    with pytest.raises(RecordError, match="No such file"):
        baseline.read(tmp_path / "c.json")


def test_a_metric_that_a_file_lacks_is_named(exported: Path) -> None:
    with pytest.raises(RecordError, match=r"has no metric 'queue_s'; export it again with --metric queue_s"):
        baseline.only(baseline.read(exported), ["queue_s"])
