"""What the ways of forcing share that load code into the server: a file with the turn's tokens by position."""

from pathlib import Path

from engines.base import ForcedRequest
from engines.forcing.plan import Plan
from engines.forcing.simple import SimpleForcing
from engines.forcing.verdict import check_fits
from engines.settings import EngineSettings


class PlannedForcing(SimpleForcing):
    """One request at a time, as the plan holds one turn: the server runs with one slot or sequence."""

    def __init__(self, settings: EngineSettings, folder: Path) -> None:
        self._context = settings.context
        self._plan = Plan(settings.context, folder)

    def arm(self, request: ForcedRequest) -> None:
        """Write down what to force.

        Raises:
            EngineError: ``context`` when the turn is longer than the engine's context.
        """
        check_fits(request, self._context)
        self._plan.arm(len(request.prompt_ids), request.output_ids)

    def close(self) -> None:
        self._plan.close()
