"""The simulation of sequential verdicts (`make sequential`) at its smallest, and its committed page."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def campaign():
    """The script as a module; it puts its directory at the end of the path."""
    spec = importlib.util.spec_from_file_location("sequential_campaign", ROOT / "tests" / "campaign" / "sequential.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_calibration_is_the_committed_table(campaign):
    minima = campaign.calibration(2000)
    boundaries = dict(campaign.BOUNDARIES)
    for level in (0.1, 0.3):
        assert np.mean(minima <= boundaries[level]) == pytest.approx(level, abs=4 * (level / 2000) ** 0.5)
