"""llama.cpp's side of the C API: structures of ``llama.h`` between b11548 and b11739 (October 2026)."""

import ctypes
import sys
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char_p, c_float, c_int, c_int8, c_int32, c_size_t, c_uint32, c_void_p

from engines.libllama.api import PIECE_ARGUMENTS, Api, Structs


class LlamaModelParams(ctypes.Structure):
    """``llama_model_params``"""

    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        ("n_gpu_layers", c_int32),
        ("split_mode", c_int),
        ("load_mode", c_int),
        ("lazy_mode", c_int),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        ("vocab_only", c_bool),
        ("check_tensors", c_bool),
        ("use_extra_bufts", c_bool),
        ("no_host", c_bool),
        ("no_alloc", c_bool),
        ("load_mtp", c_bool),
    )


class LlamaContextParams(ctypes.Structure):
    """``llama_context_params``"""

    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("n_rs_seq", c_uint32),
        ("n_outputs_max", c_uint32),
        ("n_outputs_max_per_seq", c_uint32),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("ctx_type", c_int),
        ("rope_scaling_type", c_int),
        ("pooling_type", c_int),
        ("attention_type", c_int),
        ("flash_attn_type", c_int),
        ("rope_freq_base", c_float),
        ("rope_freq_scale", c_float),
        ("yarn_ext_factor", c_float),
        ("yarn_attn_factor", c_float),
        ("yarn_beta_fast", c_float),
        ("yarn_beta_slow", c_float),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int),
        ("type_v", c_int),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        ("embeddings", c_bool),
        ("offload_kqv", c_bool),
        ("no_perf", c_bool),
        ("op_offload", c_bool),
        ("swa_full", c_bool),
        ("kv_unified", c_bool),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    )


class LlamaBatch(ctypes.Structure):
    """``llama_batch``"""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


# Each byte of the two structures that the library's own functions fill was compared with these (168 and 78 bytes).
_MODEL_DEFAULTS = {
    "devices": None,
    "n_gpu_layers": -1,
    "split_mode": 1,
    "load_mode": -1,
    "lazy_mode": 1,
    "main_gpu": 0,
    "tensor_split": None,
    "kv_overrides": None,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
    "load_mtp": False,
}
_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_outputs_max_per_seq": 1,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "yarn_ext_factor": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "cb_eval": None,
    "type_k": 1,
    "type_v": 1,
    "moe_cache_size": 0,
    "abort_callback": None,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "samplers": None,
    "n_samplers": 0,
    "ctx_other": None,
}


_LogCallback = CFUNCTYPE(None, c_int, c_char_p, c_void_p)
_DEBUG, _CONTINUES = 1, 5  # enum ggml_log_level


class LlamaCppApi(Api):
    """Upstream's names."""

    flash_attention = "auto"

    def __init__(self, library: ctypes.CDLL) -> None:
        self._log_level = _DEBUG
        self._log_callback = _LogCallback(self._log)  # the library keeps the address: this object keeps it alive
        set_log = library["llama_log_set"]
        set_log.restype, set_log.argtypes = None, (_LogCallback, c_void_p)
        set_log(self._log_callback, None)
        super().__init__(
            library,
            Structs(LlamaModelParams, LlamaContextParams, LlamaBatch, _MODEL_DEFAULTS, _CONTEXT_DEFAULTS),
        )
        self._memory = self._bind("llama_get_memory", c_void_p, c_void_p)
        self._remove = self._bind("llama_memory_seq_rm", c_bool, c_void_p, c_int32, c_int32, c_int32)
        self._is_end = self._bind("llama_vocab_is_eog", c_bool, c_void_p, c_int32)
        self._to_piece = self._bind("llama_token_to_piece", c_int32, *PIECE_ARGUMENTS)
        self._free_model = self._bind("llama_model_free", None, c_void_p)

    def truncate(self, context: int, position: int) -> bool:
        return bool(self._remove(self._memory(context), 0, position, -1))

    def piece(self, model: int, token_id: int) -> bytes:
        return self._piece(self._to_piece, self.vocab(model), token_id)

    def is_end(self, model: int, token_id: int) -> bool:
        return bool(self._is_end(self.vocab(model), token_id))

    def free_model(self, model: int) -> None:
        self._free_model(model)

    def _log(self, level: int, text: bytes, _data: object) -> None:
        """Pass on what the library says, but for its hundreds of debug lines."""
        if level != _CONTINUES:
            self._log_level = level
        if self._log_level != _DEBUG:
            sys.stderr.write(text.decode(errors="replace"))
