"""What the page's drill-down holds: every turn of every session as the records have it."""

import base64
import gzip
from typing import Any

import orjson
import pytest

from analysis import wording
from analysis.page.turns import packed, session_rows, turn_data
from analysis.summary import Summary, summarise

COLOURS = {"llamacpp": "#0072B2", "ostinato": "#D55E00"}


@pytest.fixture
def summary(world: Any, speed: Any, fail_turn: Any) -> Summary:
    """Three sessions of four turns; Ostinato fails in turn 2 of the last one."""
    speeds = {"llamacpp": speed(), "ostinato": speed(0.5)}
    return summarise(world(speeds, sessions=3, turns=4, records={"ostinato": fail_turn("session-02", 2)}))


def test_a_packed_text_comes_back_whole_and_is_the_same_twice() -> None:
    text = "µs – ≥ </script>".encode() * 100
    assert gzip.decompress(base64.b64decode(packed(text))) == text
    assert packed(text) == packed(text)
    assert len(packed(text)) < len(text) / 2


def test_every_turn_is_there_by_session_turn_and_engine(summary: Summary) -> None:
    data = orjson.loads(orjson.dumps(turn_data(summary, COLOURS)))
    assert data["sessions"] == ["session-00", "session-01", "session-02"]
    assert data["starts"] == [0, 8, 16, 23]
    columns = data["columns"]
    assert {len(values) for values in columns.values()} == {23}
    assert columns["turn"][:8] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert columns["engine"][:4] == [0, 1, 0, 1]
    assert [engine["colour"] for engine in data["engines"]] == [COLOURS[run.key] for run in summary.runs]


def test_a_turns_numbers_are_those_of_its_record(summary: Summary) -> None:
    data = turn_data(summary, COLOURS)
    columns = data["columns"]
    for number, run in enumerate(summary.runs):
        turns = run.turns.set_index(["session_id", "turn"])
        for row in range(data["starts"][-1]):
            if columns["engine"][row] != number:
                continue
            session = next(i for i, start in enumerate(data["starts"][1:]) if row < start)
            record = turns.loc[(data["sessions"][session], columns["turn"][row])]
            assert columns["prompt"][row] == record["prompt_tokens"]
            assert columns["new"][row] == record["new_tokens"]
            if record["status"] == "ok":
                assert columns["first"][row] == pytest.approx(1e3 * record["ttft_s"], rel=1e-3)
                assert columns["end"][row] == pytest.approx(1e3 * record["stream_s"], rel=1e-3)


def test_the_prompts_growth_is_what_the_turn_before_put_out_and_what_is_new(summary: Summary) -> None:
    columns = turn_data(summary, COLOURS)["columns"]
    assert columns["delta"][0] == columns["prompt"][0] == columns["new"][0]
    assert columns["delta"][2] == columns["output"][0] + columns["new"][2]


def test_a_failed_turn_has_its_error_and_no_time(summary: Summary) -> None:
    data = turn_data(summary, COLOURS)
    columns, texts = data["columns"], data["words"]
    (failed,) = [row for row, status in enumerate(columns["status"]) if texts["status"][status] != "ok"]
    assert texts["error"][columns["error"][failed]] == "token 3: expected 7, got 9"
    assert columns["first"][failed] is None
    assert columns["tpot"][failed] is None


def test_a_session_shows_each_engines_time_or_why_it_has_none(summary: Summary) -> None:
    rows = session_rows(summary)
    labels = [run.label for run in summary.runs]
    ours, other = labels.index("Ostinato"), labels.index("llama.cpp")
    assert [row["cells"][ours][0] for row in rows][2] == "failed"
    assert rows[2]["best"] is None
    assert [row["turns"] for row in rows] == [4, 4, 4]
    assert all(row["best"] == row["cells"][ours][1] for row in rows[:2])
    (comparison,) = summary.comparisons
    assert sum(row["cells"][other][1] for row in rows[:2]) == pytest.approx(comparison.baseline_s)
    assert rows[0]["cells"][other][0] == wording.seconds(rows[0]["cells"][other][1])


def test_a_session_that_no_engine_reached_has_no_turns(world: Any, speed: Any) -> None:
    reached = {"sessions": {"session-00": "complete", "session-01": "complete", "session-02": "not reached"}}

    def two(records: list[Any]) -> list[Any]:
        return [record for record in records if record.session_id != "session-02"]

    summary = summarise(
        world({"ostinato": speed()}, sessions=3, turns=2, records={"ostinato": two}, results={"ostinato": reached})
    )
    assert turn_data(summary, COLOURS)["starts"] == [0, 2, 4, 4]
    assert session_rows(summary)[2]["cells"] == [("not reached", None)]


def test_a_repeated_session_counts_with_its_mean(three: Any) -> None:
    summary = summarise(three)
    totals = {engine.label: engine.total_request_s for engine in summary.engines}
    for number, run in enumerate(summary.runs):
        shown = sum(row["cells"][number][1] for row in session_rows(summary))
        assert shown == pytest.approx(totals[run.label])
