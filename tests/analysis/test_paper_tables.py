"""The paper's tables from records: Table 3 as it is printed, from records whose sums are the paper's totals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import wording
from analysis.paper import NAME, ReferenceFileError, paper_workload, read_reference
from analysis.results import results
from analysis.subject import against
from analysis.summary import Summary, summarise
from analysis.tables.catalogue import tables
from analysis.tables.main_results import main_table
from analysis.tables.table import PAPER, Table, markdown
from replay.record import RecordWriter, TurnRecord, write_result

SESSIONS = {"swe": 13, "tau2": 60}
TOLD = {
    "ktransformers": "KTransformers", "llamacpp_layers": "llama.cpp (layers)", "llamacpp_cache": "llama.cpp cache",
    "ik_llamacpp": "ik_llama.cpp", "buun": "buun", "ostinato": "Ostinato",
}  # fmt: skip
OUTPUT = 101


def _turn(
    engine: str, session: str, turn: int, kind: str, at_ns: int, ttft_s: float, tpot_ms: float, output: int
) -> TurnRecord:
    first = at_ns + round(1e9 * ttft_s)
    tokens = tuple(first + round(1e6 * tpot_ms * number) for number in range(output))
    return TurnRecord(
        engine=engine, session_id=session, turn=turn, kind=kind, attempt=0, status="ok", prompt_tokens=5_000,
        new_tokens=5_000 if turn == 0 else 200, output_tokens=output, due_ns=at_ns, sent_ns=at_ns,
        first_byte_ns=first, token_ns=tokens, end_ns=tokens[-1], verified_by="ids", prefilled_tokens=200,
    )  # fmt: skip


def _write(
    folder: Path, engine: str, workload: str, total_s: float, ttft_s: float, tpot_ms: float, **settings: Any
) -> None:
    """Sessions of a first turn and one after a tool output, whose times sum to the total."""
    folder.mkdir(parents=True)
    sessions = [f"{workload}-{number:02}" for number in range(SESSIONS[workload])]
    weights = np.random.default_rng(3).lognormal(0, 0.3, len(sessions))
    times_ns = np.floor(1e9 * total_s * weights / weights.sum()).astype(np.int64)
    times_ns[0] += round(1e9 * total_s) - int(times_ns.sum())
    tool_s = ttft_s + 1e-3 * tpot_ms * (OUTPUT - 1)
    with RecordWriter(folder) as writer:
        for session, time_ns in zip(sessions, times_ns.tolist(), strict=True):
            start_s = time_ns / 1e9 - tool_s - 1e-3 * tpot_ms
            writer.append(_turn(engine, session, 0, "first", 10**9, start_s, tpot_ms, 2))
            writer.append(_turn(engine, session, 1, "tool", 10**14, ttft_s, tpot_ms, OUTPUT))
    write_result(
        folder,
        {
            "version": 1, "status": "complete", "error": None,
            "engine": {"name": engine, "label": TOLD.get(engine, engine), "settings": settings, "server": {}},
            "workload": {
                "name": f"{workload}_heldout", "hash": workload, "sessions": len(sessions), "losses": {},
                "turns": 2 * len(sessions), "turns_by_session": dict.fromkeys(sessions, 2),
            },
            "model": {"name": "v4_flash", "hash": "v4"}, "environment": {}, "config": {},
            "sessions": dict.fromkeys(sessions, "complete"), "validity": [],
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Six engines over both workloads, each with the paper's total, TTFT and TPOT."""
    folder = tmp_path_factory.mktemp("paper")
    reference = read_reference(NAME)
    for workload in SESSIONS:
        for engine, row in reference.of_table_3(workload).items():
            _write(folder / workload / engine, engine, workload, row["time_s"], row["ttft_s"], row["tpot_ms"])
    return summarise(folder, reference=reference)


def test_table_3_is_laid_out_as_in_the_paper_with_its_shares_to_the_printed_digit(paper: Summary) -> None:
    table = main_table(paper)
    assert table.title == "Table 3 · Main results"
    assert [head.partition(": ")[2] or head for head in table.columns[1:]] == [
        "time (s)", "saved", "95 % interval", "won", "TTFT (s)", "TPOT (ms)",
    ] * 2  # fmt: skip
    assert "13 sessions" in table.columns[1]
    assert "60 sessions" in table.columns[7]
    ours = [row for at, row in enumerate(table.rows) if not table.source(at)]
    assert [row[0] for row in ours] == list(TOLD.values())
    reference = read_reference(NAME)
    for offset, workload in ((1, "swe"), (7, "tau2")):
        for row, (engine, printed) in zip(ours, reference.of_table_3(workload).items(), strict=True):
            assert row[0] == TOLD[engine]
            assert row[offset] == f"{printed['time_s']:,.1f}"
            assert row[offset + 4 : offset + 6] == (f"{printed['ttft_s']:.2f}", f"{printed['tpot_ms']:.1f}")
            if engine != "ostinato":
                assert row[offset + 1] == f"{printed['saved']:.1f} %"
                assert row[offset + 3] == f"{printed['won']}/{printed['sessions']}"
            else:
                assert row[offset + 1 : offset + 4] == ("–", "–", "–")


def test_a_pair_compared_the_other_way_round_says_the_same(three: Path) -> None:
    plain, turned = summarise(three), summarise(three, baseline="ostinato")
    for engine in ("llamacpp", "ik_llamacpp"):
        one, other = (against(summary, engine, "ostinato") for summary in (plain, turned))
        assert one is not None
        assert other is not None
        assert (one.won, one.sessions, one.saved) == (other.won, other.sessions, pytest.approx(other.saved))
        assert one.saved_by_session == pytest.approx(other.saved_by_session)
        assert one.interval is not None
        assert other.interval is not None
        ends = (other.interval.low, other.interval.high)
        assert (one.interval.low, one.interval.high) == pytest.approx(ends, abs=0.01)
        assert other.interval.low < other.saved < other.interval.high


def test_the_best_values_are_bold_and_they_are_ours(paper: Summary) -> None:
    lines = main_table(paper).lines
    best = {(line[0].text, at) for line in lines for at, cell in enumerate(line) if cell.best}
    assert best == {("Ostinato", at) for at in (1, 5, 6, 7, 11, 12)}
    assert "**7,119.0**" in markdown(main_table(paper))


def test_rows_of_the_paper_stand_beside_ours_and_say_what_they_are(paper: Summary) -> None:
    table = main_table(paper)
    theirs = [row for at, row in enumerate(table.rows) if table.source(at) == PAPER]
    assert [row[0] for row in theirs][:2] == [
        "KTransformers · paper, other machine",
        "llama.cpp (layers) · paper, other machine",
    ]
    assert theirs[0][1:7] == ("16,950.1", "58.0 %", "57.6–58.4 %", "13/13", "2.36", "62.8")
    assert any(PAPER in formula for formula in table.formulas)
    seventh = next(each for each in tables(paper) if each.name == "table_7")
    assert "1.26 (880)" in next(row for row in seventh.rows if row[0].startswith("Ostinato · "))


def test_the_papers_numbers_change_none_of_ours(tmp_path: Path) -> None:
    for engine, factor in (("llamacpp_layers", 2.0), ("ostinato", 1.0)):
        _write(tmp_path / engine, engine, "swe", 2_000 * factor, 2 * factor, 30 * factor)
    asked, plain = summarise(tmp_path, reference=read_reference(NAME)), summarise(tmp_path)
    for ours, alone in zip(tables(asked), tables(plain), strict=True):
        assert [row for at, row in enumerate(ours.rows) if not ours.source(at)] == list(alone.rows)
        assert PAPER not in alone.sources
    assert results(plain) | {"reference": None} == results(asked) | {"reference": None}
    assert sum(PAPER in table.sources for table in tables(asked)) == 4  # tables 2, 3, 4 and 7


def test_two_workloads_below_one_folder_are_two_experiments(paper: Summary) -> None:
    assert [panel.workload.name for panel in paper.panels] == ["swe_heldout", "tau2_heldout"]
    assert paper.comparisons == ()
    assert paper.valid
    assert all(len(panel.comparisons) == 15 for panel in paper.panels)
    verdicts = wording.verdicts(paper)
    assert any(
        said.startswith("swe_heldout, v4_flash: Ostinato finishes the 13 sessions 1.20× sooner than buun")
        for said in verdicts
    )
    assert wording.title(paper).startswith("swe_heldout, tau2_heldout: ")
    second = next(table for table in tables(paper) if table.name == "table_2")
    assert [row[:3] for row in second.rows[:2]] == [("swe_heldout", "13", "26"), ("tau2_heldout", "60", "120")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("synthetic_swe_heldout", "swe"), ("tau2", "tau2"), ("swe_one_gpu", "swe_one_gpu"), ("sample", None)],
)
def test_a_workload_is_known_by_its_name(name: str, expected: str | None) -> None:
    assert paper_workload(name) == expected


@pytest.mark.parametrize("content", [None, "no json", "[]", '{"version": 2}'])
def test_a_reference_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "reference.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ReferenceFileError, match="use --reference paper"):
        read_reference(str(path))


def _named(summary: Summary, name: str) -> Table:
    return next(table for table in tables(summary) if table.name == name)


def test_table_4_compares_the_fastest_other_engine_with_ours_on_the_other_model(tmp_path: Path) -> None:
    for model in ("v4", "qwen3"):
        for engine, factor in (("buun", 1.0), ("llamacpp", 2.0), ("ostinato", 0.8)):
            folder = tmp_path / model / engine
            _write(folder, engine, "swe", 2_000 * factor, 2 * factor, 30)
            if model == "qwen3":
                later = {"model": {"name": "qwen3", "hash": "q3"}, "clock": {"wall_ns": 1}}
                _change(folder, lambda result, later=later: result | later)
    summary = summarise(tmp_path)
    table = _named(summary, "table_4")
    assert table.title == "Table 4 · buun → Ostinato by turn type, swe_heldout, qwen3"
    assert table.rows[1] == ("TTFT, after tool", "13", "2.00", "1.60", "−20.0 %")
    assert table.rows[-1] == ("total request time", "26", "2,000.0", "1,600.0", "−20.0 %")


def _change(folder: Path, change: Any) -> None:
    from replay.record import read_result

    write_result(folder, change(read_result(folder)))


def test_table_8_has_a_row_for_each_setting_of_an_engine(tmp_path: Path) -> None:
    for placement, factor in (("layers", 1.0), ("lru_cache", 0.8), ("ostinato", 0.6)):
        _write(
            tmp_path / placement, "ostinato", "swe", 2_000 * factor, 2 * factor, 30 * factor,
            options={"placement": placement},
        )  # fmt: skip
    table = _named(summarise(tmp_path), "table_8")
    assert {row[0] for row in table.rows} == {
        f"Ostinato: placement={name}" for name in ("layers", "lru_cache", "ostinato")
    }
    by_name = {row[0].rpartition("=")[2]: row for row in table.rows}
    assert by_name["lru_cache"][1] == "1,600.0"
    assert by_name["lru_cache"][4] == "24.00"
    asked = _named(summarise(tmp_path, reference=read_reference(NAME)), "table_8")
    paper = [row for at, row in enumerate(asked.rows) if asked.source(at) == PAPER]
    assert paper[0] == ("layer placement, screening, 60 turns · paper, other machine", "629.1", "165.6", "463.7", "–")
    assert len(paper) == 9 + 10


@pytest.mark.parametrize(
    ("folder", "named"), [("ostinato,placement={}", "placement=o_{}"), ("{}", "placement=ostinato:prefill={}")]
)
def test_a_row_is_named_by_what_was_swept_else_by_one_setting_that_tells_it(
    folder: str, named: str, tmp_path: Path
) -> None:
    for path, factor in (("native", 1.0), ("paper", 0.8), ("auto", 0.6)):
        _write(
            tmp_path / folder.format(f"o_{path}"), "ostinato", "swe", 2_000 * factor, 2 * factor, 30 * factor,
            options={"placement": f"ostinato:prefill={path}", "graph": "false" if path == "auto" else "none"},
        )  # fmt: skip
    rows = _named(summarise(tmp_path), "table_8").rows
    assert {row[0] for row in rows} == {f"Ostinato: {named.format(path)}" for path in ("native", "paper", "auto")}


def test_runs_with_a_vram_budget_make_a_curve_and_no_ablation(tmp_path: Path) -> None:
    for engine, factor in (("ostinato", 1.0), ("llamacpp", 2.0)):
        for gib in (8, 16):
            _write(
                tmp_path / f"{engine},{gib}", engine, "swe", 2_000 * factor, 2 * factor, 8 * 30 * factor / gib,
                options={"vram_mib": str(1024 * gib)},
            )  # fmt: skip
    summary = summarise(tmp_path)
    table = _named(summary, "iso_vram")
    assert [row[:2] for row in table.rows] == [
        ("llamacpp", "8"), ("llamacpp", "16"), ("Ostinato", "8"), ("Ostinato", "16"),
    ]  # fmt: skip
    assert table.rows[3][2] == "66.67"
    assert "table_8" not in {each.name for each in tables(summary)}


def test_sessions_at_once_give_a_table_of_turn_walls(tmp_path: Path) -> None:
    for engine, factor in (("ostinato", 1.0), ("llamacpp", 2.0)):
        _write(tmp_path / engine, engine, "swe", 2_000 * factor, 2 * factor, 30 * factor)
        _change(
            tmp_path / engine,
            lambda result: result | {"config": {"arrival": {"name": "concurrent", "concurrency": 4}}},
        )
    table = _named(summarise(tmp_path), "turn_wall")
    assert {row[1] for row in table.rows} == {"4"}
    assert {row[0]: row[4] for row in table.rows}["Ostinato"] == "33.33"


def test_tables_that_the_records_cannot_fill_are_left_out(three: Path) -> None:
    summary = summarise(three)
    names = [table.name for table in tables(summary)]
    assert len(names) == len(set(names))
    assert {"engines", "table_2", "table_3", "table_7", "ttft_by_new_tokens", "tokens_per_second"} <= set(names)
    assert not {"table_4", "table_8", "iso_vram", "turn_wall", "background_load"} & set(names)
