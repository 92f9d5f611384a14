"""The truth of a run: paired held-out gold against the start, with the arithmetic on the page."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf_lab.monitoring.gold_fall import Fall
from rlhf_lab.monitoring.truth import GoldTruth, gold_fell, heldout_truth, truth_of_samples

START = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
"""Standard deviation between prompts √2.5 = 1.5811, so the margin is 0.2 · 1.5811 = 0.3162."""
QUANTILE = 2.1318
"""95 % quantile of the t distribution with 4 degrees of freedom."""


def test_the_two_statements():
    """Differences with mean m and standard deviation √2.5·c: a half-width of 2.1318 · 1.5811·c / √5 = 1.5074·c."""
    spread = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])  # mean 0, standard deviation 1.5811
    half_width = QUANTILE * math.sqrt(2.5) / math.sqrt(5)
    assert half_width == pytest.approx(1.5074, abs=1e-4)
    c = 0.1
    # fell: m + 0.1507 < 0
    assert gold_fell(START, START - 0.151 + c * spread) is True
    # not fallen: m − 0.1507 ≥ −0.3162, that is m ≥ −0.1655
    assert gold_fell(START, START - 0.149 + c * spread) is False
    assert gold_fell(START, START + 0.5 + c * spread) is False
    # with a spread of .3 (half-width .4522) no change is undecided: .4522 is above 0, and −.4522 below −.3162
    assert gold_fell(START, START + 0.3 * spread) is None
    # a fall that is significant and within the margin is a fall
    assert gold_fell(START, START - 0.1 + 0.01 * spread) is True
    # the same responses on every prompt
    assert gold_fell(START, START) is False


def rows(gold_P, samples: int = 2) -> list[dict]:
    """Rows of evaluation.jsonl: two responses per prompt, half a unit above and below the prompt's mean."""
    return [
        {"prompt_id": prompt, "gold": float(gold) + 0.5 * (2 * sample - 1)}
        for prompt, gold in enumerate(gold_P)
        for sample in range(samples)
    ]


def test_prompts_are_paired():
    """Prompts differ by 1.6 and the change is only −0.3: without pairing nothing would be decided."""
    wobble = 0.05 * np.array([1, -1, 1, -1, 0])
    truth = heldout_truth(rows(START), [(10, rows(START - 0.3 + wobble))])
    assert truth == GoldTruth(True, 10.0, pytest.approx(-0.3))
    # mean of two responses per prompt; an unscored response does not count, and neither does an unscored prompt
    unscored = rows(START - 0.3 + wobble)
    unscored[0] = unscored[0] | {"gold": None}
    unscored[9] = unscored[9] | {"gold": None}
    unscored[8] = unscored[8] | {"gold": None}
    truth = heldout_truth(rows(START), [(10, unscored)])
    # prompt 0 keeps its higher response (+.5), prompt 4 has none: (−.25 + .5 − .35 − .25 − .35) / 4
    assert truth is not None and truth.change == pytest.approx(-0.175)
    assert heldout_truth(rows(START), [(10, rows(START[:1]))]) is None
    assert heldout_truth([row | {"gold": None} for row in rows(START)], [(10, rows(START))]) is None


def test_the_fall_is_where_gold_stays_below_the_start():
    def after(change: float) -> list[dict]:
        return rows(START + change + 0.05 * np.array([1, -1, 1, -1, 0]))

    # below the start at 5, above it at 10, then below for good
    curve = [(5, after(-0.4)), (10, after(0.2)), (15, after(-0.4)), (20, after(-0.8))]
    assert heldout_truth(rows(START), curve) == GoldTruth(True, 15.0, pytest.approx(-0.8))
    # the last policy decides, and only a fall has a time
    recovered = heldout_truth(rows(START), [*curve, (25, after(0.1))])
    assert recovered is not None and recovered.fell is False and math.isnan(recovered.fell_at)


def test_error_rates():
    """2,000 runs of 64 prompts. No change is called a fall in at most 5 %; a fall by the margin is missed as rarely."""
    rng = np.random.default_rng(0)
    start_RP = rng.standard_normal((2000, 64))

    def verdicts(change: float) -> list[bool | None]:
        noise_RP = 0.5 * rng.standard_normal(start_RP.shape)
        return [gold_fell(start, start + change + noise) for start, noise in zip(start_RP, noise_RP, strict=True)]

    assert np.mean([verdict is True for verdict in verdicts(0.0)]) < 0.065
    assert np.mean([verdict is False for verdict in verdicts(-0.2)]) < 0.065
    # −.9 standard deviations, as in the runs that the test of samples missed
    assert np.mean([verdict is True for verdict in verdicts(-0.9)]) > 0.999


def test_samples_alone_can_only_show_a_fall():
    assert truth_of_samples(Fall(peak=12, fall=20)).fell_at == 20
    assert truth_of_samples(None).fell is None


@pytest.mark.parametrize("truth", [GoldTruth(True, 15.0, -0.8), GoldTruth(False, change=0.2), GoldTruth(None)])
def test_a_result_keeps_the_truth(truth):
    """A result has null in place of NaN."""
    stored = {name: value if math.isfinite(value) else None for name, value in truth.to_metrics().items()}
    again = GoldTruth.from_metrics(stored)
    assert again is not None and repr(again) == repr(truth)
    assert GoldTruth.from_metrics({"gold": 1.0}) is None
