"""``engines``: check this machine for an engine, and size what an engine keeps on its GPUs."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from replay.config import Config

USAGE_TEXT = """\
usage: engines doctor [engine=NAME[,NAME]] [setting=value ...] [--no-start]
       engines fit engine=NAME [setting=value ...] [fit.NAME=VALUE ...]

doctor  Check this machine before a long run: Docker and its GPU runtime, image or program, model, port, memory, NUMA,
        clocks, disk; then start the engine and force a few tokens on it (not with --no-start, and not for several
        engines). Without engine=, the machine and every engine.
fit     Find the largest cache, or the fewest layers on the CPU, with which the longest request of the workload
        completes and memory stays free: by bisection, each try a real start. Give development sessions, never those
        to be measured.

  setting=value          as for `replay`: launch=process, model.gguf=FILE, workload=sessions, hardware=rtx4090d_x4
  fit.option=NAME        the engine option to size (default: the one that its file names under capacity)
  fit.low= fit.high= fit.step=   the values to search
  fit.prefer=largest|smallest    which end is wanted
  fit.text="--flag {value}"      the option's text, where it is more than the number
  fit.margin_mib=1024    what each GPU must keep free at its peak
  fit.host_margin_mib=1024       what the machine's memory must keep available
  fit.rss_mib=N          the most memory that the engine itself may hold
  fit.out=FILE           where the setting is written (default: fit/<engine>.yaml)

examples:
  engines doctor
  engines doctor engine=llama_server
  engines doctor engine=llamacpp_cache launch=container model.gguf=deepseek.gguf hardware=rtx4090d_x4
  engines fit engine=llamacpp_cache model.gguf=deepseek.gguf workload=sessions workload.path=dev.parquet
  engines fit engine=llama_server fit.option=flags fit.text='--n-gpu-layers {value}' fit.low=0 fit.high=48

Exit codes: 0 it can run or a value was found, 1 not, 2 it can't be done as asked, 130 Ctrl-C, 143 SIGTERM.
"""
NOT, USAGE = 1, 2
NO_START = "--no-start"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or not {"-h", "--help"}.isdisjoint(given):
        print(USAGE_TEXT, end="")
        raise SystemExit(0 if given else USAGE)
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        code = _command(given[0], given[1:])
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BrokenPipeError:  # who read the table has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 128 + signal.SIGPIPE
    finally:
        signal.signal(signal.SIGTERM, previous)
    raise SystemExit(code)


def _command(name: str, words: list[str]) -> int:
    # What follows takes half a second to load, which --help should not wait for.
    from engines.base import EngineError
    from replay.config import ComposeError
    from workloads.session import WorkloadError

    commands = {"doctor": _doctor, "fit": _fit}
    if name not in commands:
        return _complain(f"there is no command {name!r}; choose one of {', '.join(commands)}, or see engines --help")
    try:
        return commands[name](words)
    except (EngineError, WorkloadError, ComposeError) as error:
        return _complain(error)


def _doctor(words: list[str]) -> int:
    from rich.console import Console

    from replay.config import each_engine
    from replay.doctor.engine import engine_findings
    from replay.doctor.finding import can_run
    from replay.doctor.machine import gpus, machine_findings
    from replay.doctor.self_test import self_test
    from replay.doctor.table import show, show_engines, verdict
    from replay.machine import machine
    from replay.progress import Progress

    flags = [word for word in words if word.startswith("-")]
    if unknown := [flag for flag in flags if flag != NO_START]:
        return _complain(f"{unknown[0]} is no flag of doctor; it takes {NO_START}")
    typed = [word for word in words if not word.startswith("-")]
    named = [word.removeprefix("engine=").split(",") for word in typed if word.startswith("engine=")]
    others = [word for word in typed if not word.startswith("engine=")]
    composed = {name: _composed([f"engine={name}", *others]) for name in named[-1]} if named else each_engine(others)
    here, found_gpus = machine()["machine"], gpus()
    results = Path(next(iter(composed.values())).results)
    console = Console(highlight=False)
    findings = machine_findings(results)
    show("machine", findings, console)
    engines = {
        name: engine_findings(config.engine, config.model, results=results, machine=here, gpus=found_gpus)
        for name, config in composed.items()
    }
    if len(engines) > 1 or not named:
        show_engines(engines, console)
        return NOT if named and not all(map(can_run, (findings, *engines.values()))) else 0
    ((name, own),) = engines.items()
    if NO_START not in flags and can_run([*findings, *own]):
        with Progress() as progress:
            own.append(self_test(composed[name].engine, composed[name].model, progress))
    show(f"engine {name}", own, console)
    console.print(verdict([*findings, *own]))
    return 0 if can_run([*findings, *own]) else NOT


def _fit(words: list[str]) -> int:
    from replay.fit.run import find, override, write
    from replay.fit.settings import fit_settings
    from replay.fit.trial import Try
    from replay.progress import Progress

    if flags := [word for word in words if word.startswith("-")]:
        return _complain(f"{flags[0]} is no flag of fit; see engines --help")
    if not any(word.startswith("engine=") for word in words):
        return _complain("engine= is missing; name the engine to size, as in engines fit engine=llamacpp_cache")
    config = _composed([word for word in words if not word.startswith("fit.")])
    fit = fit_settings(config.engine, [word for word in words if word.startswith("fit.")])
    out = fit.out or Path("fit") / f"{config.engine.name}.yaml"

    def tell(done: Try) -> None:
        outcome = f"fails: {done.reason}" if done.reason else "passes"
        print(f"{fit.option}={done.value}  {outcome}  ({done.seconds:.1f} s; {done.left.shown()})", flush=True)

    with Progress() as progress:
        fitted = find(config.engine, config.model, config.workload, fit, out.with_suffix(""), progress, tell)
    request = fitted.longest
    print(f"longest request: session {request.session_id}, turn {request.turn}, {request.tokens:,} tokens")
    if fitted.value is None:
        print(
            f"engines: not even {fit.option}={fitted.tries[0].value} passes; see {out.with_suffix('')}",
            file=sys.stderr,
        )
        return NOT
    write(out, config.engine, fit, fitted, " ".join(["engines fit", *words]))
    print(f"found    {fit.option}={fitted.value} after {len(fitted.tries)} starts")
    print(f"written  {out}")
    folder = out.absolute().parent
    print(f"use it   replay engine={config.engine.name} {override(fit, fitted.value)}")
    print(f"or       replay --config-dir {folder.parent} engine={config.engine.name} +{folder.name}={out.stem}")
    return 0


def _composed(words: Sequence[str]) -> "Config":
    from replay.config import composed

    return composed(words)


def _terminate(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _complain(error: object) -> int:
    print(f"engines: {error}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    main()
