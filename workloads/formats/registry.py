"""Every recorded format by name; a module is imported when its format is asked for.

A format's module holds

* ``load(path: Path) -> Iterator[Conversation]`` (``tau2`` also takes the domain), or, for traces of lengths and block
  hashes without text, ``load(path, *, vocab, seed, block_size, losses) -> Iterator[Session]``, and
* ``matches(head: Any) -> bool``: whether a file that begins with ``head`` is of this format. The head is the first
  row of JSON Lines or Parquet (any JSON value), the whole document of a ``.json`` file, the beginning of a text that
  is not JSON (YAML), or for an archive its member names after ``"archive"``: ``("archive", "header.json", …)``.
  It must take any value at all, and say yes to nothing that another format's file begins with.
"""

import importlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation
from workloads.session import Session, WorkloadError

_MODULES = {
    "conversation": ("conversation_json", "conversations in this project's own JSON form"),
    "openhands": ("openhands", "OpenHands chat rows: SWE-rebench (nebius), SWE-Gym"),
    "openhands_events": ("openhands_events", "OpenHands output.jsonl and event streams, old and new"),
    "openhands_text": ("openhands_text", "OpenHands with calls as text: SWE-smith, SWE-play"),
    "swe_agent": ("swe_agent", "SWE-agent .traj files and nebius SWE-agent rows"),
    "mini_swe_agent": ("mini_swe_agent", "mini-swe-agent trajectories"),
    "claude_code": ("claude_code", "Claude Code session JSON Lines"),
    "inspect_log": ("inspect_log", "Inspect logs, .json and .eval"),
    "atif": ("atif", "ATIF trajectories"),
    "tau1": ("tau1", "tau-bench v1 results"),
    "tau2": ("tau2", "tau2-bench results, 0.x and 1.x, a file or a folder"),
    "agentsuite": ("agentsuite", "AgentSuite tau and tau2 rows"),
    "agentinstruct": ("agentinstruct", "AgentInstruct conversations"),
    "chat_log": ("chat_log", "OpenAI chat logs: requests and responses as JSON Lines"),
    "vcr": ("vcr", "VCR cassettes of OpenAI calls (YAML)"),
    "otel": ("otel", "OpenTelemetry GenAI spans"),
    "lmcache": ("lmcache", "LMCache agent traces"),
    "mooncake": ("mooncake", "Mooncake traces: lengths and block hashes"),
    "weka": ("weka", "Weka kv-cache traces: lengths and block hashes"),
}
NAMES = tuple(_MODULES)

TAKES_DOMAIN = frozenset({"tau2"})
"""Formats whose ``load`` takes the tool schemas' place beside the path."""

TRACES = frozenset({"mooncake", "weka"})
"""Formats without text: their sessions come out ready, with ids that repeat where the recorded ones did."""


@dataclass(frozen=True, slots=True)
class Format:
    name: str

    @property
    def description(self) -> str:
        return _MODULES[self.name][1]

    @property
    def is_trace(self) -> bool:
        return self.name in TRACES

    def load(self, path: Path, domain: Path | None = None) -> Iterator[Conversation]:
        """Yield the conversations of a file or folder; of no trace.

        Raises:
            WorkloadError: as the format's loader.
        """
        assert not self.is_trace
        if self.name in TAKES_DOMAIN:
            return _module(self.name).load(path, domain)  # type: ignore[no-any-return]
        return _module(self.name).load(path)  # type: ignore[no-any-return]

    def sessions(
        self, path: Path, *, vocab: range, seed: int, block_size: int | None, losses: Counter[str]
    ) -> Iterator[Session]:
        """Yield the sessions of a trace.

        Args:
            vocab: ids to draw from.
            block_size: tokens that a hash stands for, where the trace does not say it; None for the format's own.

        Raises:
            WorkloadError: as the format's loader.
        """
        assert self.is_trace
        given = {} if block_size is None else {"block_size": block_size}
        return _module(self.name).load(path, vocab=vocab, seed=seed, losses=losses, **given)  # type: ignore[no-any-return]

    def matches(self, head: Any) -> bool:
        return bool(_module(self.name).matches(head))


def named(name: str) -> Format:
    """Return the format of this name.

    Raises:
        WorkloadError: there is none.
    """
    if name not in _MODULES:
        raise WorkloadError(f"there is no format {name!r}; known are {', '.join(NAMES)}")
    return Format(name)


def matching(head: Any) -> list[Format]:
    """Return every format that takes a file which begins like this (see the module's description)."""
    return [one for one in map(Format, NAMES) if one.matches(head)]


def _module(name: str) -> Any:
    return importlib.import_module(f"workloads.formats.{_MODULES[name][0]}")
