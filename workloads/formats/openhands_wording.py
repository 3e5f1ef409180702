"""The words in which OpenHands shows events to its model.

Function-calling versions: ``ConversationMemory`` and ``CmdOutputObservation.to_agent_observation`` of OpenHands 0.2x
and later. Events without ids and ``extras`` are from before 0.14, whose CodeAct agent wrote actions as text.
"""

from collections.abc import Mapping
from typing import Any

ACTIONS = frozenset(
    {"run", "run_ipython", "edit", "write", "read", "browse", "browse_interactive", "delegate", "think", "finish"}
)
"""Actions that a model takes."""
REBUILT_ACTION = "actions whose exact text was not recorded, rebuilt as CodeAct wrote them"


def observation(event: Mapping[str, Any], content: str, *, called: bool) -> str:
    """Return what the model saw of an observation.

    Args:
        called: it answers a tool call; otherwise the user did something, or an older version ran.
    """
    kind = event["observation"]
    old = "extras" not in event
    prefix = "OBSERVATION:\n" if old or kind == "user_rejected" else ""
    if kind == "error":
        return f"{prefix}{content}\n[Error occurred in processing last action]"
    if kind == "user_rejected":
        return f"{prefix}{content}\n[Last action has been rejected by the user]"
    if kind != "run":
        return prefix + content
    if old:
        ends = f"\n[Command {event.get('command_id')} finished with exit code {event.get('exit_code')}]"
        return prefix + content + ends
    seen = _command_output(event.get("extras"), content)
    return seen if called else f"\nObserved result of command executed by user:\n{seen}"


def _command_output(extras: Any, content: str) -> str:
    metadata = extras.get("metadata") if isinstance(extras, dict) else None
    if not isinstance(metadata, dict):
        return content
    seen = f"{metadata.get('prefix') or ''}{content}{metadata.get('suffix') or ''}"
    if metadata.get("working_dir"):
        seen += f"\n[Current working directory: {metadata['working_dir']}]"
    if metadata.get("py_interpreter_path"):
        seen += f"\n[Python interpreter: {metadata['py_interpreter_path']}]"
    if metadata.get("exit_code", -1) != -1:
        seen += f"\n[Command finished with exit code {metadata['exit_code']}]"
    return seen


def action(kind: str, args: Mapping[str, Any]) -> str:
    """Return an action as the text that CodeAct's model wrote before it had function calls."""
    thought = _text(args, "thought")
    if kind == "run":
        return f"{thought}\n<execute_bash>\n{_text(args, 'command')}\n</execute_bash>"
    if kind == "run_ipython":
        return f"{thought}\n<execute_ipython>\n{_text(args, 'code')}\n</execute_ipython>"
    if kind == "delegate":
        inputs = args.get("inputs")
        task = _text(inputs, "task") if isinstance(inputs, dict) else ""
        return f"{thought}\n<execute_browse>\n{task}\n</execute_browse>"
    if kind in ("edit", "write"):
        return f"{thought}\n<file_edit path={_text(args, 'path')}>\n{_text(args, 'content')}\n</file_edit>"
    return thought


def user_action(kind: str, args: Mapping[str, Any]) -> str:
    """Return what the model saw of something that the user ran."""
    if kind == "run":
        return f"User executed the command:\n{_text(args, 'command')}"
    return action(kind, args)


def _text(args: Mapping[str, Any], key: str) -> str:
    value = args.get(key)
    return value if isinstance(value, str) else ""
