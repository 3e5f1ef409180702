"""Every file beside the checkout's real recordings, read and rendered or refused: ``pytest -s`` prints the table."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from workloads.detect import detect
from workloads.formats import registry
from workloads.load import load
from workloads.render import Renderer
from workloads.rendering import rendered
from workloads.sample_paths import TOKENIZER
from workloads.session import WorkloadError
from workloads.settings import WorkloadSettings
from workloads.vocabulary import plain_ids

# format, sessions, model turns, given items; of a trace without text: sessions and turns.
LOADED: dict[str, tuple[str, int, int, int | None]] = {
    "agentinstruct/db_hf_shape_DERIVED_3.jsonl": ("agentinstruct", 3, 6, 6),
    "nebius_openhands/real_row_EXCERPT_tianocore-372.json": ("openhands", 1, 4, 5),
    "nebius_openhands/rows_3_DERIVED.jsonl": ("openhands", 3, 59, 69),
    "nebius_openhands/trajectories_DERIVED.parquet": ("openhands", 3, 59, 69),
    "openhands_chat_swegym/row0_python__mypy-15976_0.json": ("openhands", 1, 17, 24),
    "openhands_chat_swegym/row2_Project-MONAI__MONAI-6849_1.json": ("openhands", 1, 12, 14),
    "openhands_chat_swegym/row4_Project-MONAI__MONAI-3715_4.json": ("openhands", 1, 30, 31),
    "sweagent_nebius/rows_3.jsonl": ("swe_agent", 3, 25, 28),
    "tau2/airline-relaxed_grok-3-mini_4trials.json": ("tau2", 4, 39, 51),
    "tau2/airline_gpt-4.1-mini_5sims.json": ("tau2", 5, 43, 62),
    "tau2/mock_gpt-4.1-mini_1sim.json": ("tau2", 1, 3, 6),
    "tau2/mock_max_steps_1sim.json": ("tau2", 1, 1, 4),
    "tau2/retail_gpt-4.1-mini_1sim.json": ("tau2", 1, 9, 12),
    "tau2/telecom-workflow_grok-3.json": ("tau2", 20, 291, 351),
    "tau2/telecom_gpt-4.1-mini_1sim.json": ("tau2", 1, 9, 12),
}
"""Counted by hand or by another program; the other files have their counts in their formats' tests."""

REFUSED = {
    "lmcache_agent_trace/taubench__24c817382a29e399b7dac064b923c268.jsonl": "no call with an output of the agent",
    "lmcache_agent_trace/taubench__9028da139d6eb51d381b591ee2b75138.jsonl": "no call with an output of the agent",
    "lmcache_agent_trace/taubench__c2fb7e25a81892b9728c45d352b2e750.jsonl": "no call with an output of the agent",
    "lmcache_agent_trace/taubench__ea09a0dc475dbe00b56101ef665b8c03.jsonl": "the file is empty",
    "misc_chat/toucan_kimi_system_tooldeclare.json": "it looks like a list of an object with the keys id, uuid",
    "nebius_openhands/tools_unpadded_DERIVED.json": "it looks like a list of tool schemas",
    "openai_vcr/test_chat_completion_404.yaml": "holds no answered chat completion",
    "tau1/retail_few_shot_10.jsonl": "messages_display is one text for the whole chat",
}
NO_RECORDINGS = ("*.md", "chat_templates/*", "tau2_domains/*")
HIDDEN_FROM_THE_AGENT = {
    "user messages with tool calls, which the agent never saw": 148,
    "results of the user's own tools, which the agent never saw": 148,
}


@dataclass(slots=True)
class Row:
    format: str = ""
    sessions: int = 0
    kept: int = 0
    turns: int = 0
    given: int | None = 0
    dropped: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    refused: str = ""


def read(path: Path, renderer: Renderer) -> Row:
    row = Row()
    try:
        row.format = detect(path)
        recorded = registry.named(row.format)
        if recorded.is_trace:
            ids = plain_ids(TOKENIZER, renderer.vocab_size)
            row.given = None
            for session in recorded.sessions(path, vocab=ids, seed=0, block_size=None, losses=row.losses):
                row.sessions, row.kept, row.turns = row.sessions + 1, row.kept + 1, row.turns + len(session.turns)
            return row
        for conversation, outcome in rendered(recorded.load(path), lambda: renderer, renderer=renderer):
            model = sum(message.origin == "model" for message in conversation.messages)
            row.sessions, row.turns = row.sessions + 1, row.turns + model
            row.given = (row.given or 0) + len(conversation.messages) - model
            row.losses.update(conversation.losses)
            if outcome is None:
                row.dropped["the model never answers"] += 1
            elif isinstance(outcome, WorkloadError):
                row.dropped[str(outcome)] += 1
            else:
                row.kept += 1
                assert len(outcome.session.turns) == model, path
    except WorkloadError as error:
        row.refused = str(error)
    return row


@pytest.fixture(scope="module")
def table(shared: Path) -> dict[str, Row]:
    data, renderer = shared / "data", Renderer(TOKENIZER, allow_template_loss=True)
    found = sorted(path for path in data.rglob("*") if path.is_file())
    rows = {str(path.relative_to(data)): read(path, renderer) for path in found}
    print()
    for line in _lines(rows):
        print(line)
    return rows


def _lines(rows: dict[str, Row]) -> Iterator[str]:
    yield f"{'file':60} {'format':16} {'sessions':>8} {'kept':>5} {'turns':>6} {'given':>6}  dropped, or why refused"
    for name, row in rows.items():
        given = "" if row.given is None else f"{row.given}"
        why = row.refused.split(": ", 1)[-1] or "; ".join(f"{count} {what}" for what, count in row.dropped.items())
        yield f"{name[-60:]:60} {row.format:16} {row.sessions:>8} {row.kept:>5} {row.turns:>6} {given:>6}  {why[:90]}"


def is_recording(name: str) -> bool:
    return not any(Path(name).match(pattern) for pattern in NO_RECORDINGS)


def test_every_recording_loads_or_is_refused_for_a_stated_reason(table: dict[str, Row], shared: Path) -> None:
    for name, row in table.items():
        if row.refused:
            assert row.refused.startswith(str(shared / "data" / name)), "the message names the file"
            assert not is_recording(name) or REFUSED[name] in row.refused
        else:
            assert is_recording(name)
            assert row.sessions > 0
            assert row.turns > 0 or row.dropped
            assert row.sessions == row.kept + row.dropped.total(), "read is kept and dropped"
    assert {name for name, row in table.items() if row.refused and is_recording(name)} == set(REFUSED)


def test_what_was_counted_is_what_is_read(table: dict[str, Row]) -> None:
    for name, expected in LOADED.items():
        row = table[name]
        assert (row.format, row.sessions, row.turns, row.given) == expected, name


def test_telecom_workflow_has_291_forced_turns_and_hides_the_users_side(table: dict[str, Row]) -> None:
    losses = table["tau2/telecom-workflow_grok-3.json"].losses
    assert {reason: losses[reason] for reason in HIDDEN_FROM_THE_AGENT} == HIDDEN_FROM_THE_AGENT


def test_hardly_a_session_is_lost_on_the_bundled_template(table: dict[str, Row]) -> None:
    dropped = {name: dict(row.dropped) for name, row in table.items() if row.dropped}
    assert dropped == {"inspect_ai/log_tool_call_error.json": {"the model never answers": 1}}


@pytest.mark.parametrize("folder", ["tau2", "sweagent_traj", "otel_genai", "sweplay_openhands_text"])
def test_a_folder_of_recordings_is_read_as_one_workload(shared: Path, folder: str, table: dict[str, Row]) -> None:
    wanted = sum(row.kept for name, row in table.items() if name.startswith(f"{folder}/"))
    path = shared / "data" / folder
    settings = WorkloadSettings(name="auto", format="auto", path=str(path), max_turns=1, allow_template_loss=True)
    assert len(load(settings, TOKENIZER).sessions) == wanted
