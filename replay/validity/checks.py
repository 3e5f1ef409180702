"""All checks of a run, in the order in which a report shows them."""

import os
from collections.abc import Mapping, Sequence

from replay.record import TurnRecord
from replay.validity import answers, forcing, machine, timing
from replay.validity.check import Check, last_attempts
from replay.watch import Observed


def checks(
    turns: Sequence[TurnRecord],
    sessions: Mapping[str, str],
    *,
    expected_sessions: int,
    warmed_up: bool,
    losses: Mapping[str, int],
    cache_block_tokens: int,
    observed: Observed,
) -> list[Check]:
    """Every check, over the turns of each session's last attempt.

    Args:
        turns: all attempts'.
        sessions: session → ``complete`` or ``failed``.
        losses: of the workload.
        cache_block_tokens: of the engine's prompt cache.
    """
    counted = last_attempts(turns)
    telemetry = observed.telemetry
    return [
        answers.tokens_verified(counted),
        answers.sessions_complete(sessions, expected_sessions),
        answers.warm_up(warmed_up),
        answers.first_turns_cold(counted),
        answers.cache_reuse(counted, block_tokens=cache_block_tokens),
        answers.totals_agree(counted),
        forcing.one_request_a_turn(counted),
        forcing.stamps_agree(counted),
        answers.prefix_breaks(losses),
        timing.loop_lag(counted, observed.lags),
        timing.send_lateness(counted),
        *timing.drift(counted),
        machine.background_load(telemetry, cores=os.cpu_count() or 1, attached=observed.attached),
        machine.cpu_throttling(telemetry),
        machine.gpu_throttling(telemetry),
        machine.clocks_steady(telemetry),
    ]
