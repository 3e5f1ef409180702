"""Forcing by a request field: the server takes the recorded tokens with the prompt."""

from typing import Any

from engines.base import ForcedRequest
from engines.forcing.simple import SimpleForcing


class FieldForcing(SimpleForcing):
    """``forced_tokens`` in the body; every id is checked as it came back."""

    name = "field"

    def fields(self, request: ForcedRequest) -> dict[str, Any]:
        return {"forced_tokens": request.output_ids}
