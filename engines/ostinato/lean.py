"""Fewer launches in a pass of several tokens: a norm is one operator instead of eight."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm


def install(model: nn.Module) -> int:
    """Let plain RMS norms run as PyTorch's fused one, which rounds once where theirs rounds twice; returns how many.

    A norm that computes anything else, found by trying it, keeps its own code.
    """
    found = 0
    for module in model.modules():
        weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
        if type(module).__name__.endswith("RMSNorm") and isinstance(weight, Tensor) and eps is not None:
            found += _replace(module, weight, float(eps))
    return found


def _replace(module: Any, weight: Tensor, eps: float) -> bool:
    shape = tuple(weight.shape)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4, *shape, generator=draw).to(weight.device)
    with torch.inference_mode():
        if not torch.allclose(module(x).float(), rms_norm(x, shape, weight.float(), eps), rtol=1e-2, atol=1e-2):
            return False

    def forward(hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, shape, module.weight, eps)

    module.forward = forward
    return True
