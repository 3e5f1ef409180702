"""One run on the fake engine: retries, restarts, refusals, a full disk."""

import io
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.base import EngineError
from engines.forcing.self_test import probes
from engines.settings import EngineSettings
from replay.inputs import fits_context, fits_vocabulary
from replay.model import Model, ModelSettings
from replay.progress import Progress
from replay.record import RecordError, read_result, read_turns
from replay.run import Run, execute
from workloads.load import Workload
from workloads.sample_paths import TOKENIZER
from workloads.session import Session, Turn, WorkloadError
from workloads.settings import WorkloadSettings

COMMAND = "{python} -m engines.fake --port {port} --prefill-ms 0 --prefill-ms-per-token 0 --decode-ms 0"
FAKE = EngineSettings(
    name="fake", label="Fake", dialect="ostinato", forcing="field", model_format="none", command=COMMAND.split()
)


FIRST_TURN = len(list(probes(4096))) + 3
"""Which completion of a started engine is its first measured turn; self-test, warm-up and another come before."""


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Path]:
    """Replay three sessions of three turns; return the run folder."""

    def run(*faults: str, **changes: Any) -> Path:
        command = [*FAKE.command, *(f"--fault={fault}" for fault in faults)]
        asked = Run(
            engine=replace(FAKE, command=command),
            workload=WorkloadSettings(name="synthetic", format="synthetic", sessions=3, turns=3),
            model=ModelSettings(name="none"),
            folder=tmp_path,
        )
        execute(replace(asked, **changes), Progress(io.StringIO()))
        return tmp_path

    return run


def test_a_failed_session_is_tried_again_from_its_first_turn(start: Callable[..., Path]) -> None:
    folder = start(f"error_event:{FIRST_TURN + 4}")
    turns = list(read_turns(folder))
    (failed,) = [turn for turn in turns if turn.status != "ok"]
    assert failed.status == "error_event"
    assert "caught fire" in (failed.error or "")
    again = [turn.turn for turn in turns if turn.session_id == failed.session_id and turn.attempt == 1]
    assert again == [0, 1, 2]
    result = read_result(folder)
    assert set(result["sessions"].values()) == {"complete"}
    assert {check["name"]: check["ok"] for check in result["validity"]}["tokens verified"]


def test_stop_ends_the_run_at_the_first_session_that_fails(start: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"session .*, turn \d: .*caught fire"):
        start(f"http_500:{FIRST_TURN + 4}", retries=0, on_failure="stop")
    result = read_result(tmp_path)
    assert result["status"] == "failed"
    assert list(result["sessions"].values())[-1] == "failed"


def test_an_engine_that_dies_is_started_again(start: Callable[..., Path]) -> None:
    folder = start(f"die:{FIRST_TURN + 4}")
    assert set(read_result(folder)["sessions"].values()) == {"complete"}
    assert [turn.status for turn in read_turns(folder) if turn.status != "ok"] != []


def test_an_engine_that_dies_again_and_again_is_given_up(start: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="the engine died 3 times in a row"):
        start(f"die:{FIRST_TURN}")
    assert read_result(tmp_path)["status"] == "failed"


def test_a_run_without_one_complete_session_has_failed(start: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="every session failed"):
        start(*[f"http_500:{n}" for n in range(FIRST_TURN, FIRST_TURN + 12)], retries=0)
    assert read_result(tmp_path)["status"] == "failed"


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files of this process can't grow beyond ``size`` bytes, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_named_and_leaves_whole_records(start: Callable[..., Path], tmp_path: Path) -> None:
    with room_for(6000), pytest.raises(RecordError, match=r"turns\.jsonl: .*; free some space"):
        start()
    turns = (tmp_path / "turns.jsonl").read_bytes()
    assert turns.endswith(b"\n")
    assert 1 <= len(list(read_turns(tmp_path))) < 9


def workload(**changes: Any) -> dict[str, WorkloadSettings]:
    return {"workload": replace(WorkloadSettings(name="w", format="tau2"), **changes)}


def engine(**changes: Any) -> dict[str, EngineSettings]:
    return {"engine": replace(FAKE, **changes)}


BAD = {
    "a missing file": (workload(path="nowhere.json"), "nowhere.json"),
    "an empty file": (workload(path="empty.json"), "empty.json"),
    "an empty session file": (workload(format="sessions", path="empty.json"), "empty.json"),
    "broken JSON": (workload(format="openhands", path="broken.jsonl"), r"broken\.jsonl.*2"),
    "an unknown role": (workload(format="openhands", path="role.jsonl"), "wizard"),
    "no model turn": (workload(format="openhands", path="silent.jsonl"), "silent.jsonl"),
    "an unknown dialect": (engine(dialect="klingon"), r"engine\.dialect"),
    "an unknown forcing": (engine(forcing="wish"), r"engine\.forcing"),
    "an unknown launch": (engine(launch="rocket"), "set process, container or attach"),
    "attach without a url": (engine(launch="attach"), r"engine\.url"),
    "attach to nothing": (engine(launch="attach", url="http://127.0.0.1:9"), "nothing answers at .*:9"),
    "a missing binary": (engine(command=["/no/such/server"]), "/no/such/server"),
    "a binary that can't be run": (engine(command=["./empty.json"]), "empty.json"),
    "an engine that never gets healthy": (engine(health="/nope", start_timeout_s=0.6), r"engine\.start_timeout_s"),
    "a context that is too small": (engine(context=10), r"set engine\.context="),
    "a missing model": ({"model": ModelSettings(name="m", path="nowhere")}, r"model\.path"),
    "a vocabulary that is too small": (
        {"model": ModelSettings(name="m", path="small", tokenizer=str(TOKENIZER))},
        r"token id .* model\.tokenizer",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD)
def test_it_says_what_to_correct_and_records_nothing(
    start: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text('{"vocab_size": 100}')
    (tmp_path / "empty.json").touch()
    user = '{"role": "user", "content": "hi"}'
    answer = '{"role": "assistant", "content": "hello"}'
    (tmp_path / "broken.jsonl").write_text(f'{{"messages": [{user}, {answer}]}}\n{{"messages": [\n')
    (tmp_path / "role.jsonl").write_text('{"messages": [{"role": "wizard", "content": "hi"}]}\n')
    (tmp_path / "silent.jsonl").write_text(f'{{"messages": [{user}]}}\n')
    with pytest.raises((EngineError, WorkloadError), match=message):
        start(**changes)
    assert not (tmp_path / "turns.jsonl").exists() or not (tmp_path / "turns.jsonl").read_bytes()
    assert read_result(tmp_path)["status"] == "failed"


def test_a_taken_port_is_named(start: Callable[..., Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=f"{port}.*engine.port"):
            start(**engine(port=port))


SESSION = Session(session_id="s1", source="test", turns=(Turn(kind="first", delta_ids=(1, 2, 3), output_ids=(9,)),))
WORKLOAD = Workload(name="w", sessions=(SESSION,), content_hash="0", losses={}, vocab_size=10)
MODEL = Model(name="m", hash=None, tokenizer=TOKENIZER, vocab_size=10, file=None)


def test_a_session_that_just_fits_the_context_is_taken() -> None:
    fits_context(WORKLOAD, replace(FAKE, context=4))
    with pytest.raises(EngineError, match=r"session s1 .* needs 4 tokens .* fake has 3; set engine\.context=4"):
        fits_context(WORKLOAD, replace(FAKE, context=3))


def test_ids_beyond_the_models_vocabulary_are_refused() -> None:
    fits_vocabulary(WORKLOAD, MODEL)
    fits_vocabulary(WORKLOAD, replace(MODEL, vocab_size=None))
    with pytest.raises(WorkloadError, match=r"token id 9, model m has 9 ids"):
        fits_vocabulary(WORKLOAD, replace(MODEL, vocab_size=9))
