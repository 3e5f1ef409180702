"""``results.json``: the report's numbers for programs; null is "not measured", never 0.

``data/results.schema.json`` says what each field is, and ``docs/results.md`` says it for readers. A field may be
added without a new version.
"""

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from analysis import stats, wording
from analysis.compare import Comparison
from analysis.pressure import Effect, EnginePressure
from analysis.runs import Run
from analysis.slices import Slices
from analysis.stats import Interval, Median, MedianPair
from analysis.summary import SEED, EngineSummary, Summary
from analysis.throughput import DECODE_FROM, PREFILL_FROM, throughput
from analysis.tuning import Tuning, tunings

VERSION = 1
_ENGINE_FIELDS = [field.name for field in fields(EngineSummary) if field.name not in ("key", "medians")]


def results(summary: Summary) -> dict[str, Any]:
    """The value of ``results.json``."""
    return _alone(summary) | {
        "panels": [_alone(panel) for panel in summary.panels],
        "others": [asdict(other) for other in summary.others],
        "reference": None if summary.reference is None else asdict(summary.reference),
    }


def _alone(summary: Summary) -> dict[str, Any]:
    engines = dict(zip((run.key for run in summary.runs), summary.engines, strict=True))
    return {
        "version": VERSION,
        "title": wording.title(summary),
        "verdicts": wording.verdicts(summary),
        "valid": summary.valid,
        "warnings": wording.warnings(summary),
        "baseline": summary.baseline,
        "settings": {
            "level": stats.LEVEL,
            "resamples": stats.RESAMPLES,
            "seed": SEED,
            "smallest_sample": stats.SMALLEST_SAMPLE,
        },
        "workload": asdict(summary.workload),
        "sessions": list(summary.pairing.sessions),
        "excluded_sessions": dict(summary.pairing.excluded),
        "differences": list(summary.pairing.differences),
        "engines": {run.key: _engine(run, engines[run.key], summary) for run in summary.runs},
        "comparisons": [_comparison(comparison) for comparison in summary.comparisons],
        "checks": [asdict(check) for check in summary.checks],
        "pressure": {found.engine: _pressure(found) for found in summary.pressure} or None,
        "tunings": [_tuning(found) for found in tunings(summary)],
    }


def _tuning(found: Tuning) -> dict[str, Any]:
    return {
        "engine": found.engine,
        "setting": found.setting,
        "guarded": found.guarded,
        "chosen": found.chosen.value if found.chosen else None,
        "told_apart": found.told_apart,
        "trials": [
            {
                "run": trial.run.key,
                "value": trial.value,
                "split": trial.split,
                "sessions": trial.engine.sessions,
                "total_request_s": trial.objective_s,
            }
            for trial in found.trials
        ],
    }


def _engine(run: Run, engine: EngineSummary, summary: Summary) -> dict[str, Any]:
    kept = {name: getattr(engine, name) for name in _ENGINE_FIELDS}
    return kept | {
        "folders": [str(folder.relative_to(summary.folder)) for folder in run.folders],
        "note": run.result["engine"].get("note"),
        "ttft_s": {kind: _median(median) for kind, median in engine.medians.ttft.items()},
        "tpot_s": _median(engine.medians.tpot),
        "slices": _slices(summary.slices.get(run.key)),
        "tokens_per_second": _rates(summary.turns[summary.turns["engine"] == run.key]) if engine.sessions else None,
    }


def _slices(found: Slices | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        field.name: [
            {
                "name": each.name,
                "turns": each.turns,
                "middle": each.middle,
                "ttft_s": _median(each.ttft),
                "tpot_s": _median(each.tpot),
            }
            for each in getattr(found, field.name)
        ]
        for field in fields(Slices)
    }


def _rates(turns: pd.DataFrame) -> dict[str, Any]:
    found = throughput(turns)
    return {
        "prefill": [
            {"at_least": at_least, "turns": client.turns, "client": client.rate, "engine": engine.rate}
            for at_least, client, engine in zip(PREFILL_FROM, found.prefill, found.server_prefill, strict=True)
        ],
        "decode": {
            "at_least": DECODE_FROM,
            "turns": found.decode.turns,
            "aggregate": found.decode.rate,
            "median": found.decode_median,
        },
        "ms_per_prompt_token": found.ms_per_prompt_token,
        "ms_per_new_token": found.ms_per_new_token,
    }


def _median(median: Median | None) -> dict[str, Any] | None:
    if median is None:
        return None
    low, high = _ends(median.interval)
    return {"median": median.value, "low": low, "high": high, "turns": median.turns, "sessions": median.sessions}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    low, high = _ends(comparison.interval)
    percentile_low, percentile_high = _ends(comparison.percentile)
    return {
        "baseline": comparison.baseline,
        "candidate": comparison.candidate,
        "sessions": comparison.sessions,
        "baseline_s": comparison.baseline_s,
        "candidate_s": comparison.candidate_s,
        "saved": comparison.saved,
        "low": low,
        "high": high,
        "percentile_low": percentile_low,
        "percentile_high": percentile_high,
        "won": comparison.won,
        "decided": comparison.decided,
        "median_saved": comparison.median_saved,
        "effective_sessions": comparison.effective_sessions,
        "leave_one_out": comparison.leave_one_out,
        "p_value": comparison.p_value,
        "saved_by_session": dict(comparison.saved_by_session),
        "ttft": {kind: _pair(pair) for kind, pair in comparison.ttft.items()},
        "tpot": _pair(comparison.tpot),
        "adjusted_p": dict(comparison.adjusted_p),
        "error": comparison.error,
        "smallest_effect": comparison.smallest_effect,
        "false_alarm_rate": comparison.false_alarm_rate,
    }


def _pair(pair: MedianPair | None) -> dict[str, Any] | None:
    if pair is None:
        return None
    ratio_low, ratio_high = _ends(pair.ratio_interval)
    difference_low, difference_high = _ends(pair.difference_interval)
    return {
        "ratio": pair.ratio,
        "ratio_low": ratio_low,
        "ratio_high": ratio_high,
        "difference_s": pair.difference,
        "difference_low_s": difference_low,
        "difference_high_s": difference_high,
    }


def _pressure(found: EnginePressure) -> dict[str, Any]:
    return {"tpot": [_effect(effect) for effect in found.effects], "phases": list(_phases(found))}


def _effect(effect: Effect) -> dict[str, Any]:
    low, high = _ends(effect.tpot.interval if effect.tpot else None)
    ratio_low, ratio_high = _ends(effect.ratio_interval)
    return {
        "loads": list(effect.load),
        "sessions": effect.sessions,
        "turns": effect.turns,
        "tokens": effect.tokens,
        "median": effect.tpot.value if effect.tpot else None,
        "low": low,
        "high": high,
        "ratio": effect.ratio,
        "ratio_low": ratio_low,
        "ratio_high": ratio_high,
    }


def _phases(found: EnginePressure) -> Iterator[dict[str, Any]]:
    for timeline in found.timelines:
        for phase in timeline.phases:
            yield {
                "repeat": timeline.repeat,
                "name": phase.name,
                "kind": phase.kind,
                "level": phase.level,
                "workers": phase.workers,
                "start_s": timeline.since_s(phase.began_ns),
                "stop_s": None if phase.ended_ns is None else timeline.since_s(phase.ended_ns),
                "busy_share": phase.busy_share,
                "bytes_per_s": phase.bytes_per_s,
            }


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)
