"""Seeded sessions with given turn counts, kinds and lengths, for when no recording fits or may be shared."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from workloads.session import Session, Turn, TurnKind, WorkloadError

SOURCE = "synthetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCount:
    """A log-normal length in tokens, clipped to ``low .. high``."""

    median: float
    sigma: float
    """Standard deviation of the logarithm; 0 always gives the median."""
    low: int
    high: int

    def draw(self, rng: np.random.Generator) -> int:
        length = round(self.median * float(np.exp(self.sigma * rng.standard_normal())))
        return min(max(length, self.low), self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSpec:
    """The shape of the sessions; nine in ten of the default ones end at 1,800 to 3,900 tokens."""

    sessions: int = 4
    turns: int = 12
    """Model calls a session."""
    seed: int = 0
    vocab_size: int
    """Ids drawn are below this."""
    first_id: int = 0
    """Ids drawn start here, above the tokenizer's special ids."""
    tool_share: float = 0.75
    """How likely a turn after the first answers a tool output; the others answer the user."""
    first: TokenCount = TokenCount(median=700, sigma=0.2, low=400, high=1200)
    tool: TokenCount = TokenCount(median=110, sigma=1.0, low=20, high=2500)
    user: TokenCount = TokenCount(median=40, sigma=0.5, low=8, high=200)
    output: TokenCount = TokenCount(median=32, sigma=0.4, low=8, high=400)


def generate(spec: SyntheticSpec) -> Iterator[Session]:
    """Yield the sessions; the k-th depends on the seed and k alone, not on how many are drawn.

    Ids are uniform over ``first_id .. vocab_size``, so every expert of a model sees its share of tokens.

    Raises:
        WorkloadError: a count that is not positive, or no ids to draw from.
    """
    if spec.sessions < 1:
        raise WorkloadError(f"workload.sessions={spec.sessions}: set it to 1 or more")
    if spec.turns < 1:
        raise WorkloadError(f"workload.turns={spec.turns}: set it to 1 or more")
    if spec.seed < 0:
        raise WorkloadError(f"workload.seed={spec.seed}: set it to 0 or more")
    if not 0 <= spec.first_id < spec.vocab_size:
        raise WorkloadError(
            f"no ids between {spec.first_id} and the vocabulary's size {spec.vocab_size}; use another tokenizer"
        )
    for k in range(spec.sessions):
        yield _session(spec, k)


def _session(spec: SyntheticSpec, k: int) -> Session:
    rng = np.random.default_rng([spec.seed, k])
    turns = []
    for index in range(spec.turns):
        kind = _kind(spec, index, rng)
        delta = {"first": spec.first, "tool": spec.tool, "user": spec.user}[kind]
        turns.append(
            Turn(
                kind=kind,
                delta_ids=_ids(spec, delta.draw(rng), rng),
                output_ids=_ids(spec, spec.output.draw(rng), rng),
            )
        )
    name = f"synthetic-{spec.seed}-{k}"
    return Session(session_id=name, source=SOURCE, task_id=name, turns=tuple(turns))


def _kind(spec: SyntheticSpec, index: int, rng: np.random.Generator) -> TurnKind:
    if index == 0:
        return "first"
    return "tool" if rng.random() < spec.tool_share else "user"


def _ids(spec: SyntheticSpec, count: int, rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(rng.integers(spec.first_id, spec.vocab_size, size=count).tolist())
