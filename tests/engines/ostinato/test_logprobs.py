"""Log-probabilities against a plain softmax."""

import math

import numpy as np

from engines.ostinato import logprobs


def test_they_are_the_logarithm_of_the_softmax_and_fall() -> None:
    logits = np.random.default_rng(0).normal(0, 5, 1000).astype(np.float32)
    shares = np.exp(logits.astype(np.float64) - logits.max())
    shares /= shares.sum()
    found = logprobs.of(logits, 17, 5)
    assert math.isclose(found.taken, math.log(shares[17]), rel_tol=1e-9)
    order = np.argsort(-shares)[:5]
    assert [id_ for id_, _ in found.top] == order.tolist()
    assert np.allclose([value for _, value in found.top], np.log(shares[order]), rtol=1e-9)


def test_large_logits_do_not_overflow_and_equal_ones_come_by_id() -> None:
    found = logprobs.of(np.array([900.0, 1e4, 1e4, 1e4], np.float32), 0, 2)
    assert [id_ for id_, _ in found.top] == [1, 2]
    assert math.isclose(found.top[0][1], -math.log(3))
    assert found.taken < -9000


def test_none_are_told_where_none_are_asked_for() -> None:
    assert logprobs.of(np.zeros(4, np.float32), 1, 0).top == ()
