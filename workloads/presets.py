"""Named sets of synthetic sessions: the shape of published workloads, and sweeps over one length.

A mix has the sessions, turns, output tokens and median of new tokens of its original exactly or to within a token;
what the publication does not say (spreads, first prompts) is an assumption stated here. Ids are random.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist, median

import numpy as np

from workloads.session import Session, Turn, TurnKind, WorkloadError

SOURCE = "synthetic"
Draw = Callable[[int, np.random.Generator], tuple[int, ...]]
"""So many ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Log-normal lengths, taken at equal steps of their distribution, so that no draw moves the totals."""

    sessions: int
    turns: int
    """Of all sessions together."""
    turns_sigma: float
    """Spread of the logarithm of a session's number of turns."""
    user_turns: int
    outputs: int
    """Output tokens of all sessions together."""
    outputs_sigma: float
    new_median: int
    """Median of the new prompt tokens over all turns."""
    new_sigma: float
    first: int
    """Median of the first prompt."""
    first_sigma: float
    user_to_tool: float = 1.0
    """Median of the new tokens after a user message over that after a tool output."""
    longest_new: int = 8192


# Ostinato (arXiv 2611.11533v1), table 2; turns by kind: table 7 (held-out), the same shares for development.
# "Three quarters of SWE turns prefill fewer than 512 tokens": sigma = ln(512 / 249) / 0.674 = 1.07. First prompts:
# system prompt, five tools and issue of a SWE-rebench row; policy and tools of a tau2 domain.
_SWE = partial(Mix, turns_sigma=0.35, user_turns=0, outputs_sigma=0.9, new_sigma=1.07, first=6200, first_sigma=0.15)
_TAU2 = partial(
    Mix, turns_sigma=0.35, outputs_sigma=0.7, new_sigma=0.9, first=4600, first_sigma=0.25, user_to_tool=0.3
)
MIXES: Mapping[str, Mix] = {
    "swe_development": _SWE(sessions=6, turns=400, outputs=105_879, new_median=258),
    "swe_screening": _SWE(sessions=2, turns=60, turns_sigma=0.0, outputs=9_842, new_median=335),
    "swe_heldout": _SWE(sessions=13, turns=893, outputs=215_341, new_median=249),
    "tau2_development": _TAU2(sessions=24, turns=335, user_turns=128, outputs=32_931, new_median=135),
    "tau2_heldout": _TAU2(sessions=60, turns=916, user_turns=352, outputs=83_687, new_median=118),
}

PREFIXES = tuple(round(7_400 * (39_300 / 7_400) ** (step / 7)) for step in range(8))
NEW_TOKENS = (128, 343, 511, 512, 1024)
PROMPTS = (512, 1024, 2048, 4096)
OUTPUTS = (32, 64, 128, 256, 512, 1024, 2048)
GENERATED = 128
REPEATS = 8
"""Sessions of each length of a sweep: as many as an interval takes."""


def generate(name: str, *, seed: int, first_id: int, vocab_size: int) -> Iterator[Session]:
    """Yield the sessions of a preset; ids are uniform over ``first_id .. vocab_size``.

    Raises:
        WorkloadError: no such preset, a negative seed, or no ids to draw from.
    """
    if name not in NAMES:
        raise WorkloadError(f"workload.preset={name!r} is unknown; known are {', '.join(NAMES)}")
    if seed < 0:
        raise WorkloadError(f"workload.seed={seed}: set it to 0 or more")
    if not 0 <= first_id < vocab_size:
        raise WorkloadError(
            f"no ids between {first_id} and the vocabulary's size {vocab_size}; use another tokenizer"
        )

    def draw(count: int, rng: np.random.Generator) -> tuple[int, ...]:
        return tuple(rng.integers(first_id, vocab_size, size=count).tolist())

    rng = np.random.default_rng([seed, NAMES.index(name)])
    made = _mix(MIXES[name], rng, draw) if name in MIXES else _SWEEPS[name](rng, draw)
    for number, turns in enumerate(made):
        identity = f"{name}-{seed}-{number}"
        yield Session(session_id=identity, source=SOURCE, task_id=identity, turns=tuple(turns))


def _mix(mix: Mix, rng: np.random.Generator, draw: Draw) -> Iterator[list[Turn]]:
    counts = _shares(mix.turns - mix.sessions, mix.sessions, mix.turns_sigma, rng)
    kinds: list[TurnKind] = ["user"] * mix.user_turns
    kinds += ["tool"] * (mix.turns - mix.sessions - mix.user_turns)
    rng.shuffle(kinds)
    first = iter(_quantiles(mix.sessions, mix.first, mix.first_sigma, rng))
    tool, user = _new_tokens(mix, rng)
    lengths: dict[TurnKind, Iterator[int]] = {"first": first, "tool": iter(tool), "user": iter(user)}
    outputs = iter(_shares(mix.outputs - mix.turns, mix.turns, mix.outputs_sigma, rng))
    later = iter(kinds)
    for count in counts:
        yield [
            Turn(
                kind=kind,
                delta_ids=draw(next(lengths[kind]), rng),
                output_ids=draw(1 + next(outputs), rng),
            )
            for kind in ("first", *(next(later) for _ in range(count)))
        ]


def _new_tokens(mix: Mix, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """New tokens after tool outputs and after user messages, scaled until the median over all turns is right."""
    tools = mix.turns - mix.sessions - mix.user_turns
    low, high = math.log(mix.new_median / 10), math.log(mix.new_median * 10)
    for _ in range(40):
        scale = (low + high) / 2
        tool = _steps(tools, math.exp(scale), mix.new_sigma, mix.longest_new)
        user = _steps(mix.user_turns, math.exp(scale) * mix.user_to_tool, mix.new_sigma / 2, mix.longest_new)
        # First prompts are longer than any median.
        too_long = median([*tool, *user, *[mix.longest_new] * mix.sessions]) > mix.new_median
        low, high = (low, scale) if too_long else (scale, high)
    return _shuffled(tool, rng), _shuffled(user, rng)


def _steps(count: int, middle: float, sigma: float, longest: int) -> list[int]:
    """A log-normal distribution at ``count`` equal steps of its probability."""
    normal = NormalDist()
    return [
        min(max(round(middle * math.exp(sigma * normal.inv_cdf((step + 0.5) / count))), 1), longest)
        for step in range(count)
    ]


def _quantiles(count: int, middle: float, sigma: float, rng: np.random.Generator) -> list[int]:
    return _shuffled(_steps(count, middle, sigma, 1 << 20), rng)


def _shares(total: int, count: int, sigma: float, rng: np.random.Generator) -> list[int]:
    """``total`` in ``count`` log-normal parts: rounded down, and the rest given to the largest remainders."""
    normal = NormalDist()
    weights = [math.exp(sigma * normal.inv_cdf((step + 0.5) / count)) for step in range(count)]
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [math.floor(part) for part in exact]
    by_remainder = sorted(range(count), key=lambda at: parts[at] - exact[at])
    for at in by_remainder[: total - sum(parts)]:
        parts[at] += 1
    return _shuffled(parts, rng)


def _shuffled(values: list[int], rng: np.random.Generator) -> list[int]:
    return [values[at] for at in rng.permutation(len(values))]


def _new_token_sweep(rng: np.random.Generator, draw: Draw) -> Iterator[list[Turn]]:
    """A session a prefix. Every turn after the first goes back to the prefix, so that all lengths come after it."""
    for prefix in PREFIXES:
        turns = [Turn(kind="first", delta_ids=draw(prefix, rng), output_ids=draw(1, rng))]
        turns += [
            Turn(kind="tool", delta_ids=draw(count, rng), output_ids=draw(GENERATED, rng), kept_ids=prefix)
            for count in _shuffled(list(NEW_TOKENS), rng)
        ]
        yield turns


def _one_turn(lengths: list[tuple[int, int]], rng: np.random.Generator, draw: Draw) -> Iterator[list[Turn]]:
    for prompt, output in lengths * REPEATS:
        yield [Turn(kind="first", delta_ids=draw(prompt, rng), output_ids=draw(output, rng))]


_SWEEPS: Mapping[str, Callable[[np.random.Generator, Draw], Iterator[list[Turn]]]] = {
    "sweep_new_tokens": _new_token_sweep,
    "sweep_prompts": partial(_one_turn, [(prompt, GENERATED) for prompt in PROMPTS]),
    "sweep_outputs": partial(_one_turn, [(512, output) for output in OUTPUTS]),
}
NAMES = (*MIXES, *_SWEEPS)
