"""The simulated rubric judge: its parameters by hand, planted biases recovered, errors that belong to the text."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf_lab.config.registry import build
from rlhf_lab.data.world_settings import MiniHH
from rlhf_lab.environments.dialogue.criteria import CRITERIA
from rlhf_lab.environments.grader import SimulatedGrader, text_errors

TRUE = np.array([[2.0, 3.0, 4.0, 3.0, 3.0]])
CALM = np.zeros((1, 5))


def grades(grader, true=TRUE, words=0.0, errors=CALM):
    return grader.grades(true, words=np.full(len(true), words), errors_NC=errors)[0].tolist()


def test_each_dial_by_hand():
    assert grades(SimulatedGrader()) == TRUE[0].tolist()
    # Mean impression 3: halfway to it from 2, 3, 4, 3, 3.
    assert grades(SimulatedGrader(halo=0.5)) == [2.5, 3, 3.5, 3, 3]
    assert grades(SimulatedGrader(halo=1.0)) == [3] * 5
    assert grades(SimulatedGrader(leniency=0.4)) == pytest.approx([2.4, 3.4, 4.4, 3.4, 3.4])
    assert grades(SimulatedGrader(length_bias=0.2), words=30) == pytest.approx([2.6, 3.6, 4.6, 3.6, 3.6])
    # An error of one standard deviation on the first criterion, 1.5 points, moves the impression by .3.
    error = np.array([[1.0, 0, 0, 0, 0]])
    assert grades(SimulatedGrader(noise=1.5), errors=error) == [3.5, 3, 4, 3, 3]
    assert grades(SimulatedGrader(noise=1.5, halo=1.0), errors=error) == pytest.approx([3.3] * 5)
    assert grades(SimulatedGrader(leniency=0.5, whole_points=True)) == [3, 4, 5, 4, 4]
    assert grades(SimulatedGrader(leniency=1.4, whole_points=True)) == [3, 4, 5, 4, 4]
    assert grades(SimulatedGrader(leniency=-2.2)) == pytest.approx([1, 1, 1.8, 1, 1])


def test_planted_dials_are_recovered_from_the_grades():
    """Away from the ends of the scale, grade − truth on words gives leniency and length bias; the rest is noise."""
    rng = np.random.default_rng(0)
    true, words = rng.uniform(2.5, 3.5, (20_000, 5)), rng.uniform(10, 60, 20_000)
    judge = SimulatedGrader(noise=0.3, leniency=-0.2, length_bias=0.1)
    error = judge.grades(true, words=words, errors_NC=rng.normal(size=true.shape)) - true
    slope, offset = np.polyfit(words / 10, error.mean(axis=1), 1)
    assert (slope, offset) == (pytest.approx(0.1, abs=0.005), pytest.approx(-0.2, abs=0.01))
    left = error - offset - slope * words[:, None] / 10
    assert left.std() == pytest.approx(0.3, abs=0.01)
    selected = SimulatedGrader(noise=0.3, halo=0.6).grades(true, words=words, errors_NC=rng.normal(size=true.shape))
    separate = selected - selected.mean(axis=1, keepdims=True)
    # The differences between criteria, of variance 1/12 + .09, shrink to 1 − .6 of their size.
    assert np.sqrt(5 / 4) * separate.std() == pytest.approx(0.4 * np.sqrt(1 / 12 + 0.09), rel=0.02)


def test_errors_are_standard_normal_and_belong_to_the_text():
    prompts, responses = [f"p{i % 7}" for i in range(5000)], [f"r{i}" for i in range(5000)]
    errors = text_errors(prompts, responses, 5, key=(0, 0))
    assert errors.shape == (5000, 5)
    assert errors.mean(axis=0) == pytest.approx(np.zeros(5), abs=0.06)  # 4 standard errors of 1/√5000
    assert np.cov(errors.T) == pytest.approx(np.eye(5), abs=0.07)
    assert (text_errors(prompts[3:4], responses[3:4], 5, key=(0, 0)) == errors[3:4]).all()
    assert (text_errors(prompts[3:4], responses[3:4], 5, key=(0, 1)) != errors[3:4]).all()
    assert (text_errors(["p3r"], ["3"], 5, key=(0, 0)) != text_errors(["p3"], ["r3"], 5, key=(0, 0))).all()


@pytest.fixture(scope="module")
def corpus():
    return build("data", MiniHH(train_pairs=3000, test_pairs=1))


def test_the_world_grades_each_reply_by_itself(corpus):
    world, prompts = corpus.oracle, [pair.prompt for pair in corpus.train[:40]]
    responses = [pair.chosen for pair in corpus.train[:40]]
    full = world.grade(prompts, responses, seed=0)
    assert full.shape == (40, len(CRITERIA))
    assert set(np.unique(full)) <= {1, 2, 3, 4, 5}
    assert (world.grade(prompts[7:9], responses[7:9], seed=0) == full[7:9]).all()
    assert (world.grade(prompts, responses, seed=1) != full).any()
    assert corpus.rubric.attributes == CRITERIA
    assert corpus.rubric.shares(np.array([1.0, 3.0, 5.0])).tolist() == [0, 0.5, 1]


def test_documented_statistics_of_the_judge(corpus):
    """The numbers in docs/world.md. They describe the judge; nothing in the code aims at them."""
    world, pairs = corpus.oracle, corpus.train
    prompts = [pair.prompt for pair in pairs]
    chosen, rejected = [pair.chosen for pair in pairs], [pair.rejected for pair in pairs]
    first, second = world.grade(prompts, chosen, seed=0), world.grade(prompts, rejected, seed=0)
    gold = np.array([pair.meta["gold_chosen"] - pair.meta["gold_rejected"] for pair in pairs])
    agrees = np.mean(np.sign(first.sum(1) - second.sum(1)) * np.sign(gold) / 2 + 0.5)
    assert agrees == pytest.approx(0.785, abs=6e-4)
    again = world.grade(prompts, chosen, seed=1)
    retest = [np.corrcoef(first[:, i], again[:, i])[0, 1] for i in range(5)]
    assert retest == pytest.approx([0.62, 0.42, 0.48, 0.42, 0.60], abs=6e-3)
