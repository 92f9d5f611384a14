"""A policy's own responses as pairs for a reward model: who won, and with what probability that was the choice."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from rlhf_lab.sampling.policy_responses import PolicyResponses


def test_the_probability_of_a_label_is_that_of_the_reply_that_was_chosen():
    """P(first) = .8, .3, .5: the first wins, the second wins with 1 − .3 = .7, and equal responses are no pair."""
    responses = (["q1", "q2", "q3"], ["a", "c", "same"], ["b", "d", "same"])
    oracle = SimpleNamespace(prefer=lambda *_, seed: (np.array([True, False, True]), np.array([0.8, 0.3, 0.5])))
    sampler = PolicyResponses.__new__(PolicyResponses)
    sampler.run = SimpleNamespace(corpus=SimpleNamespace(oracle=oracle), seed=lambda purpose: 1)
    sampler.sample_pairs = lambda split, count: responses
    pairs = sampler.labelled_pairs("train", 3)
    assert [(pair.prompt, pair.chosen, pair.rejected) for pair in pairs] == [("q1", "a", "b"), ("q2", "d", "c")]
    assert [pair.meta["p_chosen"] for pair in pairs] == [0.8, 0.7]
