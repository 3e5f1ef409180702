"""Times measured inside the engine on one machine, and what follows from them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.errors import SetupError
from engines.ostinato.planner import prefill_cost
from engines.ostinato.planner.cost import DecodeCosts, bound_ms
from engines.ostinato.planner.prefill_cost import PathDifference
from engines.ostinato.planner.residency import read_json, write_json
from engines.ostinato.shares import Rates

# Shapes: L = MoE layers, E = experts, R = numbers of cold routes, 0 … K.

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
    rates: Rates | None = None
    """What balances the cooperative path, as it was while the sweep ran; None where nothing can be uploaded."""

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
    all_resident_step_ms: float | None = None
    """A step whose routes all went to slots, where the dense time comes from it; None where that was timed alone."""
    cold_shares: tuple[tuple[float, ...], ...] | None = None
    """How often each layer had 0, 1, … K cold routes in the measured steps, ``[L, R]``; from counts, so as if the
    experts of a step were chosen independently."""
    cold_layers: float | None = None
    """Layers of a measured step that had a cold route, as the CPU's service counted them; None outside a captured
    step."""
    cpu_busy_ms: float | None = None
    """What the service worked in a measured step."""

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

    def bound_ms(self, share_LR: NDArray[np.float64] | None = None) -> float | None:
        """The least that a decode step can take here: the dense part, and the longer branch of every layer.

        Args:
            share_LR: how often each layer has 0, 1, … K cold routes; None takes those of the measured steps.
        """
        if share_LR is None:
            if self.cold_shares is None:
                return None
            share_LR = np.array(self.cold_shares)
        cpu_ms_LR, gpu_ms_L = np.zeros(share_LR.shape), np.zeros(len(share_LR))
        for group in self.groups:
            cpu_ms_LR[list(group.layers)] = group.cpu_ms[: share_LR.shape[1]]
            gpu_ms_L[list(group.layers)] = group.gpu_ms
        return bound_ms(cpu_ms_LR, gpu_ms_L, share_LR, dense=self.dense_step_ms)

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
    ``dense_step_ms``; each a number or null: ``decode_step_ms``, ``resident_experts``, ``all_resident_step_ms``,
    ``cold_layers``, ``cpu_busy_ms``; ``cold_shares`` [L, R] or null; ``groups``: each ``layers`` (MoE layers from 0),
    ``cpu_ms`` (for 0…K cold routes), ``gpu_ms``, ``upload_ms``, ``rates`` {``upload_ms``, ``cpu_tokens``, ``cpu_ms``}
    or null; ``prefill``: each ``tokens``, ``split_ms``, ``upload_ms``, ``cooperative_ms`` or null. What follows from
    these is written for other programs and not read: ``fits``, for each group γ0, α and β in ms; ``threshold_tokens``
    or null.
    """
    fits = [
        {"gamma0_ms": group.cpu_ms[0], "alpha_ms": alpha, "beta_ms": beta}
        for group in calibration.groups
        for alpha, beta in [group.line()]
    ]
    content = {"version": VERSION, "kind": "calibration", **asdict(calibration)}
    write_json(path, content | {"fits": fits, "threshold_tokens": calibration.threshold()})


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
                rates=_rates(item.get("rates")),
            )
            for item in content["groups"]
        )
        names = ("dense_step_ms", "model_hash", "machine", "decode_step_ms", "resident_experts")
        shares = content.get("cold_shares")  # this and what else is asked for with get came later
        return Calibration(
            groups=groups,
            prefill=tuple(PrefillPoint(**item) for item in content["prefill"]),
            all_resident_step_ms=content.get("all_resident_step_ms"),
            cold_layers=content.get("cold_layers"),
            cpu_busy_ms=content.get("cpu_busy_ms"),
            cold_shares=None if shares is None else tuple(map(tuple, shares)),
            **{name: content[name] for name in names},
        )
    except (KeyError, TypeError) as error:
        raise SetupError(f"{path} is damaged: {error!r}; calibrate again") from error


def _rates(item: Mapping[str, Any] | None) -> Rates | None:
    if item is None:
        return None
    return Rates(upload_ms=item["upload_ms"], cpu_tokens=tuple(item["cpu_tokens"]), cpu_ms=tuple(item["cpu_ms"]))
