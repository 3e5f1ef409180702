"""ik_llama.cpp's side of the C API: the older names, the structures of the wheel's own bindings."""

import ctypes
import importlib
from ctypes import c_bool, c_int32, c_void_p

from engines.libllama.api import PIECE_ARGUMENTS, Api, Structs

_MODEL_DEFAULTS = {
    "devices": None,
    "n_gpu_layers": 0,
    "split_mode": 1,
    "type_k": 1,
    "n_seq_max": 1,
    "n_ubatch": 512,
    "n_k_first": -1,
    "n_v_last": -1,
    "rpc_servers": None,
    "tensor_buft_overrides": None,
    "vocab_only": False,
    "use_mmap": True,
    "use_mlock": False,
    "check_tensors": False,
    "mtp": False,
    "dry_run": False,
    "flash_attn": True,
}
_CONTEXT_DEFAULTS = {
    "seed": 0xFFFFFFFF,
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "max_extra_alloc": 256,
    "rope_scaling_type": -1,
    "yarn_ext_factor": -1.0,
    "defrag_thold": -1.0,
    "cb_eval_user_data": None,
    "type_k": 1,
    "type_v": 1,
    "n_k_first": -1,
    "n_v_last": -1,
    "logits_all": False,
    "embeddings": False,
    "offload_kqv": True,
    "flash_attn": True,
    "mla_attn": 3,
    "graph_reuse": True,
    "min_experts": -1,
    "thresh_experts": 0.0,
    "only_active_experts": False,
    "mtp": False,
    "abort_callback_data": None,
    "offload_policy": None,
    "cuda_params": None,
}


class IkApi(Api):
    """ik_llama.cpp's names."""

    flash_attention = "on"

    def __init__(self, library: ctypes.CDLL) -> None:
        theirs = importlib.import_module("ik_llama_cpp._ctypes_api")
        super().__init__(
            library,
            Structs(
                theirs.llama_model_params,
                theirs.llama_context_params,
                theirs.llama_batch,
                _MODEL_DEFAULTS,
                _CONTEXT_DEFAULTS,
            ),
        )
        self._remove = self._bind("llama_kv_cache_seq_rm", c_bool, c_void_p, c_int32, c_int32, c_int32)
        self._is_end = self._bind("llama_token_is_eog", c_bool, c_void_p, c_int32)
        self._to_piece = self._bind("llama_token_to_piece_vocab", c_int32, *PIECE_ARGUMENTS)
        self._free_model = self._bind("llama_free_model", None, c_void_p)

    def truncate(self, context: int, position: int) -> bool:
        return bool(self._remove(context, 0, position, -1))

    def piece(self, model: int, token_id: int) -> bytes:
        return self._piece(self._to_piece, self.vocab(model), token_id)

    def is_end(self, model: int, token_id: int) -> bool:
        return bool(self._is_end(model, token_id))

    def free_model(self, model: int) -> None:
        self._free_model(model)
