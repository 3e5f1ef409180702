"""The commands that need no model in memory: ``plan`` and ``explain``."""

import argparse
import re
from pathlib import Path

from engines.ostinato.planner import calibration as calibrations
from engines.ostinato.planner import model_shape, residency, routes
from engines.ostinato.planner.explain import explain
from engines.ostinato.planner.model_shape import ModelShape, spread
from engines.ostinato.planner.plan import MARGIN_BYTES, Gpu, capacity_bytes, plan

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_PASS_TOKENS = 2048
"""Of the largest forward pass."""


def add_plan(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``plan`` to a program's commands; ``run_plan`` does it."""
    command = commands.add_parser(
        "plan",
        help="choose the experts that stay on the GPUs",
        epilog="example: python -m engines.ostinato plan --counts routes.npz --model DIR --vram-budget 16GiB "
        "--out residency.json",
    )
    command.add_argument("--model", type=Path, required=True, metavar="PATH", help="model folder or GGUF file")
    command.add_argument("--counts", type=Path, metavar="FILE", help="recorded routes (none: a uniform plan)")
    command.add_argument("--calibration", type=Path, metavar="FILE", help="adds the predicted decode step")
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the residency goes")
    command.add_argument(
        "--vram-budget",
        type=size,
        action="append",
        required=True,
        metavar="SIZE",
        help="of a GPU; again for each GPU",
    )
    command.add_argument("--context", type=int, default=32768, metavar="TOKENS", help="longest request (%(default)s)")
    command.add_argument(
        "--margin", type=size, default=MARGIN_BYTES, metavar="SIZE", help="kept free on each GPU (512MiB)"
    )
    command.add_argument("--slots", type=int, metavar="N", help="experts on each GPU, instead of the estimate")
    command.set_defaults(run=run_plan)


def add_explain(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``explain`` to a program's commands; ``run_explain`` does it."""
    command = commands.add_parser(
        "explain",
        help="what the cost model says of a residency, beside what was measured",
        epilog="example: python -m engines.ostinato explain --residency residency.json "
        "--calibration calibration.json --counts heldout.npz",
    )
    command.add_argument("--residency", type=Path, required=True, metavar="FILE")
    command.add_argument("--calibration", type=Path, metavar="FILE", help="what calibrate wrote")
    command.add_argument("--counts", type=Path, metavar="FILE", help="recorded routes to judge it by")
    command.set_defaults(run=run_explain)


def run_plan(args: argparse.Namespace) -> int:
    """Plan, write the file, print what it holds.

    Raises:
        SetupError: a file that can't be read, too little memory.
    """
    shape = model_shape.read(args.model)
    recorded = routes.read_counts(args.counts) if args.counts else None
    measured = calibrations.read(args.calibration) if args.calibration else None
    if recorded is None:
        print("no recorded routes: a uniform plan, equally many experts of every layer (record some with serve)")
    parts = spread(shape, len(args.vram_budget))
    last = len(parts) - 1
    gpus = [
        Gpu(
            layers=layers,
            pool_bytes=args.slots * max((shape.expert_bytes[layer] for layer in layers), default=0)
            if args.slots is not None
            else pool_bytes(shape, layers, budget, args.context, args.margin, first=not gpu, last=gpu == last),
        )
        for gpu, (layers, budget) in enumerate(zip(parts, args.vram_budget, strict=True))
    ]
    result = plan(
        gpus,
        experts=shape.experts,
        expert_bytes=shape.expert_bytes,
        counts=recorded,
        model_hash=shape.model_hash,
        costs=measured.costs() if measured else None,
    )
    residency.write(args.out, result)
    print(explain(result, None, recorded) if recorded else explain(result))
    if result.predicted and result.predicted.decode_step_ms is not None:
        print(f"predicted decode step: {result.predicted.decode_step_ms:.3f} ms")
    print(f"wrote {args.out}")
    return 0


def run_explain(args: argparse.Namespace) -> int:
    """Print the page.

    Raises:
        SetupError: a file that can't be read, files of different models.
    """
    print(
        explain(
            residency.read(args.residency),
            calibrations.read(args.calibration) if args.calibration else None,
            routes.read(args.counts) if args.counts else None,
        )
    )
    return 0


def pool_bytes(
    shape: ModelShape, layers: range, budget: int, context: int, margin: int, *, first: bool, last: bool
) -> int:
    """What a GPU has for residents, estimated from the files' sizes. The engine, once loaded, measures instead.

    Args:
        layers: the GPU's MoE layers; it also gets the dense layers before each.
        first, last: the first GPU holds the embeddings, the last one the output head; each counts both.
    """
    start = 0 if first else shape.moe_layers[layers.start]
    stop = shape.layers if last else shape.moe_layers[layers.stop]
    largest = max((shape.expert_bytes[layer] for layer in layers), default=0)
    k = shape.experts_per_token
    return capacity_bytes(
        budget,
        dense=sum(shape.dense_bytes[start:stop]) + (shape.other_bytes if first or last else 0),
        # Hidden states, their K copies for the routed experts and what lies between the two products, in 32 bits.
        buffers=4 * _PASS_TOKENS * shape.hidden * (8 + 3 * k),
        staging=2 * largest * k,
        kv_cache=context * sum(shape.kv_bytes_per_token[start:stop]),
        zero_slots=k * largest,
        margin=margin,
    )


def size(text: str) -> int:
    """``16GiB``, ``512MiB``, ``16G`` or bytes.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write one as 16GiB")
    return int(float(found[1]) * _UNITS[found[2]])
