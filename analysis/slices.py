"""An engine's medians over slices of its turns: by new tokens, by context, by tokens generated."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from analysis import stats
from analysis.stats import Integers, Median

NEW_TOKENS = (128, 256, 512, 1_024)
"""Edges: fewer than 128, 128–255, 256–511, 512–1,023, at least 1,024 (the paper's groups)."""
GENERATED = (32, 64, 128, 256, 512, 1_024)
RESAMPLES = 2_000
"""Of the intervals here: a fifth of the others, since there are many; their ends move by some percent of a width."""
QUARTILES = ("first quartile", "second quartile", "third quartile", "fourth quartile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The turns of one slice; a median is None where none of them has the metric."""

    name: str
    turns: int
    middle: float
    """Median of what the turns are sliced by, in tokens: where a figure draws the slice."""
    ttft: Median | None
    tpot: Median | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """One engine. A slice without turns is not in it."""

    by_new_tokens: tuple[Slice, ...]
    """Turns after a tool output."""
    by_context: tuple[Slice, ...]
    """Quartiles of all turns by the tokens of their prompts."""
    by_generated: tuple[Slice, ...]


def slices(turns: pd.DataFrame, sessions: Sequence[str], counts_RS: Integers) -> Slices:
    """Slice one engine's measured turns.

    Args:
        sessions: theirs, in the order that ``counts_RS`` draws from.
    """
    over = _Over(pd.Index(sessions), counts_RS[:RESAMPLES])
    tool = turns[turns["kind"] == "tool"]
    context = turns["prompt_tokens"].to_numpy(np.float64)
    edges = np.quantile(context, [0.25, 0.5, 0.75]) if len(context) else np.zeros(3)
    return Slices(
        by_new_tokens=over.slices(
            tool, "new_tokens", _bucket(tool["new_tokens"], NEW_TOKENS), bucket_names(NEW_TOKENS)
        ),
        by_context=over.slices(turns, "prompt_tokens", np.searchsorted(edges, context), QUARTILES),
        by_generated=over.slices(
            turns, "output_tokens", _bucket(turns["output_tokens"], GENERATED), bucket_names(GENERATED)
        ),
    )


def bucket_names(edges: Sequence[int]) -> tuple[str, ...]:
    """``<128``, ``128–255``, …, ``≥1,024``."""
    between = [f"{low:,}–{high - 1:,}" for low, high in pairwise(edges)]
    return (f"<{edges[0]:,}", *between, f"≥{edges[-1]:,}")


def _bucket(tokens: "pd.Series[int]", edges: Sequence[int]) -> Integers:
    found: Integers = np.searchsorted(np.array(edges), tokens.to_numpy(np.int64), side="right").astype(np.int64)
    return found


@dataclass(frozen=True, slots=True)
class _Over:
    position: "pd.Index[str]"
    counts: Integers
    """``counts_RS``"""

    def slices(self, turns: pd.DataFrame, by: str, slice_N: Integers, names: Sequence[str]) -> tuple[Slice, ...]:
        made = []
        for number, name in enumerate(names):
            part = turns[slice_N == number]
            if len(part):
                made.append(
                    Slice(
                        name=name,
                        turns=len(part),
                        middle=float(part[by].median()),
                        ttft=self._median(part, "ttft_s"),
                        tpot=self._median(part, "tpot_s"),
                    )
                )
        return tuple(made)

    def _median(self, part: pd.DataFrame, metric: str) -> Median | None:
        part = part[part[metric].notna()]
        session_N = self.position.get_indexer(pd.Index(part["session_id"])).astype(np.int64)
        return stats.cluster_median(part[metric].to_numpy(np.float64), session_N, self.counts)
