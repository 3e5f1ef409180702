import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from workloads import store
from workloads.load import CUT, FORMATS, NO_MODEL_TURN, OTHER_TOKENIZER, load
from workloads.render import Renderer
from workloads.sample_paths import TOKENIZER
from workloads.session import Session, Turn, WorkloadError
from workloads.settings import WorkloadSettings
from workloads.vocabulary import plain_ids

CONF = Path(__file__).parents[2] / "conf/workload"


def wanted(kind: str, path: Path | None = None, **fields: Any) -> WorkloadSettings:
    return WorkloadSettings(name=kind, format=kind, path=None if path is None else str(path), **fields)


def chat_row(*contents: str) -> dict[str, Any]:
    """An OpenHands row in which a user and the model take turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    return {"instance_id": "a__b-7", "messages": messages, "tools": []}


def rows_file(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def session_file(folder: Path, *ids: int, tokenizer_hash: str = "another", vocab_size: int = 1 << 20) -> Path:
    turn = Turn(kind="first", delta_ids=ids, output_ids=ids)
    path = folder / "sessions.parquet"
    session = Session(session_id="s", source="made", turns=(turn,))
    store.write(path, [session], tokenizer_hash=tokenizer_hash, vocab_size=vocab_size)
    return path


def test_the_sample_is_four_recorded_and_four_synthetic_sessions() -> None:
    workload = load(wanted("sample"), TOKENIZER)
    assert [session.source == "synthetic" for session in workload.sessions] == [False] * 4 + [True] * 4
    assert {turn.kind for session in workload.sessions[:4] for turn in session.turns} == {"first", "tool", "user"}
    assert all(len(session.turns) >= 10 for session in workload.sessions)
    assert workload.losses == {}


def test_synthetic_sessions_hold_no_special_tokens() -> None:
    workload = load(wanted("synthetic", sessions=2, turns=3, seed=5), TOKENIZER)
    plain = plain_ids(TOKENIZER, workload.vocab_size)
    assert len(workload.sessions) == 2
    for session in workload.sessions:
        assert len(session.turns) == 3
        assert all(one in plain for turn in session.turns for one in turn.delta_ids + turn.output_ids)


def test_real_tau2_results_become_sessions_with_every_turn(shared: Path) -> None:
    path = shared / "data/tau2/telecom-workflow_grok-3.json"
    workload = load(wanted("tau2", path, domain=str(shared / "data/tau2_domains")), TOKENIZER)
    assert (len(workload.sessions), sum(len(session.turns) for session in workload.sessions)) == (20, 291)
    assert sorted(workload.losses.values()) == [148, 148]
    waits = [turn.tool_wait_s for session in workload.sessions for turn in session.turns[1:]]
    assert all(wait is not None and wait >= 0 for wait in waits)


def test_real_openhands_rows_become_sessions_with_every_turn(shared: Path) -> None:
    workload = load(wanted("openhands", shared / "data/nebius_openhands/trajectories_DERIVED.parquet"), TOKENIZER)
    assert [len(session.turns) for session in workload.sessions] == [17, 12, 30]
    decoded = Renderer(TOKENIZER).decode(workload.sessions[0].turns[0].output_ids)
    assert '{"command":"view","path":"/workspace/python__mypy__1.6","view_range":[0,-1]}' in decoded


def test_a_prepared_file_loads_as_the_sessions_that_were_prepared(tmp_path: Path) -> None:
    direct = load(wanted("synthetic"), TOKENIZER)
    path = tmp_path / "sessions.parquet"
    tokenizer_hash = Renderer(TOKENIZER).tokenizer_hash
    store.write(path, direct.sessions, tokenizer_hash=tokenizer_hash, vocab_size=direct.vocab_size)
    again = load(wanted("sessions", path), TOKENIZER)
    assert (again.sessions, again.content_hash, again.losses) == (direct.sessions, direct.content_hash, {})


def test_a_file_of_another_tokenizer_is_said_to_be_one(tmp_path: Path) -> None:
    workload = load(wanted("sessions", session_file(tmp_path, 20, 21)), TOKENIZER)
    assert workload.losses == {OTHER_TOKENIZER: 1}


def test_ids_outside_the_tokenizers_vocabulary_are_refused(tmp_path: Path) -> None:
    path = session_file(tmp_path, 20, 500_000)
    with pytest.raises(WorkloadError, match=r"session s, turn 0 holds token id 500000, beyond the 4,096 ids of"):
        load(wanted("sessions", path), TOKENIZER)


def test_only_the_first_sessions_and_turns_are_kept_when_asked(tmp_path: Path) -> None:
    settings = wanted("openhands", rows_file(tmp_path, *[chat_row("a", "b", "c", "d", "e", "f")] * 4))
    whole = load(settings, TOKENIZER)
    cut = load(replace(settings, max_sessions=2, max_turns=1), TOKENIZER)
    assert [session.turns for session in cut.sessions] == [session.turns[:1] for session in whole.sessions[:2]]
    assert cut.losses == {CUT: 4}
    assert cut.content_hash != whole.content_hash


def test_sessions_of_one_name_are_told_apart(tmp_path: Path) -> None:
    workload = load(wanted("openhands", rows_file(tmp_path, *[chat_row("a", "b")] * 3)), TOKENIZER)
    assert [session.session_id for session in workload.sessions] == ["a__b-7", "a__b-7~2", "a__b-7~3"]


def test_sessions_without_a_model_turn_are_dropped_and_counted(tmp_path: Path) -> None:
    workload = load(
        wanted("openhands", rows_file(tmp_path, chat_row("a"), chat_row("a", "b"), chat_row())), TOKENIZER
    )
    assert len(workload.sessions) == 1
    assert workload.losses == {f"sessions dropped: {NO_MODEL_TURN}": 2}


def test_a_file_without_any_model_turn_is_refused(tmp_path: Path) -> None:
    path = rows_file(tmp_path, chat_row("a"))
    with pytest.raises(WorkloadError, match=r"rows\.jsonl: no session with a model turn in it"):
        load(wanted("openhands", path), TOKENIZER)


def test_progress_hears_of_each_session(tmp_path: Path) -> None:
    heard: list[Session] = []
    workload = load(wanted("synthetic", sessions=3), TOKENIZER, progress=heard.append)
    assert tuple(heard) == workload.sessions


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (wanted("swebench"), r"workload\.format='swebench' is unknown; known are sample, sessions, synthetic, auto"),
        (wanted("tau2"), r"workload\.path is not set; name a file or folder of format tau2"),
        (wanted("sessions"), r"workload\.path is not set"),
        (wanted("synthetic", max_sessions=0), r"workload\.max_sessions=0: set it to 1 or more, or to null for all"),
        (wanted("synthetic", max_turns=-2), r"workload\.max_turns=-2: set it to 1 or more, or to null for all"),
        (wanted("tau2", Path("nowhere.json")), r"nowhere\.json: no such file"),
        (wanted("sessions", Path("nowhere.parquet")), r"nowhere\.parquet: no such file"),
    ],
)
def test_unusable_settings_are_named(settings: WorkloadSettings, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load(settings, TOKENIZER)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=str(tmp_path)):
        load(wanted("synthetic"), tmp_path)
    with pytest.raises(WorkloadError, match=r"holds no tokenizer\.json"):
        plain_ids(tmp_path, 10)


def test_plain_ids_are_the_longest_run_without_an_added_token(tmp_path: Path) -> None:
    added = [{"id": one} for one in (0, 1, 7, 99)]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert plain_ids(tmp_path, 10) == range(2, 7)


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_workload_file_lists_every_setting_with_its_default(path: Path) -> None:
    listed = OmegaConf.load(path)
    settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(WorkloadSettings), listed))
    assert isinstance(settings, WorkloadSettings)
    assert set(listed) == {field.name for field in fields(WorkloadSettings)}
    preset = path.stem.removeprefix("synthetic_") if path.stem.startswith("synthetic_") else None
    kind = "synthetic" if preset else path.stem
    assert settings == WorkloadSettings(name=path.stem, format=kind, preset=preset)
    assert settings.format in FORMATS
