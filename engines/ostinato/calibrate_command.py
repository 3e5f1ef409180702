"""``calibrate``: measures the engine on this machine, for predictions and for the choice of prefill paths."""

import argparse
from dataclasses import replace
from pathlib import Path

from engines.ostinato.command_line import Steps, add_engine_options, engine_options, set_environment
from engines.ostinato.errors import SetupError

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
    command.add_argument(
        "--dense",
        choices=("measured", "derived"),
        default="measured",
        help="how a captured step's dense part is found: from a step without cold routes, or as what is left of one "
        "with them (%(default)s)",
    )
    command.set_defaults(run=run_calibrate)


def run_calibrate(args: argparse.Namespace) -> int:
    """Build the engine, measure, print the sweep, write the file.

    Raises:
        SetupError: what the user can put right.
    """
    set_environment()
    say = Steps()
    try:
        say("importing PyTorch")
        import torch

        from engines.ostinato import calibrate
        from engines.ostinato.assembly import open_engine
        from engines.ostinato.devices import devices
        from engines.ostinato.planner import calibration, model_shape

        if args.threads is not None:
            torch.set_num_threads(args.threads)
        shape = model_shape.read(args.model)
        options = engine_options(args)
        device, *others = devices(options.device)
        if others and options.device != "auto":
            raise SetupError("calibrate measures one GPU, whose layers all are alike; name one with --device")
        options = replace(options, device=str(device))
        if options.slots is None and device.type == "cpu":
            # Without a GPU nobody would be resident, and there would be nothing to upload into.
            options = replace(options, slots=len(shape.moe_layers) * shape.experts // 4)
        engine = open_engine(options, say)
        if len(engine.groups) > 1:
            raise SetupError("calibrate measures experts of one size; this model's layers have several")
        measured = calibrate.measure(engine, shape, say, derive_dense=args.dense == "derived")
        calibration.write(args.out, measured)
    finally:
        say.end()
    print(calibrate.table(measured))
    print(f"wrote {args.out}")
    return 0
