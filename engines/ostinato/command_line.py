"""What the commands' options have in common: converters, and those that ``serve`` and ``calibrate`` share."""

import argparse
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from engines.ostinato.commands import size

if TYPE_CHECKING:
    from engines.ostinato.assembly import Options

_QUIET_S = 4.0


def set_environment() -> None:
    """What must be said before PyTorch is imported, where the user said nothing else."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Threads that spin at the end of each product take the cores that others need.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        # Blocks that grow: passes of many sizes find room in each other's memory.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


class OneLineParser(argparse.ArgumentParser):
    """Says a mistake in one line instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


class Whole:
    """Converts text to an integer within bounds; nothing to None."""

    def __init__(self, low: int, high: int | None = None) -> None:
        self._low, self._high = low, high

    def __call__(self, text: str) -> int | None:
        if not text:
            return None
        if not text.isdecimal() or int(text) < self._low or (self._high is not None and int(text) > self._high):
            bounds = f"of at least {self._low}" if self._high is None else f"from {self._low} to {self._high}"
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number {bounds}")
        return int(text)


def path_or_none(text: str) -> Path | None:
    """Nothing is None: a configuration can't leave an option out."""
    return Path(text) if text else None


def size_or_none(text: str) -> int | None:
    """``commands.size``; nothing is None."""
    return size(text) if text else None


def add_engine_options(command: argparse.ArgumentParser) -> None:
    """What says which engine is built. An empty value means: not given."""
    add = command.add_argument
    add("--model", type=Path, required=True, metavar="PATH", help="Hugging Face model folder, or GGUF file")
    add("--context", type=Whole(2), metavar="TOKENS", help="longest prompt + output (the model's)")
    add("--threads", type=Whole(1), metavar="N", help="CPU threads (all cores; with a GPU one less)")
    add(
        "--device",
        default="auto",
        metavar="NAME[,…]",
        help="cpu, cuda:N, or several that share the layers: cuda:0,cuda:1; auto: all visible GPUs, else the CPU "
        "(%(default)s)",
    )
    add("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"), help="(%(default)s)")
    add("--vram-budget", type=size_or_none, metavar="SIZE", help="memory to use of each GPU, as in 16GiB (all free)")
    add("--residency", type=path_or_none, metavar="FILE", help="resident experts, as plan wrote them")
    add(
        "--routes", type=path_or_none, metavar="FILE", help="recorded routes to choose residents by, where no plan is"
    )
    add("--slots", type=Whole(0), metavar="N", help="resident experts, of all GPUs (what fits; on a CPU none)")
    add("--chunk", type=Whole(1), metavar="TOKENS", help="most tokens of one prefill pass (2048; on a GPU 8192)")
    add("--no-graph", action="store_true", help="launch every kernel of a decode step by itself")
    add(
        "--compile", choices=("none", "decode", "all"), default="decode", help="passes to torch.compile (%(default)s)"
    )
    add(
        "--no-compile",
        action="store_const",
        const="none",
        dest="compile",
        help="short for --compile none: starts faster",
    )
    add(
        "--lean", choices=("on", "off", "pdl"), default="on",
        help="decode steps by a few kernels a layer where the layer allows; pdl lets them overlap (%(default)s)",
    )  # fmt: skip


def engine_options(args: argparse.Namespace) -> "Options":
    """``add_engine_options``, and ``--placement`` and ``--calibration`` where the command has them."""
    from engines.ostinato.assembly import Options

    return Options(
        model=args.model,
        context=args.context,
        device=args.device,
        dtype=args.dtype,
        threads=args.threads,
        vram_budget=args.vram_budget,
        placement=getattr(args, "placement", "ostinato"),
        residency=args.residency,
        routes=args.routes,
        calibration=getattr(args, "calibration", None),
        slots=args.slots,
        chunk=args.chunk,
        graph=not args.no_graph,
        compiled=args.compile,
        lean=args.lean,
        most_output=1 << 20,  # as many as the context takes
    )


class Steps:
    """Says what is going on, and every few seconds that it still is."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._text = "starting"
        self._moved = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._remind, daemon=True)
        self._thread.start()

    def __call__(self, text: str) -> None:
        """The next step begins."""
        with self._moved:
            self._text = text
            self._moved.notify()
        print(f"{text} ({self.seconds:.1f} s)", flush=True)

    @property
    def seconds(self) -> float:
        """Since the first step."""
        return time.perf_counter() - self._began

    def end(self) -> None:
        """No further reminder."""
        with self._moved:
            self._ended = True
            self._moved.notify()
        self._thread.join()

    def _remind(self) -> None:
        with self._moved:
            while not self._ended:
                if not self._moved.wait(_QUIET_S):
                    print(f"… still {self._text} ({self.seconds:.0f} s)", flush=True)
