"""Records that can't be used: one line and exit status 2, from every command that reads them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from analysis import cli, compare_cli
from replay.record import RESULT_FILE, TURNS_FILE

Damage = Callable[[Path], None]


def complaints(folder: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What each command says of ``folder``; asserts that it is one line, and exit 2."""
    said = []
    for command, arguments in (
        (cli.main, [str(folder)]),
        (cli.main, ["export-baseline", str(folder), "--out", str(folder / "baseline.json")]),
        (compare_cli.main, [str(folder), str(folder), "--gate"]),
    ):
        with pytest.raises(SystemExit) as ended:
            command(arguments)
        captured = capsys.readouterr()
        assert (ended.value.code, captured.out) == (2, ""), (arguments, captured)
        assert captured.err.count("\n") == 1, captured.err
        said.append(captured.err)
    assert not (folder / "baseline.json").exists()
    return said


def lines(change: Callable[[dict[str, Any]], dict[str, Any]], *, only: int | None = 0) -> Damage:
    """Change one line of the turns, or all."""

    def damage(run: Path) -> None:
        path = run / TURNS_FILE
        rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        rows = [change(row) if only is None or i == only else row for i, row in enumerate(rows)]
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))

    return damage


def field(**values: Any) -> Damage:
    return lines(lambda row: row | values)


def literal(name: str, text: bytes) -> Damage:
    """A value that JSON writers of other programs leave: NaN, Infinity, a number beyond all."""

    def damage(run: Path) -> None:
        field(**{name: "here"})(run)
        path = run / TURNS_FILE
        path.write_bytes(path.read_bytes().replace(b'"here"', text))

    return damage


def result(**values: Any) -> Damage:
    def damage(run: Path) -> None:
        path = run / RESULT_FILE
        path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | values))

    return damage


def cut(name: str, share: float) -> Damage:
    def damage(run: Path) -> None:
        whole = (run / name).read_bytes()
        (run / name).write_bytes(whole[: int(len(whole) * share)])

    return damage


def twice(run: Path) -> None:
    path = run / TURNS_FILE
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[3])


def cut_in_the_middle(run: Path) -> None:
    path = run / TURNS_FILE
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*rows[:2], rows[2][:40] + b"\n", *rows[3:]]))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(field(version=2), "turns.jsonl:1: record version 2, this program reads version 1", id="version"),
        pytest.param(result(version=7), "result.json: result version 7, this program reads version 1", id="result"),
        pytest.param(result(version=None), "result version None", id="no-version"),
        pytest.param(cut(RESULT_FILE, 0.5), "result.json: not JSON", id="truncated-result"),
        pytest.param(cut(RESULT_FILE, 0), "result.json: not JSON", id="empty-result"),
        pytest.param(cut(TURNS_FILE, 0), "no turn was measured", id="no-turns"),
        pytest.param(cut(TURNS_FILE, 0.001), "no turn was measured", id="truncated-turns"),
        pytest.param(cut_in_the_middle, "turns.jsonl:3: not JSON", id="truncated-line"),
        pytest.param(lambda run: (run / TURNS_FILE).unlink(), "turns.jsonl: no such file", id="missing-turns"),
        pytest.param(twice, "has turn 3 of attempt 0 twice", id="duplicate-turn"),
        pytest.param(literal("sent_ns", b"NaN"), "turns.jsonl:1: not JSON", id="nan"),
        pytest.param(literal("end_ns", b"Infinity"), "turns.jsonl:1: not JSON", id="infinity"),
        pytest.param(literal("end_ns", b"1e400"), "turns.jsonl:1: ", id="beyond-all"),
        pytest.param(field(sent_ns=1.5e9), "has sent_ns = 1500000000.0, which is not a whole number", id="float"),
        pytest.param(field(due_ns=None), "has due_ns = None, which is not a whole number", id="no-due"),
        pytest.param(field(token_ns=None), "turns.jsonl:1: ", id="no-tokens"),
        pytest.param(field(token_ns=["a"]), "not a whole number of nanoseconds", id="word-token"),
        pytest.param(field(session_id=7), "has session_id = 7", id="number-for-a-name"),
        pytest.param(field(server_decode_s="inf"), "has server_decode_s = 'inf'", id="word-time"),
        pytest.param(field(sent_ns=None), "is ok but lacks the time it was sent", id="not-sent"),
        pytest.param(field(surprise=1), "unknown field 'surprise'", id="unknown-field"),
        pytest.param(
            lines(lambda row: row | {"status": "stall", "token_ns": [], "end_ns": None}, only=None),
            "no turn was measured",
            id="zero-valid-turns",
        ),
    ],
)
def test_records_that_cannot_be_used_are_one_line_and_exit_2(
    world: Any, speed: Any, capsys: pytest.CaptureFixture[str], damage: Damage, told: str
) -> None:
    folder = world({"llamacpp": speed()}, sessions=2)
    damage(folder / "llamacpp")
    for said in complaints(folder, capsys):
        assert told in said


@pytest.mark.parametrize(
    ("field_name", "value"),
    [
        ("workload", {"name": "other", "hash": "x", "sessions": 8, "turns": 40}),
        ("model", {"name": "tiny", "hash": "other"}),
    ],
)
def test_mixed_workloads_or_models_are_named_and_exit_2(
    world: Any, speed: Any, capsys: pytest.CaptureFixture[str], field_name: str, value: Any
) -> None:
    folder = world({"a": speed(), "b": speed()}, results={"b": {field_name: value}})
    with pytest.raises(SystemExit) as ended:
        cli.main([str(folder)])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    assert f"{field_name}.hash: A " in captured.err
    assert captured.err.count("\n") == 1
    with pytest.raises(SystemExit) as ended:
        compare_cli.main([str(folder / "a"), str(folder / "b")])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert f"not comparable: {field_name}.hash: " in captured.err


def test_one_engine_only_has_nothing_to_compare_and_says_where_its_own_numbers_are(
    world: Any, speed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = world({"llamacpp": speed()})
    with pytest.raises(SystemExit) as ended:
        cli.main([str(folder)])
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out) == (2, "")
    assert captured.err.startswith(f"analyse: {folder}: One engine, nothing to compare: llama.cpp takes ")
    assert captured.err.endswith(f"What each engine did by itself is in {folder / 'report.html'}\n")
    assert (folder / "report.html").is_file()


def test_a_last_line_that_a_kill_cut_short_loses_its_session_only(world: Any, speed: Any) -> None:
    from analysis.summary import summarise

    folder = world({"a": speed(), "b": speed(0.5)}, sessions=9)
    cut(TURNS_FILE, 0.999)(folder / "b")
    summary = summarise(folder)
    assert summary.pairing.excluded == {"session-08": "b: the records hold 4 of its 5 turns"}
    assert summary.comparisons[0].sessions == 8


def test_a_metric_that_no_turn_has_is_absent_everywhere(world: Any, speed: Any) -> None:
    from analysis.results import results
    from analysis.summary import summarise

    def one_token(made: list[Any]) -> list[Any]:
        return [
            replace(r, output_tokens=1, token_ns=r.token_ns[:1], server_prefill_s=None, server_decode_s=None)
            for r in made
        ]

    folder = world({"a": speed(), "b": speed(0.5)}, records={"a": one_token, "b": one_token})
    found = results(summarise(folder))
    for engine in found["engines"].values():
        assert engine["tpot_s"] is None
        assert engine["server_prefill_s"] is None
        assert engine["server_decode_s"] is None
    assert found["comparisons"][0]["tpot"] is None
    assert "tpot" not in found["comparisons"][0]["adjusted_p"]
