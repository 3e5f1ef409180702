"""Medians over the lengths of turns: TTFT over new tokens, TTFT and TPOT over the tokens that a turn generates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analysis import wording
from analysis.figures.colours import Look
from analysis.figures.figure import Figure, blank, error_bars, spec
from analysis.figures.marks import add_line, token_axis
from analysis.slices import Slice, Slices
from analysis.stats import Median
from analysis.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """One figure: which slices of the turns, and which of their medians."""

    name: str
    title: str
    metric: str
    unit: str
    """``s`` or ``ms``."""
    tokens: str
    """What the turns are sliced by, on the axis."""
    slices: Callable[[Slices], Sequence[Slice]]
    of: Callable[[Slice], Median | None]


TTFT_BY_NEW_TOKENS = Lengths(
    name="ttft-new-tokens", title="Figure 7a · TTFT after a tool output, by new tokens", metric="TTFT", unit="s",
    tokens="new tokens", slices=lambda found: found.by_new_tokens, of=lambda each: each.ttft,
)  # fmt: skip
BY_GENERATED = (
    Lengths(
        name="ttft-generated", title="TTFT over generation length", metric="TTFT", unit="s",
        tokens="tokens generated", slices=lambda found: found.by_generated, of=lambda each: each.ttft,
    ),
    Lengths(
        name="tpot-generated", title="TPOT over generation length", metric="TPOT", unit="ms",
        tokens="tokens generated", slices=lambda found: found.by_generated, of=lambda each: each.tpot,
    ),
)  # fmt: skip


def over_generated(part: Summary, looks: dict[str, Look]) -> list[Figure]:
    return [figure for asked in BY_GENERATED if (figure := over_lengths(part, looks, asked))]


def over_lengths(part: Summary, looks: dict[str, Look], asked: Lengths) -> Figure | None:
    """A line an engine; None where no engine has two slices."""
    figure, said, lengths = blank(), [], []
    scale, hover = (1e3, "%{y:.3s} ms, %{text}") if asked.unit == "ms" else (1.0, "%{y:.3s}s, %{text}")
    for engine in part.engines:
        slices = asked.slices(part.slices[engine.key]) if engine.key in part.slices else ()
        found = [(each, median) for each in slices if (median := asked.of(each))]
        if len(found) < 2:
            continue
        values, middles = [median.value for _, median in found], [each.middle for each, _ in found]
        lengths += middles
        add_line(
            figure,
            looks[engine.key],
            engine.label,
            middles,
            [scale * value for value in values],
            hover=hover,
            error_y=error_bars([median.interval for _, median in found], values, scale=scale),
            text=[f"{each.name} {asked.tokens}, {wording.count(each.turns, 'turn')}" for each, _ in found],
        )
        said.append(f"{engine.label} " + ", ".join(f"{e.name}: {wording.median(m, asked.unit)}" for e, m in found))
    if not said:
        return None
    token_axis(figure, asked.tokens, lengths)
    figure.update_yaxes(title=f"median {asked.metric} ({asked.unit})", rangemode="tozero")
    return Figure(
        name=asked.name,
        title=asked.title,
        caption=f"Each group at its median length: {'; '.join(said)}.",
        spec=spec(figure),
    )
