"""Writes down which experts a running server's requests went to, for the planner."""

import sys
from pathlib import Path
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.engine import Engine
from engines.ostinato.planner import routes
from engines.ostinato.planner.routes import RouteCounts

# Shapes: L = MoE layers, E = experts.

_EVERY_S = 60.0


class Recorder:
    """Counts from now on: what was computed before (to warm up, to measure) is no request's.

    Args:
        per_token: experts that a token goes to in each layer.
    """

    def __init__(self, engine: Engine, path: Path, *, per_token: int, model_hash: str, workload_hash: str) -> None:
        self._engine, self._path, self._per_token = engine, path, per_token
        self._hashes = {"model_hash": model_hash, "workload_hash": workload_hash}
        self._captured_LE = np.zeros_like(engine.experts.uses_LE)
        self._before_LE, self._prefill_before_LE = self._decoded(), engine.experts.prefill_uses_LE.copy()
        self._written = monotonic()

    def counts(self) -> RouteCounts:
        """So far. Steps that ran ahead of an answer's end count as well: at most one a request."""
        decode_LE = self._decoded() - self._before_LE
        prefill_LE = self._engine.experts.prefill_uses_LE - self._prefill_before_LE
        routes_a_token = self._per_token * len(decode_LE)
        return RouteCounts(
            decode_LE=decode_LE,
            prefill_LE=prefill_LE,
            decode_steps=int(decode_LE.sum()) // routes_a_token,
            prefill_tokens=int(prefill_LE.sum()) // routes_a_token,
            experts_per_token=self._per_token,
            **self._hashes,
        )

    def write(self) -> None:
        """Save what was counted; a full disk does not end the server."""
        try:
            routes.write(self._path, self.counts())
        except OSError as error:
            print(f"ostinato: {self._path} can't be written: {error.strerror or error}", file=sys.stderr, flush=True)
        self._written = monotonic()

    def after_request(self) -> None:
        """Save, unless that was done less than a minute ago."""
        if monotonic() - self._written >= _EVERY_S:
            self.write()

    def _decoded(self) -> NDArray[np.int64]:
        if self._engine.graph is not None:
            self._captured_LE += self._engine.graph.recorded()
        total: NDArray[np.int64] = self._engine.experts.uses_LE + self._captured_LE
        return total
