"""The reference stage against plain transformers forward passes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("torch", reason="the reference stage needs the extra `ostinato`")

from engines.synthetic_moe import SyntheticMoe, write

SPEC = SyntheticMoe(
    layers=2, experts=6, experts_per_token=2, hidden=64, expert_width=32, head_dim=16, vocab_size=600, context=4096
)
PROMPT = [(7 * i * i + 3 * i) % 500 for i in range(70)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a byte-level tokenizer of 258 ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    root = tmp_path_factory.mktemp("reference")
    tokenizer = root / "tokenizer"
    tokenizer.mkdir()
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<|pad|>", "<|end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [], trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    bpe.save(str(tokenizer / "tokenizer.json"))
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    write(SPEC, tokenizer=tokenizer, safetensors=root / "small", gguf=None)
    return root / "small"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[httpx.Client]:
    """The real server; SIGTERM must end it with code 0."""
    command = [sys.executable, "-m", "engines.ostinato", "serve", "--model", str(folder), "--port", "0"]
    command += ["--threads", "1", "--context", "2048", "--placement", "none"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = None
            for line in process.stdout:
                if url := re.search(r"http://\S+", line):
                    break
            assert url, "the server ended without serving"
            with httpx.Client(base_url=url[0], timeout=30) as client:
                yield client
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 0
        finally:
            process.kill()


@pytest.fixture(scope="module")
def backend(folder: Path) -> Any:
    import torch

    from engines.ostinato.reference import load

    torch.set_num_threads(1)
    return load(folder, context=None, device="cpu", dtype="auto")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    """The same model as transformers runs it: eager experts, eager attention, no cache."""
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.set_experts_implementation("eager")
    return model


def plain_logits(model: Any, ids: list[int]) -> Any:
    import torch

    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


def test_logits_equal_a_forward_pass_without_cache_over_turns_that_grow_and_diverge(backend: Any, plain: Any) -> None:
    import torch

    backend.reset()
    turns = [
        PROMPT[:20],  # first
        [*PROMPT[:20], 5, 6, 7],  # grows
        [*PROMPT[:12], 9, 9, 9, *PROMPT[:8]],  # diverges in the middle: cut back and computed again
        PROMPT[:12],  # a prefix of what is cached
        [450, *PROMPT],  # shares nothing, and is longer than all before
    ]
    for turn in turns:
        ids = list(turn)
        choice = backend.prefill(ids).next_id
        for forced in (3, 499):
            expected = plain_logits(plain, ids)
            assert choice == int(expected.argmax())
            ids.append(forced)
            choice = backend.step(forced)
        backend.cached_ids.pop()  # compute the last token once more, this time to see all logits
        torch.testing.assert_close(backend.logits([499]), plain_logits(plain, ids), atol=2e-5, rtol=1e-5)


@pytest.fixture
def chunked(backend: Any) -> Iterator[Any]:
    """The backend with chunks that a small prompt fills."""
    usual, backend.chunk = backend.chunk, 16
    backend.reset()
    yield backend
    backend.chunk, backend.interrupt = usual, None


def test_a_prefill_in_chunks_equals_one_pass(chunked: Any, plain: Any) -> None:
    prefill = chunked.prefill(PROMPT)
    assert (prefill.cached_tokens, prefill.new_tokens) == (0, len(PROMPT))
    assert prefill.next_id == int(plain_logits(plain, PROMPT).argmax())


def test_an_interrupted_prefill_keeps_its_chunks(chunked: Any) -> None:
    from engines.ostinato.backend import Interrupted

    chunked.interrupt = lambda: len(chunked.cached_ids) == 32
    with pytest.raises(Interrupted):
        chunked.prefill(PROMPT)
    chunked.interrupt = None
    assert chunked.prefill(PROMPT).cached_tokens == 32


def test_cached_counts_follow_the_longest_common_prefix(backend: Any) -> None:
    backend.reset()
    assert backend.prefill(PROMPT[:20]).cached_tokens == 0
    assert backend.prefill(PROMPT[:20]).cached_tokens == 19  # the last token's logits are needed again
    assert backend.prefill([*PROMPT[:10], 1, 2]).cached_tokens == 10
    assert backend.prefill([499]).cached_tokens == 0


def test_two_runs_give_bitwise_equal_logits(backend: Any) -> None:
    import torch

    def run() -> list[Any]:
        backend.reset()
        return [backend.logits(PROMPT[:40]), *(backend.logits([token]) for token in PROMPT[40:50])]

    for first, second in zip(run(), run(), strict=True):
        assert torch.equal(first, second)


def test_token_bytes_spell_every_byte_and_leave_special_tokens_empty(backend: Any) -> None:
    text = "né €"
    ids = backend.encode(text)
    assert b"".join(map(backend.token_bytes, ids)) == text.encode()
    assert sorted(backend.token_bytes(id_) for id_ in range(2, 258)) == [bytes([byte]) for byte in range(256)]
    assert backend.token_bytes(1) == backend.token_bytes(599) == b""


@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe", "mixtral", "gpt_oss"])
@pytest.mark.filterwarnings("ignore")
def test_experts_and_attention_without_copies_equal_transformers_own(family: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from engines.ostinato import fewer_copies
    from engines.ostinato.cache import argument_name, new_cache

    sizes = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8}
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    ends = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    config = AutoConfig.for_model(family, vocab_size=100, **sizes, **heads, **experts, **ends)
    torch.manual_seed(0)
    maker: Any = AutoModelForCausalLM
    model = maker.from_config(config).eval().float()
    ids = torch.arange(3, 24)[None]
    with torch.inference_mode():
        model.set_experts_implementation("eager")
        expected = model(input_ids=ids, use_cache=False).logits[0, -1]
        fewer_copies.install(model)
        cache = {argument_name(model): new_cache()}
        model(input_ids=ids[:, :-1], **cache)
        logits = model(input_ids=ids[:, -1:], **cache).logits[0, -1]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


def turn(server: httpx.Client, prompt: list[int], forced: list[int]) -> tuple[list[int], dict[str, Any]]:
    body = {"prompt": prompt, "max_tokens": len(forced), "forced_tokens": forced, "stream": True}
    answer = server.post("/v1/completions", json=body | {"stream_options": {"include_usage": True}})
    chunks = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    ids = [id_ for chunk in chunks for choice in chunk["choices"] for id_ in choice["token_ids"]]
    return ids, chunks[-1]["timings"]


def test_a_forced_session_is_exact_and_prefills_only_what_is_new(server: httpx.Client) -> None:
    prompt, cached = [499, *PROMPT], 0
    for number, forced in enumerate([[1, 5, 300], [0], [599, 200, 1, 1]]):
        ids, timings = turn(server, prompt, forced)
        assert ids == forced
        assert (timings["cached_n"], timings["prompt_n"]) == (cached, len(prompt) - cached)
        assert timings["predicted_n"] == len(forced)
        cached = len(prompt) + len(forced) - 1  # the last token was never decoded
        prompt = [*prompt, *forced, 10 + number, 11]


def test_forcing_the_models_own_choices_agrees_with_all_of_them(server: httpx.Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True}
    free = [server.post("/v1/completions", json=body).json()["choices"][0]["token_ids"] for _ in range(2)]
    assert free[0] == free[1]
    forced, timings = turn(server, PROMPT, free[0])
    assert forced == free[0]
    assert timings["agreed_n"] == 12


def test_text_prompts_and_refusals_reach_the_real_engine(server: httpx.Client) -> None:
    answer = server.post("/v1/completions", json={"prompt": "né", "max_tokens": 2}).json()
    assert answer["usage"]["prompt_tokens"] == 3
    too_long = server.post("/v1/completions", json={"prompt": [1] * 2000, "max_tokens": 49})
    assert too_long.status_code == 400
    assert "prompt of 2000 tokens + max_tokens 49 = 2049 exceeds the context of 2048" in too_long.text
    outside = server.post("/v1/completions", json={"prompt": [600], "max_tokens": 1})
    assert "prompt[0] is 600, outside the vocabulary 0..599" in outside.json()["error"]["message"]


def test_a_client_that_leaves_loses_nothing_of_the_cache(server: httpx.Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 1900, "stream": True, "ignore_eos": True}
    with server.stream("POST", "/v1/completions", json=body) as answer:
        received = answer.iter_lines()
        next(received)
    _ids, timings = turn(server, [*PROMPT, 3], [4])
    assert timings["cached_n"] == len(PROMPT)


def test_a_damaged_model_is_named(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from engines.ostinato.reference import SetupError, load

    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    weights = load_file(damaged / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SetupError, match=r"damaged lacks 1 weights, such as model\.norm\.weight"):
        load(damaged, context=None, device="cpu", dtype="auto")

    os.truncate(damaged / "model.safetensors", 10_000)
    with pytest.raises(SetupError, match=r"damaged can't be loaded on cpu: .*header"):
        load(damaged, context=None, device="cpu", dtype="auto")

    (damaged / "tokenizer.json").unlink()
    with pytest.raises(SetupError, match=r"tokenizer\.json is missing; --model must name"):
        load(damaged, context=None, device="cpu", dtype="auto")


def test_settings_that_cannot_be_are_named(folder: Path) -> None:
    import torch

    from engines.ostinato.reference import SetupError, load

    with pytest.raises(SetupError, match=r"--context 5000 exceeds the model's 4096 tokens; lower it"):
        load(folder, context=5000, device="cpu", dtype="auto")
    with pytest.raises(SetupError, match=r"can't be loaded on abacus: "):
        load(folder, context=None, device="abacus", dtype="auto")
    if not torch.cuda.is_available():
        with pytest.raises(SetupError, match=r"--device cuda: PyTorch finds no CUDA device here"):
            load(folder, context=None, device="cuda", dtype="auto")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["serve", "--model", "nowhere"],
            "nowhere/config.json is missing; --model must name a Hugging Face model folder",
        ),
        (["serve", "--model", "x", "--port", "70000"], "argument --port: '70000' is no whole number from 0 to 65535"),
        (["serve", "--model", "x", "--host", "203.0.113.1"], "cannot listen on 203.0.113.1:8080"),
        (["serve"], "the following arguments are required: --model"),
    ],
)
def test_a_bad_command_line_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from engines.ostinato.__main__ import main

    before = dict(os.environ)
    try:
        code: Any = main(arguments)
    except SystemExit as stop:
        code = stop.code
    finally:
        os.environ.clear()
        os.environ.update(before)
    error = capfd.readouterr().err
    assert code == 2
    assert message in error
    assert error.count("\n") == 1
