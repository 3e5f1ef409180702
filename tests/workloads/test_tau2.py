import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import tau2
from workloads.formats.tau2_domain import NO_INSTRUCTIONS
from workloads.session import WorkloadError

POLICY = "# Policy\nOnly existing users can create tasks."
GREETING = {"role": "assistant", "content": "Hi! How can I help you today?", "usage": None, "raw_data": None}


def user(content: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, "tool_calls": None, **fields}


def answer(content: str | None, *calls: tuple[str, str, str], whole: bool = True, **fields: Any) -> dict[str, Any]:
    """An agent message: calls are (id, name, argument text); ``whole`` stores the completion as tau2 1.x does."""
    raw_calls = [
        {"id": one, "type": "function", "function": {"name": name, "arguments": text}} for one, name, text in calls
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, "tool_calls": raw_calls or None, **fields},
    }
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": one, "name": name, "arguments": json.loads(text)} for one, name, text in calls] or None,
        "usage": {"completion_tokens": 3, "prompt_tokens": 9},
        "raw_data": {"id": "chatcmpl-1", "choices": [choice]} if whole else choice,
    }


def result(call_id: str, content: str, requestor: str = "assistant") -> dict[str, Any]:
    return {"role": "tool", "id": call_id, "content": content, "requestor": requestor, "error": False}


def results(*messages: dict[str, Any], domain: str = "mock", **simulation: Any) -> dict[str, Any]:
    return {
        "info": {"environment_info": {"domain_name": domain, "policy": POLICY, "tool_defs": None}},
        "simulations": [
            {"id": "a", "task_id": "create_task_1", "trial": 2, "messages": list(messages), **simulation}
        ],
    }


def loaded(folder: Path, content: Any, domain: Path | None = None) -> Conversation:
    path = folder / "results.json"
    path.write_text(json.dumps(content))
    (conversation,) = tau2.load(path, domain)
    return conversation


def domain_folder(folder: Path) -> Path:
    tool = {
        "type": "function",
        "function": {"name": "create_task", "parameters": {"type": "object", "properties": {}}},
    }
    (folder / "mock.json").write_text(json.dumps({"domain": "mock", "policy": "the domain's", "agent_tools": [tool]}))
    (folder / "llm_agent_system_prompt.txt").write_text("<policy>\n{domain_policy}\n</policy>\n")
    return folder


# Counted in the files by hand: simulations, the agent's model turns, hidden user messages, hidden user tool results.
REAL = {
    "airline-relaxed_grok-3-mini_4trials.json": (4, 39, 0, 0),
    "airline_gpt-4.1-mini_5sims.json": (5, 43, 0, 0),
    "mock_gpt-4.1-mini_1sim.json": (1, 3, 0, 0),
    "mock_max_steps_1sim.json": (1, 1, 0, 0),
    "retail_gpt-4.1-mini_1sim.json": (1, 9, 0, 0),
    "telecom-workflow_grok-3.json": (20, 291, 148, 148),
    "telecom_gpt-4.1-mini_1sim.json": (1, 9, 3, 5),
}


@pytest.mark.parametrize("name", REAL)
def test_real_results_give_the_turns_the_agent_had_and_hide_the_users_side(shared: Path, name: str) -> None:
    losses: Counter[str] = Counter()
    conversations = list(tau2.load(shared / "data/tau2" / name, shared / "data/tau2_domains"))
    for conversation in conversations:
        losses.update(conversation.losses)
    turns = sum(message.origin == "model" for one in conversations for message in one.messages)
    assert (len(conversations), turns, losses[tau2.HIDDEN_USER], losses[tau2.HIDDEN_RESULT]) == REAL[name]
    assert losses[tau2.REBUILT_ARGUMENTS] == losses[tau2.UNDEFINED_TOOL] == 0
    assert all(one.messages[0].role == "system" and one.tools for one in conversations)


def test_real_results_without_a_domain_keep_the_policy_and_say_what_is_missing(shared: Path) -> None:
    (conversation,) = tau2.load(shared / "data/tau2/retail_gpt-4.1-mini_1sim.json")
    assert conversation.messages[0].content.startswith("# Retail agent policy")
    assert conversation.tools == ()
    assert conversation.losses[tau2.NO_TOOLS] == 1


def test_real_greeting_is_given_and_real_argument_text_is_the_models_own(shared: Path) -> None:
    (conversation,) = tau2.load(shared / "data/tau2/retail_gpt-4.1-mini_1sim.json", shared / "data/tau2_domains")
    greeting = conversation.messages[1]
    assert (greeting.content, greeting.origin) == ("Hi! How can I help you today?", "given")
    call = next(message.tool_calls[0] for message in conversation.messages if message.tool_calls)
    assert call.arguments == '{"first_name":"Yusuf","last_name":"Rossi","zip":"19122"}'


@pytest.mark.parametrize("whole", [True, False], ids=["completion of 1.x", "choice of 0.x"])
def test_argument_text_whitespace_and_reasoning_come_from_the_stored_completion(tmp_path: Path, whole: bool) -> None:
    text = '{"user_id":"x",  "n":1}'
    reply = answer("One moment.\n", ("c1", "create_task", text), whole=whole, reasoning_content="They want a task.")
    message = loaded(tmp_path, results(GREETING, user("hello"), reply, result("c1", "done"))).messages[3]
    assert (message.content, message.reasoning) == ("One moment.\n", "They want a task.")
    assert message.tool_calls[0].arguments == text


def test_arguments_that_were_not_stored_as_text_are_rebuilt_and_counted(tmp_path: Path) -> None:
    reply = answer(None, ("c1", "create_task", '{"title":"é"}'))
    reply["raw_data"] = None
    conversation = loaded(tmp_path, results(GREETING, user("hello"), reply))
    assert conversation.messages[3].tool_calls[0].arguments == '{"title": "é"}'
    assert conversation.messages[3].origin == "model"
    assert conversation.losses[tau2.REBUILT_ARGUMENTS] == 1


def test_what_the_user_did_with_their_own_tools_is_hidden_and_counted(tmp_path: Path) -> None:
    own_call = user("Let me look.", tool_calls=[{"id": "u1", "name": "check_status_bar", "arguments": {}}])
    recorded = results(
        GREETING, user("help"), answer("Look."), own_call, result("u1", "no signal", "user"), user("none")
    )
    conversation = loaded(tmp_path, recorded)
    assert [message.content for message in conversation.messages[2:]] == ["help", "Look.", "none"]
    assert (conversation.losses[tau2.HIDDEN_USER], conversation.losses[tau2.HIDDEN_RESULT]) == (1, 1)


def test_seeded_history_is_given_and_only_the_models_own_messages_are_turns(tmp_path: Path) -> None:
    seeded = {
        "role": "assistant",
        "content": None,
        "usage": None,
        "tool_calls": [{"id": "s", "name": "f", "arguments": {}}],
    }
    conversation = loaded(tmp_path, results(user("hi"), seeded, result("s", "ok"), answer("Done.")))
    assert [message.origin for message in conversation.messages] == ["given", "given", "given", "given", "model"]


def test_times_differ_by_the_seconds_recorded(tmp_path: Path) -> None:
    early, late = "2026-05-31T21:11:55.500000", "2026-05-31T21:11:57"
    first, second = loaded(tmp_path, results(user("a", timestamp=early), answer("b") | {"timestamp": late})).messages[
        1:
    ]
    assert first.time_s is not None
    assert second.time_s is not None
    assert second.time_s - first.time_s == 1.5


def test_task_and_trial_name_the_conversation(tmp_path: Path) -> None:
    conversation = loaded(tmp_path, results(user("hi"), answer("Done.")))
    assert (conversation.conversation_id, conversation.task_id) == ("mock/create_task_1/2", "mock/create_task_1")


def test_a_domain_wraps_the_recorded_policy_in_its_instructions_and_brings_the_tools(tmp_path: Path) -> None:
    conversation = loaded(tmp_path, results(user("hi"), answer("Done.")), domain_folder(tmp_path))
    assert conversation.messages[0].content == f"<policy>\n{POLICY}\n</policy>"
    assert [tool["function"]["name"] for tool in conversation.tools] == ["create_task"]
    assert conversation.losses == {}


def test_without_a_domain_and_a_recorded_policy_there_is_no_system_prompt(tmp_path: Path) -> None:
    recorded = results(user("hi"), answer("Done."))
    recorded["info"]["environment_info"]["policy"] = None
    conversation = loaded(tmp_path, recorded)
    assert [message.role for message in conversation.messages] == ["user", "assistant"]
    assert conversation.losses == {tau2.NO_POLICY: 1}


def test_a_domain_without_its_instructions_gives_the_bare_policy_and_says_so(tmp_path: Path) -> None:
    folder = domain_folder(tmp_path)
    (folder / "llm_agent_system_prompt.txt").unlink()
    conversation = loaded(tmp_path, results(user("hi"), answer("Done.")), folder)
    assert conversation.messages[0].content == POLICY
    assert conversation.losses == {NO_INSTRUCTIONS: 1}


def test_calls_of_tools_that_the_domain_lacks_are_counted(tmp_path: Path) -> None:
    recorded = results(user("hi"), answer(None, ("c", "delete_task", "{}")))
    assert loaded(tmp_path, recorded, domain_folder(tmp_path)).losses[tau2.UNDEFINED_TOOL] == 1


def test_another_domains_file_is_refused(tmp_path: Path) -> None:
    recorded = results(user("hi"), answer("Done."), domain="retail")
    with pytest.raises(WorkloadError, match=r"this is domain mock, the recording's is retail; set workload\.domain"):
        loaded(tmp_path, recorded, domain_folder(tmp_path) / "mock.json")
    with pytest.raises(WorkloadError, match=r"holds no retail\.json; set workload\.domain"):
        loaded(tmp_path, recorded, domain_folder(tmp_path))


def test_a_variant_uses_the_tools_of_its_base_domain(tmp_path: Path) -> None:
    assert loaded(
        tmp_path, results(user("hi"), answer("Done."), domain="mock-workflow"), domain_folder(tmp_path)
    ).tools


def test_a_full_duplex_simulation_has_no_turns_and_says_so(tmp_path: Path) -> None:
    conversation = loaded(tmp_path, results(user("hi"), answer("Done."), mode="full_duplex"))
    assert not any(message.origin == "model" for message in conversation.messages)
    assert conversation.losses[tau2.FULL_DUPLEX] == 1


def test_simulations_in_a_folder_of_their_own_are_read_like_inline_ones(tmp_path: Path) -> None:
    whole = results(user("hi"), answer("Done."))
    (tmp_path / "simulations").mkdir()
    (tmp_path / "simulations/a.json").write_text(json.dumps(whole["simulations"][0]))
    (tmp_path / "results.json").write_text(json.dumps({"info": whole["info"], "simulation_index": [{"id": "a"}]}))
    (conversation,) = tau2.load(tmp_path)
    assert conversation.messages[-1].content == "Done."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ('{"info": {},\n "simulations": [}', "broken JSON at line 2"),
        ("[1, 2]", "not tau2-bench results but a list of a number"),
        (json.dumps([{"traj": [], "reward": 1}]), "not tau2-bench results but a list of tau-bench v1 results"),
        (json.dumps({"info": {"environment_info": {}}}), "domain_name is missing"),
        (json.dumps(results() | {"simulations": []}), "holds no simulations"),
        (
            json.dumps(results({"role": "narrator", "content": ""})),
            "simulation 1, message 1: unknown role 'narrator'",
        ),
        (json.dumps(results(user("a", timestamp="noon"))), "message 1: timestamp 'noon' is no ISO time"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(WorkloadError, match=message) as caught:
        list(tau2.load(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"nowhere\.json: no such file or folder; check the path"):
        list(tau2.load(tmp_path / "nowhere.json"))
