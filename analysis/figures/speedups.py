"""Figure 1 of the paper: speedups over the slowest engine of each experiment."""

from collections.abc import Callable

from analysis import wording
from analysis.figures.colours import Look
from analysis.figures.figure import Figure, blank, short, spec
from analysis.subject import in_paper_order, subject
from analysis.summary import EngineSummary, Summary

Metric = Callable[[EngineSummary], float | None]


def _ttft(engine: EngineSummary) -> float | None:
    found = engine.medians.ttft.get("tool")
    return found.value if found else None


def _total(engine: EngineSummary) -> float | None:
    return engine.total_request_s


_PANELS: tuple[tuple[str, str, Metric], ...] = (
    ("wait", "(a) wait for the first token after a tool output", _ttft),
    ("total", "(b) total request time", _total),
)


def speedups(summary: Summary, looks: dict[str, Look]) -> list[Figure]:
    """Only where two engines or more have the metric."""
    parts = [part for part in summary.parts if len(part.pairing.engines) > 1 and not part.pairing.differences]
    return [
        made
        for name, title, metric in _PANELS
        if (made := _figure(name, title, metric, parts, looks, several=len(summary.parts) > 1))
    ]


def _figure(
    name: str, title: str, metric: Metric, parts: list[Summary], looks: dict[str, Look], *, several: bool
) -> Figure | None:
    groups = [(part, found) for part in parts if len(found := _known(part, metric)) > 1]
    if not groups:
        return None
    figure, said = blank(), []
    keys = list(dict.fromkeys(engine.key for _, found in groups for engine, _ in found))
    for key in keys:
        bars = [
            (part, value, max(v for _, v in found)) for part, found in groups for e, value in found if e.key == key
        ]
        label = bars[0][0].label(key)
        names = [wording.experiment(part) if several else "" for part, *_ in bars]
        factors = short([slowest / value for _, value, slowest in bars])
        figure.add_bar(
            x=names,
            y=factors,
            name=label,
            text=[f"{factor:.1f}×" for factor in factors],
            textposition="outside",
            cliponaxis=False,
            marker={"color": looks[key].colour},
            hovertemplate="%{y:.2f}× %{x}<extra>" + label + "</extra>",
        )
        said += [
            f"{label} {wording.times(f)}" + (f" ({n})" if several else "")
            for n, f in zip(names, factors, strict=True)
        ]
    figure.update_layout(barmode="group", bargroupgap=0.1)
    figure.update_yaxes(title="speedup", rangemode="tozero")
    figure.update_xaxes(showticklabels=several)
    return Figure(
        name=f"speedup-{name}",
        title=f"Figure 1 · Speedup, {title}",
        caption=f"The slowest engine's time over each engine's: {'; '.join(said)}.",
        spec=spec(figure),
    )


def _known(part: Summary, metric: Metric) -> list[tuple[EngineSummary, float]]:
    ours = subject(part)
    engines = [e for e in in_paper_order(part, last=ours.key if ours else None) if e.key in part.pairing.engines]
    return [(engine, value) for engine in engines if (value := metric(engine))]
