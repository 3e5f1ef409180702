"""FreeToken: forces its sampler, and gives its API token ids, which it does not have.

It takes prompts as text and streams text, held back until a word is whole. With this hook a prompt that begins with
``"\\0ids:"`` is taken as ids (base64 of 32-bit integers), and in place of each token's text comes ``"\\0id:17"``, one
event a token; before the first comes ``"\\0prompt:120:96"``, prompt tokens and how many of them were cached. The text
is made all the same, as without the hook. ``engines/dialects/freetoken.py`` speaks this.

From the source of freetoken 0.2.1. Needs a GPU: not run here.
"""

import base64
import dataclasses
import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato_forcing import Plan

_IDS = "\0ids:"


def force_samples(module: ModuleType, plan: "Plan") -> None:
    """Change ``freetoken.engine.sample``.

    ``Sampler.prepare(batch)`` runs on the host before a batch is forwarded, when ``req.device_len`` counts the tokens
    that the forward will have seen: the position of the token it samples. The wanted ids go to the GPU with the other
    sampling arguments; ``Sampler.sample`` then selects them, without waiting for the GPU.
    """
    torch, sampler = module.torch, module.Sampler
    real_prepare, real_sample = sampler.prepare, sampler.sample

    @functools.wraps(real_prepare)
    def prepare(self: Any, batch: Any) -> Any:
        arguments = real_prepare(self, batch)
        turn = plan.turn()
        wanted = [plan.id_at(turn, req.device_len) for req in batch.reqs] if turn else []
        if any(id_ >= 0 for id_ in wanted):
            on_host = torch.tensor(wanted, dtype=torch.int32, pin_memory=torch.device(self.device).type == "cuda")
            arguments.ostinato_wanted = on_host.to(self.device, non_blocking=True)
        return arguments

    @functools.wraps(real_sample)
    def sample(self: Any, logits: Any, arguments: Any) -> Any:
        chosen = real_sample(self, logits, arguments)
        wanted = getattr(arguments, "ostinato_wanted", None)
        return chosen if wanted is None else torch.where(wanted >= 0, wanted.to(chosen.dtype), chosen)

    sampler.prepare, sampler.sample = prepare, sample
    plan.loaded()


def take_ids(module: ModuleType, plan: "Plan") -> None:  # noqa: ARG001
    """Change ``freetoken.tokenizer.tokenize``."""
    torch, manager, user_message = module.torch, module.TokenizeManager, module.UserMsg
    real = manager.tokenize

    @functools.wraps(real)
    def tokenize(self: Any, messages: Any) -> Any:
        made = []
        for message in messages:
            if isinstance(message.text, str) and message.text.startswith(_IDS):
                raw = bytearray(base64.b64decode(message.text[len(_IDS) :]))
                ids = torch.frombuffer(raw, dtype=torch.int32)
                made.append(user_message(uid=message.uid, input_ids=ids, sampling_params=message.sampling_params))
            else:
                made.extend(real(self, [message]))
        return made

    manager.tokenize = tokenize


def give_ids(module: ModuleType, plan: "Plan") -> None:  # noqa: ARG001
    """Change ``freetoken.tokenizer.detokenize``."""
    manager = module.DetokenizeManager
    real = manager.detokenize

    @functools.wraps(real)
    def detokenize(self: Any, messages: Any) -> list[str]:
        real(self, messages)
        return [f"\0id:{message.next_token}" for message in messages]

    manager.detokenize = detokenize


def give_prompt_counts(module: Any, plan: "Plan") -> None:  # noqa: ARG001
    """Change ``freetoken.tokenizer.server``, which tells the API server when a prompt was admitted."""
    real = module._prompt_admitted_reply  # noqa: SLF001

    @functools.wraps(real)
    def admitted(message: Any) -> Any:
        counts = f"\0prompt:{message.prompt_tokens}:{message.cached_tokens}"
        return dataclasses.replace(real(message), incremental_output=counts)

    module._prompt_admitted_reply = admitted  # noqa: SLF001
