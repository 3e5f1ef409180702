"""One function a metric, from one turn's record. None is "not measured" and never becomes 0.

The formulas use the record's names: ``sent_ns`` is the moment the request's first byte was handed to the kernel,
``token_ns`` the arrivals of the generated tokens at the socket, ``end_ns`` the end of the stream.
"""

from analysis.metric import Direction, Metric, Over
from replay.record import TurnRecord


def _between_s(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) / 1e9


def ttft_s(turn: TurnRecord) -> float | None:
    """Time to first token: ``token_ns[0] - sent_ns``."""
    return _between_s(turn.sent_ns, turn.token_ns[0]) if turn.token_ns else None


def first_byte_s(turn: TurnRecord) -> float | None:
    """Time to the answer's first byte, which may come before its first token: ``first_byte_ns - sent_ns``."""
    return _between_s(turn.sent_ns, turn.first_byte_ns)


def first_chunk_tokens(turn: TurnRecord) -> int | None:
    """Tokens that arrived together with the first one: how many of ``token_ns`` equal ``token_ns[0]``."""
    return turn.token_ns.count(turn.token_ns[0]) if turn.token_ns else None


def decode_s(turn: TurnRecord) -> float | None:
    """From the first to the last token: ``token_ns[-1] - token_ns[0]``."""
    return _between_s(turn.token_ns[0], turn.token_ns[-1]) if turn.token_ns else None


def tpot_s(turn: TurnRecord) -> float | None:
    """Time per output token: ``(token_ns[-1] - token_ns[0]) / (n - m)``.

    n is the recorded number of output tokens (verified), m the tokens of the first chunk, which is 1 unless the
    engine sent several together. None where no token follows the first chunk (``n = 1``, or all came in one chunk),
    and where the stream does not tell how many tokens came with each chunk: ``token_ns`` then holds fewer than n.
    """
    duration_s, together = decode_s(turn), first_chunk_tokens(turn)
    if duration_s is None or together is None or together == len(turn.token_ns):
        return None
    if turn.output_tokens != len(turn.token_ns):
        return None
    return duration_s / (turn.output_tokens - together)


def request_s(turn: TurnRecord) -> float | None:
    """Request time: ``token_ns[-1] - sent_ns``."""
    return _between_s(turn.sent_ns, turn.token_ns[-1]) if turn.token_ns else None


def stream_s(turn: TurnRecord) -> float | None:
    """Time to the end of the stream: ``end_ns - sent_ns``. Its sum over a session is the total request time."""
    return _between_s(turn.sent_ns, turn.end_ns)


def queue_s(turn: TurnRecord) -> float | None:
    """How late the client sent: ``sent_ns - due_ns``; never inside TTFT."""
    return _between_s(turn.due_ns, turn.sent_ns)


def server_prefill_s(turn: TurnRecord) -> float | None:
    """Prefill time as the engine reports it."""
    return turn.server_prefill_s


def server_decode_s(turn: TurnRecord) -> float | None:
    """Decode time as the engine reports it."""
    return turn.server_decode_s


def prefilled_as_expected(turn: TurnRecord) -> bool | None:
    """Whether the engine computed just the new tokens: ``prefilled_tokens - new_tokens`` is 0, or 1 after turn 0.

    The last output token of a turn is sampled but not computed, so the next turn may prefill it too. On turn 0
    everything is new: fewer prefilled tokens mean that a cache was warm, more on any turn mean that reuse failed.
    """
    if turn.prefilled_tokens is None:
        return None
    beyond = turn.prefilled_tokens - turn.new_tokens
    return beyond == 0 or (beyond == 1 and turn.turn > 0)


_FAILED = "the turn failed before it"
_NOT_REPORTED = "the engine does not report it"

BUILT_IN = (
    Metric(
        name="ttft_s", label="TTFT", unit="s", formula="token_ns[0] − sent_ns",
        direction=Direction.LOWER, absent=_FAILED, of=ttft_s, by_kind=True,
    ),
    Metric(
        name="first_byte_s", label="time to first byte", unit="s", formula="first_byte_ns − sent_ns",
        direction=Direction.LOWER, absent=_FAILED, of=first_byte_s,
    ),
    Metric(
        name="first_chunk_tokens", label="tokens of the first chunk", unit="tokens",
        formula="how many of token_ns equal token_ns[0]",
        direction=Direction.NONE, absent=_FAILED, of=first_chunk_tokens,
    ),
    Metric(
        name="decode_s", label="decode time", unit="s", formula="token_ns[−1] − token_ns[0]",
        direction=Direction.LOWER, absent=_FAILED, of=decode_s, over=Over.SUM,
    ),
    Metric(
        name="tpot_s", label="TPOT", unit="s",
        formula="decode_s / (output_tokens − m), m tokens in the first chunk (1 unless several came together)",
        direction=Direction.LOWER,
        absent="no token follows the first chunk, or the stream does not tell which chunk held which tokens",
        of=tpot_s,
    ),
    Metric(
        name="request_s", label="request time", unit="s", formula="token_ns[−1] − sent_ns",
        direction=Direction.LOWER, absent=_FAILED, of=request_s, over=Over.SUM,
    ),
    Metric(
        name="stream_s", label="total request time", unit="s", formula="end_ns − sent_ns",
        direction=Direction.LOWER, absent=_FAILED, of=stream_s, over=Over.SUM,
    ),
    Metric(
        name="queue_s", label="queue time", unit="s", formula="sent_ns − due_ns; never inside TTFT",
        direction=Direction.LOWER, absent="the turn was never sent", of=queue_s,
    ),
    Metric(
        name="server_prefill_s", label="prefill time, as the engine says", unit="s", formula="as reported",
        direction=Direction.LOWER, absent=_NOT_REPORTED, of=server_prefill_s, over=Over.SUM,
    ),
    Metric(
        name="server_decode_s", label="decode time, as the engine says", unit="s", formula="as reported",
        direction=Direction.LOWER, absent=_NOT_REPORTED, of=server_decode_s, over=Over.SUM,
    ),
    Metric(
        name="prefilled_as_expected", label="prefill as expected", unit="",
        formula="prefilled_tokens − new_tokens is 0, or 1 after the first turn",
        direction=Direction.NONE, absent=_NOT_REPORTED, of=prefilled_as_expected,
    ),
)  # fmt: skip

METRICS = {metric.name: metric for metric in BUILT_IN}
"""Column of the frame of turns → the metric that fills it; a user's own come beside them (``registry.metrics``)."""
