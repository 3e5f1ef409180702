"""``/v1/completions``, one request at a time; the scheduler is a spawned process of its own, as FreeToken's is."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import torch
from freetoken.message import DetokenizeMsg, PromptAdmittedMsg, TokenizeMsg
from serving import serve

VOCAB, CHUNK = 512, 16


def schedule(pipe: Connection) -> None:
    """Prefill in chunks and decode. A batch is prepared before the one in front of it was sampled, when its request
    has already grown by the token in flight: overlapped scheduling."""
    from freetoken.engine.sample import Sampler

    sampler, generator = Sampler(torch.device("cpu"), VOCAB), torch.Generator().manual_seed(0)
    while True:
        prompt_tokens, wanted = pipe.recv()
        ends = [*range(CHUNK, prompt_tokens, CHUNK), *range(prompt_tokens, prompt_tokens + wanted)]
        other = SimpleNamespace(device_len=7)
        prepared = None
        for end in [*ends, None]:
            in_flight = prepared
            if end is not None:
                batch = SimpleNamespace(reqs=[SimpleNamespace(device_len=end), other])
                prepared = end, sampler.prepare(batch)
            if in_flight is not None:
                chosen = sampler.sample(torch.randn(2, VOCAB, generator=generator), in_flight[1])
                if in_flight[0] >= prompt_tokens:
                    pipe.send(int(chosen[0]))


def completions(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from freetoken.tokenizer import server
    from freetoken.tokenizer.detokenize import DetokenizeManager
    from freetoken.tokenizer.tokenize import TokenizeManager

    (message,) = TokenizeManager().tokenize([TokenizeMsg(uid=1, text=body["prompt"], sampling_params=None)])
    prompt_tokens, wanted = message.input_ids.numel(), body["max_tokens"]
    scheduler.send((prompt_tokens, wanted))
    admitted = server._prompt_admitted_reply(PromptAdmittedMsg(uid=1, prompt_tokens=prompt_tokens, cached_tokens=0))
    manager = DetokenizeManager()
    texts = [admitted.incremental_output]
    for k in range(wanted):
        token = DetokenizeMsg(uid=1, next_token=scheduler.recv(), finished=k + 1 == wanted)
        texts += manager.detokenize([token])
        for text in filter(None, texts):
            yield {"choices": [{"text": text, "index": 0, "finish_reason": None, "logprobs": None}]}
        texts = []
    yield {"choices": [{"text": "", "index": 0, "finish_reason": "length", "logprobs": None}]}
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": wanted, "total_tokens": prompt_tokens + wanted}
    yield {"choices": [], "usage": usage}


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    scheduler, other_end = context.Pipe()
    context.Process(target=schedule, args=(other_end,), daemon=True).start()
    serve("/v1/completions", completions)
