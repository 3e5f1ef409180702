"""The command ``prepare capture``."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from workloads.cli import main


def started(*command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )


def test_the_command_records_a_real_server_until_it_is_told_to_stop(tmp_path: Path) -> None:
    out = tmp_path / "calls.jsonl"
    with started("engines.fake", "--decode-ms", "0") as fake:
        assert fake.stdout is not None
        url = fake.stdout.readline().split()[-1]
        with started("workloads.cli", "capture", "--upstream", url, f"out={out}", "port=0") as proxy:
            assert proxy.stdout is not None
            line = proxy.stdout.readline()
            base = next(word for word in line.split() if word.startswith("http"))
            body = {"prompt": [1, 2, 3], "max_tokens": 4, "stream": True}
            answers = [
                httpx.post(f"{base}/completions", json=body | {"prompt": prompt}, trust_env=False).text
                for prompt in ([1, 2, 3], [1, 2, 3, 4, 5])
            ]
            assert httpx.get(f"{base}/models", trust_env=False).json()["data"][0]["id"] == "fake"
            proxy.send_signal(signal.SIGTERM)
            printed, errors = proxy.communicate(timeout=10)
        fake.terminate()
    assert (proxy.returncode, errors) == (0, "")
    assert "recorded 2 calls of 1 session" in printed
    assert "2  text completions, which `prepare source=chat_log` drops" in printed
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["response"] for row in rows] == answers
    assert answers[0].count("data: ") == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "upstream= is missing"),
        (["upstream=ftp://x"], "is no http:// or https:// URL"),
        (["upstream=http://x:y"], "give one like http://127.0.0.1:8080"),
        (["upstream=http://me:key@x"], "upstream= holds a key or a query"),
        (["upstream=http://127.0.0.1:9"], "nothing answers at http://127.0.0.1:9; start the server"),
        (["upstream=http://127.0.0.1:9", "out=nowhere/calls.jsonl"], "nowhere: no such folder"),
        (["upstream=http://127.0.0.1:9", "port=70000"], "port=70000 is no port"),
        (["--upsteam", "http://x"], "do you mean upstream=?"),
    ],
)
def test_what_a_user_can_mend_is_one_line_with_status_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["capture", *words])
    printed = capsys.readouterr()
    assert (caught.value.code, printed.err.count("\n"), printed.out) == (2, 1, "")
    assert message in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as caught:
            main(["capture", f"upstream=http://127.0.0.1:{port}", f"port={port}", f"out={tmp_path / 'c.jsonl'}"])
    assert caught.value.code == 2
    assert f"can't listen at 127.0.0.1:{port}" in capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    main(["capture", "--help"])
    assert "prepare capture upstream=http://127.0.0.1:8080 out=calls.jsonl port=8800" in capsys.readouterr().out
