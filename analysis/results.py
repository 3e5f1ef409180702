"""``results.json``: the report's numbers for programs. Version 1; null is "not measured", never 0.

====================  ==============================================================================================
version               1
title, verdicts       sentences; ``verdicts[0]`` is the headline
valid, warnings       whether no check says that numbers are wrong and every run is complete and alike; what to know
                      before the numbers
baseline              key of the engine that the others are compared with, null without a comparison
settings              ``{level, resamples, seed, smallest_sample}`` of the intervals
workload              ``{name, hash, sessions, turns, output_tokens, turns_by_kind, new_tokens_median, losses}``
sessions              ids that every engine finished: those that the comparison is over
excluded_sessions     session id → why it is not in the comparison
differences           fields in which the runs are not alike; not empty means that nothing was compared
engines               key → ``{label, folders, status, error, note, sessions, repeats, total_request_s, ttft_s,
                      tpot_s, client_prefill_s, client_decode_s, server_prefill_s, server_decode_s, turns_replayed,
                      turns_verified, turns_failed, earlier_attempts, prefill_reported, prefill_as_expected,
                      first_chunk_merged}``; ``ttft_s`` is turn kind → median, a median is
                      ``{median, low, high, turns, sessions}``
comparisons           list of ``{baseline, candidate, sessions, baseline_s, candidate_s, saved, low, high,
                      percentile_low, percentile_high, won, decided, median_saved, effective_sessions,
                      leave_one_out, p_value, saved_by_session, ttft, tpot}``; ``low, high`` is the bootstrap-t
                      interval of ``saved``; ``ttft`` is turn kind → pair, a pair is
                      ``{ratio, ratio_low, ratio_high, difference_s, difference_low_s, difference_high_s}``
checks                list of ``{engine, repeat, name, ok, value, threshold, severity, advice}``; ``ok`` null: could
                      not be told; ``severity`` of a failed one: ``invalid`` or ``warning``
pressure              null when no run had background load, else engine key → ``{tpot, phases}``; ``tpot`` is a list
                      of ``{loads, sessions, turns, tokens, median, low, high, ratio, ratio_low, ratio_high}``, first
                      without load (``loads`` empty; ``ratio`` is over its median); ``phases`` a list of ``{repeat,
                      name, kind, level, workers, start_s, stop_s, busy_share, bytes_per_s}``, times since the first
                      request of the repeat, ``level`` in percent as it was set, ``busy_share`` as measured
====================  ==============================================================================================

All times are in seconds and all shares in parts of 1. A field may be added without a new version.
"""

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

from analysis import stats, wording
from analysis.compare import Comparison
from analysis.pressure import Effect, EnginePressure
from analysis.runs import Run
from analysis.stats import Interval, Median, MedianPair
from analysis.summary import SEED, EngineSummary, Summary

VERSION = 1
_ENGINE_FIELDS = [field.name for field in fields(EngineSummary) if field.name not in ("key", "medians")]


def results(summary: Summary) -> dict[str, Any]:
    """The value of ``results.json``, as the module's docstring lays it out."""
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
    }


def _engine(run: Run, engine: EngineSummary, summary: Summary) -> dict[str, Any]:
    kept = {name: getattr(engine, name) for name in _ENGINE_FIELDS}
    return kept | {
        "folders": [str(folder.relative_to(summary.folder)) for folder in run.folders],
        "note": run.result["engine"].get("note"),
        "ttft_s": {kind: _median(median) for kind, median in engine.medians.ttft.items()},
        "tpot_s": _median(engine.medians.tpot),
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
