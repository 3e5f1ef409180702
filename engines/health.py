"""Waits until a server that was just started answers."""

import asyncio
from collections.abc import Callable

import httpx

from engines.base import EngineError
from engines.settings import EngineSettings

_POLL_S = 0.05
_ANSWER_S = 2.0


async def healthy_or_ended(settings: EngineSettings, url: str, alive: Callable[[], bool]) -> bool:
    """True once ``settings.health`` answers 200; False when the engine ended before.

    Raises:
        EngineError: ``start`` when neither happened within ``start_timeout_s``.
    """
    timeout_s = settings.start_timeout_s
    try:
        async with asyncio.timeout(timeout_s), httpx.AsyncClient(trust_env=False) as http:
            while alive():
                if await _answers(http, url + settings.health):
                    return True
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise EngineError(
            f"the engine {settings.name} did not get healthy within {timeout_s:g} s "
            f"({settings.health} never answered 200); raise engine.start_timeout_s, "
            "or correct engine.health or engine.command",
            kind="start",
        ) from None
    return False


async def _answers(http: httpx.AsyncClient, url: str) -> bool:
    try:
        response = await http.get(url, timeout=_ANSWER_S)
    except httpx.TransportError:
        return False
    return response.status_code == httpx.codes.OK
