"""No forcing: for a server that already answers with the recorded tokens. They are verified all the same."""

from typing import Any

from engines.base import ForcedRequest
from engines.forcing.field import FieldForcing


class NoForcing(FieldForcing):
    """Sends nothing more; a server that decodes freely fails its first turn."""

    name = "none"

    def fields(self, request: ForcedRequest) -> dict[str, Any]:  # noqa: ARG002
        return {}
