"""What programs read: CSV with numbers and reasons, turns as Parquet, results.json as its schema and its page say."""

import copy
import csv
import io
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pandas as pd
import pytest

from analysis import comment, schema
from analysis.comment import summary_markdown
from analysis.export import csv_of, exports
from analysis.paper import NAME, read_reference
from analysis.report import write_report
from analysis.results import results
from analysis.summary import Summary, summarise
from analysis.tables.catalogue import tables
from analysis.tables.engines import engine_table
from analysis.tables.table import PAPER, Cell, Column, Table, absent, number, words
from replay.record import read_result, write_result


@pytest.fixture(scope="module")
def summary(three: Path) -> Summary:
    return summarise(three, reference=read_reference(NAME))


def _read(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_a_csv_holds_numbers_with_their_unit_in_the_header_and_says_why_one_is_absent() -> None:
    table = Table(
        name="t",
        title="T",
        heads=(
            Column("engine", "engine"),
            Column("TPOT", "tpot_ms"),
            Column("interval", "saved_percent"),
            Column("x"),
        ),
        lines=(
            (
                words("a, b"),
                Cell(text="12.3 ms (…)", number=12.3456789),
                Cell(text="1–2 %", low=1, high=2.5),
                words("y"),
            ),
            (words("c"), absent("no turn tells a TPOT"), absent("fewer than 8 sessions"), words("z")),
        ),
        sources=("", PAPER),
    )
    assert csv_of(table).decode().splitlines() == [
        "engine,tpot_ms,saved_percent_low,saved_percent_high,source,why_absent",
        '"a, b",12.3456789,1,2.5,,',
        'c,,,,"paper, other machine",tpot_ms: no turn tells a TPOT; saved_percent: fewer than 8 sessions',
    ]


def test_every_table_comes_as_csv_and_its_numbers_are_those_of_the_results(summary: Summary) -> None:
    made = exports(summary)
    assert {f"tables/{table.name}.csv" for table in tables(summary)} == {
        name for name in made if name.startswith("tables/")
    }
    for name, content in made.items():
        if name.endswith(".csv"):
            rows = _read(content)
            assert rows
            assert all(None not in row and None not in row.values() for row in rows)
            for row in rows:
                for column, value in list(row.items())[1:]:
                    if value and column not in ("source", "why_absent"):
                        float(value)
    numbers = results(summary)
    row = next(row for row in _read(made["tables/engines.csv"]) if row["engine"] == "Ostinato")
    assert float(row["total_request_s"]) == numbers["engines"]["ostinato"]["total_request_s"]
    assert float(row["tpot_ms"]) == pytest.approx(1e3 * numbers["engines"]["ostinato"]["tpot_s"]["median"])
    assert float(row["ttft_tool_s_low"]) == numbers["engines"]["ostinato"]["ttft_s"]["tool"]["low"]


def test_a_number_that_cannot_be_computed_is_empty_with_its_reason(world: Any, speed: Any) -> None:
    (row,) = _read(csv_of(engine_table(summarise(world({"llamacpp": speed()}, sessions=2, turns=1)))))
    assert row["saved_percent"] == ""
    assert "saved_percent: not compared with the baseline" in row["why_absent"]


def test_turns_come_as_parquet_with_what_was_observed_and_measured(world: Any, speed: Any, fail_turn: Any) -> None:
    folder = world(
        {"llamacpp": speed(), "ostinato": speed(0.5)}, sessions=3, turns=2,
        records={"ostinato": fail_turn("session-01", 1)},
    )  # fmt: skip
    summary = summarise(folder)
    turns = pd.read_parquet(io.BytesIO(exports(summary)["turns.parquet"]))
    assert len(turns) == 12
    assert set(turns["engine"]) == {"llamacpp", "ostinato"}
    assert {"label", "workload", "model", "session_id", "turn", "kind", "ttft_s", "tpot_s", "stream_s"} <= set(turns)
    failed = turns[turns["status"] != "ok"]
    assert len(failed) == 1
    assert failed["ttft_s"].isna().all()
    assert turns["counted"].sum() == len(summary.turns) == 8
    counted = turns[turns["counted"] & (turns["engine"] == "ostinato")]
    assert counted["stream_s"].sum() == pytest.approx(results(summary)["engines"]["ostinato"]["total_request_s"])


def test_the_same_records_give_the_same_bytes_and_tables_of_before_are_gone(three: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(three, folder)
    write_report(folder)
    first = {path: path.read_bytes() for path in folder.glob("**/*") if path.is_file()}
    stale = folder / "tables" / "iso_vram.csv"
    stale.write_text("of an earlier analysis")
    write_report(folder)
    assert {path: path.read_bytes() for path in folder.glob("**/*") if path.is_file()} == first
    assert (folder / "turns.parquet").is_file()


def _closed(found: Any) -> Any:
    """The schema with every object closed: a field that it does not name is then an error."""
    if isinstance(found, list):
        return [_closed(each) for each in found]
    if not isinstance(found, dict):
        return found
    closed = {name: _closed(value) for name, value in found.items()}
    if closed.get("type") == "object" and "properties" in closed and "allOf" not in closed:
        closed["additionalProperties"] = False
    return closed


@pytest.fixture(scope="module")
def strict() -> jsonschema.Draft202012Validator:
    whole = _closed(schema.schema())
    # The report's own fields stand in a definition of their own: in a panel alone, in the whole with two more.
    report = copy.deepcopy(whole["$defs"]["report"])
    report["properties"] |= whole["properties"]
    report["required"] += whole["required"]
    return jsonschema.Draft202012Validator(report | {"$defs": whole["$defs"]})


def test_the_results_are_as_their_schema_says_and_nothing_more(
    world: Any, speed: Any, fail_turn: Any, summary: Summary, strict: jsonschema.Draft202012Validator
) -> None:
    jsonschema.Draft202012Validator.check_schema(schema.schema())
    folder = world(
        {"llamacpp": speed(), "ostinato": speed(0.5, 0.01)}, sessions=9, turns=3,
        records={"ostinato": fail_turn("session-01", 1)},
    )  # fmt: skip
    for each in (summary, summarise(folder)):
        found = orjson.loads(orjson.dumps(results(each)))
        jsonschema.validate(found, schema.schema())
        assert [error.message for error in strict.iter_errors(found)] == []
    broken = found | {"baseline": 3}
    assert list(strict.iter_errors(broken))
    del broken["engines"]["ostinato"]["total_request_s"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema.schema())


def test_two_experiments_are_as_the_schema_says(
    world: Any, speed: Any, strict: jsonschema.Draft202012Validator
) -> None:
    folder = world({"llamacpp": speed(), "ostinato": speed(0.5)}, sessions=2, turns=2)
    for name in ("llamacpp", "ostinato"):
        other = folder / "other" / name
        shutil.copytree(folder / name, other)
        result = read_result(other)
        write_result(other, result | {"model": {"name": "another", "hash": "cd34"}})
    found = orjson.loads(orjson.dumps(results(summarise(folder))))
    assert [len(panel["comparisons"]) for panel in found["panels"]] == [1, 1]
    assert [error.message for error in strict.iter_errors(found)] == []


def test_the_page_on_the_results_is_the_one_written_from_the_schema() -> None:
    page = Path(__file__).parents[2] / "docs" / "results.md"
    assert page.read_text() == schema.as_markdown()


def test_a_summary_fits_a_comment_however_much_there_is_to_say(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = summarise(three)
    whole = summary_markdown(summary)
    assert len(whole) < 65_536
    assert "Left out" not in whole
    monkeypatch.setattr(comment, "LONGEST", len(whole) - 1)
    shorter = summary_markdown(summary)
    assert len(shorter) < len(whole)
    assert "Left out, since a comment may not be longer: formulas" in shorter
    assert shorter.startswith(whole.partition("\n")[0])
    monkeypatch.setattr(comment, "LONGEST", 200)
    assert len(summary_markdown(summary)) <= 200


def test_a_number_without_a_value_says_why() -> None:
    assert number(None, str, why="it was not asked") == absent("it was not asked")
