import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.detect import detect
from workloads.formats import registry
from workloads.load import load
from workloads.sample_paths import CONVERSATIONS, TOKENIZER
from workloads.session import WorkloadError
from workloads.settings import WorkloadSettings

CHAT_ROW = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
OPENHANDS_ROW = CHAT_ROW | {"instance_id": "a__b-7", "tools": []}
TAU2 = {"info": {"environment_info": {"domain_name": "mock"}}, "simulations": []}

EXPECTED = {
    "agentinstruct/os_hf_shape_DERIVED_3.jsonl": "agentinstruct",
    "agentinstruct/os_role_content_3.json": "agentinstruct",
    "claude_code/edge_cases.jsonl": "claude_code",
    "claude_code/sample_session.json": "claude_code",
    "inspect_ai/log_images_tc.json": "inspect_log",
    "inspect_ai/log_streaming.eval": "inspect_log",
    "lmcache_agent_trace/miniswe__189f0222310bd8eee310f204e91b9c84.jsonl": "lmcache",
    "mini_swe_agent/github_issue.traj.json": "mini_swe_agent",
    "mini_swe_agent/mini-coder_row.json": "mini_swe_agent",
    "mooncake/conversation_first300.jsonl": "mooncake",
    "nebius_openhands/rows_3_DERIVED.jsonl": "openhands",
    "nebius_openhands/trajectories_DERIVED.parquet": "openhands",
    "openai_vcr/test_chat_completion_tool_calls_with_content.yaml": "vcr",
    "openhands_chat_swegym/row0_python__mypy-15976_0.json": "openhands",
    "openhands_events/multi_swe_bench_output_a.jsonl": "openhands_events",
    "openhands_events/traj_basic.json": "openhands_events",
    "otel_genai/simple_chain.json": "otel",
    "sweagent_nebius/rows_3.jsonl": "swe_agent",
    "sweagent_traj/function_calling_simple.traj": "swe_agent",
    "sweplay_openhands_text/rows_2.jsonl": "openhands_text",
    "swesmith_openhands_text/rows_3.jsonl": "openhands_text",
    "tau1/gpt-4o-airline_12.json": "tau1",
    "tau2/telecom-workflow_grok-3.json": "tau2",
    "weka_kvcache/trace_0110.json": "weka",
    "mooncake": "mooncake",
    "sweagent_traj": "swe_agent",
    "tau2": "tau2",
}


def written(path: Path, *values: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, values)))
    return path


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_a_real_recording_is_told_from_what_it_holds(shared: Path, name: str, expected: str) -> None:
    assert detect(shared / "data" / name) == expected


def test_our_own_conversations_are_told_by_file_and_by_folder() -> None:
    assert detect(CONVERSATIONS / "repair_coltable.json") == "conversation"
    assert detect(CONVERSATIONS) == "conversation"


def test_neither_name_nor_compression_matters(tmp_path: Path) -> None:
    (tmp_path / "anything.bin").write_bytes(gzip.compress(json.dumps(TAU2).encode()))
    assert detect(tmp_path / "anything.bin") == "tau2"


def test_the_folder_form_of_tau2_is_told_by_its_results(tmp_path: Path) -> None:
    written(tmp_path / "results.json", {"info": {}, "simulation_index": []})
    (tmp_path / "simulations").mkdir()
    written(tmp_path / "simulations/1.json", {"task_id": "1", "messages": []})
    assert detect(tmp_path) == "tau2"


def test_a_folder_of_two_formats_is_ambiguous_and_both_are_named(tmp_path: Path) -> None:
    written(tmp_path / "a.json", TAU2)
    written(tmp_path / "b.jsonl", OPENHANDS_ROW)
    with pytest.raises(
        WorkloadError,
        match=r"could be openhands \(b\.jsonl\) and tau2 \(a\.json\); say which with source=openhands or source=tau2"
        r"|could be tau2 \(a\.json\) and openhands \(b\.jsonl\); say which with source=tau2 or source=openhands",
    ):
        detect(tmp_path)


@pytest.mark.parametrize(
    ("content", "likeness"),
    [
        ("# Notes\n", r'text that begins with "# Notes'),
        ('{"colour": "red", "size": 3}', r"an object with the keys colour, size"),
        ("[3, 4]", r"a list of a number"),
        ('{"policy": "", "agent_tools": []}', r"a tau2 domain"),
    ],
)
def test_what_is_unknown_is_described(tmp_path: Path, content: str, likeness: str) -> None:
    path = tmp_path / "file.json" if content[0] in "{[" else tmp_path / "file.md"
    path.write_text(content)
    with pytest.raises(WorkloadError, match=rf"of no format known here, it looks like {likeness}.*source=<format>"):
        detect(path)


def test_an_unknown_archive_is_described(tmp_path: Path) -> None:
    path = tmp_path / "thing.docx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "")
    with pytest.raises(WorkloadError, match=r"it looks like an archive with word/document\.xml"):
        detect(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"", r"a\.json: the file is empty"),
        ("a.json", b'{"info": ', r"a\.json: broken JSON at line 1"),
        ("a.jsonl", b'{"info": \n{}', r"a\.jsonl: broken JSON at line 1"),
        ("a.jsonl.gz", gzip.compress(b"{}\n")[:-9], r"a\.jsonl\.gz: broken gzip data"),
        ("a.zip", b"PK\x03\x04", r"a\.zip: not a whole archive"),
    ],
)
def test_a_broken_file_is_said_to_be_broken(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WorkloadError, match=message):
        detect(tmp_path / name)


def test_a_path_that_is_not_there_says_what_else_it_could_be(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"nowhere: no such file or folder.*nebius/SWE-rebench.*owner/name@"):
        detect(tmp_path / "nowhere")
    with pytest.raises(WorkloadError, match=r"the folder holds no \.json, .*\.eval file with anything in it"):
        detect(tmp_path)


def test_a_workload_without_a_format_is_detected(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", OPENHANDS_ROW)
    workload = load(WorkloadSettings(name="auto", format="auto", path=str(path)), TOKENIZER)
    assert [(session.source, len(session.turns)) for session in workload.sessions] == [("openhands", 1)]


def test_a_zip_is_detected_by_what_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rows.jsonl", json.dumps(OPENHANDS_ROW))
        archive.writestr("more.jsonl", json.dumps(CHAT_ROW | {"run_id": "a", "tools": []}))
    workload = load(WorkloadSettings(name="auto", format="auto", path=str(path)), TOKENIZER)
    assert [session.source for session in workload.sessions] == ["openhands", "openhands"]
    assert workload.sessions[0].session_id == f"{path}/more.jsonl, line 1/a", "not the place it was unpacked to"


KEYS = (
    *("messages", "history", "trajectory", "info", "simulations", "spans", "requests", "block_size", "type", "role"),
    *("content", "tools", "traj", "conversations", "loglines", "steps", "samples", "eval", "input", "output"),
    *("timestamp", "session_id", "instance_id", "schema_version", "interactions", "request", "response"),
    *("model_path", "task_name", "message", "uuid"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=6)
    ),
    max_leaves=20,
)


@given(head=json_values | st.tuples(st.just("archive"), st.text()))
def test_any_value_at_all_can_be_asked_about(head: Any) -> None:
    for one in registry.matching(head):
        assert one.name in registry.NAMES
