"""Who computes a pass's cold experts: the CPU where they lie, or the GPU after an upload."""

from dataclasses import dataclass

import numpy as np

PATHS = ("auto", "split", "upload", "cooperative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Measured once on a machine, then fixed: the same request is always computed the same way."""

    upload_ms: float
    """One expert to the GPU, while the CPU computes."""
    cpu_tokens: tuple[float, ...]
    """Tokens of one expert, growing, the first 1 …"""
    cpu_ms: tuple[float, ...]
    """… and its time on the CPU's pool, while the link is busy."""

    def cpu(self, tokens: np.ndarray) -> np.ndarray:
        """Interpolated; beyond the last point in proportion."""
        x, y = np.asarray(self.cpu_tokens), np.asarray(self.cpu_ms)
        beyond = y[-1] * tokens / x[-1]
        ms: np.ndarray = np.where(tokens > x[-1], beyond, np.interp(tokens, x, y))
        return ms


class Shares:
    """Splits cold experts between the CPU and the upload.

    ``split`` leaves all to the CPU and ``upload`` none (the Ostinato paper's two paths, section 3.3). ``cooperative``
    gives the experts with most tokens to the upload, which costs the same for any number of them, until both sides
    would end together; both extremes are among what it chooses from.

    Args:
        path: ``auto`` follows the placement policy; any other is used instead of what it says.
    """

    def __init__(self, path: str, rates: Rates) -> None:
        assert path in PATHS
        self.path, self.rates = path, rates

    def kind(self, policy: str) -> str:
        """The way of a pass for which the placement policy says ``policy``."""
        return policy if self.path == "auto" else self.path

    def split(self, cold: np.ndarray, counts: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """(uploaded, on the CPU), both by their tokens, most first.

        Args:
            cold: experts; ``counts`` their routes.
            kind: what the placement policy says.
        """
        order = np.lexsort((cold, -counts))
        cold, counts = cold[order], counts[order]
        n = self._uploads(counts, self.kind(kind))
        return cold[:n], cold[n:]

    def _uploads(self, counts: np.ndarray, kind: str) -> int:
        if kind == "split":
            return 0
        if kind != "cooperative":
            return len(counts)
        cpu = np.append(self.rates.cpu(counts)[::-1].cumsum()[::-1], 0.0)
        upload = self.rates.upload_ms * np.arange(len(counts) + 1)
        return int(np.maximum(cpu, upload).argmin())
