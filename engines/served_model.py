"""What a server calls the model it serves: some refuse a request that does not name one."""

import httpx

from engines.base import EngineError
from engines.settings import EngineSettings

NAMED = ("openai", "openai_chat")
"""Dialects of servers that may serve several models."""
_TIMEOUT_S = 5.0


async def served_model(settings: EngineSettings, url: str) -> str | None:
    """``engine.served_model``, or the one model that ``/v1/models`` lists.

    Returns:
        None where the dialect's requests name none, and where nothing of ``/v1/models`` tells.

    Raises:
        EngineError: several are listed, so that the user must choose.
    """
    if settings.dialect not in NAMED:
        return None
    if settings.served_model is not None:
        return settings.served_model
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_S) as http:
            response = await http.get(f"{url}/v1/models")
        listed = response.json()["data"] if response.status_code == httpx.codes.OK else []
        names = [str(model["id"]) for model in listed]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None
    if len(names) > 1:
        raise EngineError(f"{url} serves several models; set engine.served_model to one of {', '.join(names)}")
    return names[0] if names else None
