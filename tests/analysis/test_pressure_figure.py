"""Background load in the report: made records with a known effect come back as that effect, and as nothing else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from analysis import wording
from analysis.figures.catalogue import figures
from analysis.load import NO_LOAD
from analysis.pressure import Effect
from analysis.report import page
from analysis.results import results
from analysis.summary import Summary, summarise
from analysis.tables.catalogue import tables
from replay.record import PRESSURE_FILE, TurnRecord

MS, S = 1_000_000, 1_000_000_000
SENT_NS = 1_000_050_000
"""The first request of a made-up world."""
CPU = ("cpu 50 %",)


def line(start_ns: int, stop_ns: int | None, **changes: Any) -> dict[str, Any]:
    made = {
        "phase": 0, "worker": 0, "kind": "cpu", "level": 50.0, "started_ns": start_ns, "stopped_ns": stop_ns,
        "busy_share": None if stop_ns is None else 0.49, "cpu_share": 0.5, "bytes_per_s": None,
    }  # fmt: skip
    return made | changes


def slowed(start_ns: int, stop_ns: int, factor: int = 2) -> Callable[[list[TurnRecord]], list[TurnRecord]]:
    """Every 10 ms gap that begins between the two takes ``factor`` times as long, and all that follows is later."""

    def change(made: list[TurnRecord]) -> list[TurnRecord]:
        late, changed = 0, []
        for r in made:
            sent, stamps = late, [r.token_ns[0] + late]
            for before, after in zip(r.token_ns, r.token_ns[1:], strict=False):
                if start_ns <= stamps[-1] < stop_ns:
                    late += (factor - 1) * (after - before)
                stamps.append(after + late)
            changed.append(
                replace(
                    r,
                    due_ns=r.due_ns + sent,
                    sent_ns=r.sent_ns + sent if r.sent_ns is not None else None,
                    first_byte_ns=None,
                    token_ns=tuple(stamps),
                    end_ns=r.end_ns + late if r.end_ns is not None else None,
                )
            )
        return changed

    return change


@pytest.fixture
def loaded(world: Any, speed: Any) -> Callable[..., Summary]:
    """A world of one engine with the lines of ``pressure.jsonl``."""

    def build(*lines: dict[str, Any], sessions: int = 8, **options: Any) -> Summary:
        folder: Path = world({"ostinato": speed()}, sessions=sessions, **options)
        (folder / "ostinato" / PRESSURE_FILE).write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in lines))
        return summarise(folder)

    return build


def effect(summary: Summary, load: tuple[str, ...]) -> Effect:
    (found,) = summary.pressure
    return next(each for each in found.effects if each.load == load)


def all_gaps(summary: Summary) -> int:
    return int((summary.turns["output_tokens"] - 1).sum())


def test_a_phase_that_doubles_the_gaps_comes_back_as_twice(loaded: Any) -> None:
    summary = loaded(line(3 * S, 12 * S), records={"ostinato": slowed(3 * S, 12 * S)})
    free, under = effect(summary, NO_LOAD), effect(summary, CPU)
    assert free.tpot is not None
    assert free.tpot.value == pytest.approx(0.010, rel=1e-6)
    assert under.tpot is not None
    assert under.tpot.value == pytest.approx(0.020, rel=1e-6)
    assert under.ratio == pytest.approx(2, rel=1e-6)
    assert free.ratio is None
    assert under.tokens > 100
    assert free.tokens + under.tokens == pytest.approx(all_gaps(summary), abs=2)  # those on the two edges


def test_a_phase_without_effect_comes_back_as_once(loaded: Any) -> None:
    assert effect(loaded(line(3 * S, 12 * S)), CPU).ratio == pytest.approx(1, rel=1e-6)


def test_a_gap_across_an_edge_counts_for_neither(loaded: Any) -> None:
    def one_turn(made: list[TurnRecord]) -> list[TurnRecord]:
        stamps = tuple(SENT_NS + at * MS for at in (10, 20, 30, 70, 90, 95))
        return [replace(made[0], token_ns=stamps, output_tokens=6, end_ns=stamps[-1])]

    phase = line(SENT_NS + 50 * MS, SENT_NS + 93 * MS)
    summary = loaded(phase, sessions=1, turns=1, records={"ostinato": one_turn})
    free, under = effect(summary, NO_LOAD), effect(summary, CPU)
    assert (free.tokens, under.tokens) == (2, 1)  # 10-20-30 and 70-90; not 30-70, not 90-95
    assert under.ratio == pytest.approx(2.0)


def test_tokens_of_one_chunk_share_its_gap(loaded: Any) -> None:
    def bundles(made: list[TurnRecord]) -> list[TurnRecord]:
        stamps = tuple(SENT_NS + at * MS for at in (10, 10, 40, 40, 40, 70, 70, 130, 130))
        return [replace(made[0], token_ns=stamps, output_tokens=9, end_ns=stamps[-1])]

    phase = line(SENT_NS + 65 * MS, SENT_NS + 200 * MS)
    summary = loaded(phase, sessions=1, turns=1, records={"ostinato": bundles})
    free, under = effect(summary, NO_LOAD), effect(summary, CPU)
    assert (free.tokens, under.tokens) == (3, 2)  # the chunk at 70 came over the edge, both of its tokens
    assert free.tpot is not None
    assert free.tpot.value == pytest.approx(0.010)
    assert under.ratio == pytest.approx(3.0)


def test_a_load_is_on_only_while_all_its_workers_are(loaded: Any) -> None:
    workers = (line(3 * S, 12 * S), line(4 * S, 11 * S, worker=1, busy_share=0.51))
    summary = loaded(*workers, records={"ostinato": slowed(4 * S, 11 * S)})
    both = effect(summary, ("2 × cpu 50 %",))
    assert both.ratio == pytest.approx(2, rel=1e-6)
    assert summary.pressure[0].measured == {"2 × cpu 50 %": pytest.approx(0.5)}
    assert both.tokens + effect(summary, NO_LOAD).tokens < all_gaps(summary) - 50


def test_loads_that_are_on_together_have_their_own_row(loaded: Any) -> None:
    memory = line(6 * S, 14 * S, phase=1, kind="memory", level=30.0, bytes_per_s=1e9)
    summary = loaded(line(3 * S, 10 * S), memory, records={"ostinato": slowed(6 * S, 10 * S, 3)})
    (found,) = summary.pressure
    ratios = {wording.load(each.load): each.ratio for each in found.effects}
    assert ratios == {
        "no load": None,
        "cpu 50 %": pytest.approx(1, rel=1e-6),
        "memory 30 %": pytest.approx(1, rel=1e-6),
        "cpu 50 % and memory 30 %": pytest.approx(3, rel=1e-6),
    }


def test_after_a_killed_worker_nothing_is_said_of_either(loaded: Any) -> None:
    summary = loaded(line(3 * S, None))
    under = effect(summary, CPU)
    assert (under.tokens, under.tpot, under.ratio) == (0, None, None)
    assert effect(summary, NO_LOAD).tokens < all_gaps(summary) - 50
    assert "an end that was not recorded" in pressure_figures(summary)[0].caption
    assert pressure_rows(summary)[1][1] == "–"


def test_a_clock_that_began_again_amid_a_run_leaves_the_effect_out(loaded: Any) -> None:
    def restarted(made: list[TurnRecord]) -> list[TurnRecord]:
        back = 5 * S
        last = made[-1]
        assert last.sent_ns is not None
        assert last.end_ns is not None
        earlier = tuple(stamp - back for stamp in last.token_ns)
        return [*made[:-1], replace(last, sent_ns=last.sent_ns - back, token_ns=earlier, end_ns=last.end_ns - back)]

    assert loaded(line(3 * S, 12 * S), records={"ostinato": restarted}).pressure == ()


OFTEN = [line(at * S, at * S + S // 2, phase=at) for at in range(1, 30)]


@pytest.mark.parametrize(
    ("sessions", "lines", "has"), [(8, OFTEN, True), (7, OFTEN, False), (20, [line(3 * S, 6 * S)], False)]
)
def test_there_is_an_interval_only_where_eight_sessions_have_tokens_in_both(
    loaded: Any, sessions: int, lines: list[dict[str, Any]], has: bool
) -> None:
    summary = loaded(*lines, sessions=sessions)
    under = effect(summary, CPU)
    assert under.ratio == pytest.approx(1, rel=1e-6)
    assert (under.ratio_interval is not None) == has
    assert effect(summary, NO_LOAD).sessions >= 7


def pressure_figures(summary: Summary) -> list[Any]:
    return [figure for figure in figures(summary) if figure.name.startswith("pressure")]


def pressure_rows(summary: Summary) -> tuple[tuple[str, ...], ...]:
    return next(table.rows for table in tables(summary) if table.title == "TPOT under background load")


def test_the_figure_shows_the_seconds_and_the_phase(loaded: Any) -> None:
    summary = loaded(line(3 * S, 12 * S), records={"ostinato": slowed(3 * S, 12 * S)})
    (figure,) = pressure_figures(summary)
    spec = orjson.loads(figure.spec)
    (shape,) = spec["layout"]["shapes"]
    zero_s = SENT_NS / S
    assert (shape["x0"], shape["x1"]) == (pytest.approx(3 - zero_s), pytest.approx(12 - zero_s))
    (trace,) = spec["data"]
    inside = [y for x, y in zip(trace["x"], trace["y"], strict=True) if shape["x0"] + 0.1 < x < shape["x1"]]
    outside = [y for x, y in zip(trace["x"], trace["y"], strict=True) if x < shape["x0"] or x > shape["x1"] + 0.1]
    assert min(inside) > 18 > 12 > max(outside)
    assert spec["layout"]["annotations"][0]["text"] == "cpu 50 %, measured 49.0 %"
    assert "from 2.0 s to 11.0 s" in figure.caption


def test_table_page_and_results_say_the_same(loaded: Any) -> None:
    summary = loaded(line(3 * S, 12 * S), records={"ostinato": slowed(3 * S, 12 * S)}, sessions=4)
    free, under = pressure_rows(summary)
    assert (free[0], free[1], free[-1]) == ("Ostinato, no load", "–", "–")
    assert (under[0], under[1], under[-2], under[-1]) == ("Ostinato, cpu 50 %", "49.0 %", "20.0 ms", "2.00×")
    text = page(summary)
    assert "TPOT over time: Ostinato" in text
    assert "2.00×" in text
    told = results(summary)["pressure"]["ostinato"]
    assert told["tpot"][1]["ratio"] == pytest.approx(2, rel=1e-6)
    assert told["tpot"][1]["ratio_low"] is None
    (phase,) = told["phases"]
    assert phase["start_s"] == pytest.approx(3 - SENT_NS / S)
    assert phase["busy_share"] == 0.49
    orjson.dumps(told)


def test_without_load_the_report_is_as_before(three: Path) -> None:
    summary = summarise(three)
    assert summary.pressure == ()
    assert pressure_figures(summary) == []
    assert results(summary)["pressure"] is None
    assert "background load" not in " ".join(table.title for table in tables(summary))
