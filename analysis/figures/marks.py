"""What several figures draw alike: an engine's line, a phase of stacked bars, an axis of tokens."""

from collections.abc import Sequence
from typing import Any

from analysis.figures.colours import GREY, Look
from analysis.figures.figure import log_ticks, short


def add_line(
    figure: Any,
    look: Look,
    label: str,
    x: Sequence[float],
    y: Sequence[float],
    *,
    hover: str,
    error_y: dict[str, Any] | None = None,
    text: Sequence[str] | None = None,
) -> None:
    """An engine's points with the line through them; ``hover`` is plotly's template of a point."""
    figure.add_scatter(
        x=short(x),
        y=short(y),
        error_y=error_y,
        text=text,
        name=label,
        mode="lines+markers",
        line={"color": look.colour, "dash": look.dash, "width": 2},
        marker={"color": look.colour, "symbol": look.symbol, "size": 9},
        hovertemplate=f"{hover}<extra>{label}</extra>",
    )


def add_phase(
    figure: Any,
    name: str,
    seconds: Sequence[float],
    rows: Sequence[str],
    colours: Sequence[str],
    *,
    opacity: float,
    pattern: str = "",
) -> None:
    """One phase of horizontal bars that are stacked, a row an engine or configuration."""
    look = {"opacity": opacity, "pattern": {"shape": pattern, "solidity": 0.35}}
    figure.add_bar(
        x=short(seconds),
        y=list(rows),
        orientation="h",
        name=name,
        showlegend=False,
        marker={"color": list(colours), **look},
        hovertemplate=f"{name} " + "%{x:.3s}s<extra>%{y}</extra>",
    )
    # The legend names the phase, not an engine: grey.
    figure.add_bar(x=[None], y=[rows[0]], orientation="h", name=name, marker={"color": GREY, **look})


def token_axis(figure: Any, what: str, lengths: Sequence[float]) -> None:
    ticks = log_ticks(max(min(lengths), 1), max(lengths) + 1)
    figure.update_xaxes(
        title=f"{what}, log scale", type="log", tickvals=ticks, ticktext=[f"{value:,.0f}" for value in ticks]
    )
