"""``analyse export-baseline FOLDER``: keep a run as a small file that lives in git."""

import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.command import Parser

EXAMPLES = """examples:
  analyse export-baseline results/replay/2026-11-29_12-00-00
  analyse export-baseline results/quickstart/2026-11-29_12-00-00 --engine llamacpp --out baselines/llamacpp.json

`compare FILE CANDIDATE --gate` holds later runs of the same machine, model and workload against it.
Exit status: 0 written, 2 not possible (one line says why).
"""


def main(arguments: Sequence[str]) -> int:
    parser = Parser(
        "analyse export-baseline",
        "Keep what a gate needs of a run: session totals and metrics of every turn.",
        EXAMPLES,
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a folder that `replay` wrote")
    parser.add_argument(
        "--out", metavar="FILE", type=Path, default=Path("baseline.json"), help="(default %(default)s)"
    )
    parser.add_argument("--engine", metavar="NAME", help="of the engines in the folder, where there are several")
    parser.add_argument(
        "--metric",
        metavar="NAME",
        action="append",
        default=[],
        help="keep this one too (default: stream_s, ttft_s, tpot_s and those of installed packages)",
    )
    chosen = parser.parse_args(arguments)
    return _export(chosen.folder, chosen.out, chosen.engine, chosen.metric)


def _export(folder: Path, out: Path, engine: str | None, more: Sequence[str]) -> int:
    from analysis import baseline, gate, registry, side
    from analysis.compare import AnalysisError
    from analysis.metric import Direction
    from analysis.metrics import METRICS
    from replay.record import RecordError

    try:
        known = registry.metrics()
        own = [m.name for m in known.values() if m.name not in METRICS and m.direction is not Direction.NONE]
        gate.chosen_rows(more, known)
        names = list(dict.fromkeys([*gate.DEFAULT_METRICS, *own, *(name.partition(":")[0] for name in more)]))
        found = side.read_folder(folder, names, engine)
        baseline.write(out, found)
    except (RecordError, AnalysisError) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename or out}: {error.strerror}; name a file that can be written with --out")
    for concern in found.concerns:
        print(f"! {concern}; a gate never passes on it", file=sys.stderr)
    for session, why in found.unfinished.items():
        print(f"! {session} is not in it ({why})", file=sys.stderr)
    print(f"{out}: {len(found.recorded):,} sessions of {found.label}, {out.stat().st_size / 1e3:,.1f} kB")
    return 0


def _refuse(reason: str) -> int:
    print(f"analyse: {' '.join(reason.split())}", file=sys.stderr)
    return 2
