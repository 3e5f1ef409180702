"""How long a large report takes to open, in a real headless Chromium.

    python benchmarks/report_open.py [--engines 13] [--turns 1000] [--opens 5]

Writes made-up records (the worlds of tests/analysis), builds the report, and opens it anew several times: until
something is painted, the load event, the page answers, the first figure is drawn once it is scrolled to, all are, and
a session's turns are shown. Everything else on the machine makes it longer.
"""

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from chromium import Chromium, executable

from analysis.report import write_report

Made = TypeVar("Made")
TURNS_A_SESSION = 20
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
LOADED = "performance.getEntriesByType('navigation')[0].loadEventEnd"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to open a large report in a headless Chromium.")
    parser.add_argument("--engines", type=int, default=13)
    parser.add_argument("--turns", type=int, default=1000, help="turns an engine (default 1,000)")
    parser.add_argument("--opens", type=int, default=5)
    parser.add_argument(
        "--keep", type=Path, help="a folder for records, report and a screenshot (default: none kept)"
    )
    chosen = parser.parse_args()
    binary = executable()
    if binary is None:
        sys.exit("no Chromium on this machine; install Debian's (apt-get install chromium) or set CHROMIUM")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.keep or Path(temporary)) / "runs"
        write_records(folder, chosen.engines, chosen.turns)
        took_s, report = timed(lambda: write_report(folder))
        print(
            f"{chosen.engines} engines x {chosen.turns:,} turns: report built in {took_s:.1f} s, "
            f"{report.stat().st_size / 1e6:.2f} MB"
        )
        rows = [measure(binary, report) for _ in range(chosen.opens)]
        for name in rows[0]:
            values = [row[name] for row in rows]
            print(f"{name:<34} median {statistics.median(values):6.2f} s   worst {max(values):6.2f} s")
        if chosen.keep:
            print(f"screenshot: {screenshot(binary, report)}")


def write_records(folder: Path, engines: int, turns: int) -> None:
    worlds = load(Path(__file__).parents[1] / "tests/analysis/conftest.py")
    recorded = worlds.recording(turns // TURNS_A_SESSION, TURNS_A_SESSION)
    names = ["llamacpp", "ik_llamacpp", "ostinato", *(f"engine-{number}" for number in range(engines))][:engines]
    for seed, name in enumerate(names):
        records = worlds.turn_records(name, recorded, worlds.Speed(0.5 + 0.1 * seed, 0.05), seed)
        worlds.write_run(folder / name, records, worlds.result_of(name, records, recorded))


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("worlds", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["worlds"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def measure(binary: Path, report: Path) -> dict[str, float]:
    """Seconds; a browser of its own each time, so that nothing is cached."""
    with Chromium(binary) as browser:
        opened_s, _ = timed(lambda: (browser.open(report.as_uri()), browser.run("document.title")))
        times = {
            "first paint": browser.wait(PAINTED) / 1e3,
            "load event": browser.wait(LOADED) / 1e3,
            "open and answering": opened_s,
        }
        figures = browser.run("document.querySelectorAll('.plot').length")
        times["first figure, once scrolled to"], _ = timed(lambda: draw(browser, 0))
        times[f"the other {figures - 1} figures"], _ = timed(lambda: [draw(browser, i) for i in range(1, figures)])
        click = "document.querySelector('.sessions tbody button').click()"
        shown = "document.getElementById('turns').dataset.session"
        times["a session's turns"], _ = timed(lambda: (browser.run(click), browser.wait(shown)))
        if browser.console:
            sys.exit("the page complains: " + "; ".join(browser.console))
        return times


def draw(browser: Chromium, number: int) -> None:
    plot = f"document.querySelectorAll('.plot')[{number}]"
    browser.run(f"{plot}.scrollIntoView()")
    browser.wait(f"{plot}.dataset.drawn")


def screenshot(binary: Path, report: Path) -> Path:
    with Chromium(binary) as browser:
        browser.open(report.as_uri())
        for number in range(browser.run("document.querySelectorAll('.plot').length")):
            draw(browser, number)
        browser.run("scrollTo(0, 0)")
        return browser.screenshot(report.with_suffix(".png"))


def timed(work: Callable[[], Made]) -> tuple[float, Made]:
    start_s = time.perf_counter()
    made = work()
    return time.perf_counter() - start_s, made


if __name__ == "__main__":
    main()
