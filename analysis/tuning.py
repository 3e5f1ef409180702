"""What a sweep was to choose, and chose: the value with the least total request time on development sessions."""

from dataclasses import dataclass, replace
from typing import Any

from analysis.runs import Run
from analysis.subject import name_of
from analysis.summary import EngineSummary, Summary

TUNED_ON = ("development", "screening")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One value. Times are over the sessions that every value finished."""

    run: Run
    engine: EngineSummary
    value: str
    split: str | None
    """Of the sessions it was replayed on; None where nothing says so."""

    @property
    def objective_s(self) -> float | None:
        """Total request time; None when it did not finish the sessions."""
        return self.engine.total_request_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """One engine's."""

    engine: str
    setting: str
    trials: tuple[Trial, ...]
    """In the order of the sweep."""
    told_apart: bool | None = None
    """Whether the interval between the two fastest excludes no difference; None without an interval."""

    @property
    def guarded(self) -> bool:
        """Whether every run says that it was replayed on sessions that settings may be chosen on."""
        return all(trial.split in TUNED_ON for trial in self.trials)

    @property
    def ranked(self) -> tuple[tuple[float, Trial], ...]:
        """Those that count, the fastest first; of equals the one that ran first. None without the guard."""
        counted = [(trial.objective_s, trial) for trial in self.trials if trial.objective_s is not None]
        sessions = {trial.engine.sessions for _, trial in counted}
        if not self.guarded or len(sessions) > 1:
            return ()
        return tuple(sorted(counted, key=lambda each: each[0]))

    @property
    def chosen(self) -> Trial | None:
        return self.ranked[0][1] if self.ranked else None


def tunings(part: Summary) -> tuple[Tuning, ...]:
    """One for each engine whose runs were to choose a setting; empty where nothing was."""
    made: dict[tuple[str, str], list[Trial]] = {}
    for run, engine in zip(part.runs, part.engines, strict=True):
        config = run.result.get("config") or {}
        setting = (config.get("tune") or {}).get("setting")
        if setting:
            trial = Trial(
                run=run, engine=engine, value=value_of(config, setting), split=run.result["workload"].get("split")
            )
            made.setdefault((name_of(run.key), str(setting)), []).append(trial)
    found = [Tuning(engine=engine, setting=setting, trials=tuple(made[engine, setting])) for engine, setting in made]
    return tuple(replace(tuning, told_apart=_told_apart(tuning, part)) for tuning in found)


def _told_apart(tuning: Tuning, part: Summary) -> bool | None:
    fastest = {trial.run.key for _, trial in tuning.ranked[:2]}
    pair = next((c for c in part.comparisons if {c.baseline, c.candidate} == fastest), None)
    return pair.decided if pair is not None and pair.interval is not None else None


def value_of(config: Any, setting: str) -> str:
    """``512``; of several settings ``upload_threshold=512 ubatch=2048``."""
    places = setting.split(",")
    if len(places) == 1:
        return _at(config, setting)
    return " ".join(f"{place.rpartition('.')[2]}={_at(config, place)}" for place in places)


def _at(config: Any, place: str) -> str:
    for name in place.split("."):
        config = config.get(name) if isinstance(config, dict) else None
    return str(config)
