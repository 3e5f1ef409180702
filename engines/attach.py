"""An engine that somebody else runs: used as it is, never started or stopped."""

from typing import Any

import httpx

from engines.base import EngineError
from engines.settings import EngineSettings

_TIMEOUT_S = 5.0


class AttachedServer:
    """The server at ``engine.url``.

    Raises:
        EngineError: ``engine.url`` is not set.
    """

    def __init__(self, settings: EngineSettings) -> None:
        if not settings.url:
            raise EngineError("engine.launch=attach needs engine.url: the address of the running server")
        self._url = settings.url.rstrip("/")
        self._health = settings.health

    @property
    def url(self) -> str:
        return self._url

    async def start(self) -> None:
        """Check that it is healthy.

        Raises:
            EngineError: ``start`` when nothing answers there, or not with 200.
        """
        place = self._url + self._health
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as http:
                response = await http.get(place)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise EngineError(
                f"nothing answers at {place} ({error}); start the server or correct engine.url", kind="start"
            ) from error
        if response.status_code != httpx.codes.OK:
            raise EngineError(
                f"{place} answers {response.status_code}; wait until the server is ready, or correct engine.health",
                kind="start",
            )

    async def stop(self) -> None:
        """Leave it running."""

    def alive(self) -> bool:
        """True: only a request can tell."""
        return True

    async def ended(self) -> str | None:
        """None: only who started it knows."""
        return None

    def log_tail(self, lines: int = 20) -> list[str]:  # noqa: ARG002
        """Nothing: its log is where it was started."""
        return []

    def describe(self) -> dict[str, Any]:
        return {"launch": "attach", "url": self._url}
