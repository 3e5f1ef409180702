"""Asks an engine that was just started to emit tokens it would never choose."""

import random
from collections.abc import Iterator

from engines.base import EngineError, ForcedRequest
from engines.client import EngineClient

_PROMPT = 24
_BODY = 24


async def self_test(client: EngineClient, vocab_size: int) -> None:
    """Force ordinary, special, byte-fragment and random ids and require exactly them back.

    Raises:
        EngineError: the engine's own, or that it does not emit what it is told to.
    """
    for request in probes(vocab_size):
        try:
            await client.turn(request)
        except EngineError as error:
            raise EngineError(f"self-test of forced tokens failed: {error}", kind=error.kind) from error


def probes(vocab_size: int) -> Iterator[ForcedRequest]:
    """Requests that together reach every kind of id; the same for the same vocabulary.

    Special tokens stand at a vocabulary's ends, and some servers end an answer at one of them: such ids are forced
    only as the last of an output. Byte-level and byte-fallback vocabularies keep single bytes, so parts of
    characters, among ids 160 to 255, after which ordinary ids follow.
    """
    draw = random.Random(vocab_size)
    low = min(256, vocab_size // 4)
    ordinary = range(low, max(low + 1, vocab_size * 9 // 10))
    fragments = range(160, 255) if vocab_size >= 1024 else ordinary
    prompt = tuple(draw.choices(ordinary, k=_PROMPT))
    body = draw.choices(ordinary, k=_BODY)
    body[4:6] = draw.choices(fragments, k=2)
    last = (0, 1, 2, 3, vocab_size - 1, draw.randrange(vocab_size), draw.choice(fragments))
    yield ForcedRequest(prompt_ids=prompt, output_ids=tuple(body))
    prompt += tuple(body)
    for id_ in last:
        if id_ < vocab_size:
            output = (*draw.choices(ordinary, k=2), id_)
            yield ForcedRequest(prompt_ids=prompt, output_ids=output)
            prompt += (*output[:2], draw.choice(ordinary))
