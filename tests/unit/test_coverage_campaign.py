"""The coverage campaign (`make coverage`) at its smallest, and that it judges as a study's page does."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import memory_study
import numpy as np
import pytest

from rlhf_lab.statistics.inference import wilson
from rlhf_lab.studies.replicates import level_difference
from rlhf_lab.studies.verdict import verdicts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def campaign():
    """The script as a module; it puts its folder at the end of the path."""
    position = ROOT / "tests" / "campaign" / "interval_coverage.py"
    spec = importlib.util.spec_from_file_location("coverage_campaign", position)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_rates_are_compared_as_in_a_study(campaign):
    counts_LS = np.array([[0, 1, 0], [2, 1, 1]])
    runs = [[wilson(int(count), 64) for count in level] for level in counts_LS]
    values_LSM4 = np.array([[[(run.mean, run.low, run.high, run.n)] for run in level] for level in runs])
    study = memory_study.build(values_LSM4, ("garble",), (0, 1), memory_study.REDRAWN)
    rates_LS = counts_LS / 64
    errors_LS = campaign.type_one.errors_of_rates(rates_LS, 64)
    mine = campaign.type_one.compare(rates_LS[1], rates_LS[0], errors_LS[1], errors_LS[0])
    stored = level_difference(study, "garble", "1")
    assert stored is not None
    assert mine.p_value == pytest.approx(stored.p_value)
    assert mine.difference.high == pytest.approx(stored.difference.high)


def test_claims_are_decided_as_those_of_a_study(campaign):
    type_one = campaign.type_one
    rng = np.random.default_rng(0)
    values = rng.normal(0, 0.3, size=type_one.shape(5)) + np.array([0.0, 2.0, 0.0, -2.0])[:, None, None]
    values_LSM4 = np.stack([values, np.full(values.shape, -math.inf), np.full(values.shape, math.inf)], axis=-1)
    values_LSM4 = np.concatenate([values_LSM4, np.ones((*values.shape, 1))], axis=-1).swapaxes(1, 2)
    study = memory_study.build(values_LSM4, ("gold", "kl"), range(4), memory_study.REDRAWN)
    claim = {"direction": "higher", "versus": None, "margin": 0.0, "by": None}
    claims = [{"metric": metric, "level": level, **claim} for metric in ("gold", "kl") for level in (1, 2, 3)]
    rows = verdicts(replace(study, predicts=tuple(claims)))
    comparisons = type_one.family(*type_one.without_errors(values))
    assert comparisons == [row.comparison for row in rows]
    found = type_one.decisions(comparisons, type_one.HIGHER)
    assert found == [row.verdict for row in rows]
    assert len(set(found)) == 3
