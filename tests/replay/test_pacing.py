"""When sessions start and turns are due, and what a client sees of it."""

import asyncio
import io
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engines.base import Chunk, EngineError, ForcedRequest, Reply, ServerReport
from engines.settings import EngineSettings
from replay.attempts import Queue
from replay.model import ModelSettings
from replay.pacing import (
    ArrivalSettings,
    Starts,
    check,
    check_workload,
    sleep_until,
    start_offsets_s,
    tool_wait_ns,
)
from replay.prefix import with_distinct_prefixes
from replay.progress import Progress
from replay.record import TurnRecord, read_result, read_turns
from replay.run import Run, execute
from replay.telemetry.settings import TelemetrySettings
from replay.workers import replay_waiting
from workloads.load import Workload
from workloads.session import Session, Turn, WorkloadError
from workloads.settings import WorkloadSettings
from workloads.store import content_hash

MS = 1_000_000
ENGINE = EngineSettings(name="fake", label="Fake", dialect="ostinato", forcing="field")


def session(name: str, *, turns: int = 1, wait_s: float | None = None) -> Session:
    first = Turn(kind="first", delta_ids=(1, 2), output_ids=(3,))
    later = Turn(kind="tool", delta_ids=(4, 5), output_ids=(6,), tool_wait_s=wait_s)
    return Session(session_id=name, source="test", turns=(first, *[later] * (turns - 1)))


def workload(*sessions: Session) -> Workload:
    return Workload(name="w", sessions=sessions, content_hash=content_hash(sessions), losses={}, vocab_size=10)


class Endpoint:
    """A client, and the engine behind it, that answers after some milliseconds and notes who was served when."""

    def __init__(self, takes_s: float = 0.01, dies_at: int | None = None) -> None:
        self.client: Any = self
        self.forgotten: list[str] = []
        self.served = self.at_once = self.most = 0
        self.dead = False
        self._takes_s, self._dies_at = takes_s, dies_at

    async def turn(self, request: ForcedRequest) -> Reply:
        self.served += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        sent_ns = time.perf_counter_ns()
        self.dead = self.dead or self.served == self._dies_at
        try:
            await asyncio.sleep(self._takes_s)
        finally:
            self.at_once -= 1
        if self.dead:
            raise EngineError("it is gone", kind="cut")
        end_ns = time.perf_counter_ns()
        chunk = Chunk(t_ns=end_ns, n_tokens=len(request.output_ids))
        return Reply(
            sent_ns=sent_ns,
            first_byte_ns=end_ns,
            end_ns=end_ns,
            chunks=(chunk,),
            report=ServerReport(),
            verified_by="ids",
        )

    async def healthy(self) -> bool:
        return not self.dead

    async def forget(self, session: Session) -> None:
        self.forgotten.append(session.session_id)


async def serve(
    arrival: ArrivalSettings, sessions: Sequence[Session], endpoint: Endpoint, *, retries: int = 1
) -> tuple[list[TurnRecord], list[str], TurnRecord | None, Queue]:
    """Records in the order they were kept, sessions in the order they ended, the engine's death, what is left."""
    kept: list[TurnRecord] = []
    ended: list[str] = []
    queue = Queue(sessions, retries=retries, attempts={}, done=frozenset())

    async def concluded(attempt: Any, failed: TurnRecord | None) -> None:
        ended.append(attempt.session.session_id + (" failed" if failed else ""))

    offsets_s = start_offsets_s(arrival, len(sessions))
    dead = await replay_waiting(
        queue, endpoint, arrival, offsets_s, name="fake", repeat=0, keep=kept.append, concluded=concluded
    )
    return kept, ended, dead, queue


@pytest.mark.anyio
async def test_by_default_one_session_follows_another_each_on_a_cold_engine() -> None:
    endpoint = Endpoint()
    kept, ended, dead, _ = await serve(ArrivalSettings(), [session("a", turns=2), session("b")], endpoint)
    assert [record.session_id for record in kept] == ["a", "a", "b"]
    assert endpoint.forgotten == ended == ["a", "b"]
    assert endpoint.most == 1
    assert dead is None


@pytest.mark.anyio
async def test_four_at_once_are_four_and_never_five() -> None:
    endpoint = Endpoint()
    kept, ended, _, _ = await serve(
        ArrivalSettings(concurrency=4), [session(f"s{n}", turns=2) for n in range(6)], endpoint
    )
    assert endpoint.most == 4
    assert sorted(ended) == [f"s{n}" for n in range(6)]
    assert len(kept) == 12
    assert endpoint.forgotten == []
    for name in ended:
        assert [record.turn for record in kept if record.session_id == name] == [0, 1]


@pytest.mark.anyio
async def test_recorded_starts_are_deadlines_that_a_slow_session_does_not_put_off() -> None:
    arrival = ArrivalSettings(starts="recorded", starts_s=[7.0, 7.02, 7.04], concurrency=None)
    kept, *_ = await serve(arrival, [session(name) for name in "abc"], Endpoint(takes_s=0.2))
    due = {record.session_id: record.due_ns for record in kept}
    assert (due["b"] - due["a"], due["c"] - due["b"]) == (20 * MS, 20 * MS)
    for record in kept:
        assert record.sent_ns is not None
        assert 0 <= record.sent_ns - record.due_ns < 150 * MS


@pytest.mark.anyio
async def test_what_waits_for_a_place_is_late_and_its_record_says_so() -> None:
    arrival = ArrivalSettings(starts="recorded", starts_s=[0, 0, 0], concurrency=1)
    kept, *_ = await serve(arrival, [session(name) for name in "abc"], Endpoint(takes_s=0.02))
    queued_ms = [(record.sent_ns - record.due_ns) / MS for record in kept if record.sent_ns is not None]
    assert queued_ms[1] >= 20
    assert queued_ms[2] >= 40
    assert queued_ms[0] < queued_ms[1] < queued_ms[2]


@pytest.mark.anyio
async def test_the_throttle_caps_starts_in_a_closed_loop_too() -> None:
    kept, *_ = await serve(
        ArrivalSettings(concurrency=None, max_starts_per_s=25), [session(name) for name in "abc"], Endpoint(takes_s=0)
    )
    sent = sorted(record.sent_ns or 0 for record in kept)
    assert all(later - earlier >= 39 * MS for earlier, later in pairwise(sent))


@pytest.mark.anyio
async def test_a_turn_waits_as_its_tool_did() -> None:
    arrival = ArrivalSettings(tool_wait_factor=0.5, tool_wait_cap_s=0.02)
    kept, *_ = await serve(arrival, [session("a", turns=3, wait_s=0.03)], Endpoint())
    for before, after in pairwise(kept):
        assert before.end_ns is not None
        assert after.sent_ns is not None
        assert after.due_ns == before.end_ns + 15 * MS
        assert after.sent_ns >= after.due_ns


def test_waits_are_scaled_and_capped() -> None:
    turn = Turn(kind="tool", delta_ids=(1,), output_ids=(2,), tool_wait_s=3.0)
    assert tool_wait_ns(ArrivalSettings(), turn) == 0
    assert tool_wait_ns(ArrivalSettings(tool_wait_factor=0.5), turn) == 1500 * MS
    assert tool_wait_ns(ArrivalSettings(tool_wait_factor=1, tool_wait_cap_s=2), turn) == 2000 * MS
    assert tool_wait_ns(ArrivalSettings(tool_wait_factor=1), replace(turn, tool_wait_s=None)) == 0


@pytest.mark.anyio
async def test_sessions_that_die_with_the_engine_keep_their_retries_and_those_not_begun_keep_their_place() -> None:
    endpoint = Endpoint(dies_at=2)
    arrival = ArrivalSettings(starts="recorded", starts_s=[0, 0, 60, 70], concurrency=None)
    kept, ended, dead, queue = await serve(arrival, [session(name) for name in "abcd"], endpoint, retries=0)
    assert dead is kept[0]
    assert ended == [f"{dead.session_id} failed"]
    assert queue.first_new == 2
    left = [queue.take() for _ in range(len(queue))]
    other = "b" if dead.session_id == "a" else "a"
    assert [(attempt.session.session_id, attempt.attempt) for attempt in left] == [(other, 1), ("c", 0), ("d", 0)]


@pytest.mark.anyio
async def test_an_error_of_the_harness_ends_all_sessions_and_is_not_wrapped() -> None:
    def full(record: TurnRecord) -> None:
        raise EngineError("no room")

    queue = Queue([session(name) for name in "abc"], retries=0, attempts={}, done=frozenset())

    async def concluded(attempt: Any, failed: TurnRecord | None) -> None:
        raise AssertionError

    with pytest.raises(EngineError, match="no room"):
        await replay_waiting(
            queue,
            Endpoint(),
            ArrivalSettings(concurrency=3),
            None,
            name="fake",
            repeat=0,
            keep=full,
            concluded=concluded,
        )


def test_a_whole_run_of_four_at_once_keeps_every_turn_of_every_session_once(tmp_path: Path) -> None:
    command = "{python} -m engines.fake --port {port} --prefill-ms 1 --prefill-ms-per-token 0 --decode-ms 0"
    run = Run(
        engine=replace(ENGINE, model_format="none", command=command.split()),
        workload=WorkloadSettings(name="synthetic", format="synthetic", sessions=12, turns=2),
        model=ModelSettings(name="none"),
        folder=tmp_path,
        arrival=ArrivalSettings(concurrency=4, distinct_prefix_tokens=100),
        telemetry=TelemetrySettings(every_s=None),
    )
    execute(run, Progress(io.StringIO()))
    turns = list(read_turns(tmp_path))
    assert len({(turn.session_id, turn.turn) for turn in turns}) == len(turns) == 24
    assert {turn.status for turn in turns} == {"ok"}
    assert all(turn.cached_tokens == 0 for turn in turns if turn.turn == 0)
    result = read_result(tmp_path)
    assert list(result["sessions"].values()) == ["complete"] * 12


def test_poisson_starts_are_seeded_and_have_the_asked_rate() -> None:
    arrival = ArrivalSettings(starts="poisson", sessions_per_s=4.0, seed=1)
    found = start_offsets_s(arrival, 4001)
    assert found is not None
    assert found[0] == 0
    assert found == start_offsets_s(arrival, 4001)
    assert found != start_offsets_s(replace(arrival, seed=2), 4001)
    assert found[:10] == start_offsets_s(arrival, 10)
    gaps = [later - earlier for earlier, later in pairwise(found)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.25, rel=0.06)
    # An exponential distribution's standard deviation is its mean.
    assert (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 == pytest.approx(0.25, rel=0.1)


@pytest.mark.anyio
async def test_after_a_restart_the_sessions_left_keep_their_distance() -> None:
    starts = Starts(ArrivalSettings(), [0.0, 5.0, 5.01], first=1, wake=asyncio.Event())
    now_ns = time.perf_counter_ns()
    first = await starts.wait(1, again=False)
    second = await starts.wait(2, again=False)
    assert first is not None
    assert second is not None
    assert abs(first - now_ns) < 1000 * MS
    assert second - first == pytest.approx(10 * MS, abs=1)
    assert await starts.wait(0, again=True) is None


@pytest.mark.anyio
async def test_sleep_never_ends_early_and_is_woken() -> None:
    for ahead_ns in (0, 400_000, 1_700_000, 3_300_000):
        due_ns = time.perf_counter_ns() + ahead_ns
        assert not await sleep_until(due_ns)
        assert time.perf_counter_ns() >= due_ns
    wake = asyncio.Event()
    asyncio.get_running_loop().call_later(0.005, wake.set)
    begun = time.monotonic()
    assert await sleep_until(time.perf_counter_ns() + 60_000 * MS, wake)
    assert time.monotonic() - begun < 5


REFUSED = {
    "starts=bursts": r"arrival\.starts=bursts is not known; set closed, poisson or recorded",
    "starts=poisson": r"arrival\.sessions_per_s",
    "concurrency=0": r"arrival\.concurrency=0 must be above 0",
    "sessions_per_s=-1": r"arrival\.sessions_per_s=-1",
    "max_starts_per_s=0": r"arrival\.max_starts_per_s=0",
    "tool_wait_factor=-1": r"arrival\.tool_wait_factor=-1",
    "tool_wait_cap_s=-1": r"arrival\.tool_wait_cap_s=-1",
    "distinct_prefix_tokens=-1": r"arrival\.distinct_prefix_tokens=-1",
}


@pytest.mark.parametrize(("setting", "message"), REFUSED.items())
def test_what_cant_be_meant_is_refused(setting: str, message: str) -> None:
    name, _, value = setting.partition("=")
    with pytest.raises(EngineError, match=message):
        check(replace(ArrivalSettings(), **{name: int(value) if value.lstrip("-").isdecimal() else value}), ENGINE)


def test_starts_that_go_back_in_time_are_refused() -> None:
    with pytest.raises(EngineError, match="sort it"):
        check(ArrivalSettings(starts="recorded", starts_s=[0, 2, 1]), ENGINE)


@pytest.mark.parametrize("concurrency", [2, None])
def test_the_shim_follows_one_request_at_a_time(concurrency: int | None) -> None:
    shim = replace(ENGINE, forcing="shim")
    check(ArrivalSettings(), shim)
    with pytest.raises(EngineError, match=r"shim follows one request at a time; set arrival\.concurrency=1"):
        check(ArrivalSettings(concurrency=concurrency), shim)


def test_a_workload_without_the_times_that_are_asked_for_is_refused() -> None:
    silent, timed = workload(session("a", turns=2)), workload(session("a", turns=2, wait_s=1))
    check_workload(ArrivalSettings(tool_wait_factor=1), timed)
    with pytest.raises(EngineError, match=r"no recorded waits; set arrival\.tool_wait_factor=0"):
        check_workload(ArrivalSettings(tool_wait_factor=1), silent)
    with pytest.raises(EngineError, match="has 0 entries and workload w has 1 sessions"):
        check_workload(ArrivalSettings(starts="recorded"), silent)


def test_prefixes_are_distinct_from_the_first_token_on_and_alike_for_every_engine() -> None:
    plain = workload(session("a", turns=2), session("b"), session("c"))
    found = with_distinct_prefixes(plain, 50, seed=0)
    assert found == with_distinct_prefixes(plain, 50, seed=0)
    assert found.content_hash != plain.content_hash
    assert len({one.turns[0].delta_ids[0] for one in found.sessions}) == 3
    for before, after in zip(plain.sessions, found.sessions, strict=True):
        assert after.turns[0].delta_ids[50:] == before.turns[0].delta_ids
        assert after.turns[1:] == before.turns[1:]
        assert set(after.turns[0].delta_ids) <= {1, 2, 4, 5}
    assert with_distinct_prefixes(plain, 0, seed=0) is plain


def test_more_sessions_than_ids_can_have_no_distinct_prefix() -> None:
    with pytest.raises(WorkloadError, match=r"2 different ids for 3 sessions; set arrival\.distinct_prefix_tokens=0"):
        with_distinct_prefixes(workload(*[session(name) for name in "abc"]), 5, seed=0)
