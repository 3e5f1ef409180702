"""The HTTP server over a backend that counts: wire form, refusals, queue, clients that leave, signals."""

import json
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

SCRIPT = Path(__file__).with_name("counting_server.py")
SLOW, BROKEN, END = 320, 340, 360  # as in counting_server.py


@contextmanager
def counting_server(step_s: float) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, str(SCRIPT), str(step_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"http://\S+", line)
        assert match, line
        try:
            yield match[0], process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with counting_server(0.002) as (url, _process):
        yield url


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=10) as client:
        yield client


def request_bytes(fields: dict[str, Any]) -> bytes:
    content = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def sent(url: str, fields: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent and nothing was read."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=5)
    connection.sendall(request_bytes(fields))
    return connection


def body(**fields: Any) -> dict[str, Any]:
    return {"prompt": [1, 2, 3], "max_tokens": 3, "temperature": 0} | fields


def events(client: httpx.Client, **fields: Any) -> list[Any]:
    fields = body(stream=True, stream_options={"include_usage": True}) | fields
    answer = client.post("/v1/completions", json=fields)
    assert answer.headers["content-type"] == "text/event-stream"
    lines = answer.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_stream_holds_one_token_a_chunk_then_the_reason_then_the_counts(client: httpx.Client) -> None:
    *tokens, finish, counts = events(client, prompt=[63, 64])
    assert [event["choices"][0]["token_ids"] for event in tokens] == [[65], [66], [67]]
    assert [event["choices"][0]["text"] for event in tokens] == ["A", "B", "C"]
    assert all(event["choices"][0]["finish_reason"] is None for event in tokens)
    assert {event["id"] for event in [*tokens, finish, counts]} == {finish["id"]}
    assert finish["object"] == "text_completion"
    assert finish["model"] == "counting"
    assert finish["choices"] == [{"index": 0, "text": "", "token_ids": [], "finish_reason": "length"}]
    assert counts["choices"] == []
    assert counts["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    timings = counts["timings"]
    assert (timings["cached_n"], timings["prompt_n"], timings["predicted_n"]) == (0, 2, 3)
    assert timings["predicted_ms"] >= 4  # two steps of 2 ms
    assert timings["path"] == "counting"
    assert "agreed_n" not in timings


def test_forced_tokens_replace_the_models_choice_and_agreement_is_counted(client: httpx.Client) -> None:
    # The model would say 4, then 5 after the 4, then 10 after the 9.
    *tokens, _finish, counts = events(client, forced_tokens=[4, 9, 10])
    assert [event["choices"][0]["token_ids"] for event in tokens] == [[4], [9], [10]]
    assert counts["timings"]["agreed_n"] == 2


def test_a_forced_end_token_does_not_end_the_answer(client: httpx.Client) -> None:
    *tokens, finish, _counts = events(client, forced_tokens=[END, 9, END])
    assert [event["choices"][0]["token_ids"] for event in tokens] == [[END], [9], [END]]
    assert finish["choices"][0]["finish_reason"] == "length"


def test_the_end_token_stops_an_answer_unless_it_is_ignored(client: httpx.Client) -> None:
    stopped = client.post("/v1/completions", json=body(prompt=[END - 2], max_tokens=5)).json()
    assert stopped["choices"][0]["token_ids"] == [END - 1, END]
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == 2
    ignored = client.post("/v1/completions", json=body(prompt=[END - 1], max_tokens=2, ignore_eos=True)).json()
    assert ignored["choices"][0]["token_ids"] == [END, END + 1]


def test_text_is_held_back_until_a_character_is_complete_but_ids_never(client: httpx.Client) -> None:
    forced = [*"é€".encode(), 65, 0xE2]
    *tokens, _finish, _counts = events(client, max_tokens=len(forced), forced_tokens=forced)
    assert [event["choices"][0]["token_ids"][0] for event in tokens] == forced
    assert [event["choices"][0]["text"] for event in tokens] == ["", "é", "", "", "€", "A", "\ufffd"]


def test_a_connection_is_kept_for_the_next_turn(url: str) -> None:
    with sent(url, body(stream=True)) as connection:
        for turn in range(2):
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += connection.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            if turn == 0:
                connection.sendall(request_bytes(body(stream=True)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "the body is not valid JSON: "),
        (b"\xff", "the body is not valid JSON: "),
        (b"[]", "the body must be a JSON object, not a list"),
        (b"{}", "prompt must be a list of token ids, not nothing"),
        (body(prompt=[]), "prompt is empty; send at least one token"),
        (body(prompt="hello"), "prompt is text, but this server has no tokenizer; send a list of token ids"),
        (body(prompt=[1, "a"]), 'prompt[1] must be an integer token id, not "a"'),
        (body(prompt=[1, True]), "prompt[1] must be an integer token id, not true"),
        (body(prompt=[[1]]), "prompt[0] must be an integer token id, not [1]"),
        (body(prompt=[3, 400]), "prompt[1] is 400, outside the vocabulary 0..399"),
        (body(prompt=[-1]), "prompt[0] is -1, outside the vocabulary 0..399"),
        (body(max_tokens=0), "max_tokens must be an integer of at least 1, not 0"),
        (body(max_tokens=2.5), "max_tokens must be an integer of at least 1, not 2.5"),
        (body(max_tokens=99_998), "prompt of 3 tokens + max_tokens 99998 = 100001 exceeds the context of 100000"),
        (body(forced_tokens=[1, 2]), "forced_tokens holds 2 ids but max_tokens is 3; make them equal"),
        (body(forced_tokens=[1, 2, 400]), "forced_tokens[2] is 400, outside the vocabulary"),
        (body(forced_tokens=5), "forced_tokens must be a list of token ids, not a number"),
        (body(stream="yes"), 'stream must be true or false, not "yes"'),
        (body(stream_options=[]), "stream_options must be an object, not a list"),
        (body(temperature=0.7), "temperature=0.7 is not supported: decoding is greedy; leave temperature out"),
        (body(n=2), "n=2 is not supported"),
        (body(logprobs=2), "logprobs is not supported: counting shows no logits; leave logprobs out"),
        (body(logprobs=True), "logprobs must be an integer from 0 to 20, not true"),
        (body(stop=["x"]), 'stop=["x"] is not supported'),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(client: httpx.Client, content: Any, message: str) -> None:
    sent = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer = client.post("/v1/completions", content=sent)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert client.post("/v1/completions", json=body()).status_code == 200


def test_other_addresses_and_methods_are_refused_as_json(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    model = client.get("/v1/models").json()["data"][0]
    assert (model["id"], model["max_model_len"]) == ("counting", 100_000)
    assert client.get("/nowhere").json()["error"]["message"] == "Not Found"
    without = client.post("/v1/chat/completions", json=body())
    assert without.status_code == 404
    assert without.json()["error"]["message"].startswith("counting is served without a chat template")
    assert client.delete("/health").status_code == 501
    assert client.post("/v1/completions", content=iter([b"{}"])).status_code == 411


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the body holds 99999999999 bytes; at most 67108864 are taken" in answer


def test_metrics_of_a_backend_that_counts_nothing_leave_those_series_out(client: httpx.Client) -> None:
    text = client.get("/metrics").text
    assert "ostinato_ttft_seconds_count" in text
    assert "cpu_experts" not in text
    assert "resident" not in text


def test_a_failing_backend_is_an_error_and_the_next_request_works(client: httpx.Client) -> None:
    whole = client.post("/v1/completions", json=body(prompt=[BROKEN - 1]))
    assert whole.status_code == 500
    assert whole.json()["error"] == {"message": "out of memory at 7 tokens", "type": "backend_error"}
    first, problem = events(client, prompt=[BROKEN - 1])
    assert first["choices"][0]["token_ids"] == [BROKEN]
    assert problem["error"]["message"] == "out of memory at 7 tokens"
    assert client.post("/v1/completions", json=body()).status_code == 200


def test_one_request_computes_one_waits_and_a_third_is_turned_away(url: str) -> None:
    with ExitStack() as stack:
        running = stack.enter_context(sent(url, body(stream=True, max_tokens=90_000)))
        assert running.recv(4096).startswith(b"HTTP/1.1 200 OK")
        others = [stack.enter_context(sent(url, body())) for _ in range(2)]
        (refused,), _, _ = select.select(others, [], [], 5)
        others.remove(refused)
        answer = refused.recv(4096)
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable")
        assert b'"type": "queue_full"' in answer
        assert b"\r\nRetry-After: 1\r\n" in answer
        waiting = httpx.get(f"{url}/metrics", timeout=10).text
        assert "ostinato_requests_running 1" in waiting
        assert "ostinato_requests_waiting 1" in waiting
        running.close()
        assert others[0].recv(4096).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("fields", [{"stream": True, "max_tokens": 90_000}, {"prompt": [SLOW]}])
def test_a_client_that_leaves_frees_the_engine(url: str, fields: dict[str, Any]) -> None:
    with sent(url, body(**fields)) as leaving:
        if "stream" in fields:
            assert leaving.recv(4096).startswith(b"HTTP/1.1 200 OK")
    started = time.monotonic()
    assert httpx.post(f"{url}/v1/completions", json=body(), timeout=10).status_code == 200
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("busy", [False, True])
def test_signals_end_the_server_with_code_0(number: signal.Signals, busy: bool) -> None:
    with counting_server(0.001) as (url, process), httpx.Client(base_url=url, timeout=10) as client:
        if busy:
            with client.stream("POST", "/v1/completions", json=body(stream=True, max_tokens=90_000)) as running:
                received = running.iter_bytes()
                next(received)
                process.send_signal(number)
                with pytest.raises(httpx.RemoteProtocolError):
                    for _ in received:
                        pass
        else:
            process.send_signal(number)
        assert process.wait(timeout=10) == 0
