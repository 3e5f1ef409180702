"""``prepare``: recorded sessions to a session file, and what a session file holds."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from workloads.load import sessions
from workloads.sample_paths import TOKENIZER
from workloads.session import Session, WorkloadError
from workloads.settings import WorkloadSettings

if TYPE_CHECKING:
    from workloads.summary import Summary

EXAMPLES = """\
examples:
  prepare tau2 results.json --domain domains/ --out retail.parquet
  prepare openhands rows.parquet --max-sessions 50 --out repairs.parquet
  prepare openhands rows.jsonl --tokenizer models/qwen3 --out repairs.parquet
  prepare synthetic --sessions 16 --turns 20 --seed 7 --out random.parquet
  prepare stats repairs.parquet

replay such a file with: replay workload=sessions workload.path=repairs.parquet
"""
RECORDED = {
    "tau2": "tau2-bench results: a file, or a folder with results.json and simulations/",
    "openhands": "OpenHands chat rows (SWE-Gym, SWE-rebench): .json, .jsonl or .parquet, or a folder of them",
    "conversation": "conversations in this project's own JSON form: a file or a folder",
}
REPORT_EVERY_S = 2.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; leaves with status 2 and one line on stderr for what a user can mend, 130 on Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "stats":
            _print_stats(options.file)
        else:
            _prepare(options)
    except WorkloadError as error:
        sys.exit(_failed(str(error), 2))
    except KeyboardInterrupt:
        sys.exit(_failed("stopped; nothing was written", 130))


def _failed(message: str, status: int) -> int:
    print(f"prepare: {' '.join(message.split())}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="prepare",
        description="Render recorded sessions to token ids, once, and write them as a session file.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, description in RECORDED.items():
        command = commands.add_parser(name, help=description, description=description)
        command.add_argument("path", metavar="PATH", help="what to read")
        if name == "tau2":
            command.add_argument(
                "--domain", metavar="PATH", help="folder or file with the tool schemas that result files leave out"
            )
        _add_common(command)
    synthetic = commands.add_parser("synthetic", help="seeded sessions of random ids")
    synthetic.add_argument(
        "--sessions", type=_positive, default=WorkloadSettings.sessions, help="how many (%(default)s)"
    )
    synthetic.add_argument("--turns", type=_positive, default=WorkloadSettings.turns, help="in each (%(default)s)")
    synthetic.add_argument(
        "--seed", type=int, default=WorkloadSettings.seed, help="of all that is drawn (%(default)s)"
    )
    _add_common(synthetic)
    _add_common(commands.add_parser("sample", help="the eight bundled sessions"))
    stats = commands.add_parser("stats", help="say what a session file holds")
    stats.add_argument("file", metavar="FILE", type=Path, help="a session file")
    return parser


def _add_common(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--out", metavar="FILE", type=Path, required=True, help="the session file to write (.parquet)"
    )
    command.add_argument(
        "--tokenizer",
        metavar="FOLDER",
        type=Path,
        default=TOKENIZER,
        help="tokenizer.json and a chat template, those of the model to replay on (default: the bundled small one)",
    )
    command.add_argument("--max-sessions", type=_positive, metavar="N", help="only the first so many")
    command.add_argument("--max-turns", type=_positive, metavar="N", help="cut each session after so many turns")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; give a whole number from 1 up")
    return int(text)


def _prepare(options: argparse.Namespace) -> None:
    from workloads import store
    from workloads.render import Renderer

    out: Path = options.out
    if not out.parent.is_dir():
        raise WorkloadError(f"{out.parent}: no such folder; create it or choose another --out")
    if getattr(options, "path", None) and out.resolve() == Path(options.path).resolve():
        raise WorkloadError(f"{out}: this is the recording itself; choose another --out")
    settings = WorkloadSettings(
        name=options.command,
        format=options.command,
        **{
            field: value
            for field, value in vars(options).items()
            if field in ("path", "domain", "sessions", "turns", "seed", "max_sessions", "max_turns")
        },
    )
    renderer = Renderer(options.tokenizer)
    losses: Counter[str] = Counter()
    found = sessions(settings, renderer, options.tokenizer, losses)
    store.write(out, _with_progress(found), tokenizer_hash=renderer.tokenizer_hash, vocab_size=renderer.vocab_size)
    _print_stats(out, losses=losses)


def _with_progress(found: Iterator[Session]) -> Iterator[Session]:
    """Pass sessions on and say now and then on stderr how far they are."""
    last, count, turns = time.monotonic(), 0, 0
    for session in found:
        count, turns = count + 1, turns + len(session.turns)
        if time.monotonic() - last > REPORT_EVERY_S:
            last = time.monotonic()
            print(f"prepare: {count:,} sessions, {turns:,} turns so far", file=sys.stderr, flush=True)
        yield session


def _print_stats(path: Path, *, losses: Counter[str] | None = None) -> None:
    from rich.console import Console
    from rich.table import Table

    from workloads import store
    from workloads.summary import summarise

    summary = summarise(store.read(path))
    if summary is None:
        raise WorkloadError(f"{path}: holds no session; prepare it again")
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(str(path))
    table = Table("", "count")
    table.columns[1].justify = "right"
    for name, value in _lines(summary):
        table.add_row(name, value)
    console.print(table)
    if losses is None:
        return
    lost = sorted((+losses).items())
    console.print("Left out or not restored:" if lost else "Nothing was left out.")
    for reason, count in lost:
        console.print(f"{count:>9,}  {reason}")


def _lines(summary: "Summary") -> Iterator[tuple[str, str]]:
    yield "sessions", f"{summary.sessions:,}"
    yield "tasks", f"{summary.tasks:,}"
    yield "turns", f"{sum(summary.turns.values()):,}"
    for kind, count in summary.turns.items():
        yield f"  {kind} turns", f"{count:,}"
    yield "output tokens", f"{summary.output_tokens:,}"
    yield "median output of a turn (tokens)", f"{summary.median_output:,.0f}"
    for kind, median in summary.median_new.items():
        yield f"median new tokens, {kind} turns", f"{median:,.0f}"
    yield "longest context (tokens)", f"{summary.longest_context:,}"


if __name__ == "__main__":
    main()
