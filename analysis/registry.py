"""Every metric there is: the built-in ones, and those that installed packages offer.

A package offers one with an entry point; it is a column beside the others, and `compare --metric` takes it:

    [project.entry-points."ostinato_replay.metrics"]
    wait_s = "my_package.waiting:WAIT"     # an analysis.metric.Metric of that name
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

from analysis.metric import Metric
from analysis.metrics import METRICS
from replay.record import RecordError, TurnRecord

GROUP = "ostinato_replay.metrics"
_TAKEN = {field.name for field in fields(TurnRecord)} - METRICS.keys()
"""Other columns of the frame of turns."""


def metrics() -> Mapping[str, Metric]:
    """Name → metric, built-in ones first.

    Raises:
        RecordError: an entry point that can't be loaded, or is no metric, or takes a name that is taken.
    """
    return _metrics(tuple(sys.path))


@lru_cache(maxsize=4)
def _metrics(_search_path: tuple[str, ...]) -> Mapping[str, Metric]:
    found = dict(METRICS)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        metric = _load(point)
        if metric.name in _TAKEN or not metric.name.isidentifier():
            raise RecordError(f"{_said(point)}: no name for a metric; choose a word that is no field of a record")
        if metric.name in found:
            raise RecordError(f"{_said(point)}: there is a metric {metric.name!r} already; rename one of them")
        found[metric.name] = metric
    return found


def _load(point: EntryPoint) -> Metric:
    try:
        metric = point.load()
    except (ImportError, AttributeError) as error:
        raise RecordError(f"{_said(point)} can't be loaded ({error}); repair or uninstall it") from error
    if not isinstance(metric, Metric):
        raise RecordError(f"{_said(point)} is a {type(metric).__name__}; it must be an analysis.metric.Metric")
    if metric.name != point.name:
        raise RecordError(f"{_said(point)} holds a metric named {metric.name!r}; give both the same name")
    return metric


def _said(point: EntryPoint) -> str:
    package = f" of {point.dist.name}" if point.dist else ""
    return f"the metric {point.name!r}{package}"


def value(metric: Metric, turn: TurnRecord) -> float | int | bool | None:
    """What a metric says of a turn.

    Raises:
        RecordError: it is neither a finite number nor None.
    """
    found = metric(turn)
    if found is None or (isinstance(found, float | int) and math.isfinite(found)):
        return found
    raise RecordError(
        f"the metric {metric.name!r} gives {found!r} for session {turn.session_id!r} turn {turn.turn}; "
        "it must give a finite number, or None where there is none"
    )
