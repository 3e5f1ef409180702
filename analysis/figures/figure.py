"""What a figure is: a plotly specification, a title, and in words what it shows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from analysis.stats import Interval


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


def blank() -> Any:
    """An empty plotly figure; plotly takes a second to load."""
    import plotly.graph_objects as go

    return go.Figure()


def spec(figure: Any) -> str:
    figure.update_layout(
        margin={"l": 60, "r": 16, "t": 16, "b": 56},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        hovermode="closest",
    )
    made = figure.to_plotly_json()
    made["layout"].pop("template", None)  # the page's own, light or dark
    return orjson.dumps({"data": list(made["data"]), "layout": made["layout"]}).decode()


def short(values: Sequence[float]) -> list[float]:
    """Six digits: what a screen can show, at a third of the size."""
    return [float(f"{value:.6g}") for value in values]


def error_bars(
    intervals: Sequence[Interval | None], values: Sequence[float], *, scale: float = 1.0
) -> dict[str, Any] | None:
    """Bars where every point has an interval."""
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(intervals):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": short([scale * (interval.high - value) for interval, value in zip(known, values, strict=True)]),
        "arrayminus": short([scale * (value - interval.low) for interval, value in zip(known, values, strict=True)]),
        "thickness": 1,
        "width": 3,
    }


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade; only 1 where that were too many for a narrow page."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    return [float(f"{step}e{decade}") for decade in decades for step in steps]
