"""Stands in for FreeToken: what the hook wraps and calls, laid out and named as in freetoken 0.2.1."""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class TokenizeMsg:
    uid: int
    text: str | list[dict[str, Any]]
    sampling_params: Any


@dataclass
class UserMsg:
    uid: int
    input_ids: torch.Tensor
    sampling_params: Any


@dataclass
class DetokenizeMsg:
    uid: int
    next_token: int
    finished: bool


@dataclass
class PromptAdmittedMsg:
    uid: int
    prompt_tokens: int
    cached_tokens: int


@dataclass
class UserReply:
    uid: int
    incremental_output: str
    finished: bool
    prompt_tokens_delta: int = 0
    cached_tokens: int = 0
