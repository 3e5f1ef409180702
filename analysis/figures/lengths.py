"""TTFT and TPOT over the tokens that a turn generates."""

from collections.abc import Callable

from analysis import wording
from analysis.figures.colours import Look
from analysis.figures.figure import Figure, blank, error_bars, log_ticks, short, spec
from analysis.slices import Slice
from analysis.stats import Median
from analysis.summary import Summary


def over_generated(part: Summary, looks: dict[str, Look]) -> list[Figure]:
    made = [
        _figure(part, looks, "ttft-generated", "TTFT", "s", lambda each: each.ttft),
        _figure(part, looks, "tpot-generated", "TPOT", "ms", lambda each: each.tpot),
    ]
    return [figure for figure in made if figure]


def _figure(
    part: Summary, looks: dict[str, Look], name: str, metric: str, unit: str, of: Callable[[Slice], Median | None]
) -> Figure | None:
    figure, said, lengths = blank(), [], []
    scale = 1e3 if unit == "ms" else 1.0
    for engine in part.engines:
        slices = part.slices[engine.key].by_generated if engine.key in part.slices else ()
        found = [(each, median) for each in slices if (median := of(each))]
        if len(found) < 2:
            continue
        look = looks[engine.key]
        values = [median.value for _, median in found]
        lengths += [each.middle for each, _ in found]
        figure.add_scatter(
            x=short([each.middle for each, _ in found]),
            y=short([scale * value for value in values]),
            error_y=error_bars([median.interval for _, median in found], values, scale=scale),
            text=[f"{each.name} generated, {wording.count(each.turns, 'turn')}" for each, _ in found],
            name=engine.label,
            mode="lines+markers",
            line={"color": look.colour, "dash": look.dash, "width": 2},
            marker={"color": look.colour, "symbol": look.symbol, "size": 9},
            hovertemplate="%{y:.3s} " + unit + ", %{text}<extra>" + engine.label + "</extra>",
        )
        said.append(f"{engine.label} " + ", ".join(f"{e.name}: {wording.median(m, unit)}" for e, m in found))
    if not said:
        return None
    ticks = log_ticks(max(min(lengths), 1), max(lengths) + 1)
    figure.update_xaxes(
        title="tokens generated, log scale", type="log", tickvals=ticks, ticktext=[f"{value:,.0f}" for value in ticks]
    )
    figure.update_yaxes(title=f"median {metric} ({unit})", rangemode="tozero")
    return Figure(
        name=name,
        title=f"{metric} over generation length",
        caption=f"Each group at its median length: {'; '.join(said)}.",
        spec=spec(figure),
    )
