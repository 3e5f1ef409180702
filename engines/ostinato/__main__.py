"""The command line: ``python -m engines.ostinato serve --model DIR``."""

import argparse
import gc
import os
import socket
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from engines.ostinato.serving import serve


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of the whole usage."""
        self.exit(2, f"{self.prog}: {message} (see --help)\n")


def main(arguments: list[str] | None = None) -> int:
    """Parse, load, serve; return the exit code."""
    args = _parser().parse_args(arguments)
    try:
        return _serve(args)
    except OSError as error:
        print(
            f"ostinato: cannot listen on {args.host}:{args.port}: {error.strerror}; choose another --port",
            file=sys.stderr,
        )
        return 2


def _serve(args: argparse.Namespace) -> int:
    with socket.socket(socket.AF_INET6 if ":" in args.host else socket.AF_INET) as probe:
        # A taken port should be said now, not after the model was loaded.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((args.host, args.port))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Threads that spin at the end of each product take the cores that others need.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    started = time.perf_counter()
    import torch  # after the environment is set; and --help stays fast

    from engines.ostinato.reference import SetupError, load

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    try:
        backend = load(args.model, context=args.context, device=args.device, dtype=args.dtype)
    except SetupError as error:
        print(f"ostinato: {error}", file=sys.stderr)
        return 2
    backend.step(backend.prefill([0] * min(8, backend.context - 1)).next_id)  # first calls set kernels up
    backend.reset()
    gc.collect()
    gc.freeze()  # a collection that walks the modules would show up as a slow token
    print(f"loaded {args.model} in {time.perf_counter() - started:.1f} s", flush=True)
    serve(backend, host=args.host, port=args.port, queue_limit=args.queue)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ostinato",
        description="Serves mixture-of-experts models to one agent session at a time.",
        epilog="example: python -m engines.ostinato serve --model models/tiny --port 8080",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="serve")
    command = commands.add_parser(
        "serve",
        help="answer /v1/completions over HTTP",
        epilog="example: python -m engines.ostinato serve --model models/tiny --port 8080 --context 16384",
    )
    command.add_argument("--model", type=Path, required=True, metavar="DIR", help="Hugging Face model folder")
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    command.add_argument("--port", type=_whole(0, 65535), default=8080, help="0 takes a free one (%(default)s)")
    command.add_argument("--context", type=_whole(2), metavar="TOKENS", help="longest prompt + output (the model's)")
    command.add_argument("--threads", type=_whole(1), metavar="N", help="CPU threads (PyTorch's choice)")
    command.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (%(default)s)")
    command.add_argument(
        "--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"), help="(%(default)s)"
    )
    command.add_argument(
        "--queue", type=_whole(0), default=8, metavar="N", help="requests that may wait (%(default)s)"
    )
    return parser


class _Version(argparse.Action):
    """Looks the version up only when asked: the engine also runs from a checkout that was never installed."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.exit(0, f"ostinato {version('ostinato-replay')}\n")


class _whole:  # noqa: N801 - a converter; argparse shows its name in no message
    """Converts text to an integer within bounds."""

    def __init__(self, low: int, high: int | None = None) -> None:
        self._low, self._high = low, high

    def __call__(self, text: str) -> int:
        if not text.isdecimal() or int(text) < self._low or (self._high is not None and int(text) > self._high):
            bounds = f"of at least {self._low}" if self._high is None else f"from {self._low} to {self._high}"
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number {bounds}")
        return int(text)


if __name__ == "__main__":
    sys.exit(main())
