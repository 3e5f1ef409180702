"""Figure 5 of the paper: the distribution of TTFT, on a log axis, medians marked; one figure a turn type."""

import numpy as np

from analysis import wording
from analysis.compare import TURN_KINDS
from analysis.figures.colours import Look
from analysis.figures.figure import Figure, blank, log_ticks, short, spec
from analysis.summary import Summary

_TITLES = {
    "first": "TTFT of the first turn",
    "tool": "Figure 5 · TTFT of turns after a tool output",
    "user": "TTFT of turns after a user message",
}


def distributions(part: Summary, looks: dict[str, Look]) -> list[Figure]:
    return [
        _figure(part, kind, looks)
        for kind in TURN_KINDS
        if any(kind in engine.medians.ttft for engine in part.engines)
    ]


def _figure(part: Summary, kind: str, looks: dict[str, Look]) -> Figure:
    figure = blank()
    engines = [engine for engine in part.engines if kind in engine.medians.ttft]
    turns = part.turns[part.turns["kind"] == kind]
    for engine in engines:
        look = looks[engine.key]
        ttft = np.sort(turns.loc[turns["engine"] == engine.key, "ttft_s"].to_numpy(np.float64))
        figure.add_scatter(
            x=short([ttft[0], *ttft]),
            y=short([0, *(np.arange(1, len(ttft) + 1) / len(ttft))]),
            name=engine.label,
            legendgroup=engine.key,
            mode="lines",
            line={"color": look.colour, "dash": look.dash, "width": 2, "shape": "hv"},
            hovertemplate="%{y:.0%} of turns within %{x:.3s}s<extra>" + engine.label + "</extra>",
        )
        figure.add_scatter(
            x=short([engine.medians.ttft[kind].value]),
            y=[0.5],
            legendgroup=engine.key,
            showlegend=False,
            mode="markers",
            marker={"color": look.colour, "symbol": look.symbol, "size": 11},
            hovertemplate="median %{x:.3s}s<extra>" + engine.label + "</extra>",
        )
    ticks = log_ticks(turns["ttft_s"].min(), turns["ttft_s"].max())
    figure.update_xaxes(
        title="TTFT, log scale", type="log", tickvals=ticks, ticktext=[wording.tick(value) for value in ticks]
    )
    figure.update_yaxes(title="share of turns", range=[0, 1.02], tickformat=".0%")
    medians = "; ".join(f"{engine.label} {wording.median(engine.medians.ttft[kind])}" for engine in engines)
    return Figure(
        name=f"ttft-{kind}",
        title=_TITLES[kind],
        caption=f"Share of turns whose first token arrived within a time; the marker is the median: {medians}.",
        spec=spec(figure),
    )
