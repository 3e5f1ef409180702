"""What a model's router chose while sessions ran: counts for the planner, step by step for simulations."""

import os
import zipfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.errors import SetupError

# Shapes: L = MoE layers (counted from 0, without dense ones), E = experts, K = experts per token, N = decode steps.

VERSION = 1
_PRIOR_STEPS = 500
"""Decode steps that weigh as much as the prompts."""
_BLOCK = 4096
"""Steps worked on at once; bounds the memory of a long trace."""


@dataclass(frozen=True, kw_only=True)
class RouteCounts:
    """How often each expert was chosen, recorded over some sessions."""

    decode_LE: NDArray[np.int64]
    """Routes of decode steps."""
    prefill_LE: NDArray[np.int64]
    """Routes of prefill tokens."""
    decode_steps: int
    prefill_tokens: int
    experts_per_token: int
    model_hash: str
    workload_hash: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.decode_LE.shape[0], self.decode_LE.shape[1]

    @cached_property
    def rho_LE(self) -> NDArray[np.float64]:
        """ρ: routes to each expert per decode step (per token, where no decode step was recorded)."""
        if self.decode_steps:
            return self.decode_LE / self.decode_steps
        return self.prefill_LE / max(self.prefill_tokens, 1)

    @cached_property
    def ranking_LE(self) -> NDArray[np.float64]:
        """What experts are ranked by: ρ, drawn towards the routes of prefill tokens while few steps were recorded.

        A session's steps resemble each other: 50 of them say little of another session (24 layers of 128 experts,
        drawn prompts: experts that took 93 % of a session's routes took 64 % of another's).
        """
        if not self.prefill_tokens:
            return self.rho_LE
        own = self.decode_steps / (self.decode_steps + _PRIOR_STEPS)
        return own * self.rho_LE + (1 - own) * self.prefill_LE / self.prefill_tokens

    @cached_property
    def prefill_shares_LE(self) -> NDArray[np.float64]:
        """Routes to each expert per prefill token (per decode step, where no prefill was recorded)."""
        return self.prefill_LE / self.prefill_tokens if self.prefill_tokens else self.rho_LE

    def coverage(self, resident_LE: NDArray[np.bool_]) -> float:
        """Share of the routes that go to resident experts, 0 to 1."""
        total = float(self.rho_LE.sum())
        return float(self.rho_LE[resident_LE].sum()) / total if total else 0.0

    def cold(self, resident_LE: NDArray[np.bool_]) -> "ColdStatistics":
        """What a residency set leaves to the CPU, were the experts of a step chosen independently.

        μ is exact; q is an estimate, and never above min(1, μ), its bound for any joint distribution.
        """
        rho = np.where(resident_LE, 0.0, np.minimum(self.rho_LE, 1.0))
        share = np.zeros((len(rho), self.experts_per_token + 1))
        share[:, 0] = 1.0
        for p in rho.T[:, :, None]:
            moved = share * p
            share -= moved
            share[:, 1:] += moved[:, :-1]
            share[:, -1] += moved[:, -1]  # more than K can't be
        return ColdStatistics(mu_L=rho.sum(1), q_L=1 - share[:, 0], share_LR=share, exact=False)

    def __add__(self, other: "RouteCounts") -> "RouteCounts":
        """Both recordings together; the workload hash names the two.

        Raises:
            SetupError: they come from different models.
        """
        if self.model_hash != other.model_hash or self.shape != other.shape:
            raise SetupError("routes of different models can't be added; record them with one model")
        both = sorted({*self.workload_hash.split("+"), *other.workload_hash.split("+")})
        return replace(
            self,
            decode_LE=self.decode_LE + other.decode_LE,
            prefill_LE=self.prefill_LE + other.prefill_LE,
            decode_steps=self.decode_steps + other.decode_steps,
            prefill_tokens=self.prefill_tokens + other.prefill_tokens,
            workload_hash="+".join(both),
        )


@dataclass(frozen=True, kw_only=True)
class RouteTrace:
    """The experts of every decode step, in order."""

    experts_NLK: NDArray[np.int16]
    """The K experts of a step and layer; they differ from each other."""
    request_N: NDArray[np.int32]
    """Which request a step belongs to, counted from 0, in order; a prefill ran before each."""
    experts: int
    model_hash: str
    workload_hash: str

    @property
    def shape(self) -> tuple[int, int]:
        return self.experts_NLK.shape[1], self.experts

    def counts(self) -> RouteCounts:
        layers, experts = self.shape
        total = np.zeros(layers * experts, np.int64)
        offset = np.arange(layers, dtype=np.int64)[:, None] * experts
        for start in range(0, len(self.experts_NLK), _BLOCK):
            flat = (self.experts_NLK[start : start + _BLOCK] + offset).ravel()
            total += np.bincount(flat, minlength=layers * experts)
        return RouteCounts(
            decode_LE=total.reshape(layers, experts),
            prefill_LE=np.zeros((layers, experts), np.int64),
            decode_steps=len(self.experts_NLK),
            prefill_tokens=0,
            experts_per_token=self.experts_NLK.shape[2],
            model_hash=self.model_hash,
            workload_hash=self.workload_hash,
        )

    def requests(self, first: int, last: int) -> "RouteTrace":
        """The steps of requests ``first`` to ``last`` - 1."""
        steps = slice(*np.searchsorted(self.request_N, [first, last]))
        return replace(self, experts_NLK=self.experts_NLK[steps], request_N=self.request_N[steps])

    def cold_NL(self, resident_LE: NDArray[np.bool_]) -> NDArray[np.int16]:
        """r: cold routes of every step and layer."""
        layer = np.arange(self.shape[0])[:, None]
        cold = np.empty(self.experts_NLK.shape[:2], np.int16)
        for start in range(0, len(cold), _BLOCK):
            block = self.experts_NLK[start : start + _BLOCK]
            cold[start : start + _BLOCK] = (~resident_LE[layer, block]).sum(2)
        return cold

    def cold(self, resident_LE: NDArray[np.bool_]) -> "ColdStatistics":
        """What a residency set leaves to the CPU in this trace."""
        return cold_statistics(self.cold_NL(resident_LE), self.experts_NLK.shape[2])


@dataclass(frozen=True, kw_only=True)
class ColdStatistics:
    """Cold routes of a decode step under one residency set."""

    mu_L: NDArray[np.float64]
    """Expected number."""
    q_L: NDArray[np.float64]
    """Probability that there is any."""
    share_LR: NDArray[np.float64]
    """Probability that there are 0, 1, … K."""
    exact: bool
    """Whether q and the shares were counted step by step, or estimated from counts."""


def cold_statistics(cold_NL: NDArray[np.integer[Any]], most: int) -> ColdStatistics:
    """Add up the cold routes of every step and layer, of which there are at most ``most``."""
    share = np.stack([(cold_NL == r).mean(0) for r in range(most + 1)], axis=1)
    return ColdStatistics(mu_L=cold_NL.mean(0, dtype=np.float64), q_L=1 - share[:, 0], share_LR=share, exact=True)


def write(path: Path, routes: RouteCounts | RouteTrace) -> None:
    """Save as a compressed NumPy archive; it appears under its name only when complete.

    Fields of a file (version 1): ``version``, ``kind`` (``counts`` or ``trace``), ``model_hash``, ``workload_hash``,
    and for counts ``decode`` [L, E] int64, ``prefill`` [L, E] int64, ``decode_steps``, ``prefill_tokens``,
    ``experts_per_token``; for a trace ``routes`` [N, L, K] int16, ``request`` [N] int32, ``experts``.
    """
    common: dict[str, Any] = {
        "version": VERSION,
        "model_hash": routes.model_hash,
        "workload_hash": routes.workload_hash,
    }
    if isinstance(routes, RouteCounts):
        fields: dict[str, Any] = {
            "kind": "counts",
            "decode": routes.decode_LE,
            "prefill": routes.prefill_LE,
            "decode_steps": routes.decode_steps,
            "prefill_tokens": routes.prefill_tokens,
            "experts_per_token": routes.experts_per_token,
        }
    else:
        fields = {
            "kind": "trace",
            "routes": routes.experts_NLK,
            "request": routes.request_N,
            "experts": routes.experts,
        }
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, **common, **fields)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(path: Path) -> RouteCounts | RouteTrace:
    """Load what ``write`` saved.

    Raises:
        SetupError: no such file, not one of these, written by a newer version.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            fields = {name: archive[name] for name in archive.files}
    except OSError as error:
        raise SetupError(
            f"{path} can't be read: {error.strerror or error}; name a file of recorded routes"
        ) from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise SetupError(f"{path} is no file of recorded routes: {error}") from error
    try:
        if (version := int(fields["version"])) > VERSION:
            raise SetupError(f"{path} has version {version}, this program reads up to {VERSION}; update it")
        hashes = {name: str(fields[name]) for name in ("model_hash", "workload_hash")}
        if str(fields["kind"]) == "trace":
            return RouteTrace(
                experts_NLK=fields["routes"], request_N=fields["request"], experts=int(fields["experts"]), **hashes
            )
        return RouteCounts(
            decode_LE=fields["decode"],
            prefill_LE=fields["prefill"],
            decode_steps=int(fields["decode_steps"]),
            prefill_tokens=int(fields["prefill_tokens"]),
            experts_per_token=int(fields["experts_per_token"]),
            **hashes,
        )
    except KeyError as error:
        raise SetupError(f"{path} lacks the field {error}; record the routes again") from error


def read_counts(path: Path) -> RouteCounts:
    """``read``, as counts: a trace is added up."""
    routes = read(path)
    return routes.counts() if isinstance(routes, RouteTrace) else routes
