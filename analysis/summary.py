"""Everything a report says, as numbers: one frozen value built from a folder of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis import stats
from analysis.checks import INVALID, Check, checks
from analysis.compare import (
    Comparison,
    Medians,
    choose_baseline,
    compare_all,
    medians,
    repeated_times,
    session_times,
)
from analysis.foremost import Other, foremost
from analysis.pairing import Pairing, finished, pair
from analysis.paper import Reference
from analysis.pressure import EnginePressure, engine_pressure
from analysis.runs import COMPLETE, Run, experiments, read_runs
from analysis.slices import Slices, slices
from analysis.stats import Integers
from analysis.workload import WorkloadSummary, what_was_replayed

SEED = 20_261_129
"""Of the resampling: the same records give the same report, to the byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSummary:
    """One engine over the sessions that count. None: not measured."""

    key: str
    label: str
    status: str
    error: str | None
    sessions: int
    repeats: int
    total_request_s: float | None
    medians: Medians
    client_prefill_s: float | None
    """Sum of TTFT."""
    client_decode_s: float | None
    """Sum of first to last token."""
    server_prefill_s: float | None
    """As reported; None unless the engine reported it on every turn."""
    server_decode_s: float | None
    turns_replayed: int
    """Turns of each session's last attempt, failed ones too."""
    turns_verified: int
    turns_failed: int
    earlier_attempts: int
    prefill_reported: int
    prefill_as_expected: int
    first_chunk_merged: int
    """Turns whose first chunk held several tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    folder: Path
    runs: tuple[Run, ...]
    turns: pd.DataFrame
    """Measured turns of the sessions that count, all engines."""
    pairing: Pairing
    baseline: str | None
    """None where nothing is compared: one engine, unlike runs, or no common session."""
    comparisons: tuple[Comparison, ...]
    engines: tuple[EngineSummary, ...]
    workload: WorkloadSummary
    checks: tuple[Check, ...]
    pressure: tuple[EnginePressure, ...]
    """Of the engines that ran under background load."""
    slices: Mapping[str, Slices]
    """Engine → its medians over slices of its turns; an engine that finished no session is not in it."""
    reference: Reference | None = None
    """The paper's numbers, where they were asked for: shown beside ours, read by no statistic."""
    panels: "tuple[Summary, ...]" = ()
    """Where the runs are of several workloads or models, each measured on several engines: every one by itself. The
    fields above then hold all runs, and compare nothing."""
    others: tuple[Other, ...] = ()
    """Of hundreds of runs those that are only listed; no other field counts them."""

    @property
    def parts(self) -> "tuple[Summary, ...]":
        """What is compared within itself: the panels, or this summary where there are none."""
        return self.panels or (self,)

    @property
    def interrupted(self) -> tuple[Run, ...]:
        """Runs that did not end by themselves."""
        return tuple(run for run in self.runs if run.status != COMPLETE)

    @property
    def failed_checks(self) -> tuple[Check, ...]:
        """Those that make a run invalid first."""
        failed = [check for check in self.checks if check.ok is False]
        return tuple(sorted(failed, key=lambda check: check.severity != INVALID))

    @property
    def broken_checks(self) -> tuple[Check, ...]:
        """Those without which the numbers are wrong."""
        return tuple(check for check in self.failed_checks if check.severity == INVALID)

    @property
    def valid(self) -> bool:
        lost = any(other.status != COMPLETE for other in self.others)
        return not (self.broken_checks or self.interrupted or self.pairing.differences or lost)

    def label(self, key: str) -> str:
        return next(run.label for run in self.runs if run.key == key)


def summarise(folder: Path, *, baseline: str | None = None, reference: Reference | None = None) -> Summary:
    """Read the runs at or below ``folder`` and compute every number of a report.

    Raises:
        RecordError: records that are missing, damaged or impossible.
        AnalysisError: ``baseline`` is no engine of these runs.
    """
    chosen = [foremost(group, baseline) for group in experiments(read_runs(folder))]
    groups, others = [shown for shown, _ in chosen], tuple(other for _, rest in chosen for other in rest)
    runs = tuple(run for group in groups for run in group)
    if len(groups) == 1:
        return replace(_summarise(folder, runs, baseline), reference=reference, others=others)
    panels = tuple(_summarise(folder, group, _known(group, baseline)) for group in groups)
    if baseline is not None and not any(panel.baseline == baseline for panel in panels):
        choose_baseline([key for panel in panels for key in panel.pairing.engines], baseline)
    whole = _summarise(folder, runs, None)
    unlike = tuple(difference for panel in panels for difference in panel.pairing.differences)
    return replace(
        whole, pairing=replace(whole.pairing, differences=unlike), panels=panels, reference=reference, others=others
    )


def _known(runs: Sequence[Run], baseline: str | None) -> str | None:
    return baseline if any(run.key == baseline for run in runs) else None


def _summarise(folder: Path, runs: tuple[Run, ...], baseline: str | None) -> Summary:
    pairing = pair(runs)
    chosen = choose_baseline(pairing.engines, baseline) if pairing.engines else None
    comparable = (
        chosen is not None and not pairing.differences and bool(pairing.sessions) and len(pairing.engines) > 1
    )
    sessions = [_sessions(run, pairing, comparable=comparable) for run in runs]
    counted = [run.measured[run.measured["session_id"].isin(s)] for run, s in zip(runs, sessions, strict=True)]
    engines = tuple(_engine(*each) for each in zip(runs, sessions, counted, strict=True))
    turns = pd.concat([part for part in counted if len(part)] or counted[:1], ignore_index=True)
    comparisons: tuple[Comparison, ...] = ()
    if comparable and chosen is not None:
        times = session_times(turns, pairing.sessions)[list(pairing.engines)]
        medians_of = {engine.key: engine.medians for engine in engines}
        paired = [run for run in runs if run.key in pairing.engines]
        comparisons = compare_all(
            times,
            medians_of,
            chosen,
            _resample(len(pairing.sessions)),
            seed=SEED,
            repeated={run.key: repeated_times(run.measured, pairing.sessions) for run in paired},
            identities={run.key: run.identity for run in paired},
        )
    return Summary(
        folder=folder,
        runs=runs,
        turns=turns,
        pairing=pairing,
        baseline=chosen if comparable else None,
        comparisons=comparisons,
        engines=engines,
        workload=what_was_replayed(runs),
        checks=checks(runs),
        pressure=tuple(
            found
            for each in zip(runs, counted, sessions, strict=True)
            if (found := engine_pressure(*each, _resample)) is not None
        ),
        slices={
            run.key: slices(part, names, _resample(len(names)))
            for run, part, names in zip(runs, counted, sessions, strict=True)
            if len(part)
        },
    )


def _sessions(run: Run, pairing: Pairing, *, comparable: bool) -> Sequence[str]:
    """The common sessions, in one order for all engines; without a comparison, those that this engine finished."""
    if comparable:
        return pairing.sessions if run.key in pairing.engines else ()
    return finished(run)


def _engine(run: Run, sessions: Sequence[str], turns: pd.DataFrame) -> EngineSummary:
    reported = run.measured["prefilled_as_expected"].dropna()
    return EngineSummary(
        key=run.key,
        label=run.label,
        status=run.status,
        error=run.error,
        repeats=len(run.folders),
        sessions=len(sessions),
        total_request_s=_total(turns, "stream_s"),
        medians=medians(turns, sessions, _resample(len(sessions)), np.random.default_rng([SEED, *run.key.encode()])),
        client_prefill_s=_total(turns, "ttft_s"),
        client_decode_s=_total(turns, "decode_s"),
        server_prefill_s=_total(turns, "server_prefill_s"),
        server_decode_s=_total(turns, "server_decode_s"),
        turns_replayed=len(run.turns),
        turns_verified=int(run.measured["verified_by"].notna().sum()),
        turns_failed=len(run.failed),
        earlier_attempts=run.earlier_attempts,
        prefill_reported=len(reported),
        prefill_as_expected=int(reported.astype(bool).sum()),
        first_chunk_merged=int((turns["first_chunk_tokens"].dropna() > 1).sum()),
    )


def _resample(sessions: int) -> Integers:
    """The same for every engine and comparison of as many sessions, which are in the recording's order."""
    return stats.resample(sessions, np.random.default_rng(SEED)) if sessions else np.zeros((0, 0), np.int64)


def _total(turns: pd.DataFrame, metric: str) -> float | None:
    """Over the sessions of one engine; None unless every turn has the metric."""
    if not len(turns) or turns[metric].isna().any():
        return None
    return float(session_times(turns, turns["session_id"].unique().tolist(), metric).to_numpy().sum())
