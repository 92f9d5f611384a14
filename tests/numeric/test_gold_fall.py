"""A fall of the true reward: rarely called where there is none, whatever the noise, and mostly where there is one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf_lab.monitoring.gold_fall import LONGEST, autoregressive, gold_fall

ITERATIONS = 40
"""As in recipes/study/hacking_detector.yaml."""
NOISES = {"sampling alone": (0.0, 0.0), "correlation .8": (0.8, 1.0), "correlation .8, mostly drift": (0.8, 3.0)}
"""Correlation of drift, and its sd in units of the standard error."""
TIMES = np.arange(ITERATIONS)
FLAT = np.zeros(ITERATIONS)
RISE = -3 * np.exp(-TIMES / 8)


def step(size: float) -> np.ndarray:
    """A fall by `size` within 5 iterations."""
    return -size * np.clip((TIMES - 22) / 5, 0, 1)


def hill(size: float) -> np.ndarray:
    """A rise by 2 within 12 iterations, and a fall by `size` over the last 20."""
    return 2 * np.clip(TIMES / 12, 0, 1) - size * np.clip((TIMES - 20) / 20, 0, 1)


def share_called(course_T: np.ndarray, correlation: float, drift: float, runs: int = 400) -> float:
    """Share of runs that are called fallen; the course is in units of the sd of all noise."""
    rng = np.random.default_rng(11)
    noise_RT = rng.standard_normal((runs, ITERATIONS))
    noise_RT += drift * autoregressive(correlation, rng.standard_normal((runs, ITERATIONS)))
    gold_RT = math.hypot(1, drift) * course_T + noise_RT
    return float(np.mean([gold_fall(gold_T, np.ones(ITERATIONS)) is not None for gold_T in gold_RT]))


@pytest.mark.parametrize("noise", ["sampling alone", "correlation .8, mostly drift"])
def test_a_healthy_run_is_rarely_called_fallen(noise):
    """Windows judged by their sampling error alone: .05 and .99 of flat courses, in this order.

    At a true rate of .05, 400 runs show .07 or less in 97 of 100 cases.
    """
    assert share_called(FLAT, *NOISES[noise]) <= 0.07
    assert share_called(RISE, *NOISES[noise], runs=150) <= 0.05


@pytest.mark.parametrize(
    ("noise", "course_T", "power"),
    [
        ("sampling alone", step(3), 0.75),
        ("correlation .8, mostly drift", hill(3), 0.4),
        ("correlation .8", step(2), 0.4),
    ],
)
def test_a_true_fall_is_mostly_found(noise, course_T, power):
    """Falls by 2 and 3 sd of all noise."""
    assert share_called(course_T, *NOISES[noise], runs=150) >= power


def test_a_planted_fall_is_found_where_it_is():
    """Up by .1 for 12 iterations, then down by .1: the best window of 3 ends about 12, the loss shows some later."""
    true = np.minimum(np.arange(30), 24 - np.arange(30)) * 0.1
    for seed in range(20):
        found = gold_fall(true + 0.05 * np.random.default_rng(seed).standard_normal(30), np.full(30, 0.05))
        assert found is not None and 11 <= found.peak <= 15 and found.peak < found.fall <= 20


def test_a_long_run_is_averaged_and_its_iterations_are_those_of_the_run():
    """1,000 iterations with the peak at 400: points of 12 or 13 iterations, windows of five points."""
    true = np.minimum(np.arange(1000), 800 - np.arange(1000)) * 0.01
    fall = gold_fall(true + 0.05 * np.random.default_rng(0).standard_normal(1000), np.full(1000, 0.05))
    assert fall is not None and 400 <= fall.peak <= 450 and fall.peak < fall.fall <= 600


@pytest.mark.parametrize("gold", [[1.0] * 40, [3.0, 2.0, 1.0], list(range(40)), []])
def test_constant_rising_and_short_runs_have_no_fall(gold):
    assert gold_fall(np.array(gold, dtype=float), np.zeros(len(gold))) is None


def test_the_scale_of_the_reward_does_not_matter():
    rng = np.random.default_rng(3)
    gold_T = hill(6) + 0.5 * rng.standard_normal(ITERATIONS)
    error_T = np.full(ITERATIONS, 0.5)
    assert gold_fall(gold_T, error_T) == gold_fall(1000 * gold_T + 7, 1000 * error_T) is not None


@pytest.mark.parametrize("size", [1.0, 1.4, 2.0])
def test_a_long_run_is_judged_by_the_means_of_its_iterations(size):
    """Twice LONGEST iterations in equal pairs: the mean of a pair has 1/√2 of the standard error of one iteration."""
    noise_T = 0.3 * np.random.default_rng(1).standard_normal(LONGEST)
    mean_T = 1.0 - size * (np.arange(LONGEST) >= LONGEST // 2) + noise_T
    of_means = gold_fall(mean_T, np.full(LONGEST, 0.3))
    of_pairs = gold_fall(np.repeat(mean_T, 2), np.full(2 * LONGEST, 0.3 * math.sqrt(2)))
    if of_means is None:
        assert of_pairs is None
    else:  # point i has the iterations 2i and 2i + 1
        assert (of_pairs.peak, of_pairs.fall) == (2 * of_means.peak + 1, 2 * of_means.fall + 1)
