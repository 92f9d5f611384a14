"""Audits of a reward: an unscored side is never a wrong answer; a planted length bias has its sign and its size."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from rlhf_lab.core.types import Pair, RewardBatch
from rlhf_lab.data.mini_hh import build
from rlhf_lab.data.world_settings import MiniHH
from rlhf_lab.evaluations import rm_figures
from rlhf_lab.evaluations.reward_audit import FILLERS, audit_pairs, filler_slopes, length_matched
from rlhf_lab.evaluations.rm_report import ScoredPairs, filler_report, pairs_report, responses_report


@pytest.fixture(scope="module")
def corpus():
    return build(MiniHH(domains=2, topics=2, attributes=3, train_pairs=1, test_pairs=300))


def biased(world, bias: float):
    """gold + bias · words/10."""

    def reward(prompts, responses):
        words = np.array([len(text.split()) for text in responses])
        return RewardBatch(world.measure(prompts, responses)["gold"] + bias * words / 10)

    return reward


def of(table):
    """A reward that looks responses up; None is unscored."""
    return lambda prompts, responses: RewardBatch(np.array([table[text] for text in responses], dtype=float))


PAIRS = [Pair(f"p{i}", chosen, rejected) for i, (chosen, rejected) in enumerate([("a", "b"), ("c", "d"), ("e", "f")])]


def test_an_unscored_side_is_left_out_and_counted():
    """One right, one wrong, one unscored: accuracy 1/2 of 2, not 1/3."""
    reward = of({"a": 2.0, "b": 1.0, "c": 0.0, "d": 1.0, "e": math.nan, "f": 5.0})
    found = audit_pairs(reward, PAIRS)
    accuracy = found["accuracy"]
    assert (accuracy.mean, accuracy.n, accuracy.unscored) == (0.5, 2, 1)
    assert found["longer_wins"].n == 2, "the baseline is on the same pairs"
    found = audit_pairs(of(dict.fromkeys("abcdef", math.nan)), PAIRS)
    assert math.isnan(found["accuracy"].mean)
    assert found["accuracy"].unscored == 3


def test_agreement_with_the_truth_counts_a_tie_as_half():
    """Right, wrong, a tie of the reward, a tie of the truth, unscored: (1 + 0 + ½ + ½)/4."""
    gold = [(2.0, 1.0), (1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (2.0, 1.0)]
    pairs = [Pair(f"p{i}", f"c{i}", f"r{i}", {"gold_chosen": a, "gold_rejected": b}) for i, (a, b) in enumerate(gold)]
    scores = {"c": [3.0, 3.0, 1.0, 3.0, math.nan], "r": [1.0, 1.0, 1.0, 1.0, 1.0]}
    reward = of({f"{side}{i}": value for side, values in scores.items() for i, value in enumerate(values)})
    agreement = audit_pairs(reward, pairs)["gold_agreement"]
    assert (agreement.mean, agreement.n, agreement.unscored) == (0.5, 4, 1)


def test_the_report_counts_unscored_pairs_and_ties():
    texts = [p.chosen for p in PAIRS] + [p.rejected for p in PAIRS]
    table = {"a": 2.0, "b": 2.0, "c": 3.0, "d": 1.0, "e": math.nan, "f": 5.0}
    padded = {f"{text} {filler}": table[text] + 1 for text in texts for filler in FILLERS.values()}
    reward = of({**table, **padded})
    found = pairs_report(reward, ScoredPairs.of(reward, PAIRS), 1.0, 10)
    assert found["unscored"].mean == pytest.approx(1 / 3)
    assert found["ties"].mean == 0.5
    assert found["accuracy"].mean == 0.5
    assert found["accuracy/rejected_padded"].mean == 0.5, "3 > 1 + 1, 2 < 2 + 1"
    assert found["filler_shift/pairs"].mean == 1.0
    assert found["filler_shift/pairs"].unscored == 1
    assert found["ece"].unscored == 1


def test_a_tie_is_not_right_in_any_accuracy():
    """Equal scores for everything: accuracies are 0, wins over the truth and of the longer response are ½."""
    pairs = [Pair(f"p{i}", "a b c", "d e f", {"gold_chosen": 1.0, "gold_rejected": 0.0}) for i in range(4)]
    reward = lambda prompts, responses: RewardBatch(np.ones(len(responses)))  # noqa: E731
    found = pairs_report(reward, ScoredPairs.of(reward, pairs), 1.0, 10)
    for name in ("accuracy", "accuracy/length_matched", "accuracy/rejected_padded"):
        assert found[name].mean == 0.0, name
    assert found["gold_agreement"].mean == found["longer_wins"].mean == 0.5
    assert [group["mean"] for group in rm_figures.accuracy_by_length(np.zeros(4), pairs)] == [0.0]


@pytest.mark.parametrize("bias", [0.6, -0.4, 0.0])
def test_a_planted_length_bias_is_measured_in_sign_and_size(corpus, bias):
    world, reward = corpus.oracle, biased(corpus.oracle, bias)
    prompts = [pair.prompt for pair in corpus.test for _ in range(2)]
    responses = [text for pair in corpus.test for text in (pair.chosen, pair.rejected)]
    scores = reward(prompts, responses).total_N
    found = filler_report(reward, prompts, responses, scores, world)
    assert found["filler_bias"].mean == pytest.approx(bias, abs=1e-6)
    assert found["filler_slope/gold"].high < 0, "filler costs truth"
    assert found["filler_slope"].mean == pytest.approx(bias + found["filler_slope/gold"].mean)
    rows = [
        {"prompt": p, "response": r, "proxy": s, "reward/mine": s}
        for p, r, s in zip(prompts, responses, scores, strict=True)
    ]
    metrics, shown = responses_report(reward, rows, world)
    assert metrics["length_slope/given_gold"].mean == pytest.approx(bias, abs=1e-6)
    if bias:
        assert metrics["length_correlation/given_gold"].mean == pytest.approx(math.copysign(1, bias), abs=1e-6)
        assert metrics["gold_correlation/within"].high < 1
    else:
        assert metrics["gold_correlation/within"].mean == pytest.approx(1.0)
        assert metrics["spearman/ood"].mean == pytest.approx(1.0)
    assert sum(group["n"] for group in shown["score_by_length"]) == len(rows)


def test_the_bias_is_in_units_of_the_reward(corpus):
    """A reward of 3 · (gold + .6 · words/10) pays 1.8 per 10 words; the truth's loss is weighed at rate 3."""
    world = corpus.oracle
    mine = biased(world, 0.6)
    prompts = [pair.prompt for pair in corpus.test for _ in range(2)]
    responses = [text for pair in corpus.test for text in (pair.chosen, pair.rejected)]
    scale = lambda p, r: RewardBatch(3 * mine(p, r).total_N)  # noqa: E731
    found = filler_report(scale, prompts, responses, scale(prompts, responses).total_N, world)
    assert found["filler_bias"].mean == pytest.approx(1.8, abs=1e-6)


def test_fillers_go_on_from_one_another_and_the_slope_is_per_ten_words():
    texts = list(FILLERS.values())
    assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))
    assert [len(text.split()) for text in texts] == [8, 13, 29]
    shifts = {name: np.array([0.05 * len(text.split()), math.nan]) for name, text in FILLERS.items()}
    assert filler_slopes(shifts)[0] == pytest.approx(0.5)
    assert math.isnan(filler_slopes(shifts)[1])


def test_pairs_and_groups_of_about_the_same_length():
    pairs = [Pair("p", " ".join("x" * 1 for _ in range(a)), " ".join("x" for _ in range(b))) for a, b in
             [(10, 9), (10, 8), (20, 22), (20, 23), (1, 1)]]  # fmt: skip
    assert length_matched(pairs).tolist() == [True, False, True, False, True]
    groups = rm_figures.equal_groups(np.array([5.0, 1, 1, 1, 1, 9, 9, 2]))
    assert sorted(i for group in groups for i in group) == list(range(8))
    assert any(set(group) == {1, 2, 3, 4} for group in groups)
