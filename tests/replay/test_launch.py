"""The requests that nobody measures."""

from replay.launch import unrelated, warm_up
from workloads.load import Workload
from workloads.session import Session, Turn


def session(*ids: int) -> Session:
    return Session(session_id="s", source="test", turns=(Turn(kind="first", delta_ids=ids, output_ids=(7, 8)),))


def test_the_request_before_a_session_shares_no_prefix_with_it() -> None:
    assert unrelated(session(5, 5, 6)).prompt_ids == (6, 6)
    assert unrelated(session(5)).prompt_ids == (7, 7)


def test_the_warm_up_is_made_of_the_workloads_own_ids() -> None:
    workload = Workload(name="w", sessions=(session(1, 2, 3),), content_hash="0", losses={}, vocab_size=10)
    request = warm_up(workload)
    assert request.prompt_ids == (8, 7, 3, 2, 1)
    assert request.output_ids == (7, 8)
