import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workloads.conversation import Conversation
from workloads.formats import openhands, tau2
from workloads.session import WorkloadError

Loader = Callable[[Path], Iterator[Conversation]]

CALL = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
ROW = {
    "instance_id": "a__b-7",
    "messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "found", "tool_call_id": "c", "name": "look_up"},
    ],
    "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {"properties": {}}}}],
}
RESULTS = {
    "info": {"environment_info": {"domain_name": "mock", "policy": "be kind"}},
    "simulations": [
        {
            "task_id": "1",
            "trial": 0,
            "mode": "half_duplex",
            "policy": "be kind",
            "messages": [
                {"role": "user", "content": "hello", "tool_calls": None, "timestamp": "2026-05-31T21:11:55"},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "c", "name": "look_up", "arguments": {}, "requestor": "assistant"}],
                    "usage": {"completion_tokens": 1},
                    "raw_data": {"choices": [{"message": {"content": "", "tool_calls": [CALL]}}]},
                },
                {"role": "tool", "id": "c", "content": "found", "requestor": "assistant"},
            ],
        }
    ],
}
OTHER_VALUES: tuple[Any, ...] = (None, True, 0, 1.5, "", "x", [], [1], ["x"], [{}], {}, {"a": 1})


def places(value: Any, *above: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yield the keys that lead to each value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*above, key)
        yield from places(one, *above, key)


def damaged(value: Any, place: tuple[str | int, ...], other: Any) -> Any:
    copied = copy.deepcopy(value)
    holder = copied
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = other
    return copied


@pytest.mark.parametrize(("load", "whole"), [(openhands.load, ROW), (tau2.load, RESULTS)], ids=["openhands", "tau2"])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_value_of_another_type_anywhere_is_read_or_refused_in_one_line(
    load: Loader, whole: Any, data: st.DataObject, tmp_path: Path
) -> None:
    place = data.draw(st.sampled_from(list(places(whole))))
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(damaged(whole, place, data.draw(st.sampled_from(OTHER_VALUES)))))
    refusal = None
    try:
        conversations = list(load(path))
    except WorkloadError as error:
        refusal = str(error)
    if refusal is None:
        assert len(conversations) == 1
    else:
        assert str(path) in refusal
        assert "\n" not in refusal
