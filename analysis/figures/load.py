"""TPOT over time under background load."""

from collections.abc import Iterator

from analysis import wording
from analysis.figures.colours import GREY, Look
from analysis.figures.figure import Figure, blank, short, spec
from analysis.pressure import EnginePressure, Timeline
from analysis.summary import Summary


def under_load(part: Summary, looks: dict[str, Look]) -> Iterator[Figure]:
    """One figure a run folder with load."""
    for found in part.pressure:
        for timeline in found.timelines:
            if timeline.windows:
                yield _over_time(part, found, timeline, looks)


def _over_time(summary: Summary, found: EnginePressure, timeline: Timeline, looks: dict[str, Look]) -> Figure:
    look, label = looks[found.engine], summary.label(found.engine)
    figure = blank()
    figure.add_scatter(
        x=short([window.at_s for window in timeline.windows]),
        y=short([1e3 * window.tpot_s for window in timeline.windows]),
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
            fillcolor=GREY, opacity=0.2, line={"width": 0},
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
    figure.update_yaxes(title="TPOT (ms)", range=short([0, 1.35 * highest_ms]))
    medians = "; ".join(f"{wording.load(e.load)} {wording.median(e.tpot, 'ms')}" for e in found.effects)
    repeat = f", repeat {timeline.repeat}" if len(found.timelines) > 1 else ""
    window = "each second" if timeline.window_s == 1 else f"every {timeline.window_s} seconds"
    return Figure(
        name=f"pressure-{list(looks).index(found.engine)}-{timeline.repeat}",
        title=f"TPOT over time: {label}{repeat}",
        caption=f"Σ gaps / Σ tokens over what arrived in {window} (points); background load (shaded): "
        f"{'; '.join(said)}. Medians over turns: {medians}.",
        spec=spec(figure),
        wide=True,
    )
