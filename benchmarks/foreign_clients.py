"""Other benchmark clients, run as their users run them: a command, and the JSON that it leaves.

Each asks one request at a time for ``TOKENS`` tokens and counts with a tokenizer for which every word is one token,
as the fake engine's texts are. A client is used when its command is on PATH.
"""

import contextlib
import functools
import http.server
import json
import os
import shutil
import statistics
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

REQUESTS, TOKENS, PROMPT, VOCABULARY = 5, 21, 50, 1000
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Said:
    """What a client reports, medians over its requests; None where it reports nothing."""

    succeeded: int | None
    ttft_ms: float | None = None
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


def aiperf(task: Task) -> Said:
    _run(
        task,
        *("aiperf", "profile", "--model", "fake", "--url", task.url, "--streaming", "--ui", "none"),
        *("--endpoint-type", "chat" if task.chat else "completions", "--tokenizer", task.tokenizer),
        *("--request-count", REQUESTS, "--concurrency", 1, "--prompt-input-tokens-mean", PROMPT),
        *("--output-tokens-mean", TOKENS, "--artifact-dir", task.folder / "aiperf"),
    )
    found = _json(task.folder / "aiperf/profile_export_aiperf.json")
    return Said(
        succeeded=int((found.get("request_count") or {"avg": 0})["avg"]),
        ttft_ms=(found.get("time_to_first_token") or {}).get("p50"),
        tpot_ms=(found.get("inter_token_latency") or {}).get("p50"),
        tokens=(found.get("output_sequence_length") or {}).get("p50"),
    )


def guidellm(task: Task) -> Said:
    path = task.folder / "guidellm.json"
    form = "/v1/chat/completions" if task.chat else "/v1/completions"
    _run(
        task,
        *("guidellm", "run", "--backend", f"kind=openai_http,target={task.url},model=fake,request_format={form}"),
        *("--profile", "kind=synchronous", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=hf_auto,model={task.tokenizer}", "--disable-console"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={TOKENS}"),
        *("--output", f"kind=json,path={path}"),
    )
    requests = _json(path)["benchmarks"][0]["requests"]["successful"]
    return Said(
        succeeded=len(requests),
        ttft_ms=_median(request["time_to_first_token_ms"] for request in requests),
        tpot_ms=_median(request["inter_token_latency_ms"] for request in requests),
        tokens=_median(request["output_tokens"] for request in requests),
    )


def inference_perf(task: Task) -> Said:
    lengths = {"std_dev": 0, "total_count": 2 * REQUESTS}
    config = {
        "load": {"type": "constant", "stages": [{"rate": 4, "duration": 2}], "num_workers": 1},
        "api": {"type": "completion", "streaming": True},
        "server": {"type": "vllm", "model_name": "fake", "base_url": task.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(task.tokenizer)},
        "data": {
            "type": "random",
            "input_distribution": {"min": PROMPT, "max": PROMPT, "mean": PROMPT, **lengths},
            "output_distribution": {"min": TOKENS, "max": TOKENS, "mean": TOKENS, **lengths},
        },
        "report": {"request_lifecycle": {"summary": True, "per_stage": False, "per_request": False}},
        "storage": {"local_storage": {"path": str(task.folder / "inference-perf")}},
    }
    path = task.folder / "inference-perf.json"
    path.write_text(json.dumps(config))  # YAML reads JSON
    _run(task, "inference-perf", "--config_file", path)
    found = _json(task.folder / "inference-perf/summary_lifecycle_metrics.json")["successes"]
    latency = found.get("latency") or {}

    def milliseconds(name: str) -> float | None:
        median = (latency.get(name) or {}).get("median")
        return None if median is None else median * 1e3

    return Said(
        succeeded=found["count"],
        ttft_ms=milliseconds("time_to_first_token"),
        tpot_ms=milliseconds("time_per_output_token"),
        tokens=(found.get("output_tokens") or {}).get("median"),
    )


def llama_benchy(task: Task) -> Said:
    path = task.folder / "llama-benchy.json"
    (task.folder / "book.txt").write_text("\n".join(f"{k % VOCABULARY}" for k in range(20_000)))
    with _serving(task.folder) as book:
        _run(
            task,
            *("llama-benchy", "--base-url", f"{task.url}/v1", "--model", "fake", "--tokenizer", task.tokenizer),
            *("--pp", PROMPT, "--tg", TOKENS, "--runs", REQUESTS, "--no-warmup", "--skip-coherence"),
            *("--latency-mode", "none", "--no-adapt-prompt", "--book-url", f"{book}/book.txt"),
            *("--save-result", path, "--format", "json"),
        )
    if not (rows := _json(path)["benchmarks"]):
        return Said(succeeded=0)
    first = (rows[0].get("e2e_ttft") or {}).get("values") or []
    speeds = (rows[0].get("tg_throughput") or {}).get("values") or []
    return Said(
        succeeded=len(first), ttft_ms=_median(first), tpot_ms=_median(1e3 / speed for speed in speeds if speed)
    )


def vllm_bench(task: Task) -> Said:
    endpoint = "/v1/chat/completions" if task.chat else "/v1/completions"
    _run(
        task,
        *("vllm", "bench", "serve", "--backend", "openai-chat" if task.chat else "openai", "--endpoint", endpoint),
        *("--base-url", task.url, "--model", "fake", "--tokenizer", task.tokenizer, "--dataset-name", "random"),
        *("--random-input-len", PROMPT, "--random-output-len", TOKENS, "--num-prompts", REQUESTS),
        *("--max-concurrency", 1, "--save-result", "--result-dir", task.folder, "--result-filename", "vllm.json"),
    )
    found = _json(task.folder / "vllm.json")
    succeeded = found["completed"]
    return Said(
        succeeded=succeeded,
        ttft_ms=found["median_ttft_ms"] if succeeded else None,
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
"""Command → how it is run."""
DIALECTS = {"inference-perf": ("openai",), "llama-benchy": ("openai_chat",)}
"""Of clients that speak one: inference-perf sends random prompts to completions only."""


class ForeignError(Exception):
    """A client that gave no result; the message is its last line."""


def absent() -> list[str]:
    """Clients whose command is not on PATH."""
    return [name for name in FOREIGN if shutil.which(name) is None]


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
    try:
        done = subprocess.run(
            words,
            cwd=task.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise ForeignError(f"no end within {TIMEOUT_S} s") from error
    (task.folder / f"{words[0]}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise ForeignError(f"exit code {done.returncode}")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ForeignError(f"it left no {path.name}") from error


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


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
