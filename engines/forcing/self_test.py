"""Asks an engine that was just started to emit tokens it would never choose."""

import random
from collections.abc import Iterator, Sequence

from engines.base import EngineError, ForcedRequest
from engines.client import EngineClient

ENDS = 2
_PROMPT = 24
_BODY = 24


async def self_test(client: EngineClient, vocab_size: int, ends: Sequence[int] = ()) -> None:
    """Force ordinary, special, end, byte-fragment and random ids and require exactly them back.

    Args:
        ends: ids that answers end with, at which a server stops by itself; the first ``ENDS`` are forced.

    Raises:
        EngineError: the engine's own, or that it does not emit what it is told to.
    """
    for request in probes(vocab_size, ends):
        try:
            await client.turn(request)
        except EngineError as error:
            raise EngineError(f"self-test of forced tokens failed: {error}", kind=error.kind) from error


def probes(vocab_size: int, ends: Sequence[int] = ()) -> Iterator[ForcedRequest]:
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
    # As many requests whatever the ends are, so that it is known which of an engine's requests is the first turn.
    ends = (*ends, 4, 5)[:ENDS]
    last = (0, 1, 2, 3, *ends, vocab_size - 1, draw.randrange(vocab_size), draw.choice(fragments))
    yield ForcedRequest(prompt_ids=prompt, output_ids=tuple(body))
    prompt += tuple(body)
    for id_ in last:
        if id_ < vocab_size:
            output = (*draw.choices(ordinary, k=2), id_)
            yield ForcedRequest(prompt_ids=prompt, output_ids=output)
            prompt += (*output[:2], draw.choice(ordinary))
