"""Forcing by a request field: the server takes the recorded tokens with the prompt."""

from typing import Any

from engines.base import Answer, EngineError, ForcedRequest
from engines.forcing.verdict import check


def verify_stream(request: ForcedRequest, answer: Answer) -> None:
    """Check the ids that came back in the stream.

    Raises:
        EngineError: ``zero_tokens``, ``wrong_tokens``, or ``protocol`` when the stream tells fewer ids than tokens.
    """
    produced = sum(chunk.n_tokens for chunk in answer.chunks)
    ids = [token for chunk in answer.chunks for token in chunk.ids]
    if len(ids) < produced:
        raise EngineError(
            f"the stream tells {len(ids)} ids for {produced} tokens, so they can't be verified; "
            "choose an engine.dialect whose stream carries token ids",
            kind="protocol",
        )
    check(request.output_ids, ids)


class FieldForcing:
    """``forced_tokens`` in the body; every id is checked as it came back."""

    name = "field"

    def environment(self) -> dict[str, str]:
        return {}

    def fields(self, request: ForcedRequest) -> dict[str, Any]:
        return {"forced_tokens": request.output_ids}

    def arm(self, request: ForcedRequest) -> None:
        pass

    def verify(self, request: ForcedRequest, answer: Answer) -> tuple[str, None]:
        verify_stream(request, answer)
        return "ids", None

    def close(self) -> None:
        pass
