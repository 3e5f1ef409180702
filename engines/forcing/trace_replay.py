"""vLLM's own forcing, from 0.33 on: ``vllm serve … --enable-trace-replay --enable-scale-out``.

The engine samples, then puts the recorded token in the place of its choice, with one kernel on the GPU; end tokens
inside the recording do not end it. It is refused together with speculation and needs vLLM's model runner V2. From
vLLM's documentation (serving/online_serving/trace_replay) and its pull request 46701. Needs a GPU: not run here.
"""

from typing import Any

from engines.base import ForcedRequest
from engines.forcing.simple import SimpleForcing


class TraceReplay(SimpleForcing):
    """``sampling_params.trace_decode_token_ids``, with the dialect ``vllm``."""

    name = "trace_replay"

    def fields(self, request: ForcedRequest) -> dict[str, Any]:
        return {"sampling_params": {"trace_decode_token_ids": request.output_ids}}
