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
