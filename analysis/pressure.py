"""TPOT under background load: which tokens of an engine arrived while which load was on.

A chunk of tokens has the gap since the chunk before it in its turn. The gap counts for a load when both chunks
arrived while every worker of that load was at it, for "no load" when both arrived while none was, and else for
neither: across an edge no one can tell which part of the time was loaded.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import stats
from analysis.frame import OK
from analysis.load import NEVER_NS, NO_LOAD, Load, Phase, edges, load_at, mean, phases_of
from analysis.metrics import tpot_s
from analysis.runs import Run
from analysis.stats import SMALLEST_SAMPLE, Integers, Interval, Median
from replay.record import TURNS_FILE, TurnRecord, read_turns

MOST_WINDOWS = 2_000
"""Points of a figure; a longer run has longer windows."""
_WINDOW_NS = 1_000_000_000
_CLOCK_BACK_NS = 1_000_000_000


TurnKey = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens that arrived in one second, or in the part of it on one side of a phase's edge."""

    at_s: float
    """Mean arrival, since the run's first request."""
    tpot_s: float
    """Σ of the gaps / tokens."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One run folder over time."""

    repeat: int
    zero_ns: int
    """When its first request was sent."""
    window_s: int
    windows: tuple[Window, ...]
    phases: tuple[Phase, ...]

    def since_s(self, at_ns: int) -> float:
        """Since the first request; negative before it."""
        return (at_ns - self.zero_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One engine's TPOT under one load. None: no token to tell it from."""

    load: Load
    sessions: int
    turns: int
    """Turns with such gaps."""
    tokens: int
    tpot: Median | None
    """Over turns: of each the gaps under this load, Σ / tokens."""
    ratio: float | None
    """Median over the engine's own without load; None for that one itself."""
    ratio_interval: Interval | None
    """None below ``SMALLEST_SAMPLE`` sessions with tokens in both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePressure:
    engine: str
    effects: tuple[Effect, ...]
    """Without load first, then in the order the loads began."""
    measured: Mapping[str, float | None]
    """Phase's name → share of the time that its workers were really at it, mean over phases of that name."""
    timelines: tuple[Timeline, ...]


def engine_pressure(
    run: Run, turns: pd.DataFrame, sessions: Sequence[str], resample: Callable[[int], Integers]
) -> EnginePressure | None:
    """What load did to one engine; None when there was none, or when the clock began again amid a resumed run.

    Args:
        turns: of this run, those that count.
        sessions: theirs, in the order that ``resample`` draws from.

    Raises:
        RecordError: a damaged line.
    """
    phases = [phases_of(folder) for folder in run.folders]
    if not any(phases):
        return None
    counted: set[TurnKey] = set(turns[["session_id", "repeat", "attempt", "turn"]].itertuples(index=False, name=None))
    timelines, parts = [], defaultdict[Load, list[_Part]](list)
    for folder, result, found in zip(run.folders, run.results, phases, strict=True):
        reading = _Reading(found)
        if not reading.read(_records(folder), counted):
            return None
        for part in reading.parts:
            parts[part.load].append(part)
        if found and reading.sent:
            timelines.append(reading.timeline(int(result.get("repeat", 0))))
    flat = [phase for found in phases for phase in found]
    loads = dict.fromkeys([NO_LOAD, *((phase.name,) for phase in flat), *parts])
    alone = {(name,) for load in parts if len(load) > 1 for name in load}
    # A load that was only ever on beside another has its row there.
    shown = [load for load in loads if parts[load] or load not in alone]
    return EnginePressure(
        engine=run.key,
        effects=_effects({load: parts[load] for load in shown}, sessions, resample(len(sessions))),
        measured={phase.name: mean([p.busy_share for p in flat if p.name == phase.name]) for phase in flat},
        timelines=tuple(timelines),
    )


def _records(folder: Path) -> Iterator[TurnRecord]:
    """An engine that failed before its first turn has no records."""
    if (folder / TURNS_FILE).is_file():
        yield from read_turns(folder)


@dataclass(frozen=True, slots=True)
class _Part:
    """The gaps of one turn under one load."""

    load: Load
    session: str
    tokens: int
    gaps_ns: int


class _Reading:
    """Goes through one folder's turns and keeps sums, so that a long run's arrivals are never all in memory."""

    def __init__(self, phases: Sequence[Phase]) -> None:
        self._phases = tuple(phases)
        self._edges = np.array(sorted({edge for phase in phases for edge in edges(phase)}), np.int64)
        self._loads = [load_at(phases, start) for start in (-1, *self._edges.tolist())]
        self._cells: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        self._zero_ns = NEVER_NS
        self.parts: list[_Part] = []

    def read(self, records: Iterable[TurnRecord], counted: set[TurnKey]) -> bool:
        """Whether all stamps are of one clock: it begins again with the machine, and a run may be resumed after."""
        latest_ns = 0
        for record in records:
            if record.sent_ns is not None:
                self._zero_ns = min(self._zero_ns, record.sent_ns)
            if record.end_ns is not None:
                if record.end_ns < latest_ns - _CLOCK_BACK_NS:
                    return False
                latest_ns = max(latest_ns, record.end_ns)
            key = (record.session_id, record.repeat, record.attempt, record.turn)
            if record.status == OK and key in counted and tpot_s(record) is not None:
                self._add(record)
        return True

    def _add(self, record: TurnRecord) -> None:
        chunk_ns, tokens = np.unique(np.array(record.token_ns, np.int64), return_counts=True)
        span = np.searchsorted(self._edges, chunk_ns, side="right")
        sums: dict[Load, list[int]] = {}
        for at, gap, number, before, after in zip(
            chunk_ns[1:].tolist(), np.diff(chunk_ns).tolist(), tokens[1:].tolist(),
            span[:-1].tolist(), span[1:].tolist(), strict=True,
        ):  # fmt: skip
            cell = self._cells[at // _WINDOW_NS, after]
            cell[0] += gap
            cell[1] += number
            cell[2] += at * number
            load = self._loads[after]
            if before == after and load is not None:
                total = sums.setdefault(load, [0, 0])
                total[0] += number
                total[1] += gap
        self.parts += [_Part(load, record.session_id, *total) for load, total in sums.items()]

    @property
    def sent(self) -> bool:
        """Whether there was a request: without one there is no zero to count from."""
        return self._zero_ns < NEVER_NS

    def timeline(self, repeat: int) -> Timeline:
        seconds = [second for second, _ in self._cells]
        span_s = max(seconds) - min(seconds) + 1 if seconds else 1
        window_s = next(w for w in (1, 2, 5, 10, 30, 60, 300, 3600, 10**9) if span_s / w <= MOST_WINDOWS)
        cells: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        for (second, span), sums in self._cells.items():
            cell = cells[second // window_s, span]
            for i, value in enumerate(sums):
                cell[i] += value
        windows = [
            Window((weighted / tokens - self._zero_ns) / 1e9, gaps / tokens / 1e9, tokens)
            for gaps, tokens, weighted in cells.values()
        ]
        return Timeline(
            repeat=repeat,
            zero_ns=self._zero_ns,
            window_s=window_s,
            windows=tuple(sorted(windows, key=lambda window: window.at_s)),
            phases=self._phases,
        )


def _effects(
    parts: Mapping[Load, Sequence[_Part]], sessions: Sequence[str], counts_RS: Integers
) -> tuple[Effect, ...]:
    position = {session: number for number, session in enumerate(sessions)}
    free: Median | None = None
    made = []
    for load, mine in parts.items():
        tpot = stats.cluster_median(
            np.array([part.gaps_ns / part.tokens / 1e9 for part in mine], np.float64),
            np.array([position[part.session] for part in mine], np.int64),
            counts_RS,
        )
        ratio = interval = None
        if load == NO_LOAD:
            free = tpot
        elif free is not None and tpot is not None:
            compared = stats.paired_medians(free, tpot)
            ratio = compared.ratio
            both = {part.session for part in mine} & {part.session for part in parts[NO_LOAD]}
            interval = compared.ratio_interval if len(both) >= SMALLEST_SAMPLE else None
        made.append(
            Effect(
                load=load,
                sessions=len({part.session for part in mine}),
                turns=len(mine),
                tokens=sum(part.tokens for part in mine),
                tpot=tpot,
                ratio=ratio,
                ratio_interval=interval,
            )
        )
    return tuple(made)
