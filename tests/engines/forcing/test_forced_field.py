from pathlib import Path

import pytest

from engines.base import Answer, Chunk, EngineError, ForcedRequest, ServerReport
from engines.client import EngineClient
from engines.dialects.registry import dialect
from engines.fake.server import FakeSettings, in_thread
from engines.forcing.registry import forcing
from engines.settings import EngineSettings

REQUEST = ForcedRequest(prompt_ids=(1, 2), output_ids=(7, 8, 9))


def settings(name: str, **changes: str) -> EngineSettings:
    return EngineSettings(name="e", label="E", dialect="ostinato", forcing=name, **changes)


def answer(*chunks: tuple[int, tuple[int, ...]]) -> Answer:
    return Answer(
        chunks=tuple(Chunk(t_ns=t_ns, n_tokens=n, ids=ids) for t_ns, (n, ids) in enumerate(chunks)),
        report=ServerReport(),
    )


def test_the_field_carries_the_recorded_ids(tmp_path: Path) -> None:
    force = forcing(settings("field"), tmp_path)
    assert force.fields(REQUEST) == {"forced_tokens": (7, 8, 9)}
    assert force.environment() == {}
    force.arm(REQUEST)
    assert force.verify(REQUEST, answer((1, (7,)), (2, (8, 9)))) == ("ids", None)
    force.close()


def test_without_forcing_nothing_is_sent_and_everything_is_verified(tmp_path: Path) -> None:
    force = forcing(settings("none"), tmp_path)
    assert force.fields(REQUEST) == {}
    assert force.verify(REQUEST, answer((3, (7, 8, 9)))) == ("ids", None)
    with pytest.raises(EngineError, match="forced 8, got 4"):
        force.verify(REQUEST, answer((3, (7, 4, 9))))


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        (answer(), "zero_tokens", "no tokens where 3 were forced"),
        (answer((3, (7, 1, 2))), "wrong_tokens", "output token 1: forced 8, got 1"),
        (answer((1, (9,))), "wrong_tokens", "output token 0: forced 7, got 9"),
        (answer((2, (7, 8))), "wrong_tokens", "stopped after 2 of 3 forced tokens; the last was 8"),
        (answer((3, (7, 8, 9)), (1, (9,))), "wrong_tokens", "produced 4 tokens where 3"),
        (answer((3, (7, 8))), "protocol", "2 ids for 3 tokens"),
    ],
)
def test_other_tokens_than_the_recorded_are_refused(tmp_path: Path, given: Answer, kind: str, says: str) -> None:
    with pytest.raises(EngineError, match=says) as failure:
        forcing(settings("field"), tmp_path).verify(REQUEST, given)
    assert failure.value.kind == kind


def test_an_unknown_way_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        EngineError, match=r"engine\.forcing: there is no 'grammar'; choose one of field, hook, none, "
    ):
        forcing(settings("grammar"), tmp_path)


def test_a_server_of_somebody_else_cannot_be_preloaded(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"engine\.forcing=shim needs engine\.launch=process"):
        forcing(settings("shim", launch="attach", url="http://127.0.0.1:1"), tmp_path)


@pytest.mark.anyio
async def test_trace_replay_puts_the_recorded_ids_among_the_sampling_parameters(tmp_path: Path) -> None:
    force = forcing(settings("trace_replay"), tmp_path)
    assert force.fields(REQUEST) == {"sampling_params": {"trace_decode_token_ids": (7, 8, 9)}}
    with in_thread(FakeSettings()) as engine:
        async with EngineClient(
            engine.url, dialect("vllm"), force, request_timeout_s=30, stall_timeout_s=30
        ) as client:
            reply = await client.turn(REQUEST)  # the dialect's own sampling parameters are there, too
    assert reply.verified_by == "ids"
    assert tuple(id_ for chunk in reply.chunks for id_ in chunk.ids) == (7, 8, 9)


def test_what_needs_no_files_mounts_none(tmp_path: Path) -> None:
    for name in "field", "none", "one_token", "trace_replay":
        assert forcing(settings(name), tmp_path).mounts() == ()
