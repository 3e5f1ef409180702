"""The fake engine keeps its promises: latencies, reuse, stamps, and what its command line says."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from engines.fake.__main__ import main
from engines.fake.asked import Asked
from engines.fake.cache import PrefixCache, common_prefix
from engines.fake.catalogue import STREAMS, faults
from engines.fake.journal import prompt_key
from engines.fake.server import FakeEngine, FakeSettings, in_thread
from engines.fake.wires import Completions
from engines.settings import EngineSettings

CONF = Path(__file__).parents[2] / "conf/engine/fake.yaml"


@contextmanager
def process(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The engine as a process of its own, and its URL."""
    command = [sys.executable, "-m", "engines.fake", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server, server.stdout.readline().split()[-1]
        finally:
            server.kill()


def complete(url: str, **fields: Any) -> httpx.Response:
    body = {"prompt": [1, 2, 3], "max_tokens": 3, "stream": True, "return_token_ids": True} | fields
    return httpx.post(f"{url}/v1/completions", json=body, trust_env=False)


def ids(response: httpx.Response) -> list[int]:
    events = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: {")]
    return [token for event in events for choice in json.loads(event)["choices"] for token in choice["token_ids"]]


def test_tokens_leave_on_their_absolute_deadlines() -> None:
    with in_thread(FakeSettings(prefill_s=0.02, prefill_s_per_token=0.001, decode_s=0.005)) as engine:
        complete(engine.url, max_tokens=8)
        stamps = engine.stamps[-1]
    due = [round((due - stamps.arrived_ns) / 1e6) for due in stamps.due_ns]
    assert due == [23, 28, 33, 38, 43, 48, 53, 58]  # three new tokens of prompt
    late_ms = [(sent - due) / 1e6 for sent, due in zip(stamps.sent_ns, stamps.due_ns, strict=True)]
    assert min(late_ms) >= 0
    assert min(late_ms) < 2  # one of eight at least is on time on the busiest machine


def test_forced_tokens_come_back_and_free_ones_repeat_themselves() -> None:
    with in_thread(FakeSettings()) as engine:
        assert ids(complete(engine.url, forced_tokens=[7, 8, 9])) == [7, 8, 9]
        assert ids(complete(engine.url)) == ids(complete(engine.url))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": []}, "prompt must be a list of token ids"),
        ({"prompt": ["a"]}, "prompt must be a list of token ids"),
        ({"prompt": [-1]}, "outside the vocabulary"),
        ({"forced_tokens": [1]}, "forced_tokens holds 1 ids but max_tokens is 3"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 100}, "exceed the context of 64 tokens"),
        ({"stream": False}, "stream=true"),
        ({"fault": "fire"}, "no stream 'fire'"),
    ],
)
def test_a_bad_request_is_refused_with_its_field(fields: dict[str, Any], said: str) -> None:
    with in_thread(FakeSettings(context=64)) as engine:
        response = complete(engine.url, **fields)
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix_is_what_a_loop_would_find(a: list[int], b: list[int]) -> None:
    same = [left == right for left, right in zip(a, b, strict=False)]
    assert common_prefix(tuple(a), tuple(b)) == [*same, False].index(False)


def test_a_prompt_never_comes_wholly_from_the_cache() -> None:
    cache = PrefixCache(sequences=2)
    cache.keep((1, 2, 3, 4))
    assert cache.cached_tokens((1, 2, 3)) == 2
    assert cache.cached_tokens((1, 2, 3, 4, 5)) == 4
    assert cache.cached_tokens((9, 2)) == 0


def test_a_sequence_that_grew_takes_one_place() -> None:
    cache = PrefixCache(sequences=2)
    for ids in ((7, 7), (1, 2), (1, 2, 3), (1, 2, 3, 4)):
        cache.keep(ids)
    assert cache.cached_tokens((7, 7, 7)) == 2
    cache.keep((5,))
    assert cache.cached_tokens((7, 7, 7)) == 0


def test_a_fault_may_strike_the_nth_completion_only() -> None:
    with in_thread(FakeSettings(faults=(("http_500", 2),))) as engine:
        assert [complete(engine.url).status_code for _ in range(3)] == [200, 500, 200]


ASKED = Asked(kind=Completions, prompt_ids=(1,), output_ids=(2,), ids=True, stream="plain")


def drawn(**settings: Any) -> list[str]:
    """The streams of the first thousand completions."""
    with FakeEngine(FakeSettings(**settings)) as engine:
        return [engine.stream_of(number, ASKED) for number in range(1, 1001)]


def test_random_faults_are_drawn_by_their_seed_at_their_rate() -> None:
    streams = drawn(fault_rate=0.3, fault_seed=7)
    assert streams == drawn(fault_rate=0.3, fault_seed=7) != drawn(fault_rate=0.3, fault_seed=8)
    assert 250 < len(streams) - streams.count("plain") < 350
    assert set(streams) == {"plain"} | faults("ostinato").keys()
    assert set(drawn(fault_rate=0.3, fault_from=900)[:899]) == {"plain"}
    assert set(drawn()) == {"plain"}


def wait_for_lines(journal: Path, number: int) -> None:
    """A completion is written down after its answer has left."""
    deadline = time.monotonic() + 60
    while journal.read_bytes().count(b"\n") < number:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_journal_has_a_line_for_each_completion_and_numbers_go_on_after_a_death(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with process(f"--journal={journal}", "--fault=die:2") as (_, url):
        complete(url, prompt=[7, 8])
        wait_for_lines(journal, 1)
        with pytest.raises(httpx.RemoteProtocolError):
            complete(url)
    with process(f"--journal={journal}", "--fault=die:2") as (server, url):
        complete(url)
        wait_for_lines(journal, 3)
        server.terminate()
        server.wait()
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    told = [(line["number"], line["stream"], line["sent_tokens"]) for line in lines]
    assert told == [(1, "plain", 3), (2, "die", 1), (3, "plain", 3)]
    assert [line["prompt"] for line in lines] == [prompt_key((7, 8)), prompt_key((1, 2, 3)), prompt_key((1, 2, 3))]
    assert all(line["late_ns"] >= 0 for line in lines)


def test_a_stream_that_the_dialect_does_not_have_is_refused() -> None:
    with in_thread(FakeSettings(faults=(("tool_calls", None),))) as engine:
        said = complete(engine.url).json()["error"]["message"]
    assert "no stream 'tool_calls' in the dialect openai" in said


def test_a_share_of_faults_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--fault-rate", "2"])
    assert "--fault-rate 2 is no share; give 0 to 1" in capsys.readouterr().err


def test_the_process_serves_its_stamps_on_the_clients_clock_and_leaves_on_sigterm() -> None:
    with process("--prefill-ms", "1", "--decode-ms", "0.5") as (server, url):
        before_ns = time.perf_counter_ns()
        complete(url)
        after_ns = time.perf_counter_ns()
        (answer,) = httpx.get(f"{url}/stamps", trust_env=False).json()["answers"]
        assert before_ns < answer["arrived_ns"] < answer["sent_ns"][0] < answer["sent_ns"][-1] < after_ns
        assert answer["prompt_start"] == [1, 2]
        server.send_signal(signal.SIGTERM)
        rest, _ = server.communicate(timeout=5)
        assert server.returncode == 0
        assert "3 tokens left late by" in rest


def test_the_fault_die_ends_the_process_in_the_middle_of_an_answer() -> None:
    with process("--fault", "die:1") as (server, url):
        with pytest.raises(httpx.RemoteProtocolError):
            complete(url)
        assert server.wait(timeout=5) == 1


def test_a_port_that_is_taken_is_a_one_line_error() -> None:
    with in_thread(FakeSettings()) as engine:
        port = str(engine.server_address[1])
        with pytest.raises(SystemExit, match=f"127.0.0.1:{port} can't be listened on .*choose another --port"):
            main(["--port", port])


def test_an_unknown_fault_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--fault", "fire"])
    said = capsys.readouterr().err
    assert all(name in said for name in STREAMS)


def test_the_command_in_the_engine_file_starts_the_engine() -> None:
    given = OmegaConf.merge(OmegaConf.structured(EngineSettings), OmegaConf.load(CONF))
    settings = OmegaConf.to_object(given)
    assert isinstance(settings, EngineSettings)
    known = vars(settings) | settings.options | {"python": sys.executable}
    command = [part.format_map(known) for part in settings.command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert server.stdout.readline().startswith("serving fake at http://127.0.0.1:")
        finally:
            server.kill()
