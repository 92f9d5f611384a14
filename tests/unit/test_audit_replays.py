"""Replays of the audit on made gold: their fall, win rate, alarms, claims, and runs that are refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "campaign"))

from audit_replays import PolicyReplays, claims, replays, upper_bound


def test_a_fall_of_one_deviation_is_found_and_a_rise_or_a_tie_is_not():
    """P(win) of two normals with a distance of 1 sd is Φ(∓1/√2) = .240 and .760."""
    rng = np.random.default_rng(0)
    start_PS = rng.standard_normal((300, 8))
    fallen = replays("fallen", rng.standard_normal((300, 8)) - 1, start_PS, 30, seed=1)
    assert fallen.fall == pytest.approx(1, abs=0.1) and fallen.win_rate == pytest.approx(0.240, abs=0.02)
    assert fallen.within(150) >= 29 and not fallen.is_healthy
    risen = replays("risen", rng.standard_normal((300, 8)) + 1, start_PS, 30, seed=2)
    assert risen.win_rate == pytest.approx(0.760, abs=0.02) and risen.within(np.inf) == 0
    # Two different responses are compared: with one gold value per prompt, every comparison is a tie.
    start_PS = np.repeat(np.arange(300.0)[:, None], 8, axis=1)
    null = replays("start", start_PS, start_PS, 5, seed=0)
    assert null.win_rate == 0.5 and np.isinf(null.alarms_R).all()


def test_claims_count_replays():
    null = PolicyReplays("SFT", 0, 0.5, np.r_[np.full(51, 80.0), np.full(949, np.inf)])
    healthy = PolicyReplays("better", -0.2, 0.6, np.full(400, np.inf))
    fallen = PolicyReplays("worse", 0.7, 0.2, np.r_[np.full(179, 144.0), np.full(21, 152.0)])
    (_, first, kept), (_, second, few), (_, third, in_time) = claims([null, healthy, fallen])
    assert first == "51 of 1000 replays, 5.1%" and kept is False
    # no alarm in 400: 1 − .05^(1/400) = .75 %
    assert "at most 0.7%" in second and few is True
    assert third.startswith("179 of 200 replays of 1 policies, 89.5%") and in_time is False
    assert upper_bound(0, 400) == pytest.approx(1 - 0.05 ** (1 / 400))
    assert [found for *_, found in claims([null])] == [False, None, None]
