"""Plain logs of servers to tokens a second: every format that llama-server had, and what others do not carry."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis import cli
from analysis.server_logs import show
from analysis.server_logs.lines import marked_lines
from analysis.server_logs.rates import alone, decode, prefill, rates
from analysis.server_logs.read import LogError, read_log
from analysis.server_logs.requests import Log

LOGS = Path(__file__).parent / "logs"
REAL = LOGS / "llama_server_b11434.log"

NEWEST = """0.04.970.466 I slot print_timing: id  1 | task 50 | prompt eval time =    4000.00 ms /  4200 tokens (    0.95 ms per token,  1050.00 tokens per second)
0.04.970.468 I slot print_timing: id  0 | task 51 | prompt eval time =     500.00 ms /   300 tokens (    1.67 ms per token,   600.00 tokens per second)
0.04.970.471 I slot print_timing: id  1 | task 50 |        eval time =     320.00 ms /    33 tokens (   10.00 ms per token,   100.00 tokens per second)
0.04.970.472 I slot print_timing: id  1 | task 50 |       total time =    4320.00 ms /  4233 tokens
0.04.970.475 I slot print_timing: id  0 | task 51 |        eval time =     630.00 ms /    64 tokens (   10.00 ms per token,   100.00 tokens per second)
"""  # noqa: E501
UNDER_A_HEADER = """slot print_timing: id  0 | task 0 |
prompt eval time =    4000.00 ms /  4200 tokens (    0.95 ms per token,  1050.00 tokens per second)
       eval time =     320.00 ms /    33 tokens (    9.70 ms per token,   103.13 tokens per second)
      total time =    4320.00 ms /  4233 tokens
slot print_timing: id  0 | task 9 |
prompt eval time =     500.00 ms /   300 tokens (    1.67 ms per token,   600.00 tokens per second)
       eval time =     630.00 ms /    64 tokens (    9.84 ms per token,   101.59 tokens per second)
"""
INFO = """INFO [           print_timings] prompt eval time     =    4000.00 ms /  4200 tokens (    0.95 ms per token,  1050.00 tokens per second) | tid="1" timestamp=1723569622 id_slot=0 id_task=0 t_prompt_processing=4000.0
INFO [           print_timings] prompt eval time     =     500.00 ms /   300 tokens (    1.67 ms per token,   600.00 tokens per second) | tid="1" timestamp=1723569623 id_slot=1 id_task=1 t_prompt_processing=500.0
INFO [           print_timings] generation eval time =     320.00 ms /    33 runs   (    9.70 ms per token,   103.13 tokens per second) | tid="1" timestamp=1723569624 id_slot=0 id_task=0 t_token_generation=320.0
INFO [           print_timings] generation eval time =     630.00 ms /    64 runs   (    9.84 ms per token,   101.59 tokens per second) | tid="1" timestamp=1723569625 id_slot=1 id_task=1 t_token_generation=630.0
"""  # noqa: E501
JSON_LINES = "\n".join(
    json.dumps({"tid": "1", "function": "print_timings", "level": "INFO", "id_slot": 0, "msg": message})
    for message in (
        "prompt eval time     =    4000.00 ms /  4200 tokens (0.95 ms per token)",
        "generation eval time =     320.00 ms /    33 runs   (9.70 ms per token)",
        "prompt eval time     =     500.00 ms /   300 tokens (1.67 ms per token)",
        "generation eval time =     630.00 ms /    64 runs   (9.84 ms per token)",
    )
)
# Here runs are decode steps: the first token came out of the prompt.
OLDEST = """llama_print_timings:        load time =   907.71 ms
llama_print_timings: prompt eval time =  4000.00 ms /  4200 tokens (    0.95 ms per token,  1050.00 tokens per second)
llama_print_timings:        eval time =   320.00 ms /    32 runs   (   10.00 ms per token,   100.00 tokens per second)
llama_print_timings:       total time =  4330.00 ms
llama_print_timings: prompt eval time =   500.00 ms /   300 tokens (    1.67 ms per token,   600.00 tokens per second)
llama_print_timings:        eval time =   630.00 ms /    63 runs   (   10.00 ms per token,   100.00 tokens per second)
"""
ROUTED = "\n".join(f"[4202{number % 2}] {line}" for number in (0, 1) for line in UNDER_A_HEADER.splitlines()[1:3])
FORMATS = {
    "newest": NEWEST, "under a header": UNDER_A_HEADER, "info": INFO, "json": JSON_LINES, "oldest": OLDEST,
}  # fmt: skip


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def to(text: str, name: str = "server.log") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return to


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_of_llama_server_gives_the_same_rates(name: str, write: Callable[..., Path]) -> None:
    log = read_log(write("some other line\n" + FORMATS[name]))
    assert (log.server, log.requests) == ("llama.cpp", 2)
    short, long, decoded = rates(log)
    assert (short.requests, short.tokens, short.seconds) == (2, 4500, pytest.approx(4.5))
    assert short.aggregate == pytest.approx(1000)
    assert short.median == pytest.approx((1050 + 600) / 2)
    assert (long.requests, long.aggregate) == (1, pytest.approx(1050))
    assert decoded.aggregate == pytest.approx(100)
    assert decoded.median == pytest.approx(100)


def test_the_aggregate_is_a_ratio_of_sums_and_small_requests_do_not_count(write: Callable[..., Path]) -> None:
    lines = [(255, 9_999.0, 31, 9_999.0), (256, 1_000.0, 32, 310.0), (1_024, 1_000.0, 33, 640.0)]
    text = "".join(
        f"prompt eval time = {p:.2f} ms / {n} tokens (x)\n eval time = {d:.2f} ms / {g} tokens (x)\n"
        for n, p, g, d in lines
    )
    log = read_log(write(text))
    assert prefill(log, 256).aggregate == pytest.approx(1280 / 2)
    assert prefill(log, 256).median == pytest.approx((256 + 1024) / 2)
    assert prefill(log, 4_000).aggregate is None
    assert decode(log).requests == 2
    assert decode(log).aggregate == pytest.approx((31 + 32) / 0.95)
    assert decode(log).median == pytest.approx((100 + 50) / 2)


def test_a_request_that_was_cut_or_took_no_time_counts_only_for_what_it_has(write: Callable[..., Path]) -> None:
    log = read_log(
        write(
            "prompt eval time = 1000.00 ms / 500 tokens (x)\n"
            "prompt eval time = 0.00 ms / 600 tokens (inf)\n eval time = 0.00 ms / 40 tokens (inf)\n"
            "prompt eval time = 500.00 ms / 500 tok"
        )
    )
    assert log.requests == 2
    assert prefill(log, 256).requests == 1
    assert decode(log).aggregate is None


def test_servers_behind_one_router_are_told_apart(write: Callable[..., Path]) -> None:
    log = read_log(write(ROUTED))
    assert log.requests == 2
    assert decode(log).requests == 2


def test_the_log_of_a_real_server_agrees_with_what_it_answered_to_its_client() -> None:
    log = read_log(REAL)
    assert log.requests == 7
    answered = [(300, 0.156095), (4200, 4.30116), (260, 0.098514), (5000, 5.21176), (700, 0.249922), (600, 0.234842)]
    tokens, seconds = map(sum, zip(*answered, strict=True))
    assert prefill(log, 256).tokens == tokens
    assert prefill(log, 256).seconds == pytest.approx(seconds, abs=1e-4)
    assert prefill(log, 4_000).requests == 2
    decoded = [(40, 0.079436), (33, 0.197434), (64, 0.092789), (48, 0.188317), (48, 0.434917)]
    assert decode(log).aggregate == pytest.approx(
        sum(n - 1 for n, _ in decoded) / sum(s for _, s in decoded), rel=1e-3
    )


def test_a_log_is_read_in_blocks_wherever_they_end() -> None:
    class Trickle(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(7)

    text = NEWEST.encode().replace(b"\n", b"\r\n")
    whole = [line for line in NEWEST.encode().splitlines() if b"eval time" in line]
    assert list(marked_lines(Trickle(text), [b"eval time", b"no such mark"])) == whole
    assert list(marked_lines(io.BytesIO(text.rstrip()), [b"eval time"])) == whole


def test_lines_with_several_marks_come_once_and_in_order() -> None:
    text = b"a then b\nneither\nb\na\nb then a"
    assert list(marked_lines(io.BytesIO(text), [b"a", b"b"])) == [b"a then b", b"b", b"a", b"b then a"]


def test_a_packed_log_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress(NEWEST.encode()))
    assert read_log(path).requests == 2
    path.write_bytes(gzip.compress(NEWEST.encode())[:-12])
    with pytest.raises(LogError, match=r"server\.log\.gz"):
        read_log(path)


SGLANG = (
    "[2026-04-05 20:02:50] Prefill batch, #new-seq: 1, #new-token: 158, #cached-token: 0, #running-req: 0, "
    "input throughput (token/s): 559.53\n"
    "[2026-04-05 20:02:51] Decode batch, #running-req: 1, #token: 11179, token usage: 0.08, cuda graph: True, "
    "gen throughput (token/s): 50.0, #queue-req: 0\n"
    "[2026-04-05 20:02:52] Decode batch, #running-req: 9, #token: 11179, gen throughput (token/s): 900.0\n"
)
FINISH = (
    "[2026-04-05 20:02:53] Finish: obj=GenerateReqInput(rid='1', sampling_params={'meta_info': 'no'}), "
    "out={'meta_info': {'id': '1', 'finish_reason': {'type': 'length'}, 'prompt_tokens': 5000, 'cached_tokens': 500, "
    "'completion_tokens': 41%s, 'e2e_latency': 5.0}}\n"
)


def test_sglang_tells_of_requests_where_it_keeps_their_times(write: Callable[..., Path]) -> None:
    stamps = ", 'request_received_ts': 100.0, 'prefill_finished_ts': 103.0, 'decode_finished_ts': 105.0"
    as_json = json.dumps(
        {
            "event": "request.finished", "obj": {},
            "out": {"meta_info": {
                "prompt_tokens": 300, "cached_tokens": 0, "completion_tokens": 61, "request_received_ts": 10.0,
                "prefill_finished_time": 10.5, "request_finished_ts": 13.5,
            }},
        }
    )  # fmt: skip
    log = read_log(write(SGLANG + FINISH % stamps + as_json))
    assert (log.server, log.requests, log.windows) == ("SGLang", 2, 2)
    assert prefill(log, 4_000).aggregate == pytest.approx(4500 / 3)
    assert prefill(log, 256).aggregate == pytest.approx(4800 / 3.5)
    assert decode(log).aggregate == pytest.approx((40 + 60) / 5)
    assert (alone(log).windows, alone(log).median) == (1, 50.0)


def test_sglang_without_times_is_absent_and_not_zero(write: Callable[..., Path]) -> None:
    log = read_log(write(FINISH % ""))
    assert log.requests == 1
    assert prefill(log, 256).aggregate is None
    assert any("enable-metrics" in line for line in show.lacking([log]))


def test_vllm_carries_averages_only_and_the_table_says_so(write: Callable[..., Path]) -> None:
    line = (
        "INFO 04-10 03:35:%02d [loggers.py:80] Engine 000: Avg prompt throughput: 13.0 tokens/s, Avg generation "
        "throughput: %.1f tokens/s, Running: %d reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%%\n"
    )
    log = read_log(
        write("".join(line % each for each in ((27, 52.1, 1), (37, 0.0, 0), (47, 48.1, 1), (57, 300.0, 8))))
    )
    assert (log.server, log.requests, log.windows) == ("vLLM", 0, 4)
    assert alone(log).median == pytest.approx(50.1)
    table = show.table([log])
    assert table.rows[-1][1] == "50.10 tok/s (n=2)"
    assert {row[1] for row in table.rows[1:-1]} == {"–"}
    assert all(line[1].why for line in table.lines[1:-1])
    assert any("single request" in line for line in show.lacking([log]))


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["logs", *arguments])
    shown = capsys.readouterr()
    return int(end.value.code or 0), shown.out, shown.err


def test_two_logs_are_compared(capsys: pytest.CaptureFixture[str], write: Callable[..., Path]) -> None:
    old = write(UNDER_A_HEADER, "old.log")
    new = write(NEWEST.replace("4000.00 ms", "2000.00 ms"), "new.log")
    status, out, err = _run(capsys, str(old), str(new), "--markdown")
    assert (status, err) == (0, "")
    assert "| metric | old.log | new.log | ratio |" in out
    assert (
        "| prefill, requests with ≥ 4,000 new tokens, aggregate | 1,050.0 tok/s (n=1) | 2,100.0 tok/s (n=1) | 2.00× |"
        in out
    )
    status, out, _ = _run(capsys, str(old), str(new), "--json")
    found: dict[str, Any] = json.loads(out)
    assert found["version"] == 1
    assert found["logs"][0]["rates"][1]["aggregate"] == pytest.approx(1050)
    assert found["ratios"][1] == {"phase": "prefill", "at_least": 4000, "aggregate": 2.0, "median": 2.0}


def test_the_terminal_shows_the_table_and_its_formulas(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = _run(capsys, str(REAL))
    assert status == 0
    assert "prefill, requests with ≥ 4,000 new tokens, aggregate" in out
    assert "Σ tokens / Σ time" in out


def test_logs_of_one_name_are_told_apart_by_their_folders() -> None:
    logs = [Log(Path(f"{folder}/server.log"), "llama.cpp") for folder in ("runs/old", "runs/new")]
    assert show.names(logs) == ["old/server.log", "new/server.log"]
    assert show.names([logs[0], logs[0]])


@pytest.mark.parametrize(("text", "said"), [(None, "No such file"), ("nothing here\n", "no timing of a request")])
def test_a_log_without_timings_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "server.log"
    if text is not None:
        path.write_text(text)
    status, out, err = _run(capsys, str(path))
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
