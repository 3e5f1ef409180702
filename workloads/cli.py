"""``prepare``: recorded sessions to a session file, and what a session file holds."""

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads import words
from workloads.formats import registry
from workloads.formats.reading import Reading, watched
from workloads.load import AUTO, FORMATS, NothingKeptError, renderer_of, sessions
from workloads.sample_paths import TOKENIZER
from workloads.session import Session, WorkloadError
from workloads.settings import WorkloadSettings
from workloads.tally import Tally

if TYPE_CHECKING:
    from rich.console import Console

USAGE = """\
usage: prepare [source=FORMAT] path=WHAT out=FILE [model=FOLDER] [key=value ...]
       prepare stats FILE [csv=FILE]
       prepare split FILE out=FOLDER preset=swe|tau2 [by=task|session] [seed=N]
       prepare capture --help

Render recorded sessions to token ids, once, and write them as a session file that `replay` reads.

  source=FORMAT       the recorded format; told from the file when left out
  path=WHAT           a file (also .gz, .zst, .zip), a folder, or a Hugging Face data set (owner/name[@commit])
  out=FILE            the session file to write
  model=FOLDER        tokenizer.json and chat template of the model to replay on (default: the bundled small ones)
  max_sessions=N      keep only the first so many sessions
  max_turns=N         cut each session after so many turns
  num_proc=N          render in so many processes (1)
  domain=PATH         tau2: folder or file with the policies and tool schemas that result files leave out
  chat_template=FILE  a jinja file instead of the model's own template
  on_prefix_break=    a session whose history the template rewrites: fail (drop it, the default), replay the
                      template's prompts, or bridge (only append)
  allow_template_loss=true   render although the template leaves out what a recording holds
  sessions= turns= seed= preset=   of source=synthetic; seed= and block_size= also of mooncake and weka

examples:
  prepare path=results.json domain=domains/ out=retail.parquet
  prepare source=openhands path=rows.parquet model=models/qwen3 max_sessions=50 num_proc=4 out=repairs.parquet
  prepare path=nebius/SWE-rebench-openhands-trajectories model=models/qwen3 max_sessions=100 out=swe.parquet
  prepare source=synthetic sessions=16 turns=20 seed=7 out=random.parquet
  prepare stats repairs.parquet csv=turns.csv
  prepare split repairs.parquet preset=swe out=repairs/
  replay workload=sessions workload.path=repairs/held_out.parquet workload.split=held_out

formats:
""" + "".join(f"  {name:17} {registry.named(name).description}\n" for name in registry.NAMES)
REPORT_EVERY_S = 2.0
REASONS_SHOWN = 12

Known = Mapping[str, Callable[[str, str], Any]]
PREPARE: Known = {
    "source": words.one_of(*(name for name in FORMATS if name != "sessions")),
    "path": words.text,
    "out": words.place,
    "model": words.place,
    "max_sessions": words.count,
    "max_turns": words.count,
    "num_proc": words.count,
    "domain": words.text,
    "chat_template": words.text,
    "on_prefix_break": words.one_of("fail", "replay", "bridge"),
    "allow_template_loss": words.yes_or_no,
    "sessions": words.count,
    "turns": words.count,
    "seed": words.whole,
    "preset": words.text,
    "block_size": words.count,
}
STATS: Known = {"csv": words.place, "plots": words.yes_or_no}
SPLIT: Known = {
    "out": words.place,
    "preset": words.text,
    "development": words.whole,
    "screening": words.whole,
    "screening_turns": words.count,
    "held_out": words.whole,
    "by": words.text,
    "seed": words.whole,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; leaves with one line on stderr and status 2 for what a user can mend, 1 when no session was
    kept, 130 on Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None and (given[:1] in ([], ["stats"], ["split"]) or "--help" in given or "-h" in given):
        # Nothing but files is used here: who stops reading the output ends the command quietly.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if not given or (given[0] != "capture" and not {"-h", "--help"}.isdisjoint(given)):
        print(USAGE, end="")
        sys.exit(0 if given else 2)
    commands: dict[str, Callable[[list[str]], None]] = {"stats": _stats, "split": _split, "capture": _capture}
    try:
        command = commands.get(given[0])
        _prepare(given) if command is None else command(given[1:])
    except NothingKeptError as error:
        sys.exit(_failed(str(error), 1))
    except WorkloadError as error:
        sys.exit(_failed(str(error), 2))
    except KeyboardInterrupt:
        sys.exit(_failed("stopped; nothing was written", 130))


def _failed(message: str, status: int) -> int:
    print(f"prepare: {' '.join(message.split())}", file=sys.stderr)
    return status


def _prepare(given: list[str]) -> None:
    from workloads import store

    options = words.parse(given, PREPARE)
    out, model, num_proc = options.pop("out", None), options.pop("model", TOKENIZER), options.pop("num_proc", 1)
    source = options.pop("source", AUTO)
    if out is None:
        raise WorkloadError("out= is missing; name the session file to write, as in out=sessions.parquet")
    if "path" not in options and source not in ("synthetic", "sample"):
        raise WorkloadError("path= is missing; name what to read: a file, a folder or a data set of the hub")
    _require_place(out, options.get("path"))
    settings = WorkloadSettings(name=source, format=source, **options)
    renderer = renderer_of(settings, model)
    tally = Tally()
    progress = _Progress(tally)
    try:
        with watched(progress.read):
            found = sessions(settings, renderer, model, tally, num_proc=num_proc)
            store.write(
                out, progress.passing(found), tokenizer_hash=renderer.tokenizer_hash, vocab_size=renderer.vocab_size
            )
    except NothingKeptError:
        _print_tally(tally, _console())
        raise
    console = _console()
    console.print(str(out))
    _show(out, console, plots=False)
    _print_tally(tally, console)


def _require_place(out: Path, path: str | None) -> None:
    if not out.parent.is_dir():
        raise WorkloadError(f"{out.parent}: no such folder; create it or choose another out=")
    if path is not None and out.resolve() == Path(path).expanduser().resolve():
        raise WorkloadError(f"{out}: this is the recording itself; choose another out=")


class _Progress:
    """Says now and then on stderr how far it is."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._last = time.monotonic()
        self._reading = ""

    def read(self, reading: Reading) -> None:
        self._reading = f"{reading}; "
        self._say()

    def passing(self, found: Iterator[Session]) -> Iterator[Session]:
        for session in found:
            self._say()
            yield session

    def _say(self) -> None:
        if time.monotonic() - self._last > REPORT_EVERY_S:
            self._last = time.monotonic()
            kept, dropped = self._tally.kept, self._tally.dropped.total()
            print(f"prepare: {self._reading}{kept:,} kept, {dropped:,} dropped", file=sys.stderr, flush=True)


def _stats(given: list[str]) -> None:
    from workloads import store

    path, options = _file_and_words(given, STATS)
    console = _console()
    _show(path, console, plots=options.get("plots", True))
    if "csv" in options:
        from workloads.stats_page import write_csv

        write_csv(options["csv"], store.read(path))
        console.print(f"\nEvery turn's lengths are in {options['csv']}")


def _split(given: list[str]) -> None:
    from workloads.split_files import write_parts

    path, options = _file_and_words(given, SPLIT)
    for line in write_parts(path, options):
        print(line)


def _capture(given: list[str]) -> None:
    from workloads.capture.command import capture

    capture(given)


def _file_and_words(given: list[str], known: Known) -> tuple[Path, dict[str, Any]]:
    if not given or ("=" in given[0] and not Path(given[0]).exists()):
        raise WorkloadError("name a session file first, as in: prepare stats sessions.parquet")
    return Path(given[0]).expanduser(), words.parse(given[1:], known)


def _console() -> "Console":
    from rich.console import Console

    return Console(soft_wrap=True, highlight=False, markup=False)


def _show(path: Path, console: "Console", *, plots: bool) -> None:
    from workloads import store
    from workloads.stats_page import show
    from workloads.summary import summarise

    split = store.header(path).split
    summary = summarise(store.read(path))
    if summary is None:
        raise WorkloadError(f"{path}: holds no session; prepare it again")
    if split is not None:
        console.print(f"split: {split}")
    show(summary, console, plots=plots)


def _print_tally(tally: Tally, console: "Console") -> None:
    console.print(f"sessions: {tally.read:,} read, {tally.kept:,} kept, {tally.dropped.total():,} dropped")
    _print_reasons(tally.dropped, console)
    if tally.first_refused is not None:
        console.print(f"The first: {tally.first_refused}")
    if +tally.losses:
        console.print("Left out of them, or not restored:")
        _print_reasons(tally.losses, console)
    elif not tally.dropped:
        console.print("Nothing was left out.")


def _print_reasons(reasons: Counter[str], console: "Console") -> None:
    shown = (+reasons).most_common()
    for reason, count in shown[:REASONS_SHOWN]:
        console.print(f"{count:>9,}  {reason}")
    if len(shown) > REASONS_SHOWN:
        others = sum(count for _, count in shown[REASONS_SHOWN:])
        console.print(f"{others:>9,}  for {len(shown) - REASONS_SHOWN:,} other reasons")


if __name__ == "__main__":
    main()
