"""Other benchmark clients, run as their users run them: a command, and the JSON that it leaves.

Each keeps as many requests in flight as its task says and counts with a tokenizer for which every word is one token,
as the fake engine's texts are. A client is used when its command is on PATH.
"""

import contextlib
import functools
import http.server
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer, models, pre_tokenizers

REQUESTS, TOKENS, PROMPT, VOCABULARY = 5, 21, 50, 1000
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Said:
    """What a client reports, medians over its requests; None where it reports nothing."""

    succeeded: int | None
    ttft_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_ms: float | None = None
    """(last - first) / (n - 1), whatever the client calls it."""
    tokens: float | None = None
    """A request."""


@dataclass(frozen=True, slots=True)
class Task:
    url: str
    chat: bool
    tokenizer: Path
    folder: Path
    streams: int = 1
    """Requests in flight."""
    requests: int = REQUESTS
    """In all; a multiple of ``streams``."""
    tokens: int = TOKENS
    """A request."""
    prompt: int = PROMPT
    """Tokens a request, by the tokenizer."""


def aiperf(task: Task) -> Said:
    _run(
        task,
        *("aiperf", "profile", "--model", "fake", "--url", task.url, "--streaming", "--ui", "none"),
        *("--endpoint-type", "chat" if task.chat else "completions", "--tokenizer", task.tokenizer),
        *("--request-count", task.requests, "--concurrency", task.streams),
        *("--prompt-input-tokens-mean", task.prompt, "--output-tokens-mean", task.tokens),
        *("--artifact-dir", task.folder / "aiperf"),
    )
    found = _json(task.folder / "aiperf/profile_export_aiperf.json")
    first = found.get("time_to_first_token") or {}
    return Said(
        succeeded=int((found.get("request_count") or {"avg": 0})["avg"]),
        ttft_ms=first.get("p50"),
        ttft_p99_ms=first.get("p99"),
        tpot_ms=(found.get("inter_token_latency") or {}).get("p50"),
        tokens=(found.get("output_sequence_length") or {}).get("p50"),
    )


def guidellm(task: Task) -> Said:
    path = task.folder / "guidellm.json"
    profile = "kind=synchronous" if task.streams == 1 else f"kind=concurrent,streams={task.streams}"
    form = "/v1/chat/completions" if task.chat else "/v1/completions"
    _run(
        task,
        *("guidellm", "run", "--backend", f"kind=openai_http,target={task.url},model=fake,request_format={form}"),
        *("--profile", profile, "--constraint", f"kind=max_requests,count={task.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={task.tokenizer}", "--disable-console"),
        *("--data", f"kind=synthetic_text,prompt_tokens={task.prompt},output_tokens={task.tokens}"),
        *("--output", f"kind=json,path={path}"),
    )
    requests = _json(path)["benchmarks"][0]["requests"]["successful"]
    return Said(
        succeeded=len(requests),
        ttft_ms=_median(request["time_to_first_token_ms"] for request in requests),
        ttft_p99_ms=_p99(request["time_to_first_token_ms"] for request in requests),
        tpot_ms=_median(request["inter_token_latency_ms"] for request in requests),
        tokens=_median(request["output_tokens"] for request in requests),
    )


def inference_perf(task: Task) -> Said:
    lengths = {"std_dev": 0, "total_count": task.requests}
    stage = {"num_requests": task.requests, "concurrency_level": task.streams}
    config = {
        "load": {"type": "concurrent", "stages": [stage], "num_workers": 1},
        "api": {"type": "completion", "streaming": True},
        "server": {"type": "vllm", "model_name": "fake", "base_url": task.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(task.tokenizer)},
        "data": {
            "type": "random",
            "input_distribution": {"min": task.prompt, "max": task.prompt, "mean": task.prompt, **lengths},
            "output_distribution": {"min": task.tokens, "max": task.tokens, "mean": task.tokens, **lengths},
        },
        "report": {"request_lifecycle": {"summary": True, "per_stage": False, "per_request": False}},
        "storage": {"local_storage": {"path": str(task.folder / "inference-perf")}},
    }
    path = task.folder / "inference-perf.json"
    path.write_text(json.dumps(config))  # YAML reads JSON
    _run(task, "inference-perf", "--config_file", path)
    found = _json(task.folder / "inference-perf/summary_lifecycle_metrics.json")["successes"]
    latency = found.get("latency") or {}

    def milliseconds(name: str, part: str) -> float | None:
        seconds = (latency.get(name) or {}).get(part)
        return None if seconds is None else seconds * 1e3

    return Said(
        succeeded=found["count"],
        ttft_ms=milliseconds("time_to_first_token", "median"),
        ttft_p99_ms=milliseconds("time_to_first_token", "p99"),
        tpot_ms=milliseconds("time_per_output_token", "median"),
        tokens=(found.get("output_tokens") or {}).get("median"),
    )


def llama_benchy(task: Task) -> Said:
    path = task.folder / "llama-benchy.json"
    (task.folder / "book.txt").write_text("\n".join(f"{k % VOCABULARY}" for k in range(20_000)))
    with _serving(task.folder) as book:
        _run(
            task,
            *("llama-benchy", "--base-url", f"{task.url}/v1", "--model", "fake", "--tokenizer", task.tokenizer),
            *("--pp", task.prompt, "--tg", task.tokens, "--concurrency", task.streams),
            *("--runs", task.requests // task.streams, "--no-warmup", "--skip-coherence"),
            *("--latency-mode", "none", "--no-adapt-prompt", "--book-url", f"{book}/book.txt"),
            *("--save-result", path, "--format", "json"),
        )
    if not (rows := _json(path)["benchmarks"]):
        return Said(succeeded=0)
    first = (rows[0].get("e2e_ttft") or {}).get("values") or []
    speeds = (rows[0].get("tg_req_throughput") or {}).get("values") or []
    return Said(
        succeeded=len(first),
        ttft_ms=_median(first),
        ttft_p99_ms=_p99(first),
        tpot_ms=_median(1e3 / speed for speed in speeds if speed),
    )


def vllm_bench(task: Task) -> Said:
    endpoint = "/v1/chat/completions" if task.chat else "/v1/completions"
    _run(
        task,
        *("vllm", "bench", "serve", "--backend", "openai-chat" if task.chat else "openai", "--endpoint", endpoint),
        *("--base-url", task.url, "--model", "fake", "--tokenizer", task.tokenizer, "--dataset-name", "random"),
        *("--random-input-len", task.prompt, "--random-output-len", task.tokens, "--num-prompts", task.requests),
        *("--max-concurrency", task.streams, "--save-result"),
        *("--result-dir", task.folder, "--result-filename", "vllm.json"),
    )
    found = _json(task.folder / "vllm.json")
    succeeded = found["completed"]
    return Said(
        succeeded=succeeded,
        ttft_ms=found["median_ttft_ms"] if succeeded else None,
        ttft_p99_ms=found["p99_ttft_ms"] if succeeded else None,
        tpot_ms=found["median_tpot_ms"] if succeeded else None,
        tokens=found["total_output_tokens"] / succeeded if succeeded else None,
    )


FOREIGN: dict[str, Callable[[Task], Said]] = {
    "aiperf": aiperf,
    "guidellm": guidellm,
    "inference-perf": inference_perf,
    "llama-benchy": llama_benchy,
    "vllm": vllm_bench,
}
"""Command, which is its package's name too → how it is run."""
DIALECTS = {"inference-perf": ("openai",), "llama-benchy": ("openai_chat",)}
"""Of clients that speak one: inference-perf sends random prompts to completions only."""


class ForeignError(Exception):
    """A client that gave no result; the message is its last line."""


def absent() -> list[str]:
    """Clients whose command is not on PATH."""
    return [name for name in FOREIGN if shutil.which(name) is None]


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """One run of a client: what it says, and what the server says of the same answers."""

    asked: int
    """Requests."""
    said: Said
    servers: tuple[dict[str, Any], ...]
    """The fake engine's stamps of the answers that the client counts."""
    cpu_us: float
    """A token that the server sent: all processes of the client, start-up and report included."""


def run(name: str, url: str, *, streams: int, requests: int, tokens: int, prompt: int) -> ForeignRun:
    """Run a client against a fake engine that nobody else asks meanwhile.

    Raises:
        ForeignError: it gave no result, or counts other answers than the engine sent.
    """
    before = max((stamps["request"] for stamps in _stamps(url, last=1)), default=0)
    chat = "openai" not in DIALECTS.get(name, ("openai",))
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        tokenizer = write_tokenizer(folder / "tokenizer")
        task = Task(url, chat, tokenizer, folder, streams=streams, requests=requests, tokens=tokens, prompt=prompt)
        began_s = _children_cpu_s()
        said = FOREIGN[name](task)
        cpu_s = _children_cpu_s() - began_s
    answers = [stamps for stamps in _stamps(url, last=0) if stamps["request"] > before]
    whole = [stamps for stamps in answers if len(stamps["sent_ns"]) == tokens]
    if not said.succeeded or said.succeeded > len(whole):
        raise ForeignError(f"it reports {said.succeeded} answers, the server sent {len(whole)} whole ones")
    sent = sum(len(stamps["sent_ns"]) for stamps in answers)
    # The newest: some clients try the server with a request that is not in their statistics.
    return ForeignRun(requests, said, tuple(whole[-said.succeeded :]), cpu_s / sent * 1e6)


def _stamps(url: str, *, last: int) -> list[dict[str, Any]]:
    """Of the newest answers, oldest first; 0 gives all that the engine keeps."""
    found = httpx.get(f"{url}/stamps?last={last}", timeout=TIMEOUT_S, trust_env=False).json()
    answers: list[dict[str, Any]] = found["answers"]
    return answers


def _children_cpu_s() -> float:
    """Of processes that ended and were waited for, so not of the fake engine, which still runs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def write_tokenizer(folder: Path) -> Path:
    """A Hugging Face tokenizer for which every word is a token."""
    words = {str(k): k for k in range(VOCABULARY)} | {"<unk>": VOCABULARY, "<eos>": VOCABULARY + 1}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "<eos>"}
    settings["chat_template"] = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _run(task: Task, *command: object) -> None:
    words = [str(word) for word in command]
    with (task.folder / f"{words[0]}.log").open("wb") as log:
        # A session of its own: some clients start many processes, and all have to end with it.
        child = subprocess.Popen(
            words,
            cwd=task.folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1"},
            start_new_session=True,
        )
        try:
            code = child.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ForeignError(f"no end within {TIMEOUT_S} s") from error
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if code:
        raise ForeignError(f"exit code {code}")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ForeignError(f"it left no {path.name}") from error


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _p99(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return p99(known) if known else None


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
