"""How far a run is."""

import time

from replay.progress import duration
from replay.record import TurnRecord
from workloads.load import Workload


class Meter:
    """Counts tokens: those of the prompts that are new, and those of the answers.

    Args:
        title: what is said before all else.
        workload: the sessions that are replayed, those of an earlier command left out.
        runs_left: how many runs follow; they are taken to last as long as this one.
    """

    def __init__(self, title: str, workload: Workload, *, runs_left: int) -> None:
        self._title = title
        self._runs_left = runs_left
        self._sessions = {session.session_id: (i, session) for i, session in enumerate(workload.sessions, 1)}
        self._total = sum(session.longest_context for session in workload.sessions)
        self._done = self._verified = 0
        self._started_s = time.monotonic()

    def text(self, record: TurnRecord) -> str:
        number, session = self._sessions[record.session_id]
        self._done += record.new_tokens + record.output_tokens
        self._verified += record.output_tokens if record.status == "ok" else 0
        elapsed_s = time.monotonic() - self._started_s
        whole_s = elapsed_s * max(self._total / self._done, 1.0)
        left_s = whole_s - elapsed_s + whole_s * self._runs_left
        return (
            f"{self._title} · session {number}/{len(self._sessions)} · "
            f"turn {record.turn + 1}/{len(session.turns)} · "
            f"{self._verified:,} tokens verified · about {duration(left_s)} left"
        )
