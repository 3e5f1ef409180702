"""``analyse placement ROUTES``: where to keep which experts, from recorded routes, without an engine."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from analysis.compare import AnalysisError
from analysis.placement import export, page, study
from analysis.placement.inputs import anchored, calibration_of, left_for_experts, read_routes, rooms_of, sizes_of
from analysis.placement.machines import MACHINES, Machine
from analysis.placement.measured import checks
from analysis.placement.study import Routes, Sizes
from engines.ostinato.commands import size
from engines.ostinato.errors import SetupError
from engines.ostinato.placement.kv_split import RULES, Split, SplitBudget, split
from engines.ostinato.planner import model_shape
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.planner.explain import explain
from engines.ostinato.planner.model_shape import ModelShape
from engines.ostinato.planner.residency import Residency
from replay.record import RecordError

BLOCK_TOKENS = 16
EXAMPLES = """examples:
  analyse placement routes.npz                                     coverage and misses, by share of the experts
  analyse placement routes.npz --machine rtx4090d_x4               what Ostinato would gain on four RTX 4090D
  analyse placement routes.npz --model DIR --budget 16GiB --calibration calibration.json --out lab/
  analyse placement routes.npz --model DIR --budget 16GiB --calibration calibration.json --runs results/ablation

routes.npz is what the engine records (engine.options.record_routes=routes.npz); calibration.json is what
`python -m engines.ostinato calibrate` writes. Exit status: 0, or 2 when a file can't be used (one line says why).
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    try:
        _run(args)
    except (SetupError, AnalysisError, RecordError) as error:
        print(f"analyse placement: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"analyse placement: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="analyse placement",
        description="Placements of experts on recorded routes: misses, coverage, times, a residency to load.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("routes", type=Path, metavar="ROUTES", help="routes to judge by, as the engine recorded them")
    add("--development", type=Path, metavar="FILE", help="routes that placements learn from (the first half)")
    add("--calibration", type=Path, metavar="FILE", help="times of a machine, for predictions")
    add("--machine", choices=sorted(MACHINES), help="published times and memory instead")
    add(
        "--model",
        type=Path,
        metavar="PATH",
        help="model folder or GGUF file: sizes of experts, KV cache and the rest",
    )
    add("--expert-size", type=size, metavar="SIZE", help="of one expert, where no model is at hand")
    add("--budget", type=size, action="append", default=[], metavar="SIZE",
        help="of a GPU, as in 16GiB; with --expert-size, for experts alone; may be repeated")  # fmt: skip
    add("--gpus", type=int, default=1, metavar="N", help="alike GPUs that the layers are split over (%(default)s)")
    add("--borrowed", type=size, default=0, metavar="SIZE", help="memory that each GPU lends to decode")
    add("--context", type=int, default=32768, metavar="TOKENS", help="longest request (%(default)s)")
    add("--sequences", type=int, default=1, metavar="N", help="sessions at once, for the split with the KV cache")
    add("--runs", type=Path, metavar="FOLDER", help="measured runs of our engine to check the predictions by")
    add("--out", type=Path, metavar="FOLDER", help="write the page, the numbers and the residency there")
    return parser


def _run(args: argparse.Namespace) -> None:
    machine = MACHINES[args.machine] if args.machine else None
    shape = model_shape.read(args.model) if args.model else None
    routes = read_routes(args.routes, args.development)
    sizes = sizes_of(
        routes,
        shape=shape,
        expert_size=args.expert_size,
        machine=machine,
        gpus=args.gpus,
        borrowed=args.borrowed,
        sized=bool(args.budget),
    )
    rooms = rooms_of(args.budget, routes, sizes, shape=shape, machine=machine, context=args.context)
    alone = calibration_of(args.calibration, routes, sizes, machine)
    calibration = None if alone is None else anchored(alone, routes, sizes)
    found = study.reuse(routes.judged)
    made = study.outcomes(routes, sizes, rooms, calibration=calibration)
    kept = study.residency(routes, sizes, rooms[-1], calibration=calibration)
    parts = [
        page.heading(str(args.routes), routes),
        page.reuse_section(found, routes.judged.experts),
        page.outcome_section(made, known_sizes=max(sizes.expert_bytes) > 1),
    ]
    if machine is not None:
        parts.append(page.gain_section(machine, [each for each in made if each[0] is rooms[-1]]))
    if alone is not None and calibration is not None and calibration is not alone:
        parts.append(page.anchor_section(alone, calibration))
    if calibration is not None:
        parts.append(_threshold(calibration, routes, sizes, kept, machine))
    if shape is not None and args.budget:
        parts.append(page.split_section(_splits(args, shape, found, calibration)))
    parts.append(f"With {rooms[-1].name}: {explain(kept, calibration, routes.judged)}")
    if args.runs is not None:
        if calibration is None:
            raise SetupError("--runs needs the machine's times; add --calibration or --machine")
        parts.append(page.check_section(checks(args.runs, routes, sizes, calibration)))
    text = "\n\n".join(part for part in parts if part)
    print(text)
    if args.out is not None:
        export.write(args.out, text, found, made, kept if max(sizes.expert_bytes) > 1 else None)
        print(f"\nwrote {args.out}")


def _threshold(
    calibration: Calibration, routes: Routes, sizes: Sizes, kept: Residency, machine: Machine | None
) -> str:
    counts = routes.judged.counts()
    if calibration.prefill:
        costs = calibration.difference(counts.prefill_shares_LE, ~kept.resident_LE)
    elif machine is not None:
        cold = study.cold_per_token(counts, kept.resident_LE)
        costs = machine.difference(sizes.expert_bytes, cold_per_token=cold)
    else:
        costs = None
    predicted = None if costs is None else study.threshold(costs, counts, kept.resident_LE)
    swept_to = calibration.prefill[-1].tokens if calibration.prefill else None
    return page.threshold_section(predicted, calibration.threshold(), fitted=costs is not None, swept_to=swept_to)


def _splits(
    args: argparse.Namespace, shape: ModelShape, found: study.Reuse, calibration: Calibration | None
) -> list[tuple[str, SplitBudget, Split]]:
    """Each rule's split of what the last budget leaves beside the dense weights, on one GPU."""
    whole = range(len(shape.moe_layers))
    beside = left_for_experts(shape, whole, args.budget[-1] * args.gpus, 0, first=True, last=True)
    budget = SplitBudget(
        bytes=beside,
        cap_bytes=sum(shape.expert_bytes),
        block_bytes=BLOCK_TOKENS * sum(shape.kv_bytes_per_token),
        block_tokens=BLOCK_TOKENS,
        context=args.context,
        sequences=args.sequences,
        experts=shape.experts,
    )
    miss_ms = float(calibration.upload_ms_L.mean()) if calibration else 1.0
    blind = replace(budget, sequences=1)
    rows = [
        (str(rule), budget, split(budget, rule, expert_misses=found.misses.tolist(), expert_miss_ms=miss_ms))
        for rule in RULES
    ]
    return [*rows, ("KV-blind", blind, split(blind, "fixed"))] if args.sequences > 1 else rows
