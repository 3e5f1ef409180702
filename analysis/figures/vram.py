"""The iso-VRAM curve: decode speed and wait of each engine at each budget."""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

from analysis.figures.colours import Look, colours
from analysis.figures.figure import Figure, blank, spec
from analysis.figures.marks import add_line
from analysis.summary import Summary
from analysis.tables.iso_vram import Point, points


def iso_vram(part: Summary, looks: dict[str, Look]) -> list[Figure]:
    """Only where some engine ran with two budgets or more, or two engines with one."""
    found = points(part)
    if len(found) < 2:
        return []
    made = [
        _figure(
            found,
            looks,
            "iso-vram-decode",
            "decode (tok/s)",
            "Decode at the same VRAM budget",
            lambda p: p.decode_per_s,
        ),
        _figure(
            found,
            looks,
            "iso-vram-ttft",
            "TTFT after tool (s)",
            "Wait at the same VRAM budget",
            lambda p: p.ttft_tool_s,
        ),
    ]
    return [figure for figure in made if figure]


def _figure(
    found: list[Point], looks: dict[str, Look], name: str, axis: str, title: str, of: Callable[[Point], float | None]
) -> Figure | None:
    figure, said = blank(), []
    by_engine = colours(list(dict.fromkeys(point.engine for point in found)))
    for engine, group in groupby(found, key=lambda point: point.engine):
        known = [(point, value) for point in group if (value := of(point)) is not None]
        if not known:
            continue
        first, _ = known[0]
        look = replace(looks[first.key], colour=by_engine[engine])
        gib, values = [point.gib for point, _ in known], [value for _, value in known]
        add_line(figure, look, first.label, gib, values, hover="%{y:.3s} at %{x:g} GiB")
        said.append(f"{first.label} " + ", ".join(f"{p.gib:g} GiB: {v:.3g}" for p, v in known))
    if not said:
        return None
    figure.update_xaxes(title="VRAM budget (GiB)", rangemode="tozero")
    figure.update_yaxes(title=axis, rangemode="tozero")
    return Figure(name=name, title=title, caption=f"{axis} at each budget: {'; '.join(said)}.", spec=spec(figure))
