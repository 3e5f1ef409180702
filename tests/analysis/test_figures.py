"""The paper's figures from records, and one colour an engine that colour-blind readers tell apart."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from analysis.figures.catalogue import figures
from analysis.figures.colours import KNOWN_COLOURS, OTHER_COLOURS, colours
from analysis.figures.figure import Figure
from analysis.figures.input_length import slope_ms
from analysis.summary import Summary, summarise
from replay.record import TurnRecord, read_result, write_result

# Linear RGB as dichromats see it: Machado, Oliveira & Fernandes (2009), severity 1.
SIGHTS = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
WHITE, DARK = "#ffffff", "#14171c"


def _linear(colour: str) -> Any:
    values = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def _lab(linear: Any) -> Any:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(linear, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def _contrast(one: str, other: str) -> float:
    low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ _linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", SIGHTS)
def test_the_known_engines_are_told_apart_by_every_eye(sight: str) -> None:
    seen = {colour: _lab(np.array(SIGHTS[sight]) @ _linear(colour)) for colour in set(KNOWN_COLOURS.values())}
    assert len(seen) == 7
    assert min(float(np.linalg.norm(seen[one] - seen[other])) for one, other in combinations(seen, 2)) >= 16


def test_every_known_colour_shows_on_a_white_and_on_a_dark_page() -> None:
    assert all(_contrast(colour, ground) >= 3 for colour in KNOWN_COLOURS.values() for ground in (WHITE, DARK))


def test_an_engine_keeps_its_colour_whoever_runs_beside_it() -> None:
    assert colours(["vllm", "buun", "ostinato"])["buun"] == colours(["buun"])["buun"] == KNOWN_COLOURS["buun"]
    one = colours(["ostinato (a)", "ostinato (b)", "llamacpp_layers", "llamacpp"])
    assert one["ostinato (a)"] == one["ostinato"] == KNOWN_COLOURS["ostinato"]
    assert len({one["ostinato (a)"], one["ostinato (b)"], one["llamacpp_layers"], one["llamacpp"]}) == 4
    unknown = [f"engine-{number}" for number in range(len(OTHER_COLOURS))]
    assert len({colours(unknown)[name] for name in unknown}) == len(OTHER_COLOURS)


def _by_name(summary: Summary) -> dict[str, Figure]:
    found = figures(summary)
    assert len({figure.name for figure in found}) == len(found)
    return {figure.name: figure for figure in found}


def _traces(figure: Figure) -> list[dict[str, Any]]:
    traces: list[dict[str, Any]] = orjson.loads(figure.spec)["data"]
    return traces


@pytest.fixture(scope="module")
def drawn(three: Path) -> dict[str, Figure]:
    return _by_name(summarise(three))


def test_the_papers_figures_are_named_as_there(drawn: dict[str, Figure]) -> None:
    titles = [figure.title for figure in drawn.values()]
    for number in ("Figure 1", "Figure 4", "Figure 5", "Figure 6a", "Figure 6c", "Figure 6d", "Figure 7a"):
        assert any(title.startswith(f"{number} · ") for title in titles), number
    assert not any(title.startswith(("Figure 7b", "Figure 7c", "Figure 8")) for title in titles)


def test_a_speedup_is_over_the_slowest_engine(three: Path, drawn: dict[str, Figure]) -> None:
    totals = {engine.label: engine.total_request_s or 0.0 for engine in summarise(three).engines}
    bars = {trace["name"]: trace["y"][0] for trace in _traces(drawn["speedup-total"])}
    assert bars == pytest.approx({label: max(totals.values()) / total for label, total in totals.items()}, rel=1e-4)
    assert min(bars.values()) == 1


def test_savings_are_ours_of_each_other_engines_time(three: Path, drawn: dict[str, Figure]) -> None:
    summary = summarise(three)
    points = {trace["y"][0]: trace for trace in _traces(drawn["savings"]) if len(trace["x"]) > 1}
    assert set(points) == {"llama.cpp", "ik_llama.cpp"}
    (against,) = [c for c in summary.comparisons if (c.baseline, c.candidate) == ("llamacpp", "ostinato")]
    assert points["llama.cpp"]["x"] == pytest.approx([100 * v for v in against.saved_by_session.values()], rel=1e-4)


def test_what_a_figure_shows_is_said_in_its_caption(drawn: dict[str, Figure]) -> None:
    for figure in drawn.values():
        assert "Ostinato" in figure.caption
        assert len(figure.caption) > 60


def test_colours_agree_between_figures(drawn: dict[str, Figure]) -> None:
    for figure in drawn.values():
        for trace in _traces(figure):
            colour = (trace.get("line") or {}).get("color") or trace.get("marker", {}).get("color")
            if trace.get("name") == "Ostinato":
                assert colour == KNOWN_COLOURS["ostinato"], figure.name


def _sweep(made: list[TurnRecord]) -> list[TurnRecord]:
    """After each first turn the same lengths, 3 ms a token and 100 ms."""
    lengths = (128, 256, 512, 1_024)
    changed = []
    for record in made:
        if record.turn == 0:
            changed.append(record)
            continue
        new = lengths[record.turn - 1]
        assert record.sent_ns is not None
        first = record.sent_ns + 100_000_000 + 3_000_000 * new
        shift = first - record.token_ns[0]
        tokens = tuple(stamp + shift for stamp in record.token_ns)
        changed.append(
            replace(
                record, kind="tool", new_tokens=new, token_ns=tokens, first_byte_ns=first, end_ns=tokens[-1],
                cached_tokens=None, prefilled_tokens=None,
            )
        )  # fmt: skip
    return changed


def test_a_sweep_of_input_lengths_shows_its_slope(world: Any, speed: Any) -> None:
    folder = world({"ostinato": speed()}, sessions=8, turns=5, records={"ostinato": _sweep})
    figure = _by_name(summarise(folder))["ttft-sweep"]
    assert figure.title == "Figure 7b · Sweep of input lengths"
    (trace,) = _traces(figure)
    assert trace["x"] == [128, 256, 512, 1024]
    assert trace["y"] == pytest.approx([0.1 + 0.003 * n for n in trace["x"]], rel=1e-4)
    assert "3.00 ms/token" in trace["name"]


def test_the_slope_is_that_of_the_short_lengths() -> None:
    assert slope_ms(np.array([128.0, 512.0, 1024.0]), [0.92, 2.16, 3.33]) == pytest.approx(3.23, abs=0.005)
    assert slope_ms(np.array([128.0, 1024.0]), [1, 2]) is None


def test_work_left_to_the_cpu_is_drawn_where_the_engine_tells_it(world: Any, speed: Any) -> None:
    server = {"cpu_experts_per_token": {"128": 0.95, "511": 0.92}}
    engine = {"name": "ostinato", "label": "Ostinato", "settings": {}, "server": server}
    folder = world({"ostinato": speed()}, sessions=2, turns=2, results={"ostinato": {"engine": engine}})
    (trace,) = _traces(_by_name(summarise(folder))["left-to-cpu"])
    assert trace["y"] == [0.95, 0.92]


def test_an_ablation_and_budgets_are_drawn_from_runs_that_differ_in_their_settings(world: Any, speed: Any) -> None:
    def engine(name: str, **options: str) -> dict[str, Any]:
        return {"engine": {"name": name, "label": "Ostinato", "settings": {"options": options}, "server": {}}}

    names = ("layers", "ostinato")
    folder = world(
        {name: speed(factor) for name, factor in zip(names, (1.0, 0.6), strict=True)}, sessions=2, turns=3,
        results={name: engine("ostinato", placement=name) for name in names},
    )  # fmt: skip
    drawn = _by_name(summarise(folder))
    assert {"ablation", "ablation-step"} <= set(drawn)
    assert drawn["ablation"].title.startswith("Figure 8a")
    assert set(_traces(drawn["ablation-step"])[0]["y"]) == {
        "Ostinato: placement=layers",
        "Ostinato: placement=ostinato",
    }
    for name, gib in zip(names, ("8", "16"), strict=True):
        result = read_result(folder / name)
        write_result(folder / name, result | engine("ostinato", vram_gib=gib))
    drawn = _by_name(summarise(folder))
    assert "ablation" not in drawn
    (curve,) = _traces(drawn["iso-vram-decode"])
    assert curve["x"] == [8, 16]
