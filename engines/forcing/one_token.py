"""The last resort, for a server that can't be told what to emit: one request a token, with the prompt so far.

The server chooses freely, its choice is thrown away, and the next prompt holds the recorded token instead. So it
computes what the recording says, but each token costs a request: HTTP, queueing, and a look for the prompt in the
cache; 1.3 to 3.4 ms a token were seen on llama-server with prompts of 200 to 6,000 tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from engines.base import Answer, Chunk, EngineError, ForcedRequest
from engines.forcing.simple import SimpleForcing
from engines.forcing.verdict import check_count

NOTE = (
    "Replayed with one request a token (engine.forcing=one_token): its TPOT holds the cost of a request "
    "(HTTP, queueing, finding the prompt in its cache), 1 to 4 ms and more, and can't be compared with the TPOT of "
    "engines that decode a turn in one request."
)
"""Belongs under each table that shows such an engine."""


class OneToken(SimpleForcing):
    """Works with every dialect that takes prompts of token ids and with every server that keeps its last prompt."""

    name = "one_token"

    def requests(self, request: ForcedRequest) -> Iterator[ForcedRequest]:
        """Token ``k`` behind those before it; made when it is sent, as prompts may be long."""
        prompt, output = request.prompt_ids, request.output_ids
        for k in range(len(output)):
            yield ForcedRequest(prompt_ids=prompt + output[:k], output_ids=output[k : k + 1])

    def join(self, request: ForcedRequest, answers: Sequence[tuple[Answer, int]]) -> Answer:  # noqa: ARG002
        """One chunk a request, stamped by its token or, where the token has no text, by its end.

        Which token the server chose is not told on: it is none of the recording's. The report's prefill is the first
        request's; everything the server did after it is decoding.
        """
        chunks = tuple(_token(k, answer, end_ns) for k, (answer, end_ns) in enumerate(answers))
        first, *later = [answer.report for answer, _ in answers]
        times = [first.decode_s, *(t for report in later for t in (report.prefill_s, report.decode_s))]
        told = [seconds for seconds in times if seconds is not None]
        report = replace(first, generated_tokens=len(chunks), decode_s=sum(told) if len(told) == len(times) else None)
        return Answer(chunks=chunks, report=report)

    def verify(self, request: ForcedRequest, answer: Answer) -> tuple[str, None]:
        check_count(request.output_ids, len(answer.chunks))
        return "prompts", None


def _token(k: int, answer: Answer, end_ns: int) -> Chunk:
    produced = sum(chunk.n_tokens for chunk in answer.chunks)
    if produced > 1:
        raise EngineError(
            f"the server produced {produced} tokens for output token {k}, where one was asked for; "
            "it does not heed its limit",
            kind="wrong_tokens",
        )
    return Chunk(t_ns=answer.chunks[0].t_ns if answer.chunks else end_ns, n_tokens=1)
