import json
import signal
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


ANSWERLESS = ROW | {"messages": ROW["messages"][:1]}


def prepared(*arguments: str | Path, capsys: pytest.CaptureFixture[str]) -> str:
    main([str(one) for one in arguments])
    return " ".join(capsys.readouterr().out.split())


def refused(*arguments: str | Path, capsys: pytest.CaptureFixture[str], status: int = 2) -> str:
    with pytest.raises(SystemExit) as caught:
        main([str(one) for one in arguments])
    captured = capsys.readouterr()
    assert caught.value.code == status
    assert captured.err.count("\n") == 1, captured.err
    assert captured.out == "" or status == 1
    return captured.out + captured.err


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + json.dumps(ANSWERLESS))
    return path


def test_a_recording_becomes_a_session_file_and_what_was_left_out_is_said(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sessions.parquet"
    printed = prepared(f"path={rows}", f"out={out}", capsys=capsys)
    (session,) = store.read(out)
    assert [turn.kind for turn in session.turns] == ["first", "tool"]
    assert "sessions 1 tasks 1 turns 2 first turns 1 tool turns 1 user turns 0" in printed
    assert "sessions: 2 read, 1 kept, 1 dropped 1 the model never answers in them" in printed
    assert "Left out of them, or not restored: 1 contents that were null, read as empty text" in printed


def test_the_named_source_is_read_whatever_the_file_looks_like(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused("source=tau2", f"path={rows}", f"out={tmp_path / 's'}", capsys=capsys)
    assert "rows.jsonl: broken JSON at line 2" in error
    assert "kept" in prepared("source=openhands", f"path={rows}", f"out={tmp_path / 's'}", capsys=capsys)


def test_several_processes_render_the_same_file_in_the_same_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    many = [ROW | {"instance_id": f"a__b-{number}"} for number in range(30)] + [ANSWERLESS]
    path.write_text("\n".join(map(json.dumps, many)))
    printed = [
        prepared(f"path={path}", f"num_proc={number}", f"out={tmp_path / f's{number}'}", capsys=capsys)
        for number in (1, 2)
    ]
    assert printed[0].split("sessions: ")[1] == printed[1].split("sessions: ")[1]
    first, second = (list(store.read(tmp_path / f"s{number}")) for number in (1, 2))
    assert first == second
    assert [session.task_id for session in first] == [f"a__b-{number}" for number in range(30)]


def test_sessions_that_can_not_be_rendered_are_dropped_for_a_reason_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "rows.jsonl", tmp_path / "sessions.parquet"
    torn = ROW | {"instance_id": "torn", "messages": [{"role": "user", "content": "\ud800"}, ROW["messages"][-1]]}
    path.write_text("\n".join(map(json.dumps, [ROW, torn])))
    printed = prepared(f"path={path}", f"out={out}", capsys=capsys)
    assert "sessions: 2 read, 1 kept, 1 dropped 1 the text" in printed
    assert "The first: torn: the text" in printed
    assert [session.session_id for session in store.read(out)] == ["a__b-7"]
    path.write_text(json.dumps(torn))
    assert "sessions: 1 read, 0 kept, 1 dropped" in refused(f"path={path}", f"out={out}", capsys=capsys, status=1)
    assert [session.session_id for session in store.read(out)] == ["a__b-7"], "the earlier file stays"


def test_nothing_kept_is_a_status_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ANSWERLESS))
    said = refused(f"path={path}", f"out={tmp_path / 's'}", capsys=capsys, status=1)
    assert "sessions: 1 read, 0 kept, 1 dropped" in said
    assert "no session with a model turn in it, so there is nothing to replay" in said
    assert not (tmp_path / "s").exists()


def test_stats_say_what_a_session_file_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, table = tmp_path / "sessions.parquet", tmp_path / "turns.csv"
    words = ("source=synthetic", "sessions=2", "turns=3", "seed=4", f"out={out}")
    assert prepared(*words, capsys=capsys).endswith("sessions: 2 read, 2 kept, 0 dropped Nothing was left out.")
    printed = prepared("stats", out, f"csv={table}", capsys=capsys)
    sessions = list(store.read(out))
    turns = [turn for session in sessions for turn in session.turns]
    assert f"output tokens {sum(len(turn.output_ids) for turn in turns):,}" in printed
    assert f"longest context (tokens) {max(session.longest_context for session in sessions):,}" in printed
    new = sorted(len(turn.delta_ids) for turn in turns)
    assert f"median new tokens, all turns {(new[2] + new[3]) / 2:,.0f}" in printed
    assert f"new tokens 6 {new[0]:,}" in printed
    assert "█" in printed
    lines = table.read_text().splitlines()
    assert lines[0].startswith("session_id,task_id,turn,kind,new_tokens,output_tokens,context_tokens,")
    assert lines[3].split(",")[6] == str(sessions[0].longest_context)
    assert len(lines) == 7


def test_real_tau2_results_are_prepared_with_their_domain(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, domain = shared / "data/tau2/retail_gpt-4.1-mini_1sim.json", shared / "data/tau2_domains"
    out = f"out={tmp_path / 's'}"
    printed = prepared(f"path={path}", f"domain={domain}", "max_turns=4", out, capsys=capsys)
    assert "turns 4 first turns 1" in printed
    assert "5 turns cut off by workload.max_turns" in printed


def test_traces_without_text_are_prepared_with_drawn_ids(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = prepared(f"path={shared / 'data/weka_kvcache/trace_0504.json'}", f"out={tmp_path / 's'}", capsys=capsys)
    assert "sessions: 1 read, 1 kept, 0 dropped" in printed
    (session,) = store.read(tmp_path / "s")
    assert session.source == "weka"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(ROW) + "\n{", "rows.jsonl: broken JSON at line 2"),
        (
            json.dumps(ROW) + '\n{"messages": [{"role": "ai", "content": ""}]}',
            "line 2, message 1: unknown role 'ai'",
        ),
        ("", "rows.jsonl: the file is empty"),
        ('{"a": 1}\n{"a": 2}', "of no format known here, it looks like an object with the keys a"),
    ],
)
def test_a_bad_recording_is_one_line_and_leaves_nothing_behind(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    rows.write_text(content)
    assert message in refused(f"path={rows}", f"out={tmp_path / 'sessions.parquet'}", capsys=capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_bad_recording_leaves_an_earlier_session_file_as_it_was(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sessions.parquet"
    prepared(f"path={rows}", f"out={out}", capsys=capsys)
    before = out.read_bytes()
    rows.write_text(json.dumps(ROW) + "\n{")
    refused(f"path={rows}", f"out={out}", capsys=capsys)
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["path=nowhere.jsonl", "out=s"], "nowhere.jsonl: no such file or folder"),
        (["source=openhands", "path=nowhere.jsonl", "out=s"], "nowhere.jsonl: no such file or folder"),
        (["source=synthetic", "out=no/such/folder/s"], "no/such/folder: no such folder; create it"),
        (["source=synthetic", "out=s", "model=no/tokenizer"], "no/tokenizer"),
        (["source=synthetic", "out=s", "turns=0"], "turns=0 is no count; give a whole number from 1 up"),
        (["source=synthetic", "out=s", "turns=many"], "turns=many is no whole number; give one from 1 up"),
        (["source=synthetic"], "out= is missing; name the session file to write"),
        (["source=tau2", "out=s"], "path= is missing; name what to read"),
        (["source=mooncakes", "path=x", "out=s"], "source=mooncakes is unknown; known are sample, synthetic"),
        (["path=x", "outt=s"], "there is no outt=; do you mean out=?"),
        (["path=x", "path=y", "out=s"], "path= is given twice"),
        (["path=x", "out="], "out= has no value"),
        (["tau2", "results.json"], "'tau2' is no key=value; keys are source, path, out"),
        (["path=x", "out=s", "on_prefix_break=skip"], "on_prefix_break=skip is unknown; known are fail, replay"),
        (["path=x", "out=s", "allow_template_loss=1"], "allow_template_loss=1: give true or false"),
        (["stats", "nowhere.parquet"], "nowhere.parquet: no such file"),
        (["stats"], "name a session file first, as in: prepare stats sessions.parquet"),
        (["split", "preset=swe"], "name a session file first"),
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
    assert "choose another out=" in refused(f"path={rows}", f"out={rows}", capsys=capsys)
    assert rows.read_bytes() == before


def test_words_may_look_like_options(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "1 kept" in prepared(f"--path={rows}", "--max-turns=1", f"--out={tmp_path / 's'}", capsys=capsys)


def test_help_shows_examples_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from workloads.cli import main\n"
        "heavy = {'pyarrow', 'numpy', 'jinja2', 'tokenizers', 'rich', 'datasets', 'huggingface_hub'}\n"
        "try: main(['--help'])\n"
        "finally: print(sorted(heavy & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "prepare source=openhands path=rows.parquet model=models/qwen3 max_sessions=50" in done.stdout
    assert "  mooncake          " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120
    assert done.stderr == "[]\n"


def test_who_stops_reading_hears_nothing() -> None:
    command = [sys.executable, "-m", "workloads.cli", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE
