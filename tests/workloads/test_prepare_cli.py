import json
import subprocess
import sys
from pathlib import Path

import pytest

from workloads import store
from workloads.cli import main

ROW = {
    "instance_id": "a__b-7",
    "messages": [
        {"role": "user", "content": "fix it"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "no such file", "tool_call_id": "c"},
        {"role": "assistant", "content": "It is fixed."},
    ],
    "tools": [],
}


def prepared(*arguments: str | Path, capsys: pytest.CaptureFixture[str]) -> str:
    main([str(one) for one in arguments])
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def refused(*arguments: str | Path, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main([str(one) for one in arguments])
    captured = capsys.readouterr()
    assert caught.value.code == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW | {"messages": ROW["messages"][:1]}))
    return path


def test_a_recording_becomes_a_session_file_and_what_was_left_out_is_said(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sessions.parquet"
    printed = prepared("openhands", rows, "--out", out, capsys=capsys)
    (session,) = store.read(out)
    assert [turn.kind for turn in session.turns] == ["first", "tool"]
    assert "sessions 1 tasks 1 turns 2 first turns 1 tool turns 1 user turns 0" in printed
    assert "1 sessions dropped: the model never answers in them" in printed
    assert "1 contents that were null, read as empty text" in printed


def test_stats_say_what_a_session_file_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sessions.parquet"
    written = prepared("synthetic", "--sessions", "2", "--turns", "3", "--seed", "4", "--out", out, capsys=capsys)
    assert written.endswith("Nothing was left out.")
    printed = prepared("stats", out, capsys=capsys)
    sessions = list(store.read(out))
    outputs = sum(len(turn.output_ids) for session in sessions for turn in session.turns)
    assert f"output tokens {outputs:,}" in printed
    assert f"longest context (tokens) {max(session.longest_context for session in sessions):,}" in printed
    assert [len(session.turns) for session in sessions] == [3, 3]


def test_real_tau2_results_are_prepared_with_their_domain(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, domain = shared / "data/tau2/retail_gpt-4.1-mini_1sim.json", shared / "data/tau2_domains"
    printed = prepared("tau2", path, "--domain", domain, "--max-turns", "4", "--out", tmp_path / "s", capsys=capsys)
    assert "turns 4 first turns 1" in printed
    assert "5 turns cut off by workload.max_turns" in printed
    printed = prepared("tau2", path, "--out", tmp_path / "s", capsys=capsys)
    assert "sessions without the agent's instructions and tool schemas: set workload.domain" in printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(ROW) + "\n{", "rows.jsonl: broken JSON at line 2"),
        (json.dumps(ROW) + '\n{"messages": [{"role": "ai", "content": ""}]}', "line 2, message 1: unknown role 'ai'"),
        ("", "rows.jsonl: the file is empty"),
    ],
)
def test_a_bad_recording_is_one_line_and_leaves_nothing_behind(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    rows.write_text(content)
    assert message in refused("openhands", rows, "--out", tmp_path / "sessions.parquet", capsys=capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_bad_recording_leaves_an_earlier_session_file_as_it_was(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sessions.parquet"
    prepared("openhands", rows, "--out", out, capsys=capsys)
    before = out.read_bytes()
    rows.write_text(json.dumps(ROW) + "\n{")
    refused("openhands", rows, "--out", out, capsys=capsys)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["openhands", "nowhere.jsonl", "--out", "s"], "nowhere.jsonl: no such file or folder"),
        (["synthetic", "--out", "no/such/folder/s"], "no/such/folder: no such folder; create it"),
        (["synthetic", "--out", "s", "--tokenizer", "no/tokenizer"], "no/tokenizer"),
        (["synthetic", "--out", "s", "--turns", "0"], "--turns: '0' is no count; give a whole number from 1 up"),
        (["synthetic"], "the following arguments are required: --out; see prepare synthetic --help"),
        (["stats", "nowhere.parquet"], "nowhere.parquet: no such file"),
        (["mooncake", "x"], "invalid choice: 'mooncake'"),
        ([], "the following arguments are required: COMMAND; see prepare --help"),
    ],
)
def test_what_a_user_can_mend_is_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments, capsys=capsys)
    assert list(tmp_path.iterdir()) == []


def test_the_output_may_not_replace_the_recording(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows.read_bytes()
    assert "choose another --out" in refused("openhands", rows, "--out", rows, capsys=capsys)
    assert rows.read_bytes() == before


def test_help_shows_examples_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from workloads.cli import main\n"
        "heavy = {'pyarrow', 'numpy', 'jinja2', 'tokenizers', 'rich'}\n"
        "try: main(['--help'])\n"
        "finally: print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "prepare openhands rows.parquet --max-sessions 50" in done.stdout
    assert done.stderr == "[]\n"
