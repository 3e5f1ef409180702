"""Stands in for FreeToken: what the hook wraps and calls, laid out and named as in freetoken 0.2.1."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class BatchSamplingArgs:
    temperatures: torch.Tensor | None


@dataclass
class Sampler:
    device: torch.device
    vocab_size: int

    def prepare(self, batch: Any) -> BatchSamplingArgs:
        return BatchSamplingArgs(temperatures=None)

    def sample(self, logits: torch.Tensor, args: BatchSamplingArgs) -> torch.Tensor:
        return torch.argmax(logits, dim=-1)
