"""Can exactly the recorded tokens be produced, and were they?"""

from collections.abc import Sequence

from engines.base import EngineError, ForcedRequest


def check(expected: Sequence[int], got: Sequence[int]) -> None:
    """Compare the produced ids with the forced ones.

    Raises:
        EngineError: ``zero_tokens``; or ``wrong_tokens`` with the first differing position, or the two lengths.
    """
    if not got:
        raise EngineError(
            f"the server produced no tokens where {len(expected)} were forced; read its log", kind="zero_tokens"
        )
    for position, (forced, produced) in enumerate(zip(expected, got, strict=False)):
        if forced != produced:
            raise EngineError(
                f"output token {position}: forced {forced}, got {produced}; the engine does not follow "
                "engine.forcing, so its turns can't be compared",
                kind="wrong_tokens",
            )
    check_count(expected, len(got))


def check_count(expected: Sequence[int], produced: int) -> None:
    """Compare how many there are.

    Raises:
        EngineError: ``zero_tokens`` or ``wrong_tokens``.
    """
    if produced == 0:
        check(expected, ())
    if produced < len(expected):
        raise EngineError(
            f"the server stopped after {produced} of {len(expected)} forced tokens; the last was "
            f"{expected[produced - 1]}: is it an end token there, or is engine.context too small?",
            kind="wrong_tokens",
        )
    if produced > len(expected):
        raise EngineError(
            f"the server produced {produced} tokens where {len(expected)} were forced; it does not heed its limit",
            kind="wrong_tokens",
        )


def check_fits(request: ForcedRequest, context: int) -> None:
    """Raises EngineError (``context``) for a turn that is longer than the engine's context."""
    total = len(request.prompt_ids) + len(request.output_ids)
    if total > context:
        raise EngineError(
            f"the turn holds {total} tokens and the engine's context {context}; "
            f"set engine.context={total} or more, or replay shorter sessions",
            kind="context",
        )
