"""``calibrate``: measures the engine on this machine, for predictions and for the choice of prefill paths."""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from engines.ostinato.command_line import Steps, add_engine_options, engine_options

_EXAMPLE = """example:
  python -m engines.ostinato calibrate --model DIR --vram-budget 16GiB --residency residency.json \\
      --out calibration.json
"""


def add_calibrate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``calibrate`` to a program's commands; ``run_calibrate`` does it."""
    command = commands.add_parser(
        "calibrate",
        help="measure CPU, GPU, link and prefill paths on this machine",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_engine_options(command)
    command.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the calibration goes")
    command.set_defaults(run=run_calibrate)


def run_calibrate(args: argparse.Namespace) -> int:
    """Build the engine, measure, print the sweep, write the file.

    Raises:
        SetupError: what the user can put right.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    say = Steps()
    try:
        say("importing PyTorch")
        import torch

        from engines.ostinato import calibrate
        from engines.ostinato.assembly import open_engine
        from engines.ostinato.planner import calibration, model_shape

        if args.threads is not None:
            torch.set_num_threads(args.threads)
        shape = model_shape.read(args.model)
        options = engine_options(args)
        if options.slots is None and (options.device == "cpu" or not torch.cuda.is_available()):
            # Without a GPU nobody would be resident, and there would be nothing to upload into.
            options = replace(options, slots=len(shape.moe_layers) * shape.experts // 4)
        engine = open_engine(options, say)
        measured = calibrate.measure(engine, shape, say)
        calibration.write(args.out, measured)
    finally:
        say.end()
    print(calibrate.table(measured))
    print(f"wrote {args.out}")
    return 0
