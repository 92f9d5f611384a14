"""Every accepted result of a study says its seeds, what differed between them, the rule, and what holds."""

from __future__ import annotations

import re

import pytest
from docs_site import results

from rlhf_lab.cli.results import CODE_LINK
from rlhf_lab.config import inventory

STUDIES = {name: page for name in inventory.recipes() if name.startswith("study/") and (page := results.page_of(name))}


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


def test_only_pages_that_record_their_code_are_outside_the_archive():
    recorded = {page.name for page in STUDIES.values() if CODE_LINK.search(page.read_text(encoding="utf-8"))}
    assert recorded == {page.name for page in STUDIES.values() if page.parent != results.ARCHIVE}


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_page_says_what_it_rests_on(name):
    missing = lacks(STUDIES[name].read_text(encoding="utf-8"))
    assert not missing, f"{name} lacks {', '.join(missing)}"
