"""``compare BASE CANDIDATE``: by how much an engine got slower or faster; ``--gate`` says whether it may pass."""

import argparse
import os
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.command import WIDTH, Parser, console

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table

    from analysis.gate import Decision
    from analysis.metric import Metric
    from analysis.side import Side

EXAMPLES = """examples:
  compare results/replay/2026-11-29_12-00-00 results/replay/2026-11-30_12-00-00
  compare baseline.json results/replay/2026-11-30_12-00-00 --gate --margin 3
  compare baseline.json results/replay/2026-11-30_12-00-00 --gate --metric ttft_s:tool --junit gate.xml

BASE and CANDIDATE are folders that `replay` wrote, or files of `analyse export-baseline`.
Exit status without --gate: 0 compared, 2 not possible (one line says why).
With --gate: 0 pass, 1 regression, 2 not possible, 3 inconclusive (says how many more sessions would decide).
In GitHub Actions the verdict is an annotation too, and the table goes to the step's summary. docs/gate.md says more.
"""


def percent(text: str) -> float:
    """``3``, ``3%``, ``2.5``: percent, as a share of 1."""
    number = text.strip().removesuffix("%").strip()
    try:
        value = float(number)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of percent, as 3") from None
    if not 0 < value < 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 100 percent")
    if value < 0.1 and "%" not in text:
        raise argparse.ArgumentTypeError(
            f"{text!r} is in percent: write {100 * value:g}, or {text.strip()}% for that"
        )
    return value / 100


def main(arguments: Sequence[str] | None = None) -> None:
    if arguments is None:  # as a command: who stops reading the output ends it quietly
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = Parser(
        "compare", "Compare two runs session by session; --gate turns the result into an exit status.", EXAMPLES
    )
    parser.add_argument("base", metavar="BASE", type=Path, help="what the candidate is held against")
    parser.add_argument("candidate", metavar="CANDIDATE", type=Path)
    parser.add_argument("--gate", action="store_true", help="exit 0 pass, 1 regression, 3 inconclusive")
    parser.add_argument(
        "--margin", metavar="PERCENT", type=percent, default=0.03, help="what is too small to matter (default 3)"
    )
    parser.add_argument(
        "--metric",
        metavar="NAME[:KIND]",
        action="append",
        default=[],
        help="a metric, for turns of a kind (first, tool, user, all); may be repeated "
        "(default: stream_s, ttft_s, tpot_s; docs/metrics.md lists them)",
    )
    parser.add_argument("--junit", metavar="FILE", type=Path, help="write the verdicts as JUnit XML")
    parser.add_argument(
        "--across-machines", action="store_true", help="show runs of unlike machines, without a verdict"
    )
    parser.add_argument(
        "--engine",
        metavar="NAME",
        action="append",
        default=[],
        help="of the engines in a folder, where there are several; given twice, the base's and the candidate's",
    )
    chosen = parser.parse_args(arguments)
    if len(chosen.engine) > 2:
        parser.error("--engine is given at most twice, for the base and for the candidate")
    sys.exit(_compare(chosen))


def _compare(chosen: argparse.Namespace) -> int:
    # pandas takes a second to load, which --help should not wait for.
    from analysis import ci_output, gate, gate_words, registry
    from analysis.compare import AnalysisError
    from replay.record import RecordError

    try:
        rows = gate.chosen_rows(chosen.metric, registry.metrics())
        names = list(dict.fromkeys(metric.name for metric, _ in rows))
        engines = chosen.engine or [None]
        base, candidate = _read(chosen.base, names, engines[0]), _read(chosen.candidate, names, engines[-1])
        decision = gate.decide(
            base,
            candidate,
            rows,
            margin=chosen.margin,
            asked=bool(chosen.metric),
            across_machines=chosen.across_machines,
        )
        metrics = [metric for metric, _ in rows]
        _show(decision, metrics, judged=chosen.gate)
        if chosen.junit is not None:
            ci_output.write_junit(chosen.junit, decision)
        if os.environ.get("GITHUB_ACTIONS"):
            if chosen.gate:
                print(*ci_output.annotations(decision), sep="\n")
            if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
                with Path(summary).open("a", encoding="utf-8") as file:
                    file.write(gate_words.markdown(decision, metrics) + "\n")
    except (RecordError, AnalysisError) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}; name a file that can be written")
    return gate.EXIT[decision.verdict] if chosen.gate else 0


def _refuse(reason: str) -> int:
    print(f"compare: {' '.join(reason.split())}", file=sys.stderr)
    return 2


def _read(place: Path, metrics: Sequence[str], engine: str | None) -> "Side":
    from analysis import baseline, side

    if place.is_dir():
        return side.read_folder(place, metrics, engine)
    return baseline.only(baseline.read(place), metrics)


def _show(decision: "Decision", metrics: Sequence["Metric"], *, judged: bool) -> None:
    from rich.text import Text

    from analysis import gate_words

    terminal = console()
    base, candidate = decision.base, decision.candidate
    about = f"base: {base.label} ({base.source}); candidate: {candidate.label} ({candidate.source})"
    terminal.print(Text(about), soft_wrap=True)
    left_out = set() if judged and not decision.differences else {"verdict"}
    left_out |= {"p", "sessions"} if terminal.width < WIDTH else set()
    terminal.print(_table(decision, metrics, left_out))
    for note in (*(gate_words.undecided(decision) if judged else ()), *gate_words.notes(decision)):
        terminal.print(Text(note), soft_wrap=True)
    if judged or decision.differences:
        terminal.print(Text(gate_words.headline(decision), style="bold"), soft_wrap=True)


def _table(decision: "Decision", metrics: Sequence["Metric"], left_out: Collection[str]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    from analysis.gate_words import COLUMNS, INTERVAL, cells

    kept = [at for at, column in enumerate(COLUMNS) if column not in left_out]
    shown = Table()
    for column in (COLUMNS[at] for at in kept):
        justify: JustifyMethod = "left" if column in ("metric", "verdict") else "right"
        shown.add_column(Text(column), justify=justify, no_wrap=column not in ("metric", INTERVAL))
    for row, metric in zip(decision.rows, metrics, strict=True):
        texts = (*cells(row, metric)[:-1], str(row.verdict))
        shown.add_row(*(Text(texts[at]) for at in kept))
    return shown


if __name__ == "__main__":
    main()
