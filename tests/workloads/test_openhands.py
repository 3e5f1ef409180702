import json
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import containers, openhands, pairing
from workloads.formats.chat import NOT_TEXT, NULL_CONTENT
from workloads.session import WorkloadError

TOOL = {
    "type": "function",
    "function": {
        "name": "execute_bash",
        "description": None,
        "parameters": {
            "properties": {"command": {"type": "string", "enum": None}, "insert_line": None},
            "type": "object",
        },
    },
}


def call(call_id: str, arguments: str = '{"command":"ls"}') -> dict[str, Any]:
    return {
        "function": {"arguments": arguments, "name": "execute_bash"},
        "id": call_id,
        "index": None,
        "type": "function",
    }


def message(role: str, content: Any = "", *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "content": content,
        "name": None,
        "role": role,
        "tool_call_id": None,
        "tool_calls": list(calls) or None,
    } | fields


def row(*messages: dict[str, Any], key: str = "messages", **fields: Any) -> dict[str, Any]:
    return {"instance_id": "a__b-7", "run_id": "run_1", key: list(messages), "tools": [TOOL], **fields}


def loaded(folder: Path, *messages: dict[str, Any]) -> Conversation:
    path = folder / "row.json"
    path.write_text(json.dumps(row(*messages)))
    (conversation,) = openhands.load(path)
    return conversation


# Counted in the files: rows, assistant turns, tool schemas a row.
REAL = {
    "openhands_chat_swegym/row0_python__mypy-15976_0.json": (1, 17, 3),
    "openhands_chat_swegym/row2_Project-MONAI__MONAI-6849_1.json": (1, 12, 3),
    "openhands_chat_swegym/row4_Project-MONAI__MONAI-3715_4.json": (1, 30, 3),
    "nebius_openhands/real_row_EXCERPT_tianocore-372.json": (1, 4, 5),
    "nebius_openhands/rows_3_DERIVED.jsonl": (3, 59, 5),
    "nebius_openhands/trajectories_DERIVED.parquet": (3, 59, 5),
}


@pytest.mark.parametrize("name", REAL)
def test_real_rows_give_every_assistant_message_as_a_turn_and_answer_every_call_but_the_last(
    shared: Path, name: str
) -> None:
    conversations = list(openhands.load(shared / "data" / name))
    turns = sum(one.origin == "model" for conversation in conversations for one in conversation.messages)
    assert (len(conversations), turns, len(conversations[0].tools)) == REAL[name]
    for conversation in conversations:
        assert pairing.UNPAIRED not in conversation.losses
        calls = sum(len(one.tool_calls) for one in conversation.messages)
        assert calls - 1 == sum(one.role == "tool" for one in conversation.messages)
        assert all(one.name for one in conversation.messages if one.role == "tool")


def test_real_parquet_and_jsonl_rows_of_the_same_runs_are_the_same_conversations(shared: Path) -> None:
    folder = shared / "data/nebius_openhands"
    assert list(openhands.load(folder / "trajectories_DERIVED.parquet")) == list(
        openhands.load(folder / "rows_3_DERIVED.jsonl")
    )


def test_real_tools_without_their_padding_are_the_tools_that_openhands_sent(shared: Path) -> None:
    folder = shared / "data/nebius_openhands"
    conversation = next(openhands.load(folder / "trajectories_DERIVED.parquet"))
    assert list(conversation.tools) == json.loads((folder / "tools_unpadded_DERIVED.json").read_text())


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nebius_openhands/tools_unpadded_DERIVED.json", "tool schemas"),
        ("openhands_events/multi_swe_bench_output_a.jsonl", r"OpenHands evaluation output"),
        ("sweagent_nebius/rows_3.jsonl", "SWE-agent trajectories"),
        ("tau2/retail_gpt-4.1-mini_1sim.json", r"tau2-bench results \(format tau2\)"),
        ("weka_kvcache/trace_0242.json", "a trace of block hashes without text"),
        ("claude_code/session_b.jsonl", "a Claude Code session"),
    ],
)
def test_real_files_of_other_formats_are_refused_by_their_name(shared: Path, name: str, what: str) -> None:
    with pytest.raises(WorkloadError, match=f"not an OpenHands chat row but {what}"):
        list(openhands.load(shared / "data" / name))


def test_a_real_empty_file_is_refused(shared: Path) -> None:
    (empty,) = (file for file in (shared / "data/lmcache_agent_trace").iterdir() if file.stat().st_size == 0)
    with pytest.raises(WorkloadError, match="the file is empty"):
        list(openhands.load(empty))


def test_null_padding_goes_from_tools_however_deep(tmp_path: Path) -> None:
    (tool,) = loaded(tmp_path, message("user", "fix"), message("assistant", "done")).tools
    assert tool["function"] == {
        "name": "execute_bash",
        "parameters": {"properties": {"command": {"type": "string"}}, "type": "object"},
    }


def test_argument_text_is_kept_even_where_it_is_no_object(tmp_path: Path) -> None:
    texts = ['{"command":"view",  "n":1}', "not json", ""]
    calls = [call(f"c{number}", text) for number, text in enumerate(texts)]
    assert [
        one.arguments for one in loaded(tmp_path, message("assistant", "", *calls)).messages[0].tool_calls
    ] == texts


def test_text_keeps_its_whitespace_and_line_ends(tmp_path: Path) -> None:
    assert loaded(tmp_path, message("assistant", "\n a\r\n\n", call("c"))).messages[0].content == "\n a\r\n\n"


def test_results_of_parallel_calls_name_the_call_they_answer(tmp_path: Path) -> None:
    second = message("tool", "2", tool_call_id="y")
    conversation = loaded(tmp_path, message("assistant", "", call("x"), call("y")), second, message("tool", "1"))
    assert [(one.tool_call_id, one.name) for one in conversation.messages[1:]] == [
        ("y", "execute_bash"),
        ("x", "execute_bash"),
    ]
    assert conversation.losses == {pairing.BY_POSITION: 1}


def test_a_call_id_used_twice_answers_the_nearest_call_and_stays_as_recorded(tmp_path: Path) -> None:
    turn = (message("assistant", "", call("same")), message("tool", "out", tool_call_id="same"))
    conversation = loaded(tmp_path, *turn, *turn)
    assert [one.tool_call_id for one in conversation.messages if one.role == "tool"] == ["same", "same"]
    assert conversation.losses == {}


def test_results_that_answer_nothing_stay_in_the_prompt_and_are_counted(tmp_path: Path) -> None:
    stray = message("tool", "out", tool_call_id="z")
    conversation = loaded(tmp_path, message("assistant", "hello"), stray, message("assistant", "", call("y")), stray)
    assert conversation.losses == {pairing.UNPAIRED: 2}
    assert len(conversation.messages) == 4


def test_null_content_and_parts_that_are_no_text_are_counted(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "b"}]
    conversation = loaded(tmp_path, message("user", parts), message("assistant", None, call("c")))
    assert conversation.messages[0].content == "ab"
    assert conversation.losses == {NOT_TEXT: 1, NULL_CONTENT: 1}


def test_numbered_runs_of_a_task_share_the_task(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    answered = message("assistant", "done")
    path.write_text("\n".join(json.dumps(row(answered, instance_id=f"a__b-7{end}")) for end in ("", "_0", "_1")))
    conversations = list(openhands.load(path))
    assert {one.task_id for one in conversations} == {"a__b-7"}
    assert len({one.conversation_id for one in conversations}) == 3


@pytest.mark.parametrize("name", ["one.json", "list.json", "lines.json", "lines.jsonl", "rows.parquet"])
def test_every_container_holds_the_same_rows(tmp_path: Path, name: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        row(message("user", "fix"), message("assistant", str(number))) for number in range(1 if "one" in name else 20)
    ]
    path = tmp_path / name
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif "lines" in name:
        path.write_text(
            "\n\n".join(json.dumps(one) for one in rows) if "jsonl" in name else "\n".join(map(json.dumps, rows))
        )
    else:
        path.write_text(json.dumps(rows[0] if "one" in name else rows, indent=1))
    assert [one.messages[1].content for one in openhands.load(path)] == [str(number) for number in range(len(rows))]


def test_a_folder_gives_the_rows_of_its_files_in_order_of_name(tmp_path: Path) -> None:
    for name in ("b.json", "a.json"):
        (tmp_path / name).write_text(json.dumps(row(message("assistant", name))))
    (tmp_path / "README.md").write_text("not a row")
    assert [one.messages[0].content for one in openhands.load(tmp_path)] == ["a.json", "b.json"]


def test_an_empty_run_gives_a_conversation_without_messages(tmp_path: Path) -> None:
    assert loaded(tmp_path).messages == ()


GOOD = json.dumps(row(message("assistant", "done")))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("rows.jsonl", "", "the file is empty"),
        ("rows.jsonl", "\n \n", "the file is empty"),
        ("rows.jsonl", f"{GOOD}\n{GOOD[:-5]}\n", "broken JSON at line 2"),
        ("rows.json", f"{GOOD}\n{GOOD[:-5]}\n", "broken JSON at line 2"),
        ("row.json", GOOD[:-5], "broken JSON at line 1"),
        ("rows.jsonl", f"{GOOD}\n7\n", "line 2: expected a JSON object, found a number"),
        ("rows.json", "[]", "no rows"),
        ("rows.parquet", "PAR1 no more", "not a readable Parquet file"),
        ("rows.parquet", "", "the file is empty"),
        ("rows.json", json.dumps(row(message("ai", "hi"))), "message 1: unknown role 'ai'; known are system, user"),
        ("rows.json", json.dumps(row(message("user", 5))), "message 1: content must be text or a list of parts"),
        ("rows.json", json.dumps(row(message("assistant", "", {"id": "c"}))), "tool call 1: has no function name"),
        ("rows.json", json.dumps({"messages": "x", "a": 1}), "not an OpenHands chat row but an object with the keys"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    tmp_path: Path, name: str, content: str, expected: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(WorkloadError, match=expected) as caught:
        list(openhands.load(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_broken_files_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"nowhere: no such file or folder; check the path"):
        list(openhands.load(tmp_path / "nowhere"))
    with pytest.raises(WorkloadError, match=r"the folder holds no \.json"):
        list(openhands.load(tmp_path))
    (tmp_path / "rows.json").write_bytes(b"\x1f\x8b\x08 compressed")
    with pytest.raises(WorkloadError, match="broken gzip data"):
        list(openhands.load(tmp_path))


def test_parquet_is_read_in_batches_of_a_few_rows(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    text = "x" * 100_000
    rows = [row(message("assistant", f"{number}{text}")) for number in range(200)]
    pq.write_table(
        pa.Table.from_pylist(rows),
        path,
        row_group_size=len(rows),
        compression="none",
        use_dictionary=False,
        write_batch_size=8,
    )
    del rows
    before = pa.total_allocated_bytes()
    peak = 0
    for _ in containers.rows(path, columns=openhands.COLUMNS):
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < path.stat().st_size / 3, f"{peak:,} bytes held of {path.stat().st_size:,}"
