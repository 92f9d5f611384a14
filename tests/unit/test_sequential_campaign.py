"""The simulation of sequential verdicts (`make sequential`) at its smallest, and its committed page."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from rlhf_lab.statistics.inference import holm

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "sequential.md"


@pytest.fixture(scope="module")
def campaign():
    """The script as a module; it puts its directory at the end of the path."""
    spec = importlib.util.spec_from_file_location("sequential_campaign", ROOT / "tests" / "campaign" / "sequential.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def outline(page: str) -> list[str]:
    """Headings, headers and row labels of a page, without numbers."""
    lines = [line for line in page.splitlines() if line.startswith(("## ", "| "))]
    return [re.sub(r" (\d+\.\d+|\.\d+|\d+)(?= \|)", "", line) for line in lines]


def test_the_quick_page_has_every_row_of_the_committed_one(campaign):
    tables = [part(campaign.QUICK) for part in campaign.PARTS]
    page = campaign.render(tables, campaign.QUICK, 0.0)
    assert outline(page) == outline(PAGE.read_text(encoding="utf-8"))
    assert "nan" not in page


def test_the_committed_page_shows_valid_verdicts_and_how_it_was_made():
    """Normal and symmetric differences: at most .05, and twice the standard error of 20,000 studies."""
    text = PAGE.read_text(encoding="utf-8")
    assert "`python tests/campaign/sequential.py --out docs/results/sequential.md` (`make sequential`)" in text
    assert "20000 studies per cell" in text
    for name in ("normal", "t with 3 degrees of freedom", "exponential, symmetric", "amounts, log scale"):
        row = re.search(rf"^\| {name} \|(.*)\|$", text, re.MULTILINE)
        assert row is not None
        rates = [float(cell) for cell in row[1].split("|")]
        assert len(rates) == 9 and max(rates) <= 0.054


def test_rejections_are_those_of_holm(campaign):
    p_C = np.random.default_rng(0).random((5, 200)) ** 4
    expected = np.array([holm(list(column)) for column in p_C.T]).T <= campaign.ALPHA
    assert np.array_equal(campaign.rejections(p_C), expected)
    assert 0 < expected.mean() < 1


def test_a_t_test_with_this_number_of_seeds_has_the_power(campaign):
    # One claim, two sd, t test at 5 %: power .755 with four seeds, .909 with five (noncentral t).
    assert campaign.fixed_seeds(2.0, 1, 0.8) == 5
    assert campaign.fixed_seeds(2.0, 6, 0.8) > 5


def test_the_calibration_is_the_committed_table(campaign):
    minima = campaign.calibration(2000)
    boundaries = dict(campaign.BOUNDARIES)
    for level in (0.1, 0.3):
        assert np.mean(minima <= boundaries[level]) == pytest.approx(level, abs=4 * (level / 2000) ** 0.5)
