"""What the harness asks of whoever runs an engine: a local process, a container, or nobody (attach)."""

from typing import Any, Protocol


class Server(Protocol):
    """Start once, stop once. ``stop`` may be called at any time, twice, and after a failed ``start``."""

    @property
    def url(self) -> str:
        """Base URL without a trailing slash."""

    async def start(self) -> None:
        """Start and wait until the engine is healthy.

        Raises:
            EngineError: ``start`` with the reason and the last 20 log lines.
        """

    async def stop(self) -> None:
        """Stop the engine and everything it started: SIGTERM, after a grace SIGKILL."""

    def alive(self) -> bool:
        """Whether the engine still runs."""

    async def ended(self) -> str | None:
        """How an engine that is not alive ended, in words (exit code, signal, out of memory); None while it runs,
        after it was stopped, and where nobody knows."""

    def log_tail(self, lines: int = 20) -> list[str]:
        """The newest lines of its log."""

    def describe(self) -> dict[str, Any]:
        """Command, version, process id or image digest: what a reader needs to start the same again."""
