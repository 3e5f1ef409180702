"""The report's figures as plotly specifications; the only importer of plotly, which takes a second to load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from analysis import wording
from analysis.compare import TURN_KINDS, Comparison
from analysis.pressure import EnginePressure, Timeline
from analysis.summary import EngineSummary, Summary

KNOWN_COLOURS = {"ostinato": "#D55E00", "llamacpp": "#0072B2", "ik_llamacpp": "#009E73"}
OTHER_COLOURS = ("#B5618F", "#A87900", "#3F97CC", "#7A7A7A", "#8C6BB1", "#6B8E23", "#C44E52", "#5F9EA0")
"""Okabe & Ito (2008), the light ones darkened to show on white too; symbol and dash say the same again."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_GREY = "#7A7A7A"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str
    """Short, unique on the page."""
    title: str
    caption: str
    """What it shows, in words and numbers: for readers who can't see it, too."""
    spec: str
    """plotly.js ``{data, layout}`` as JSON, without colours of text and background: the page sets those."""
    height: int = 380
    wide: bool = False
    """Across the page rather than beside the next one."""


def plotly_js() -> str:
    """The library itself, to be put inside the page."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def colours(engines: Sequence[str]) -> dict[str, str]:
    """Engine → colour; a known engine has the same one in every report."""
    free = iter(OTHER_COLOURS * (len(engines) // len(OTHER_COLOURS) + 1))
    return {engine: KNOWN_COLOURS.get(engine) or next(free) for engine in engines}


@dataclass(frozen=True, slots=True)
class _Look:
    colour: str
    symbol: str
    dash: str


def _looks(summary: Summary) -> dict[str, _Look]:
    keys = [run.key for run in summary.runs]
    by_engine = colours(keys)
    return {
        key: _Look(by_engine[key], SYMBOLS[i % len(SYMBOLS)], DASHES[i % len(DASHES)]) for i, key in enumerate(keys)
    }


def figures(summary: Summary) -> list[Figure]:
    """Every figure that these records can fill."""
    looks = _looks(summary)
    made = []
    if against := [c for c in summary.comparisons if c.baseline == summary.baseline]:
        made.append(_savings(summary, against, looks))
    for kind in TURN_KINDS:
        engines = [engine for engine in summary.engines if kind in engine.medians.ttft]
        if engines:
            made.append(_ttft(summary, kind, engines, looks))
    if engines := [engine for engine in summary.engines if engine.total_request_s]:
        made.append(_phases(engines, looks))
    for found in summary.pressure:
        made += [_tpot_over_time(summary, found, timeline, looks) for timeline in found.timelines if timeline.windows]
    return made


def _savings(summary: Summary, against: Sequence[Comparison], looks: dict[str, _Look]) -> Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    for c in against:
        look, sessions = looks[c.candidate], list(c.saved_by_session)
        numbers = list(range(1, len(sessions) + 1))
        figure.add_scatter(
            x=numbers,
            y=_short([100 * value for value in c.saved_by_session.values()]),
            text=sessions,
            name=summary.label(c.candidate),
            legendgroup=c.candidate,
            mode="markers",
            marker={"color": look.colour, "symbol": look.symbol, "size": 9},
            hovertemplate="%{text}: saved %{y:.1f} %<extra>" + summary.label(c.candidate) + "</extra>",
        )
        figure.add_scatter(
            x=[0.5, len(sessions) + 0.5],
            y=_short([100 * c.saved] * 2),
            legendgroup=c.candidate,
            showlegend=False,
            mode="lines",
            line={"color": look.colour, "dash": "dot", "width": 1.5},
            hoverinfo="skip",
        )
    count = max(c.sessions for c in against)
    figure.update_xaxes(title="session, in the order of the recording", range=[0.5, count + 0.5], dtick=_tick(count))
    figure.update_yaxes(title="saved (%)", zeroline=True, zerolinewidth=2)
    baseline = summary.label(str(summary.baseline))
    said = "; ".join(
        f"{summary.label(c.candidate)} between {wording.percent(min(v))} and {wording.percent(max(v))}"
        for c in against
        if (v := list(c.saved_by_session.values()))
    )
    return Figure(
        name="savings",
        title=f"Saving in each session against {baseline}",
        caption=f"Share of {baseline}'s time saved in each session (points) and over all of them (dotted): {said}.",
        spec=_spec(figure),
        wide=True,
    )


def _ttft(summary: Summary, kind: str, engines: Sequence[EngineSummary], looks: dict[str, _Look]) -> Figure:
    import plotly.graph_objects as go

    figure = go.Figure()
    turns = summary.turns[summary.turns["kind"] == kind]
    for engine in engines:
        look = looks[engine.key]
        ttft = np.sort(turns.loc[turns["engine"] == engine.key, "ttft_s"].to_numpy(np.float64))
        figure.add_scatter(
            x=_short([ttft[0], *ttft]),
            y=_short([0, *(np.arange(1, len(ttft) + 1) / len(ttft))]),
            name=engine.label,
            legendgroup=engine.key,
            mode="lines",
            line={"color": look.colour, "dash": look.dash, "width": 2, "shape": "hv"},
            hovertemplate="%{y:.0%} of turns within %{x:.3s}s<extra>" + engine.label + "</extra>",
        )
        figure.add_scatter(
            x=_short([engine.medians.ttft[kind].value]),
            y=[0.5],
            legendgroup=engine.key,
            showlegend=False,
            mode="markers",
            marker={"color": look.colour, "symbol": look.symbol, "size": 11},
            hovertemplate="median %{x:.3s}s<extra>" + engine.label + "</extra>",
        )
    ticks = _log_ticks(turns["ttft_s"].min(), turns["ttft_s"].max())
    figure.update_xaxes(
        title="TTFT, log scale", type="log", tickvals=ticks, ticktext=[wording.tick(value) for value in ticks]
    )
    figure.update_yaxes(title="share of turns", range=[0, 1.02], tickformat=".0%")
    medians = "; ".join(f"{engine.label} {wording.median(engine.medians.ttft[kind])}" for engine in engines)
    name = {"first": "the first turn", "tool": "turns after a tool output", "user": "turns after a user message"}[
        kind
    ]
    return Figure(
        name=f"ttft-{kind}",
        title=f"TTFT of {name}",
        caption=f"Share of turns whose first token arrived within a time; the marker is the median: {medians}.",
        spec=_spec(figure),
    )


def _phases(engines: Sequence[EngineSummary], looks: dict[str, _Look]) -> Figure:
    import plotly.graph_objects as go

    rows = list(reversed(engines))  # plotly draws the first one lowest
    figure = go.Figure()
    phases = {
        "prefill (TTFT)": [engine.client_prefill_s or 0.0 for engine in rows],
        "decode": [engine.client_decode_s or 0.0 for engine in rows],
    }
    phases["end of the stream"] = [
        (engine.total_request_s or 0.0) - prefill - decode
        for engine, prefill, decode in zip(rows, *phases.values(), strict=True)
    ]
    for (name, values), (opacity, pattern) in zip(phases.items(), ((1, ""), (0.75, "/"), (0.5, "x")), strict=True):
        shape = {"shape": pattern, "solidity": 0.35}
        figure.add_bar(
            x=_short(values),
            y=[engine.label for engine in rows],
            orientation="h",
            name=name,
            showlegend=False,
            marker={"color": [looks[e.key].colour for e in rows], "opacity": opacity, "pattern": shape},
            hovertemplate=f"{name} " + "%{x:.3s}s<extra>%{y}</extra>",
        )
        # The legend names the phase, not an engine: grey.
        figure.add_bar(
            x=[None], y=[rows[0].label], orientation="h", name=name,
            marker={"color": _GREY, "opacity": opacity, "pattern": shape},
        )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=0.35)
    figure.update_xaxes(title="total request time (s)", rangemode="tozero")
    figure.update_yaxes(automargin=True)
    said = "; ".join(
        f"{e.label} {wording.seconds(e.client_prefill_s)} prefill and {wording.seconds(e.client_decode_s)} decode "
        f"of {wording.seconds(e.total_request_s)}"
        for e in engines
    )
    return Figure(
        name="phases",
        title="Where the time goes",
        caption=f"Total request time by phase, as the client saw it: {said}.",
        spec=_spec(figure),
        height=150 + 46 * len(rows),
        wide=True,
    )


def _tpot_over_time(summary: Summary, found: EnginePressure, timeline: Timeline, looks: dict[str, _Look]) -> Figure:
    import plotly.graph_objects as go

    look, label = looks[found.engine], summary.label(found.engine)
    figure = go.Figure()
    figure.add_scatter(
        x=_short([window.at_s for window in timeline.windows]),
        y=_short([1e3 * window.tpot_s for window in timeline.windows]),
        text=[wording.count(window.tokens, "token") for window in timeline.windows],
        name=label,
        mode="markers",
        marker={"color": look.colour, "symbol": look.symbol, "size": 6},
        hovertemplate="%{y:.3s} ms at %{x:.1f} s, %{text}<extra>" + label + "</extra>",
    )
    said = []
    for number, phase in enumerate(timeline.phases):
        start_s = timeline.since_s(phase.began_ns)
        # A worker that was killed may have been at it until the run's end.
        stop_s = timeline.windows[-1].at_s if phase.ended_ns is None else timeline.since_s(phase.ended_ns)
        measured = f"{phase.name}, measured {wording.percent(phase.busy_share)}"
        figure.add_shape(
            type="rect", x0=start_s, x1=stop_s, y0=0, y1=1, yref="paper", layer="below",
            fillcolor=_GREY, opacity=0.2, line={"width": 0},
        )  # fmt: skip
        figure.add_annotation(
            x=start_s, y=1, yref="paper", text=measured, showarrow=False, xanchor="left", yanchor="top",
            yshift=-18 * (number % 3),
        )  # fmt: skip
        end = "an end that was not recorded" if phase.ended_ns is None else f"{stop_s:.1f} s"
        said.append(f"{measured}, from {start_s:.1f} s to {end}")
    figure.update_xaxes(title="time since the first request (s)")
    # A third more than the highest, for the labels.
    highest_ms = 1e3 * max(window.tpot_s for window in timeline.windows)
    figure.update_yaxes(title="TPOT (ms)", range=_short([0, 1.35 * highest_ms]))
    medians = "; ".join(f"{wording.load(e.load)} {wording.median(e.tpot, 'ms')}" for e in found.effects)
    repeat = f", repeat {timeline.repeat}" if len(found.timelines) > 1 else ""
    window = "each second" if timeline.window_s == 1 else f"every {timeline.window_s} seconds"
    return Figure(
        name=f"pressure-{list(looks).index(found.engine)}-{timeline.repeat}",
        title=f"TPOT over time: {label}{repeat}",
        caption=f"Σ gaps / Σ tokens over what arrived in {window} (points); background load (shaded): "
        f"{'; '.join(said)}. Medians over turns: {medians}.",
        spec=_spec(figure),
        wide=True,
    )


def _spec(figure: Any) -> str:
    figure.update_layout(
        margin={"l": 60, "r": 16, "t": 16, "b": 56},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        hovermode="closest",
    )
    spec = figure.to_plotly_json()
    spec["layout"].pop("template", None)  # the page's own, light or dark
    return orjson.dumps({"data": list(spec["data"]), "layout": spec["layout"]}).decode()


def _short(values: Sequence[float]) -> list[float]:
    """Six digits: what a screen can show, at a third of the size."""
    return [float(f"{value:.6g}") for value in values]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade; only 1 where that were too many for a narrow page."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    return [float(f"{step}e{decade}") for decade in decades for step in steps]


def _tick(count: int) -> int:
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 10**9) if count / step <= 20)
