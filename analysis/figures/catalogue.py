"""Every figure of the report, in its order."""

from collections.abc import Iterator
from dataclasses import replace

from analysis import wording
from analysis.figures.ablation import ablation
from analysis.figures.colours import Look, looks
from analysis.figures.figure import Figure
from analysis.figures.input_length import input_length
from analysis.figures.lengths import over_generated
from analysis.figures.load import under_load
from analysis.figures.phases import phases
from analysis.figures.savings import savings
from analysis.figures.speedups import speedups
from analysis.figures.ttft import distributions
from analysis.figures.vram import iso_vram
from analysis.summary import Summary


def figures(summary: Summary) -> list[Figure]:
    """Figures that these records can fill; one that shows a single experiment comes once for each."""
    by_engine = looks(summary)
    made = speedups(summary, by_engine)
    for number, part in enumerate(summary.parts):
        found = list(_of_part(part, by_engine))
        made += [_of(part, number, figure) for figure in found] if summary.panels else found
    return made


def _of_part(part: Summary, by_engine: dict[str, Look]) -> Iterator[Figure]:
    if figure := savings(part, by_engine):
        yield figure
    yield from distributions(part, by_engine)
    yield from phases(part, by_engine)
    yield from input_length(part, by_engine)
    yield from ablation(part, by_engine)
    yield from over_generated(part, by_engine)
    yield from iso_vram(part, by_engine)
    yield from under_load(part, by_engine)


def _of(part: Summary, number: int, figure: Figure) -> Figure:
    return replace(figure, name=f"{figure.name}-{number}", title=f"{figure.title}: {wording.experiment(part)}")
