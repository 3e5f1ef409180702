"""A real headless Chromium and a report with something of everything: slow, and skipped where there is none."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from analysis.report import write_report

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def chromium(module_of: Callable[[str, str], ModuleType]) -> ModuleType:
    return module_of("chromium", "benchmarks/chromium.py")


@pytest.fixture(scope="module")
def browser(chromium: ModuleType) -> Iterator[Any]:
    binary = chromium.executable()
    if binary is None:
        pytest.skip("no Chromium on this machine; install Debian's (apt-get install chromium) or set CHROMIUM")
    with chromium.Chromium(binary) as started:
        yield started


ENGINES = {"llamacpp": 1.0, "ik_llamacpp": 0.9, "ostinato": 0.6, "vllm": 1.3}
FAILED = ("session-08", 2)
SAID = 'token 3: expected 7, got 9 <b>"HTTP 500"</b>'


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, module_of: Callable[[str, str], ModuleType]) -> Path:
    """Nine sessions on four engines, one of which fails in the last; a check that warns."""
    worlds = module_of("worlds", "tests/analysis/conftest.py")
    recorded = worlds.recording(9, 5)
    folder = tmp_path_factory.mktemp("browser") / "runs"
    for seed, (name, factor) in enumerate(ENGINES.items()):
        records = worlds.turn_records(name, recorded, worlds.Speed(factor, 0.05), seed)
        validity = [{"name": "tokens verified", "ok": True, "value": "all", "advice": ""}]
        if name == "vllm":
            records = [fail(r) for r in records if r.session_id != FAILED[0] or r.turn <= FAILED[1]]
            validity.append({
                "name": "event-loop lag", "ok": False, "value": "p99 3.2 ms", "threshold": "p99 at most 1 ms",
                "severity": "warning", "advice": "leave the client a core of its own",
            })  # fmt: skip
        worlds.write_run(folder / name, records, worlds.result_of(name, records, recorded, validity=validity))
    return write_report(folder)


def fail(record: Any) -> Any:
    if (record.session_id, record.turn) != FAILED:
        return record
    return replace(record, status="tokens", error=SAID, token_ns=(), end_ns=None)


@pytest.fixture
def page(browser: Any, report: Path) -> Any:
    """The report, opened anew in a light window of 1280 pixels."""
    browser.console.clear()
    browser.requests.clear()
    browser.prefer("light")
    browser.resize(1280, 900)
    browser.open(report.as_uri())
    return browser
