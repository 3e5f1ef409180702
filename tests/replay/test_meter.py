"""How much is left, worked out by hand."""

import pytest

from replay.meter import Meter
from replay.record import TurnRecord
from workloads.load import Workload
from workloads.session import Session, Turn

TURN = Turn(kind="first", delta_ids=(1, 2, 3), output_ids=(9,))
SESSIONS = tuple(Session(session_id=name, source="test", turns=(TURN,)) for name in ("s1", "s2"))
WORKLOAD = Workload(name="w", sessions=SESSIONS, content_hash="0", losses={}, vocab_size=10)


def test_the_meter_counts_tokens_and_estimates_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("replay.meter.time.monotonic", lambda: now[0])
    meter = Meter("fake 1/3", WORKLOAD, runs_left=2)
    now[0] += 10
    record = TurnRecord(
        engine="fake",
        session_id="s1",
        turn=0,
        kind="first",
        attempt=0,
        status="ok",
        prompt_tokens=3,
        new_tokens=3,
        output_tokens=1,
        due_ns=0,
    )
    # Half of this run took 10 s: 10 s more, and two runs of 20 s.
    assert meter.text(record) == "fake 1/3 · session 1/2 · turn 1/1 · 1 tokens verified · about 0:50 left"
