"""The engine behind its HTTP server: chats, logprobs, timings, metrics, refusals, clients that leave."""

import json
import math
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")
sys.path.insert(0, str(Path(__file__).parent))

from families import make

from engines.ostinato.assembly import Options, open_engine
from engines.ostinato.chat import request as chat_request
from engines.ostinato.chat.request import Chat
from engines.ostinato.engine import Engine
from engines.ostinato.planner import model_shape, routes
from engines.ostinato.recording import Recorder
from engines.ostinato.serving import CompletionServer
from engines.ostinato.vocabulary import Vocabulary
from workloads.sample_paths import TOKENIZER

CONTEXT, SLOTS = 1000, 5
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make("qwen3_moe", tmp_path_factory.mktemp("qwen3_moe"))
    shutil.copyfile(TOKENIZER / "chat_template.jinja", made / "chat_template.jinja")
    (end,) = Vocabulary(TOKENIZER / "tokenizer.json").encode("<|end|>")
    (made / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    return made


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return open_engine(Options(model=folder, device="cpu", threads=1, slots=SLOTS, context=CONTEXT))


@contextmanager
def listening(server: CompletionServer) -> Iterator[httpx.Client]:
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    with server, httpx.Client(base_url=server.url, timeout=60) as client:
        thread.start()
        try:
            yield client
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()
            assert server.turnstile.idle(30)


@pytest.fixture(scope="module")
def client(engine: Engine, folder: Path) -> Iterator[httpx.Client]:
    server = CompletionServer(engine, host="127.0.0.1", port=0, chat=chat_request.read(folder))
    with listening(server) as client:
        yield client


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(TOKENIZER / "tokenizer.json")


def chat(client: httpx.Client, **fields: Any) -> Any:
    answer = client.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 4} | fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(client: httpx.Client, **fields: Any) -> list[Any]:
    fields = {"messages": HELLO, "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}} | fields
    answer = client.post("/v1/chat/completions", json=fields)
    assert answer.headers["content-type"] == "text/event-stream", answer.text
    lines = answer.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_chat_is_the_completion_of_its_rendered_prompt(client: httpx.Client, vocabulary: Vocabulary) -> None:
    prompt = vocabulary.encode("<|user|>Hello<|end|><|assistant|>")
    plain = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4}).json()
    found = chat(client, return_token_ids=True)
    (choice,) = found["choices"]
    assert found["object"] == "chat.completion"
    assert choice["token_ids"] == plain["choices"][0]["token_ids"]
    assert choice["message"]["role"] == "assistant"
    assert found["usage"]["prompt_tokens"] == len(prompt)
    assert found["timings"]["cached_n"] == len(prompt) - 1


def test_a_streamed_chat_says_what_a_whole_one_says(client: httpx.Client) -> None:
    whole = chat(client, max_tokens=9)["choices"][0]
    *chunks, usage = streamed(client, max_tokens=9)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert all("role" not in delta for delta in deltas[1:])
    assert "".join(delta.get("content", "") for delta in deltas) == whole["message"]["content"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(reasons) - 1) + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 9


def forced_answer(vocabulary: Vocabulary) -> list[int]:
    text = '<|think|>Hm.<|answer|>Well.<|call|>look<|id|>c7<|arguments|>{"at": "é"}<|call|>look<|arguments|>{}<|end|>'
    return vocabulary.encode(text)


def test_forced_tool_calls_come_out_as_calls(client: httpx.Client, vocabulary: Vocabulary) -> None:
    forced = forced_answer(vocabulary)
    (choice,) = chat(client, tools=TOOLS, max_tokens=None, forced_tokens=forced)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Well.", "Hm.")
    first, second = message["tool_calls"]
    assert first == {"id": "c7", "type": "function", "function": {"name": "look", "arguments": '{"at": "é"}'}}
    assert second["function"] == {"name": "look", "arguments": "{}"}
    assert second["id"].startswith("call_")


def test_streamed_tool_calls_are_legal_deltas(client: httpx.Client, vocabulary: Vocabulary) -> None:
    forced = forced_answer(vocabulary)
    *chunks, finish, _usage = streamed(client, tools=TOOLS, max_tokens=len(forced), forced_tokens=forced)
    assert finish["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "tool_calls"}
    calls: dict[int, dict[str, str]] = {}
    for chunk in chunks:
        for call in chunk["choices"][0]["delta"].get("tool_calls", []):
            seen = calls.setdefault(call["index"], {"name": "", "arguments": ""})
            assert ("id" in call) == (seen["name"] == "")
            for key in seen:
                seen[key] += call["function"].get(key, "")
    assert calls == {0: {"name": "look", "arguments": '{"at": "é"}'}, 1: {"name": "look", "arguments": "{}"}}


def test_a_harness_counts_every_token_of_a_chat(client: httpx.Client, vocabulary: Vocabulary) -> None:
    from engines.base import ForcedRequest
    from engines.dialects.openai_chat import DIALECT
    from engines.sse import parse

    forced = tuple(forced_answer(vocabulary))
    request = ForcedRequest(
        prompt_ids=vocabulary.encode("<|user|>Hello<|end|><|assistant|>"), output_ids=list(forced)
    )
    body = DIALECT.body(request) | {"forced_tokens": list(forced), "tools": TOOLS}
    answer = client.post(DIALECT.path, json=body)
    found = DIALECT.parse(parse([(0, answer.content)]))
    assert tuple(id_ for chunk in found.chunks for id_ in chunk.ids) == forced
    assert [chunk.n_tokens for chunk in found.chunks] == [1] * len(forced)
    assert found.report.cached_tokens is not None


def test_the_next_turn_of_a_chat_finds_the_answer_cached(client: httpx.Client, vocabulary: Vocabulary) -> None:
    forced = forced_answer(vocabulary)
    first = chat(client, tools=TOOLS, max_tokens=None, forced_tokens=forced)
    message = first["choices"][0]["message"]
    message["tool_calls"] = message["tool_calls"][:1]
    result = {"role": "tool", "tool_call_id": "c7", "content": [{"type": "text", "text": "seen"}]}
    second = chat(client, tools=TOOLS, messages=[*HELLO, message, result])
    until_second_call = len(
        vocabulary.encode('<|think|>Hm.<|answer|>Well.<|call|>look<|id|>c7<|arguments|>{"at": "é"}')
    )
    assert second["timings"]["cached_n"] == first["usage"]["prompt_tokens"] + until_second_call


def test_logprobs_are_those_of_the_model(client: httpx.Client, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=torch.float32).eval()
    prompt, forced = [5, 600, 70, 8], [900, 33]
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + forced])).logits[0]
    expected = torch.log_softmax(logits.double(), -1)[len(prompt) - 1 : -1]
    body = {"prompt": prompt, "forced_tokens": forced, "logprobs": 3, "max_tokens": 2}
    found = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    for step, token in enumerate(forced):
        assert math.isclose(found["token_logprobs"][step], float(expected[step, token]), abs_tol=1e-4)
        best = torch.topk(expected[step], 3).values.tolist()
        values = list(found["top_logprobs"][step].values())
        assert all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(values, best, strict=True))
    assert found["text_offset"][0] == 0


def test_a_chats_logprobs_name_tokens_and_bytes(client: httpx.Client) -> None:
    whole = chat(client, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(whole) == 4
    for scored in whole:
        assert bytes(scored["bytes"]).decode(errors="replace") == scored["token"]
        assert scored["logprob"] == scored["top_logprobs"][0]["logprob"]  # greedy takes the best
        assert len(scored["top_logprobs"]) == 2
    *chunks, _finish, _usage = streamed(client, logprobs=True)
    assert [len(chunk["choices"][0]["logprobs"]["content"]) for chunk in chunks] == [1] * 4


def test_final_timings_say_where_the_experts_were_computed(client: httpx.Client) -> None:
    timings = client.post("/v1/completions", json={"prompt": list(range(40)), "max_tokens": 5}).json()["timings"]
    assert timings["path"] == "cooperative"
    assert 0 <= timings["cpu_experts_per_token"] <= 4  # two layers, two experts a token
    assert timings["borrowed_hits_n"] >= 0
    assert timings["resident_n"] >= SLOTS
    assert timings["cached_n"] + timings["prompt_n"] == 40


def test_metrics_count_what_was_answered(engine: Engine) -> None:
    def value(text: str, series: str) -> float:
        return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.rpartition(" ")[0] == series)

    engine.reset()
    with listening(CompletionServer(engine, host="127.0.0.1", port=0)) as client:
        answers = [
            client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 4}).json() for _ in range(2)
        ]
        client.post("/v1/completions", json={"prompt": "x", "max_tokens": 0})
        answer = client.get("/metrics")
        assert client.post("/v1/chat/completions", json={"messages": HELLO}).status_code == 404
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.text
    assert value(text, 'ostinato_requests_total{endpoint="/v1/completions",outcome="complete"}') == 2
    assert value(text, 'ostinato_requests_total{endpoint="/v1/completions",outcome="refused"}') == 1
    assert value(text, "ostinato_output_tokens_total") == 8
    assert value(text, 'ostinato_prompt_tokens_total{source="computed"}') == 4
    assert value(text, 'ostinato_prompt_tokens_total{source="cached"}') == 2
    assert value(text, "ostinato_ttft_seconds_count") == value(text, "ostinato_tpot_seconds_count") == 2
    assert value(text, 'ostinato_ttft_seconds_bucket{le="+Inf"}') == 2
    assert value(text, "ostinato_requests_waiting") == 0
    assert value(text, "ostinato_resident_experts") >= SLOTS
    experts = sum(answer["timings"]["cpu_experts_n"] for answer in answers)
    assert value(text, "ostinato_cpu_experts_total") == experts


def test_a_request_too_long_for_the_context_leaves_the_session_as_it_was(client: httpx.Client) -> None:
    prompt = list(range(100, 160))
    client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2})
    long = client.post("/v1/completions", json={"prompt": prompt * 20, "max_tokens": 2})
    assert long.status_code == 400
    assert long.json()["error"]["code"] == "context_length_exceeded"
    assert (
        "prompt of 1200 tokens + max_tokens 2 = 1202 exceeds the context of 1000" in long.json()["error"]["message"]
    )
    again = client.post("/v1/completions", json={"prompt": [*prompt, 7], "max_tokens": 2}).json()
    assert again["timings"]["cached_n"] == len(prompt)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages must be a list of at least one, not []"),
        ({"messages": [5]}, "messages[0] must be an object, not a number"),
        ({"messages": [{"role": "bot", "content": ""}]}, "messages[0].role must be one of system, developer, user"),
        ({"messages": [{"role": "user"}]}, "messages[0].content must be text, not nothing"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content holds",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]},
            "messages[0].tool_calls[0].function must have name and arguments, both as text",
        ),
        ({"tools": {}}, "tools must be a list, not an object"),
        ({"tools": [{"name": "f"}]}, "tools[0] must be"),
        ({"tool_choice": "required"}, 'tool_choice="required" is not supported'),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs: true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be an integer from 0 to 20, not 21"),
        ({"logprobs": 1}, "logprobs must be true or false, not 1"),
        ({"temperature": 1.0}, "temperature=1.0 is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format="),
        ({"parallel_tool_calls": False}, "parallel_tool_calls=false is not supported"),
        ({"max_completion_tokens": -1}, "max_tokens must be an integer of at least 1, not -1"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs may not hold messages"),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "messages holds half a surrogate pair"),
        ({"messages": [{"role": "tool", "tool_call_id": [1], "content": ""}]}, "chat template does not take these"),
    ],
)
def test_a_bad_chat_is_told_what_is_wrong(client: httpx.Client, fields: dict[str, Any], message: str) -> None:
    content = json.dumps({"messages": HELLO} | fields)  # which, unlike httpx, writes half a surrogate pair as well
    answer = client.post("/v1/chat/completions", content=content)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_unknown_fields_are_ignored_and_another_model_is_not_found(client: httpx.Client) -> None:
    name = client.get("/v1/models").json()["data"][0]["id"]
    settings = {"self": 1, "enable_thinking": False}
    found = chat(
        client, model=name, user="me", seed=3, top_p=1, chat_template_kwargs=settings, reasoning_effort="low"
    )
    assert found["model"] == name
    assert client.get(f"/v1/models/{name}").json()["id"] == name
    other = client.post("/v1/chat/completions", json={"messages": HELLO, "model": "gpt"})
    assert other.status_code == 404
    assert other.json()["error"]["code"] == "model_not_found"


class Stepping(Engine):
    """The same engine, each step waiting to be let go."""

    def hold(self) -> None:
        self.entered, self.go, self.steps = threading.Semaphore(0), threading.Semaphore(0), 0

    def step(self, token_id: int) -> int:
        self.entered.release()
        assert self.go.acquire(timeout=60)
        self.steps += 1
        return super().step(token_id)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_engine_within_one_step(engine: Engine, stream: bool) -> None:
    stepping = Stepping.__new__(Stepping)
    stepping.__dict__ = dict(engine.__dict__)
    stepping.hold()
    body = json.dumps({"prompt": [1, 2], "max_tokens": 500, "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    server = CompletionServer(stepping, host="127.0.0.1", port=0)
    with listening(server):
        with socket.create_connection(server.server_address[:2], timeout=60) as leaving:
            leaving.sendall(head + body)
            assert stepping.entered.acquire(timeout=60)  # inside the first step
        stepping.go.release(2)
        assert server.turnstile.idle(60)
        assert stepping.steps == 1
        text = server.metrics.text(running=0, waiting=0)
    assert 'outcome="left"} 1' in text


def test_recorded_routes_are_those_of_the_requests(engine: Engine, folder: Path, tmp_path: Path) -> None:
    shape = model_shape.read(folder)
    file = tmp_path / "routes.npz"
    engine.prefill([9] * 30)  # before the recording: no request's
    recorder = Recorder(
        engine, file, per_token=shape.experts_per_token, model_hash=shape.model_hash, workload_hash="abc"
    )
    engine.reset()
    server = CompletionServer(engine, host="127.0.0.1", port=0, after_request=recorder.after_request)
    with listening(server) as client:
        client.post("/v1/completions", json={"prompt": [1, 2, 3, 4], "max_tokens": 5})
    assert not file.exists()  # at most once a minute
    recorder.write()
    counts = routes.read_counts(file)
    assert (counts.prefill_tokens, counts.decode_steps) == (4, 4)
    assert counts.decode_LE.sum(1).tolist() == [4 * 2, 4 * 2]
    assert (counts.model_hash, counts.workload_hash) == (shape.model_hash, "abc")


def test_a_chat_of_a_folder_without_template_is_none(tmp_path: Path) -> None:
    found: Chat | None = chat_request.read(tmp_path)
    assert found is None
