"""The gate at the end of a sweep: one of its runs held against another, or against a stored baseline."""

from pathlib import Path
from typing import Protocol

from analysis import compare_cli

JUNIT_FILE = "gate.xml"


class Gate(Protocol):
    """What ``replay`` was asked for (its setting ``gate``)."""

    base: str | None
    candidate: str | None
    margin_percent: float
    metrics: list[str]


def judge(folder: Path, gate: Gate) -> int:
    """Print the verdict, write it into ``folder`` as JUnit XML, return the gate's exit code (docs/gate.md)."""
    stored = Path(str(gate.base))
    base, engines = (stored, [gate.candidate]) if stored.is_file() else (folder, [gate.base, gate.candidate])
    words = [str(base), str(folder), "--gate", "--margin", f"{gate.margin_percent:g}"]
    words += ["--junit", str(folder / JUNIT_FILE)]
    words += [word for engine in engines if engine is not None for word in ("--engine", engine)]
    words += [word for metric in gate.metrics for word in ("--metric", metric)]
    try:
        compare_cli.main(words)
    except SystemExit as done:
        return int(done.code or 0)
    raise AssertionError("it always ends with an exit code")
