"""``/generate``, one request at a time: prefill in chunks, each of which samples, then a token a step."""

from collections.abc import Iterator
from typing import Any

import torch
from serving import serve
from sglang.srt.model_executor.model_runner import ForwardBatch, LogitsProcessorOutput, ModelRunner

VOCAB, CHUNK = 512, 16
runner, generator = ModelRunner(), torch.Generator().manual_seed(0)


def step(seq_len: int) -> int:
    """Two rows are sampled, the second of another sequence; a third length pads the batch, as for CUDA graphs."""
    logits = torch.randn(2, VOCAB, generator=generator)
    other = int(logits[1].argmax())
    chosen = runner.sample(LogitsProcessorOutput(logits), ForwardBatch(torch.tensor([seq_len, 3, seq_len])))
    assert chosen.dtype == torch.int64
    assert int(chosen[1]) == other
    return int(chosen[0])


def generate(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    prompt, wanted = body["input_ids"], body["sampling_params"]["max_new_tokens"]
    assert body["sampling_params"]["ignore_eos"]
    for end in range(CHUNK, len(prompt), CHUNK):
        step(end)  # thrown away, as the prompt goes on
    output: list[int] = []
    while len(output) < wanted:
        output.append(step(len(prompt) + len(output)))
        finish = {"type": "length", "length": wanted} if len(output) == wanted else None
        meta = {
            "id": "x",
            "finish_reason": finish,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(output),
            "cached_tokens": 0,
        }
        yield {"text": "", "output_ids": output, "meta_info": meta}


if __name__ == "__main__":
    serve("/generate", generate)
