"""Medians over slices of the turns: one row an engine, one column a slice."""

from collections.abc import Callable, Sequence

from analysis import wording
from analysis.slices import GENERATED, NEW_TOKENS, QUARTILES, Slice, Slices, bucket_names
from analysis.stats import Median
from analysis.summary import Summary
from analysis.tables import formulas as said
from analysis.tables.table import Column, Table, median, words


def sliced_tables(part: Summary) -> list[Table]:
    new, generated = bucket_names(NEW_TOKENS), bucket_names(GENERATED)
    return [
        _table(
            part, "ttft_by_new_tokens", "TTFT after a tool output, by new tokens",
            new, lambda found: found.by_new_tokens, lambda each: each.ttft, "s", (said.TTFT,),
        ),
        _table(
            part, "tpot_by_context", "TPOT by context length, in quartiles of the turns",
            QUARTILES, lambda found: found.by_context, lambda each: each.tpot, "ms",
            ("context: tokens of the prompt; quartiles of the engine's turns, the same for all engines", said.TPOT),
        ),
        _table(
            part, "ttft_by_generated", "TTFT by tokens generated",
            generated, lambda found: found.by_generated, lambda each: each.ttft, "s", (said.TTFT,),
        ),
        _table(
            part, "tpot_by_generated", "TPOT by tokens generated",
            generated, lambda found: found.by_generated, lambda each: each.tpot, "ms", (said.TPOT,),
        ),
    ]  # fmt: skip


def _table(
    part: Summary,
    name: str,
    title: str,
    names: Sequence[str],
    of: Callable[[Slices], Sequence[Slice]],
    metric: Callable[[Slice], Median | None],
    unit: str,
    formulas: tuple[str, ...],
) -> Table:
    engines = [engine for engine in part.engines if engine.key in part.slices]
    found = {engine.key: {each.name: each for each in of(part.slices[engine.key])} for engine in engines}
    some = [slice_ for slice_ in names if any(metric(by[slice_]) for by in found.values() if slice_ in by)]
    rows = [engine for engine in engines if any(slice_ in found[engine.key] for slice_ in some)]
    return Table(
        name=name,
        title=title,
        heads=(
            Column("engine", "engine"),
            *(_head(slice_, [by[slice_] for by in found.values() if slice_ in by], unit, name) for slice_ in some),
        ),
        lines=tuple(
            (
                words(engine.label),
                *(
                    median(metric(by[slice_]) if slice_ in (by := found[engine.key]) else None, unit)
                    for slice_ in some
                ),
            )
            for engine in rows
        ),
        engines=tuple(engine.key for engine in rows),
        formulas=(*formulas, said.SLICED),
    )


def _head(name: str, found: Sequence[Slice], unit: str, table: str) -> Column:
    counts = {each.turns for each in found}
    turns = f" ({counts.pop():,})" if len(counts) == 1 else ""
    numbers = name.replace("<", "below_").replace("≥", "from_").replace("–", "_to_").replace(",", "")
    return Column(f"{name}{turns}", f"{table.partition('_')[0]}_{wording.slug(numbers)}_{unit}")
