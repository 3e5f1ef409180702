"""What a way of forcing does unless it says otherwise: one request a turn, nothing added, each id checked."""

from collections.abc import Iterable, Sequence
from typing import Any

from engines.base import Answer, EngineError, ForcedRequest, Mount
from engines.forcing.verdict import check


class SimpleForcing:
    """Takes nothing, so there is nothing to give back."""

    name = "simple"

    def environment(self) -> dict[str, str]:
        return {}

    def mounts(self) -> tuple[Mount, ...]:
        return ()

    def requests(self, request: ForcedRequest) -> Iterable[ForcedRequest]:
        return (request,)

    def join(self, request: ForcedRequest, answers: Sequence[tuple[Answer, int]]) -> Answer:  # noqa: ARG002
        ((answer, _),) = answers
        return answer

    def fields(self, request: ForcedRequest) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def arm(self, request: ForcedRequest) -> None:
        pass

    def verify(self, request: ForcedRequest, answer: Answer) -> tuple[str, tuple[int, ...] | None]:
        verify_stream(request, answer)
        return "ids", None

    def close(self) -> None:
        pass


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
