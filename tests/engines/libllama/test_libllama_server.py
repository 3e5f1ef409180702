"""The two embedded servers as the harness sees them: real wheels, a real model, HTTP."""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from gguf import GGUFReader

from engines.libllama.wheels import WHEELS
from engines.synthetic_moe import SyntheticMoe, write
from workloads.sample_paths import TOKENIZER

CONTEXT = 512
VOCABULARY = 4096
EOS = 1


def command(backend: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "engines.libllama", "--backend", backend, *options]


def run(backend: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(backend, *options), capture_output=True, text=True, timeout=60)


@dataclass
class Server:
    process: subprocess.Popen[str]
    http: httpx.Client

    def complete(self, prompt: Sequence[int], n: int = 1, **fields: Any) -> dict[str, Any]:
        body = {"prompt": list(prompt), "max_tokens": n, "ignore_eos": True} | fields
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        got: dict[str, Any] = answer.json()
        return got

    def free(self, prompt: Sequence[int], n: int = 1) -> list[int]:
        ids: list[int] = self.complete(prompt, n)["choices"][0]["token_ids"]
        return ids

    def stop(self) -> int:
        """Its exit status; what does not end within 5 s fails the test."""
        self.http.close()
        self.process.terminate()
        try:
            return self.process.wait(timeout=5)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


def start(backend: str, model: Path, log: Path, *options: str) -> Server:
    with log.open("w") as errors:
        process = subprocess.Popen(
            command(backend, "--model", str(model), "--port", "0", "--context", str(CONTEXT), *options),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # Spinning threads make a busy machine slow enough to fail a test.
            env=os.environ | {"OMP_WAIT_POLICY": "passive"},
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("serving"), log.read_text()[-2000:]
    return Server(process, httpx.Client(base_url=line.split()[-1], timeout=60))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default synthetic model, in both formats."""
    made = tmp_path_factory.mktemp("libllama")
    write(SyntheticMoe(), tokenizer=TOKENIZER, safetensors=made / "model", gguf=made / "model.gguf")
    return made


@pytest.fixture(scope="module")
def versions() -> dict[str, subprocess.CompletedProcess[str]]:
    """What each says of itself, or why it does not load here."""
    return {backend: run(backend, "--version") for backend in WHEELS}


@pytest.fixture(scope="module")
def servers(folder: Path, versions: dict[str, subprocess.CompletedProcess[str]]) -> Iterator[dict[str, Server]]:
    """Every embedded engine whose wheel loads here."""
    with ExitStack() as stack:
        running = {}
        for backend, version in versions.items():
            if version.returncode == 0:
                running[backend] = start(
                    backend, folder / "model.gguf", folder / f"{backend}.log", "--batch", "128", "--ubatch", "64"
                )
                stack.callback(running[backend].stop)
        yield running


@pytest.fixture(scope="module", params=sorted(WHEELS))
def backend(request: pytest.FixtureRequest, versions: dict[str, subprocess.CompletedProcess[str]]) -> str:
    name: str = request.param
    if versions[name].returncode != 0:
        pytest.skip(versions[name].stderr.strip())
    return name


@pytest.fixture
def server(servers: dict[str, Server], backend: str) -> Server:
    return servers[backend]


def random_ids(seed: int, n: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCABULARY) for _ in range(n)]


def test_forced_turns_are_exact_and_reuse_all_but_the_last_token(server: Server) -> None:
    prompt = random_ids(0, 300)  # three batches
    before = 0
    for turn in range(3):
        forced = [*random_ids(10 + turn, 12), EOS, 0, 9, EOS]
        answer = server.complete(prompt, len(forced), forced_tokens=forced)
        timings = answer["timings"]
        assert answer["choices"][0]["token_ids"] == forced
        assert answer["choices"][0]["finish_reason"] == "length"
        assert (timings["cached_n"], timings["prompt_n"]) == (before, len(prompt) - before)
        before = len(prompt) + len(forced) - 1  # the last output token was never decoded
        prompt = [*prompt, *forced, *random_ids(20 + turn, 30)]


def test_a_prompt_that_leaves_the_cache_continues_as_one_that_was_never_cached(server: Server) -> None:
    prompt = random_ids(1, 250)
    branch = [*prompt[:150], *random_ids(2, 50)]
    cold = server.free(branch, 4)
    server.free(random_ids(3, 20), 4)
    server.free(prompt, 4)
    answer = server.complete(branch, 4)
    assert answer["timings"]["cached_n"] == 150
    assert answer["choices"][0]["token_ids"] == cold
    again = server.complete(branch, 4)
    assert (again["timings"]["cached_n"], again["timings"]["prompt_n"]) == (len(branch) - 1, 1)
    assert again["choices"][0]["token_ids"] == cold


def test_forcing_the_models_own_choices_agrees_with_every_one(server: Server) -> None:
    prompt = random_ids(4, 50)
    free = server.free(prompt, 8)
    answer = server.complete(prompt, 8, forced_tokens=free)
    assert answer["timings"]["agreed_n"] == 8


def test_an_unforced_answer_ends_at_the_models_own_end_token(
    server: Server, backend: str, folder: Path, tmp_path: Path
) -> None:
    """The random model never chooses its end token, so a copy declares one that it does choose."""
    free = server.free([5, 6, 7], 6)
    model = tmp_path / "model.gguf"
    shutil.copyfile(folder / "model.gguf", model)
    end = GGUFReader(model, "r+").fields["tokenizer.ggml.eos_token_id"]
    end.parts[end.data[0]][0] = free[3]
    other = start(backend, model, tmp_path / "log")
    answer = other.complete([5, 6, 7], 6, ignore_eos=False)
    other.stop()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["token_ids"] == free[: free.index(free[3]) + 1]


def test_the_stream_carries_one_token_a_chunk(server: Server) -> None:
    forced = random_ids(5, 6)
    body = {"prompt": [1, 2, 3], "max_tokens": 6, "forced_tokens": forced, "stream": True}
    text = server.http.post("/v1/completions", json=body).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    ids = [event["choices"][0]["token_ids"] for event in events if event["choices"]]
    assert ids == [[i] for i in forced] + [[]]


def test_a_request_larger_than_the_context_is_refused_and_the_next_one_served(server: Server) -> None:
    body = {"prompt": random_ids(6, CONTEXT), "max_tokens": 1}
    refused = server.http.post("/v1/completions", json=body)
    assert refused.status_code == 400
    assert "context" in refused.json()["error"]["message"]
    assert len(server.free([5, 6, 7], 2)) == 2


def test_the_context_can_be_filled_to_its_last_token(server: Server) -> None:
    forced = random_ids(7, 8)
    answer = server.complete(random_ids(8, CONTEXT - 8), 8, forced_tokens=forced)
    assert answer["choices"][0]["token_ids"] == forced


def test_both_libraries_choose_the_same_first_tokens(servers: dict[str, Server]) -> None:
    if len(servers) < 2:
        pytest.skip(f"only {', '.join(servers) or 'none'} of {', '.join(WHEELS)} loads here")
    one, other = servers.values()
    prompts = [random_ids(30 + i, 10 + 5 * i) for i in range(10)]
    assert sum(one.free(p) == other.free(p) for p in prompts) >= 8


@pytest.mark.slow
def test_the_first_tokens_are_those_of_transformers(server: Server, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.bfloat16).eval()
    prompts = [random_ids(30 + i, 10 + 5 * i) for i in range(10)]
    with torch.inference_mode():
        theirs = [int(model(torch.tensor([p])).logits[0, -1].argmax()) for p in prompts]
    assert sum([ours] == server.free(p) for p, ours in zip(prompts, theirs, strict=True)) >= 8


def test_sigterm_ends_it_with_status_0(backend: str, folder: Path, tmp_path: Path) -> None:
    server = start(backend, folder / "model.gguf", tmp_path / "log")
    assert server.stop() == 0


def test_version_names_package_build_and_instruction_sets(
    backend: str, versions: dict[str, subprocess.CompletedProcess[str]]
) -> None:
    wheel = WHEELS[backend]
    said = versions[backend].stdout
    assert f"{wheel.distribution} {wheel.version}" in said
    assert "AVX2 = 1" in said


@pytest.mark.parametrize("content", [None, b"GGUF\x03\x00\x00\x00"])
def test_a_model_that_is_none_is_one_line_and_status_2(backend: str, content: bytes | None, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    if content is not None:
        model.write_bytes(content)
    ended = run(backend, "--model", str(model), "--port", "0")
    assert ended.returncode == 2
    assert str(model) in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_taken_port_is_one_line_and_status_2(backend: str, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run(backend, "--model", str(folder / "model.gguf"), "--context", "256", "--port", str(port))
    assert ended.returncode == 2
    assert f"127.0.0.1:{port}" in ended.stderr.splitlines()[-1]
    assert "choose another --port" in ended.stderr
