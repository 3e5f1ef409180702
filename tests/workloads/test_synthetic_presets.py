"""Presets have the published numbers of sessions, turns, outputs and new tokens, whatever the seed."""

from statistics import median

import pytest

from workloads.presets import GENERATED, MIXES, NAMES, NEW_TOKENS, PREFIXES, PROMPTS, generate
from workloads.session import Session, WorkloadError

# Ostinato (arXiv 2611.11533v1), table 2: sessions, turns, output tokens, median of new tokens.
PUBLISHED = {
    "swe_development": (6, 400, 105_879, 258),
    "swe_screening": (2, 60, 9_842, 335),
    "swe_heldout": (13, 893, 215_341, 249),
    "tau2_development": (24, 335, 32_931, 135),
    "tau2_heldout": (60, 916, 83_687, 118),
}
# Table 7: turns after the session's start, a tool output, a user message.
BY_KIND = {"swe_heldout": (13, 880, 0), "tau2_heldout": (60, 504, 352)}


def made(name: str, seed: int = 0) -> list[Session]:
    return list(generate(name, seed=seed, first_id=10, vocab_size=4096))


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_mix_has_the_published_totals_and_median(name: str, seed: int) -> None:
    sessions = made(name, seed)
    turns = [turn for session in sessions for turn in session.turns]
    count, all_turns, outputs, new = PUBLISHED[name]
    assert (len(sessions), len(turns)) == (count, all_turns)
    assert sum(len(turn.output_ids) for turn in turns) == outputs
    assert median(len(turn.delta_ids) for turn in turns) == pytest.approx(new, rel=0.01)
    assert all(session.longest_context < 98_304 for session in sessions)
    assert {session.turns[0].kind for session in sessions} == {"first"}
    assert all(turn.delta_ids and turn.output_ids for turn in turns)


@pytest.mark.parametrize("name", BY_KIND)
def test_a_mix_has_the_published_turns_of_each_kind(name: str) -> None:
    kinds = [turn.kind for session in made(name) for turn in session.turns]
    assert tuple(kinds.count(kind) for kind in ("first", "tool", "user")) == BY_KIND[name]


def test_three_quarters_of_swe_turns_are_shorter_than_512_tokens() -> None:
    later = [len(turn.delta_ids) for session in made("swe_heldout") for turn in session.turns[1:]]
    assert 0.73 < sum(length < 512 for length in later) / len(later) < 0.77


def test_a_seed_gives_the_same_sessions_and_another_seed_others() -> None:
    assert made("tau2_development", 3) == made("tau2_development", 3)
    assert made("tau2_development", 3)[0].turns != made("tau2_development", 4)[0].turns


def test_the_sweep_prefills_every_length_after_every_prefix() -> None:
    sessions = made("sweep_new_tokens")
    assert (PREFIXES[0], PREFIXES[-1], len(PREFIXES)) == (7_400, 39_300, 8)
    for prefix, session in zip(PREFIXES, sessions, strict=True):
        first, *later = session.turns
        assert len(first.delta_ids) == prefix
        assert sorted(len(turn.delta_ids) for turn in later) == sorted(NEW_TOKENS)
        assert {len(turn.output_ids) for turn in later} == {GENERATED}
        for prompt, turn in zip(session.prompts(), session.turns, strict=True):
            assert prompt[:prefix] == first.delta_ids
            assert len(prompt) == (prefix if turn is first else prefix + len(turn.delta_ids))


def test_the_other_sweeps_vary_one_length() -> None:
    prompts = [(len(turn.delta_ids), len(turn.output_ids)) for (turn,) in (s.turns for s in made("sweep_prompts"))]
    assert sorted(set(prompts)) == [(length, GENERATED) for length in PROMPTS]
    outputs = {(len(turn.delta_ids), len(turn.output_ids)) for (turn,) in (s.turns for s in made("sweep_outputs"))}
    assert (min(outputs), max(outputs)) == ((512, 32), (512, 2048))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("swe", {}, "workload.preset='swe' is unknown; known are swe_development, "),
        ("swe_heldout", {"seed": -1}, "workload.seed=-1: set it to 0 or more"),
        ("swe_heldout", {"first_id": 9}, "no ids between 9 and the vocabulary's size 9"),
    ],
)
def test_impossible_presets_are_refused(name: str, change: dict[str, int], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        list(generate(name, **{"seed": 0, "first_id": 0, "vocab_size": 9, **change}))


def test_every_mix_is_compared_with_its_publication() -> None:
    assert set(MIXES) == set(PUBLISHED)
    assert set(NAMES) > set(MIXES)
