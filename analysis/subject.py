"""Whose savings the paper's tables and figures show: ours where it ran, else the fastest engine's."""

from dataclasses import dataclass

from analysis.compare import OURS, Comparison
from analysis.stats import Interval
from analysis.summary import EngineSummary, Summary

PAPER_ORDER = (
    "freetoken",
    "ktransformers",
    "llamacpp_layers",
    "llamacpp",
    "llama_server",
    "llamacpp_cache",
    "ik_llamacpp",
    "buun",
)


@dataclass(frozen=True, slots=True)
class Against:
    """What the subject saves of another engine's time."""

    saved: float
    won: int
    sessions: int
    interval: Interval | None
    """None below ``SMALLEST_SAMPLE`` sessions, and where a pair that is turned round has no lower end."""
    saved_by_session: dict[str, float]


def name_of(key: str) -> str:
    """The engine's name in a run's key, which may have a folder behind it."""
    return key.partition(" (")[0]


def subject(part: Summary) -> EngineSummary | None:
    """None where nothing is compared."""
    compared = [engine for engine in part.engines if engine.key in part.pairing.engines and engine.total_request_s]
    if not part.comparisons or not compared:
        return None
    ours = [engine for engine in compared if name_of(engine.key) == OURS]
    return min(ours or compared, key=lambda engine: engine.total_request_s or 0.0)


def against(part: Summary, key: str, chosen: str) -> Against | None:
    """``chosen`` against the engine ``key``; None for itself, and where the two were not compared."""
    for c in part.comparisons:
        if (c.baseline, c.candidate) == (key, chosen):
            return Against(c.saved, c.won, c.sessions, c.interval, dict(c.saved_by_session))
        if (c.baseline, c.candidate) == (chosen, key):
            by_session = {session: _turned_round(saved) for session, saved in c.saved_by_session.items()}
            won = sum(saved > 0 for saved in by_session.values())
            return Against(_turned_round(c.saved), won, c.sessions, _interval_turned_round(c), by_session)
    return None


def _turned_round(saved: float) -> float:
    """What the baseline saves of the candidate's time: ``1 - A / B`` of ``1 - B / A``."""
    return 1 - 1 / (1 - saved)


def _interval_turned_round(c: Comparison) -> Interval | None:
    """Its ends turned round: the ratio falls where its inverse rises, so it covers the truth as often."""
    if c.interval is None or c.interval.high >= 1:
        return None
    return Interval(_turned_round(c.interval.high), _turned_round(c.interval.low), c.interval.level)


def in_paper_order(part: Summary, *, last: str | None) -> list[EngineSummary]:
    """The engines of a part as the paper lists them; others in the order they ran; ``last`` at the end."""

    def place(engine: EngineSummary) -> tuple[bool, int]:
        name = name_of(engine.key)
        return engine.key == last, PAPER_ORDER.index(name) if name in PAPER_ORDER else len(PAPER_ORDER)

    return sorted(part.engines, key=place)
