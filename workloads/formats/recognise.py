"""What a value of an unexpected file looks like, for error messages."""

from typing import Any

# The keys that give a format away, most telling first.
FORMATS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"simulations", "info"}), "tau2-bench results (format tau2)"),
    (frozenset({"trajectory", "tools"}), "OpenHands chat rows (format openhands)"),
    (frozenset({"messages", "tools"}), "OpenHands chat rows (format openhands)"),
    (frozenset({"trajectory", "instance_id"}), "SWE-agent trajectories (format swe_agent)"),
    (frozenset({"trajectory", "info"}), "a SWE-agent trajectory (format swe_agent)"),
    (frozenset({"history", "instance_id"}), "OpenHands evaluation output (format openhands_events)"),
    (frozenset({"traj", "reward"}), "tau-bench v1 results (format tau1)"),
    (frozenset({"conversations"}), "ShareGPT-like conversations (format agentinstruct)"),
    (frozenset({"spans"}), "an OpenTelemetry trace (format otel)"),
    (frozenset({"hash_ids"}), "a trace of block hashes without text (format mooncake)"),
    (frozenset({"requests", "block_size"}), "a trace of block hashes without text (format weka)"),
    (frozenset({"samples", "eval"}), "an Inspect log (format inspect_log)"),
    (frozenset({"sessionId", "uuid"}), "a Claude Code session (format claude_code)"),
    (frozenset({"input", "output", "session_id"}), "an LMCache agent trace (format lmcache)"),
    (frozenset({"function", "type"}), "tool schemas"),
    (frozenset({"role", "content"}), "a bare chat message"),
    (frozenset({"policy", "agent_tools"}), "a tau2 domain"),
    (frozenset({"session_id", "turn", "delta_ids"}), "a session file that `prepare` wrote (format sessions)"),
)
KEYS_SHOWN = 6


def looks_like(value: Any) -> str:
    """Say in a few words what a JSON value is: a known format, or its keys."""
    if isinstance(value, dict):
        for keys, name in FORMATS:
            if keys <= value.keys():
                return name
        if not value:
            return "an empty object"
        keys_text = ", ".join(list(value)[:KEYS_SHOWN]) + (", …" if len(value) > KEYS_SHOWN else "")
        return f"an object with the keys {keys_text}"
    if isinstance(value, list):
        return f"a list of {looks_like(value[0])}" if value else "an empty list"
    return {str: "a text", bool: "a truth value", type(None): "null"}.get(type(value), "a number")
