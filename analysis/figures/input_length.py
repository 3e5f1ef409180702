"""Figure 7 of the paper: TTFT over new tokens, the sweep of input lengths with its slopes, work left to the CPU."""

from typing import Any

import numpy as np
import pandas as pd

from analysis import wording
from analysis.figures.colours import Look
from analysis.figures.figure import Figure, blank, error_bars, log_ticks, short, spec
from analysis.stats import Floats
from analysis.summary import Summary

MOST_LENGTHS = 16
"""A workload with so few different lengths, each measured often, is a sweep."""
FEWEST_TURNS = 4
SPLIT_BELOW = 512
"""New tokens up to which a slope is fitted: the paper's threshold of its split path."""


def input_length(part: Summary, looks: dict[str, Look]) -> list[Figure]:
    made = [_groups(part, looks), _sweep(part, looks), _left_to_cpu(part, looks)]
    return [figure for figure in made if figure]


def _groups(part: Summary, looks: dict[str, Look]) -> Figure | None:
    figure, said, lengths = blank(), [], []
    for engine in part.engines:
        slices = part.slices[engine.key].by_new_tokens if engine.key in part.slices else ()
        found = [(each, each.ttft) for each in slices if each.ttft]
        if len(found) < 2:
            continue
        look = looks[engine.key]
        lengths += [each.middle for each, _ in found]
        figure.add_scatter(
            x=short([each.middle for each, _ in found]),
            y=short([median.value for _, median in found]),
            error_y=error_bars([median.interval for _, median in found], [median.value for _, median in found]),
            text=[f"{each.name} new tokens, {wording.count(each.turns, 'turn')}" for each, _ in found],
            name=engine.label,
            mode="lines+markers",
            line={"color": look.colour, "dash": look.dash, "width": 2},
            marker={"color": look.colour, "symbol": look.symbol, "size": 9},
            hovertemplate="%{y:.3s}s, %{text}<extra>" + engine.label + "</extra>",
        )
        said.append(f"{engine.label} " + ", ".join(f"{e.name}: {wording.seconds(m.value)}" for e, m in found))
    if not said:
        return None
    _token_axis(figure, lengths)
    figure.update_yaxes(title="median TTFT (s)", rangemode="tozero")
    return Figure(
        name="ttft-new-tokens",
        title="Figure 7a · TTFT after a tool output, by new tokens",
        caption=f"Each group at its median length: {'; '.join(said)}.",
        spec=spec(figure),
    )


def sweep_lengths(turns: pd.DataFrame) -> list[int]:
    """The lengths of a sweep, where these turns are one; else none."""
    counts = turns[turns["kind"] == "tool"].groupby("new_tokens").size()
    swept = 1 < len(counts) <= MOST_LENGTHS and bool((counts >= FEWEST_TURNS).all())
    return [int(length) for length in counts.index] if swept else []


def slope_ms(lengths: Floats, medians_s: list[float]) -> float | None:
    """Least-squares slope in ms a token, up to ``SPLIT_BELOW`` new tokens; None with fewer than two lengths."""
    short_ones = lengths <= SPLIT_BELOW
    if short_ones.sum() < 2:
        return None
    slope, _ = np.polyfit(lengths[short_ones], np.array(medians_s)[short_ones], 1)
    return float(1e3 * slope)


def _sweep(part: Summary, looks: dict[str, Look]) -> Figure | None:
    figure, said = blank(), []
    all_lengths: list[float] = []
    for engine in part.engines:
        turns = part.turns[part.turns["engine"] == engine.key]
        lengths = np.array(sweep_lengths(turns), np.float64)
        if not len(lengths):
            continue
        tool = turns[turns["kind"] == "tool"].groupby("new_tokens")["ttft_s"].median()
        medians = [float(tool.loc[length]) for length in lengths]
        slope = slope_ms(lengths, medians)
        look, all_lengths = looks[engine.key], [*all_lengths, *lengths.tolist()]
        label = engine.label if slope is None else f"{engine.label}, {wording.milliseconds(slope / 1e3)}/token"
        figure.add_scatter(
            x=short(lengths.tolist()),
            y=short(medians),
            name=label,
            mode="lines+markers",
            line={"color": look.colour, "dash": look.dash, "width": 2},
            marker={"color": look.colour, "symbol": look.symbol, "size": 9},
            hovertemplate="%{y:.3s}s at %{x} new tokens<extra>" + engine.label + "</extra>",
        )
        measured = zip(lengths, medians, strict=True)
        said.append(f"{label}: " + ", ".join(f"{n:,.0f} tokens {wording.seconds(m)}" for n, m in measured))
    if not said:
        return None
    _token_axis(figure, all_lengths)
    figure.update_yaxes(title="median TTFT (s)", rangemode="tozero")
    return Figure(
        name="ttft-sweep",
        title="Figure 7b · Sweep of input lengths",
        caption=f"Median TTFT of each length; least-squares slope up to {SPLIT_BELOW} new tokens. {'; '.join(said)}.",
        spec=spec(figure),
    )


def _left_to_cpu(part: Summary, looks: dict[str, Look]) -> Figure | None:
    """Of engines that describe themselves with ``cpu_experts_per_token``: new tokens → experts a token and layer."""
    figure, said = blank(), []
    for run in part.runs:
        told = (run.result["engine"].get("server") or {}).get("cpu_experts_per_token")
        if not isinstance(told, dict) or not told:
            continue
        figure.add_bar(
            x=[f"{length} new tokens" for length in told],
            y=short([float(value) for value in told.values()]),
            name=run.label,
            text=[f"{float(value):.2f}" for value in told.values()],
            marker={"color": looks[run.key].colour},
        )
        said.append(f"{run.label} " + ", ".join(f"{length}: {float(value):.2f}" for length, value in told.items()))
    if not said:
        return None
    figure.update_layout(barmode="group")
    figure.update_yaxes(title="CPU experts per token", rangemode="tozero")
    return Figure(
        name="left-to-cpu",
        title="Figure 7c · Work left to the CPU",
        caption=f"Experts that the CPU computes per token and layer, as the engine reports it: {'; '.join(said)}.",
        spec=spec(figure),
    )


def _token_axis(figure: Any, lengths: list[float]) -> None:
    ticks = log_ticks(max(min(lengths), 1), max(lengths) + 1)
    figure.update_xaxes(
        title="new tokens, log scale", type="log", tickvals=ticks, ticktext=[f"{value:,.0f}" for value in ticks]
    )
