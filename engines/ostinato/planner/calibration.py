"""Times measured inside the engine on one machine, and what follows from them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.errors import SetupError
from engines.ostinato.planner import prefill_cost
from engines.ostinato.planner.cost import DecodeCosts
from engines.ostinato.planner.prefill_cost import PathDifference
from engines.ostinato.planner.residency import read_json, write_json

# Shapes: L = MoE layers, E = experts.

VERSION = 1
PATHS = ("split", "upload", "cooperative")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that are alike: one expert size, one GPU."""

    layers: tuple[int, ...]
    """MoE layers, counted from 0."""
    cpu_ms: tuple[float, ...]
    """The CPU branch of a decode step with 0, 1, 2, … K cold routes."""
    gpu_ms: float
    """The GPU branch, K experts wide."""
    upload_ms: float
    """Copying one expert to the GPU."""

    def line(self, weights: Sequence[float] | None = None) -> tuple[float, float]:
        """α and β of C(r) = α + βr for r ≥ 1, by least squares.

        Args:
            weights: how often each r = 1, 2, … occurs; None weighs them alike.
        """
        if len(self.cpu_ms) == 2:
            return self.cpu_ms[0], self.cpu_ms[1] - self.cpu_ms[0]
        r = np.arange(1, len(self.cpu_ms))
        w = None if weights is None else np.sqrt(np.asarray(weights, np.float64))
        beta, alpha = np.polyfit(r, self.cpu_ms[1:], 1, w=w)
        return float(alpha), float(beta)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPoint:
    """One size of the prefill sweep; None for a path that was not measured."""

    tokens: int
    split_ms: float
    upload_ms: float
    cooperative_ms: float | None = None

    def ms(self, path: str) -> float | None:
        value: float | None = getattr(self, f"{path}_ms")
        return value


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Raises: SetupError: measurements that can't be."""

    groups: tuple[LayerGroup, ...]
    dense_step_ms: float
    """A decode step without its MoE layers."""
    prefill: tuple[PrefillPoint, ...]
    """By growing number of tokens; may be empty."""
    model_hash: str
    machine: Mapping[str, str] = field(default_factory=dict)
    """Processor, GPU, threads, …: where this holds."""
    decode_step_ms: float | None = None
    """A whole decode step as measured, to set beside the predicted one."""
    resident_experts: int | None = None
    """How many were resident when the step and the sweep were measured."""

    def __post_init__(self) -> None:
        layers = sorted(layer for group in self.groups for layer in group.layers)
        if layers != list(range(len(layers))):
            raise SetupError("the calibration leaves out layers or names one twice; calibrate again")
        if any(len(group.cpu_ms) < 2 for group in self.groups):
            raise SetupError("the calibration lacks the CPU branch for 0 and 1 cold routes; calibrate again")
        sizes = [point.tokens for point in self.prefill]
        if sizes != sorted(set(sizes)):
            raise SetupError("the calibration's prefill sizes must grow; calibrate again")

    def costs(self, weights: Sequence[float] | None = None) -> DecodeCosts:
        """The decode step's constants, per layer."""
        columns = np.zeros((4, sum(len(group.layers) for group in self.groups)))
        for group in self.groups:
            alpha, beta = group.line(weights)
            columns[:, list(group.layers)] = np.array([[group.cpu_ms[0]], [alpha], [beta], [group.gpu_ms]])
        return DecodeCosts(
            gamma0=columns[0], alpha=columns[1], beta=columns[2], gpu=columns[3], dense=self.dense_step_ms
        )

    @property
    def upload_ms_L(self) -> NDArray[np.float64]:
        """Copying one expert of each layer."""
        upload = np.zeros(sum(len(group.layers) for group in self.groups))
        for group in self.groups:
            upload[list(group.layers)] = group.upload_ms
        return upload

    def prefill_ms(self, path: str, tokens: int) -> float | None:
        """A pass's time on one path, between the measured sizes on a line; None where it was not measured.

        Beyond the ends it goes on proportionally (below the smallest size: as long as that one takes).
        """
        points = [(point.tokens, ms) for point in self.prefill if (ms := point.ms(path)) is not None]
        if not points:
            return None
        sizes, times = np.array(points, np.float64).T
        if tokens > sizes[-1]:
            return float(times[-1] * tokens / sizes[-1])
        return float(np.interp(tokens, sizes, times))

    def threshold(self) -> int | None:
        """Np: from how many tokens on uploading was at least as fast as splitting; None if it never was.

        Where the sweep crosses between two sizes, on the line between them.
        """
        if not self.prefill:
            return None
        difference = np.array([point.split_ms - point.upload_ms for point in self.prefill])
        index = prefill_cost.switch(difference)
        if index is None:
            return None
        if index == 0:
            return self.prefill[0].tokens
        before, after = self.prefill[index - 1].tokens, self.prefill[index].tokens
        share = -difference[index - 1] / (difference[index] - difference[index - 1])
        return int(np.ceil(before + share * (after - before)))

    def best_path(self, tokens: int, paths: Sequence[str] = PATHS) -> str:
        """The fastest of some paths for a pass of this size; the split path where nothing was measured."""
        times = {path: ms for path in paths if (ms := self.prefill_ms(path, tokens)) is not None}
        return min(times, key=lambda path: times[path]) if times else "split"

    def difference(self, shares_LE: NDArray[np.float64], cold_LE: NDArray[np.bool_]) -> PathDifference | None:
        """Φ fitted to the sweep, given who was cold when it was measured; None where that says nothing."""
        tokens = np.array([float(point.tokens) for point in self.prefill])
        return prefill_cost.fit(
            tokens,
            np.array([point.split_ms for point in self.prefill]),
            np.array([point.upload_ms for point in self.prefill]),
            prefill_cost.distinct_cold(shares_LE, cold_LE, tokens),
        )


def write(path: Path, calibration: Calibration) -> None:
    """Save as JSON; it appears under its name only when complete.

    Fields (version 1): ``version``, ``kind`` ("calibration"), ``model_hash``, ``machine`` {name: text},
    ``dense_step_ms``, ``decode_step_ms`` or null, ``resident_experts`` or null, ``groups``: each ``layers`` (MoE
    layers from 0), ``cpu_ms`` (for 0…K cold routes), ``gpu_ms``, ``upload_ms``; ``prefill``: each ``tokens``,
    ``split_ms``, ``upload_ms``, ``cooperative_ms`` or null.
    """
    write_json(path, {"version": VERSION, "kind": "calibration", **asdict(calibration)})


def read(path: Path) -> Calibration:
    """Load what ``write`` saved.

    Raises:
        SetupError: no such file, not a calibration, written by a newer version.
    """
    content = read_json(path, "calibration", VERSION)
    try:
        groups = tuple(
            LayerGroup(
                layers=tuple(item["layers"]),
                cpu_ms=tuple(item["cpu_ms"]),
                gpu_ms=item["gpu_ms"],
                upload_ms=item["upload_ms"],
            )
            for item in content["groups"]
        )
        names = ("dense_step_ms", "model_hash", "machine", "decode_step_ms", "resident_experts")
        return Calibration(
            groups=groups,
            prefill=tuple(PrefillPoint(**item) for item in content["prefill"]),
            **{name: content[name] for name in names},
        )
    except (KeyError, TypeError) as error:
        raise SetupError(f"{path} is damaged: {error!r}; calibrate again") from error
