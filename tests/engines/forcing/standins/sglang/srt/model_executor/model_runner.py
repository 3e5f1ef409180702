"""Stands in for SGLang: what the hook wraps and calls, laid out and named as in sglang 0.5.23 and sglang-kt 0.7.2."""

from dataclasses import dataclass

import torch


@dataclass
class LogitsProcessorOutput:
    next_token_logits: torch.Tensor


@dataclass
class ForwardBatch:
    seq_lens: torch.Tensor


class ModelRunner:
    def sample(self, logits_output: LogitsProcessorOutput, forward_batch: ForwardBatch) -> torch.Tensor:
        return torch.argmax(logits_output.next_token_logits, dim=-1)
