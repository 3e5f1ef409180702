"""``python -m engines.fake --port 8001 --decode-ms 5``: serve until SIGTERM."""

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from engines.fake.catalogue import STREAMS
from engines.fake.server import FakeEngine, FakeSettings


def _fault(text: str) -> tuple[str, int | None]:
    name, _, nth = text.partition(":")
    if name not in STREAMS or not (nth.isdecimal() or text == name):
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME or NAME:N with NAME one of {', '.join(STREAMS)}")
    return name, int(nth) if nth else None


def _settings(arguments: Sequence[str] | None) -> tuple[FakeSettings, str, int]:
    parser = argparse.ArgumentParser(
        prog="python -m engines.fake",
        description="Known latencies, every way to fail; it speaks every dialect, each on its path.",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one and prints it (default)")
    parser.add_argument("--prefill-ms", type=float, default=2.0, help="per request (default %(default)s)")
    parser.add_argument("--prefill-ms-per-token", type=float, default=0.01, help="per new token (%(default)s)")
    parser.add_argument("--decode-ms", type=float, default=1.0, help="between two tokens (default %(default)s)")
    parser.add_argument("--context", type=int, default=32768, help="most tokens of a sequence (default %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=262_144)
    parser.add_argument("--sequences", type=int, default=64, help="sequences kept for reuse (default %(default)s)")
    parser.add_argument("--load-s", type=float, default=0.0, help="time until /health says ok (default 0)")
    parser.add_argument(
        "--fault",
        type=_fault,
        action="append",
        default=[],
        metavar="NAME[:N]",
        help=f"how the N-th completion, from 1, or every one streams: {', '.join(STREAMS)}",
    )
    parser.add_argument("--fault-rate", type=float, default=0.0, help="share of completions that meet any fault")
    parser.add_argument("--fault-seed", type=int, default=0, help="which completions, and which faults (default 0)")
    parser.add_argument("--fault-from", type=int, default=1, metavar="N", help="none of these before the N-th (1)")
    parser.add_argument("--journal", type=Path, help="a file that gets a line for each completion, its lateness too")
    given = parser.parse_args(arguments)
    if not 0 <= given.fault_rate <= 1:
        parser.error(f"--fault-rate {given.fault_rate:g} is no share; give 0 to 1, as 0.02 for 2 %")
    settings = FakeSettings(
        prefill_s=given.prefill_ms / 1e3,
        prefill_s_per_token=given.prefill_ms_per_token / 1e3,
        decode_s=given.decode_ms / 1e3,
        context=given.context,
        vocab_size=given.vocab_size,
        sequences=given.sequences,
        load_s=given.load_s,
        faults=tuple(given.fault),
        fault_rate=given.fault_rate,
        fault_seed=given.fault_seed,
        fault_from=given.fault_from,
        journal=given.journal,
    )
    return settings, given.host, given.port


def _stop(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then say how late the tokens left."""
    settings, host, port = _settings(arguments)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    try:
        engine = FakeEngine(settings, host=host, port=port)
    except OSError as error:
        sys.exit(f"{host}:{port} can't be listened on ({error.strerror}); choose another --port")
    with engine:
        print(f"serving fake at {engine.url}", flush=True)
        try:
            engine.serve_forever(poll_interval=0.1)
        finally:
            with suppress(BrokenPipeError):  # whoever read the log is gone
                print(engine.lateness(), flush=True)


if __name__ == "__main__":
    main()
