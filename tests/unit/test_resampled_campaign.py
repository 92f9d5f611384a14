"""Resampled studies without a difference: false verdicts on made numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

CAMPAIGN = Path(__file__).parents[1] / "campaign"
sys.path.append(str(CAMPAIGN))

from resampled import false_verdicts, is_too_many, on_scale  # noqa: E402


def test_normal_runs_have_few_false_verdicts_and_drifting_ones_many():
    rng = np.random.default_rng(1)
    calm = false_verdicts({"gold": rng.standard_normal(80)}, 200)
    assert np.isfinite(calm).sum() <= 16 and not is_too_many(calm)
    # more than one claim: Holm keeps the family's rate
    family = {name: rng.standard_normal(80) for name in ("gold", "proxy", "win_rate")}
    assert np.isfinite(false_verdicts(family, 200)).sum() <= 16
    # 0 everywhere but in a run: never a verdict. The earliest verdict of a study has three seeds.
    assert np.isinf(false_verdicts({"gold": np.zeros(60)}, 20)).all()
    found = calm[np.isfinite(calm)]
    assert (found >= 3).all() and (found <= 40).all()


def test_the_limit_and_the_scale_of_rates():
    """P(X ≥ 17 | 200, .05) = .023 is below .025, and P(X ≥ 16) = .044 is not."""

    def decided(count: int) -> np.ndarray:
        return np.r_[np.full(count, 5.0), np.full(200 - count, np.inf)]

    assert not is_too_many(decided(16)) and is_too_many(decided(17))
    # 50 of 100: (50.5/101) = .5, logit 0. 75 of 100: 75.5/101, log(75.5/25.5).
    logits = on_scale("accuracy", np.array([0.5, 0.75]), np.array([100.0, 100.0]))
    assert logits == pytest.approx([0, np.log(75.5 / 25.5)])
