"""What the server uses of libllama's C API, the same in every build."""

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

PADDING = 256
"""libllama rounds a context up to a multiple of this."""

PIECE_ARGUMENTS = (c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool)
"""Of ``llama_token_to_piece``: vocabulary, token, buffer, its size, leading spaces to drop, render control tokens."""


@dataclass(frozen=True, slots=True)
class Structs:
    """The structures that a build passes by value, and defaults that show whether they are laid out as believed."""

    model_params: type[ctypes.Structure]
    context_params: type[ctypes.Structure]
    batch: type[ctypes.Structure]
    model_defaults: Mapping[str, object]
    context_defaults: Mapping[str, object]


class Api(ABC):
    """One loaded library. Models, contexts and vocabularies are addresses."""

    flash_attention: str
    """The library's default, as text."""

    def __init__(self, library: ctypes.CDLL, structs: Structs) -> None:
        self._library = library
        self._structs = structs
        bind = self._bind
        self._model_defaults = bind("llama_model_default_params", structs.model_params)
        self._context_defaults = bind("llama_context_default_params", structs.context_params)
        self._load_model = bind("llama_model_load_from_file", c_void_p, c_char_p, structs.model_params)
        self._new_context = bind("llama_init_from_model", c_void_p, c_void_p, structs.context_params)
        self._system_info = bind("llama_print_system_info", c_char_p)
        self.n_ctx = bind("llama_n_ctx", c_uint32, c_void_p)
        self.vocab = bind("llama_model_get_vocab", c_void_p, c_void_p)
        self.vocab_size = bind("llama_vocab_n_tokens", c_int32, c_void_p)
        self.decode = bind("llama_decode", c_int32, c_void_p, structs.batch)
        self.logits = bind("llama_get_logits_ith", c_void_p, c_void_p, c_int32)
        self.free_context = bind("llama_free", None, c_void_p)
        bind("llama_backend_init", None)()

    def _bind(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        function = self._library[name]
        function.restype = result
        function.argtypes = arguments
        return function

    def wrong_defaults(self) -> str:
        """The first default that is not what this build is known to have, as text; empty when all are."""
        for made, expected in (
            (self._model_defaults(), self._structs.model_defaults),
            (self._context_defaults(), self._structs.context_defaults),
        ):
            for name, value in expected.items():
                if getattr(made, name) != value:
                    return f"{type(made).__name__}.{name} is {getattr(made, name)!r}, not {value!r}"
        return ""

    def load_model(self, path: Path) -> int | None:
        """Map a GGUF file; None when the library refused it (its reason is in the log)."""
        params = self._model_defaults()
        params.n_gpu_layers = 0
        model: int | None = self._load_model(os.fsencode(path), params)
        return model

    def new_context(self, model: int, *, context: int, threads: int, batch: int, ubatch: int) -> int | None:
        """A KV cache for one sequence; everything not named here keeps the library's default."""
        params = self._context_defaults()
        params.n_ctx = context
        params.n_batch = batch
        params.n_ubatch = ubatch
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = threads
        made: int | None = self._new_context(model, params)
        return made

    def system_info(self) -> str:
        """The instruction sets that the library was compiled for."""
        return str(self._system_info().decode()).strip(" |")

    def new_batch(self, size: int) -> "Batch":
        """Room for ``size`` tokens of one decode call."""
        return Batch(self._structs.batch, size)

    @abstractmethod
    def truncate(self, context: int, position: int) -> bool:
        """Drop the cache from ``position`` on; false when this model's cache can't be cut there."""

    @abstractmethod
    def piece(self, model: int, token_id: int) -> bytes:
        """The bytes of a token; empty for control tokens."""

    @abstractmethod
    def is_end(self, model: int, token_id: int) -> bool:
        """Whether an answer ends with this token."""

    @abstractmethod
    def free_model(self, model: int) -> None:
        """Give the weights back; its contexts must be gone."""

    def _piece(self, function: Callable[..., Any], vocab: int, token_id: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = function(vocab, token_id, buffer, size, 0, False)
            if length >= 0:
                return buffer.raw[:length]
            size = -length


class Batch:
    """The input of a decode call: tokens of sequence 0, logits for the last one or for none.

    The structure holds addresses into arrays that this object keeps alive.
    """

    def __init__(self, layout: type[ctypes.Structure], size: int) -> None:
        self.size = size
        self._tokens: NDArray[np.int32] = np.zeros(size, np.int32)
        self._positions: NDArray[np.int32] = np.zeros(size, np.int32)
        self._counts: NDArray[np.int32] = np.ones(size, np.int32)
        self._wanted: NDArray[np.int8] = np.zeros(size, np.int8)
        self._sequence = c_int32(0)
        self._sequences = (POINTER(c_int32) * size)(*([ctypes.pointer(self._sequence)] * size))
        self.struct = layout(
            token=self._tokens.ctypes.data_as(POINTER(c_int32)),
            embd=POINTER(c_float)(),
            pos=self._positions.ctypes.data_as(POINTER(c_int32)),
            n_seq_id=self._counts.ctypes.data_as(POINTER(c_int32)),
            seq_id=ctypes.cast(self._sequences, POINTER(POINTER(c_int32))),
            logits=self._wanted.ctypes.data_as(POINTER(c_int8)),
        )

    def fill(self, ids: NDArray[np.int32], position: int, *, logits: bool) -> ctypes.Structure:
        """The structure that appends ``ids`` at ``position``."""
        n = len(ids)
        self._tokens[:n] = ids
        self._positions[:n] = np.arange(position, position + n)
        self._wanted[:n] = 0
        self._wanted[n - 1] = logits
        self.struct.n_tokens = n
        return self.struct
