"""SGLang and sglang-kt (KTransformers): wraps ``ModelRunner.sample(logits_output, forward_batch)``.

Every sampled token but those of speculative verification comes from there, in each tensor-parallel rank. The token
that is chosen for row ``i`` stands at position ``forward_batch.seq_lens[i]``: all tokens before it were decoded. A
chunk of a prefill ends before the first forced position, so it is left alone. Ids and positions stay on the GPU,
where one gather and one select put the recorded ids in; nothing waits for the GPU.

From the sources of sglang 0.5.23 and sglang-kt 0.7.2. Needs a GPU: not run here.
"""

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato_forcing import Plan, Turn


def force_samples(module: ModuleType, plan: "Plan") -> None:
    """Change ``sglang.srt.model_executor.model_runner``."""
    torch, runner = module.torch, module.ModelRunner
    real = runner.sample
    tables: dict[Any, tuple[int, Any]] = {}

    def table(turn: "Turn", device: Any) -> Any:
        """The turn's ids on the GPU, put there once a turn."""
        number, ids = tables.get(device, (None, None))
        if number != turn.number:
            ids = torch.frombuffer(bytearray(plan.ids(turn)), dtype=torch.int32).long()
            if device.type == "cuda":
                ids = ids.pin_memory()  # else the copy would wait for what the GPU still computes
            ids = ids.to(device, non_blocking=True)
            tables[device] = turn.number, ids
        return ids

    @functools.wraps(real)
    def sample(self: Any, logits_output: Any, forward_batch: Any) -> Any:
        chosen = real(self, logits_output, forward_batch)
        turn = plan.turn()
        if turn is None or isinstance(logits_output, tuple):  # several streams: each came here on its own
            return chosen
        ids = table(turn, chosen.device)
        index = forward_batch.seq_lens[: chosen.shape[0]].to(chosen.device).long() - turn.first
        forced = ids[index.clamp(0, turn.end - turn.first - 1)].to(chosen.dtype)
        return torch.where((index >= 0) & (index < turn.end - turn.first), forced, chosen)

    runner.sample = sample
    plan.loaded()
