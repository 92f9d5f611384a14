"""Every accepted result of a study says its seeds, what differed between them, the rule, and what holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlhf_lab.config import inventory

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
RECIPES = [name.removeprefix("study/") for name in inventory.recipes() if name.startswith("study/")]
STUDIES = sorted(name for name in RECIPES if (RESULTS / f"{name}.md").is_file())


def lacks(page: str) -> list[str]:
    """Return the required statements that a page lacks."""
    parts = {
        # a page of correlations over settings may have one seed
        "its seeds": r"\d seeds \(\d+(, \d+)+\)|over \d+ settings",
        "what its intervals speak for": r"(?i)intervals (speak for|describe|do not cover|are 95 % percentiles over)",
        "the rule": r"Differences are judged by a (paired )?t test",
        "the verdict": r"(?m)\A# .+\n\n.*(confirmed|undecided|exploratory|Not distinguishable|It is (higher|lower))",
    }
    return [name for name, pattern in parts.items() if not re.search(pattern, page)]


def test_there_are_pages():
    assert len(STUDIES) >= 19


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_says_what_it_rests_on(name):
    missing = lacks((RESULTS / f"{name}.md").read_text(encoding="utf-8"))
    assert not missing, f"{name} lacks {', '.join(missing)}"
