"""``python -m analysis.metric_docs > docs/metrics.md``: the page of metrics, from the metrics themselves."""

from analysis.metric import Direction, Metric
from analysis.metrics import BUILT_IN

PAGE = """# Metrics

Written by `python -m analysis.metric_docs > docs/metrics.md` from `analysis/metrics.py`; a test keeps it current.

One function a metric computes it from one turn's record. Names in the formulas are the record's fields
(`replay/record.py`): `sent_ns` is the moment the request's first byte was handed to the kernel, on a connection that
is already open; `token_ns` are the arrivals of the generated tokens at the socket, before anything is parsed;
`end_ns` is the end of the stream. Role-only and empty deltas, pings, comments, finish and usage chunks are no tokens.

What was not measured has no value and is never 0. A turn that failed is in no statistic.

{table}

A sum is taken over a session's turns; two engines are compared by the ratio of the sums over the sessions that both
finished. A median is taken over turns. Intervals resample sessions with all their turns, and repeats within them.

## A metric of your own

Write it in a package of yours, as a function of one turn's record:

```python
from analysis.metric import Direction, Metric
from replay.record import TurnRecord


def wait_s(turn: TurnRecord) -> float | None:
    \"\"\"From when the turn was due to its last token: what an agent waits.\"\"\"
    return (turn.token_ns[-1] - turn.due_ns) / 1e9 if turn.token_ns else None


WAIT = Metric(
    name="wait_s",
    label="wait",
    unit="s",
    formula="token_ns[−1] − due_ns",
    direction=Direction.LOWER,
    absent="the turn failed before it",
    of=wait_s,
)
```

and name it in the package's `pyproject.toml`:

```toml
[project.entry-points."ostinato_replay.metrics"]
wait_s = "my_package.waiting:WAIT"
```

Once the package is installed beside this one, `wait_s` is a column of every frame of turns, `compare --metric wait_s`
judges it and `analyse export-baseline` keeps it. `over=Over.SUM` compares sums over sessions, `by_kind=True` tells
turn kinds apart. A value that is neither a finite number nor None is refused with the turn's name.
"""


def row(metric: Metric) -> tuple[str, ...]:
    judged = metric.direction is not Direction.NONE
    return (
        f"`{metric.name}`",
        metric.label,
        metric.unit or "–",
        f"`{metric.formula}`",
        str(metric.over) if judged else "–",
        str(metric.direction) if judged else "–",
        metric.absent,
    )


def page() -> str:
    """What ``docs/metrics.md`` holds."""
    columns = ("name", "metric", "unit", "formula", "an engine's number", "direction", "no value where")
    lines = (columns, (":--",) * len(columns), *map(row, BUILT_IN))
    return PAGE.format(table="\n".join("| " + " | ".join(line) + " |" for line in lines))


if __name__ == "__main__":
    print(page(), end="")
