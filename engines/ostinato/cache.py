"""A KV cache that appends in place and can be cut back to any length."""

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

# Shapes: B = batch (1), H = key/value heads, S = tokens held, T = new tokens, N = room, D = head width.

_MIN_ROOM = 1024


class GrowingLayer(DynamicLayer):
    """One layer's keys and values in buffers with room to spare.

    transformers' own dynamic layer copies everything at each token: at 8,192 tokens of context that doubled the time
    of a decode step. Sliding-window models keep their whole past too; their attention masks hide it.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Start empty, with the first states' shapes."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self._keys_BHND = key_states[:, :, :0]
        self._values_BHND = value_states[:, :, :0]
        self._length = 0
        self.keys, self.values = self._keys_BHND, self._values_BHND
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append T tokens; return all S of them as views of the buffers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self._length
        end = start + key_states.shape[-2]
        if end > self._keys_BHND.shape[-2]:
            room = max(2 * end, _MIN_ROOM)
            self._keys_BHND = _grown(self._keys_BHND, start, room)
            self._values_BHND = _grown(self._values_BHND, start, room)
        self._keys_BHND[:, :, start:end] = key_states
        self._values_BHND[:, :, start:end] = value_states
        return self._hold(end)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens; the buffers stay."""
        if self.is_initialized and length < self._length:
            self._hold(length)

    def _hold(self, length: int) -> tuple[Tensor, Tensor]:
        self._length = length
        self.keys = self._keys_BHND[:, :, :length]
        self.values = self._values_BHND[:, :, :length]
        return self.keys, self.values


def new_cache() -> Cache:
    """An empty cache; layers are added as the model uses them."""
    return Cache(layer_class_to_replicate=GrowingLayer)


def argument_name(model: PreTrainedModel) -> str:
    """What the model's forward pass calls its cache: transformers renamed it between 5.17 and 5.24."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def truncate(cache: Cache, length: int) -> None:
    """Cut every layer back to ``length`` tokens."""
    for layer in cache.layers:
        assert isinstance(layer, GrowingLayer), "made by new_cache"
        layer.truncate(length)


def _grown(old_BHND: Tensor, used: int, room: int) -> Tensor:
    batch, heads, _, width = old_BHND.shape
    new_BHND = torch.empty(batch, heads, room, width, dtype=old_BHND.dtype, device=old_BHND.device)
    new_BHND[:, :, :used] = old_BHND[:, :, :used]
    return new_BHND
