"""Figure 7 of the paper: TTFT over new tokens, the sweep of input lengths with its slopes, work left to the CPU."""

import numpy as np
import pandas as pd

from analysis import wording
from analysis.figures.colours import Look
from analysis.figures.figure import Figure, blank, short, spec
from analysis.figures.lengths import TTFT_BY_NEW_TOKENS, over_lengths
from analysis.figures.marks import add_line, token_axis
from analysis.stats import Floats
from analysis.summary import Summary

MOST_LENGTHS = 16
"""A workload with so few different lengths, each measured often, is a sweep."""
FEWEST_TURNS = 4
SPLIT_BELOW = 512
"""New tokens up to which a slope is fitted: the paper's threshold of its split path."""


def input_length(part: Summary, looks: dict[str, Look]) -> list[Figure]:
    made = [over_lengths(part, looks, TTFT_BY_NEW_TOKENS), _sweep(part, looks), _left_to_cpu(part, looks)]
    return [figure for figure in made if figure]


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
        all_lengths += lengths.tolist()
        label = engine.label if slope is None else f"{engine.label}, {wording.milliseconds(slope / 1e3)}/token"
        add_line(figure, looks[engine.key], label, lengths.tolist(), medians, hover="%{y:.3s}s at %{x} new tokens")
        measured = zip(lengths, medians, strict=True)
        said.append(f"{label}: " + ", ".join(f"{n:,.0f} tokens {wording.seconds(m)}" for n, m in measured))
    if not said:
        return None
    token_axis(figure, "new tokens", all_lengths)
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
