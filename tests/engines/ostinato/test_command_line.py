"""The commands: options, mistakes, and one server from the command line to its last file."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")
sys.path.insert(0, str(Path(__file__).parent))

from families import make

from engines.ostinato.__main__ import main
from engines.ostinato.planner import calibration, model_shape, routes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("qwen3_moe", tmp_path_factory.mktemp("qwen3_moe"))


@pytest.mark.parametrize("command", ["serve", "plan", "calibrate", "explain"])
def test_each_command_explains_itself_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"python -m engines.ostinato {command} --" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--model", "nowhere", "--port", "0"], "config.json is missing; --model must name"),
        (["serve", "--model", "nowhere", "--placement", "none", "--port", "0"], "config.json is missing; --model"),
        (
            ["serve", "--model", "nowhere", "--placement", "none", "--record-routes", "x", "--port", "0"],
            "needs the engine",
        ),
        (["calibrate", "--model", "nowhere", "--out", "x.json"], "is no model folder and no GGUF file"),
        (
            ["plan", "--model", "nowhere", "--out", "x.json", "--vram-budget", "1GiB"],
            "is no model folder and no GGUF",
        ),
        (["explain", "--residency", "nowhere.json"], "nowhere.json"),
    ],
)
def test_what_the_user_can_put_right_is_one_line_and_code_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ostinato: ")
    assert message in line


def test_a_wrong_placement_is_named_before_the_server_listens(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "--model", str(folder), "--port", "0", "--device", "cpu", "--threads", "1"]
    assert main([*words, "--placement", "magic"]) == 2
    assert "--placement magic is no policy; choose one of ostinato, layers" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["serve", "--model", "x", "--slots", "-1"], ["serve", "--model", "x", "--bogus"]])
def test_a_wrong_option_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_taken_port_is_said_before_the_model_is_loaded(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--model", str(folder), "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another --port" in capsys.readouterr().err


def test_calibrate_measures_every_path_and_writes_what_explain_reads(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plan = tmp_path / "calibration.json", tmp_path / "residency.json"
    words = ["--model", str(folder), "--context", "64", "--out"]
    assert main(["calibrate", *words, str(out), "--device", "cpu", "--threads", "1"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^tokens +split ms +upload ms +cooperative ms +fastest$", text, re.MULTILINE)
    found = calibration.read(out)
    assert [point.tokens for point in found.prefill] == [32, 64]
    assert all(
        point.split_ms > 0 and point.upload_ms > 0 and (point.cooperative_ms or 0) > 0 for point in found.prefill
    )
    (group,) = found.groups
    assert group.layers == (0, 1)
    assert len(group.cpu_ms) == 3
    assert group.cpu_ms[0] == 0 < group.cpu_ms[1]
    assert group.gpu_ms > 0
    assert group.upload_ms > 0
    assert found.dense_step_ms > 0
    assert found.resident_experts == 4
    assert found.model_hash == model_shape.read(folder).model_hash
    assert main(["plan", *words, str(plan), "--vram-budget", "1MiB", "--slots", "3", "--calibration", str(out)]) == 0
    assert main(["explain", "--residency", str(plan), "--calibration", str(out)]) == 0


def test_the_service_of_a_captured_step_is_timed_through_its_mailbox(folder: Path) -> None:
    import torch

    from engines.ostinato.branch_costs import service_ms
    from engines.ostinato.cpu.library import open_cpu_experts
    from engines.ostinato.loading import load_model

    store = load_model(folder, device=torch.device("cpu"), dtype="auto").store
    cpu = open_cpu_experts(store.layout, 1)
    try:
        none, one, two = service_ms(cpu, store, 2)
    finally:
        cpu.close()
    assert none == 0
    assert one > 0
    assert two > 0


def test_a_server_from_the_command_line_to_its_recorded_routes(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "routes.npz"
    words = [
        sys.executable,
        "-m",
        "engines.ostinato",
        "serve",
        "--model",
        str(folder),
        "--port",
        "0",
        "--threads",
        "1",
    ]
    words += ["--device", "cpu", "--context", "512", "--placement", "layers:upload_threshold=64", "--slots", "8"]
    words += ["--residency", "", "--routes", "", "--calibration", "", "--vram-budget", "", "--prefill-path", "split"]
    words += ["--record-routes", str(file), "--workload-hash", "w"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if url := re.search(r"http://\S+", line):
                    break
            else:
                pytest.fail(f"the server ended: {lines}")
            assert any("8 of 16 experts are resident" in line for line in lines)
            body = {"prompt": [1, 2, 3], "max_tokens": 3}
            answer = httpx.post(f"{url[0]}/v1/completions", content=json.dumps(body), timeout=60)
            assert answer.json()["timings"]["path"] == "split"
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0
        finally:
            process.kill()
    counts = routes.read_counts(file)
    assert (counts.prefill_tokens, counts.decode_steps, counts.workload_hash) == (3, 2, "w")
