"""Machines whose constants are published, for predictions where nothing was calibrated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engines.ostinato.planner.calibration import Calibration, LayerGroup
from engines.ostinato.planner.prefill_cost import PathDifference

GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Times of one decode step's branches and of prefill, scaled to any model by an expert's bytes and its layers."""

    name: str
    source: str
    gpus: int
    pool_bytes: int
    """Room for resident experts on each GPU."""
    borrowed_bytes: int
    """What each GPU lends to decode."""
    gamma0_ms: float
    alpha_ms: float
    gpu_ms: float
    cpu_bytes_per_ms: float
    """At which one cold route reads its expert."""
    upload_bytes_per_ms: float
    """One expert at a time, the bus idle."""
    dense_ms_per_layer: float
    """A decode step without its MoE layers, over its layers."""
    split_ms_per_byte: float
    """What a token's cold route costs a prefill on the split path, over its expert's bytes."""
    upload_ms_per_byte: float
    """What an uploaded expert costs a prefill, while the CPU reads memory too."""
    model: Mapping[str, int]
    """The model that was measured: ``layers``, ``experts``, ``experts_per_token``, ``expert_bytes``."""

    def calibration(self, expert_bytes: Sequence[int], *, experts_per_token: int, model_hash: str) -> Calibration:
        """As if measured there with a model of these experts, ``[L]``; without a prefill sweep."""
        sizes = np.asarray(expert_bytes, np.int64)
        cold = np.arange(1, experts_per_token + 1)
        groups = tuple(
            LayerGroup(
                layers=tuple(np.flatnonzero(sizes == size).tolist()),
                cpu_ms=(self.gamma0_ms, *(self.alpha_ms + cold * float(size) / self.cpu_bytes_per_ms).tolist()),
                gpu_ms=self.gpu_ms,
                upload_ms=float(size) / self.upload_bytes_per_ms,
            )
            for size in np.unique(sizes)
        )
        return Calibration(
            groups=groups,
            dense_step_ms=self.dense_ms_per_layer * len(sizes),
            prefill=(),
            model_hash=model_hash,
            machine={"name": self.name, "source": self.source},
        )

    def difference(self, expert_bytes: Sequence[int], *, cold_per_token: float) -> PathDifference:
        """Split minus upload of a pass (Ostinato, proposition 3.2).

        Args:
            cold_per_token: a prefill token's cold routes, all layers together.
        """
        size = float(np.mean(expert_bytes))
        return PathDifference(
            phi0=0.0, phi1=self.split_ms_per_byte * size * cold_per_token, phi2=self.upload_ms_per_byte * size
        )


_V4_FLASH = {"layers": 43, "experts": 256, "experts_per_token": 6, "expert_bytes": 13_400_000}
_BYTES = _V4_FLASH["expert_bytes"]
MACHINES: Mapping[str, Machine] = {
    machine.name: machine
    for machine in (
        Machine(
            name="rtx4090d_x4",
            source="Ostinato, arXiv 2611.11533v1: four RTX 4090D, two Xeon 8358, DeepSeek-V4-Flash",
            gpus=4,
            pool_bytes=5_702 * _BYTES // 4,  # table 6: 5,702 experts on four GPUs ...
            borrowed_bytes=544 * _BYTES // 4,  # ... and 544 slots of borrowed memory
            gamma0_ms=0.120,  # section 3.2
            alpha_ms=0.140,
            gpu_ms=0.137,  # 0.135 to 0.139
            cpu_bytes_per_ms=_BYTES / 0.184,
            upload_bytes_per_ms=_BYTES / 0.53,
            # Table 8: 27.01 ms a step with the graph and without borrowed memory. Less 43 x 0.137 of GPU branches and
            # β of its cold routes: 16.0 % of 258 with 4,864 residents (section 1), 12.06 fewer with 5,702
            # (appendix B: ΔF0 = 2.219 ms).
            dense_ms_per_layer=(27.01 - 43 * 0.137 - 0.184 * (0.16 * 43 * 6 - 2.219 / 0.184)) / 43,
            # Section 4.4: 3.2 ms a new token at 0.95 to 0.92 cold experts of each layer.
            split_ms_per_byte=3.2 / (43 * 0.935) / _BYTES,
            # Section 4.4: 3.33 s with 1,024 new tokens, which upload 3,243 experts; the split path's line starts at
            # 0.92 - 0.128 x 3.2 = 0.51 s. Between 0.53 ms with an idle bus and 1.20 ms under the CPU's reads.
            upload_ms_per_byte=(3330 - (920 - 128 * 3.2)) / 3243 / _BYTES,
            model=_V4_FLASH,
        ),
    )
}
