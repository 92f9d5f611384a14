"""Every accepted result of a study says its seeds, what differed between them, the rule, and what holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlhf_lab.config import inventory

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
RECIPES = [name.removeprefix("study/") for name in inventory.recipes() if name.startswith("study/")]
STUDIES = sorted(name for name in RECIPES if (RESULTS / f"{name}.md").is_file())
BEFORE = {
    "buffers",
    "model_scale",
}
"""Pages from before docs/design/013, whose seeds share one corpus; a page leaves the list when it is run again."""


def lacks(page: str) -> list[str]:
    """What a page does not say."""
    parts = {
        "its seeds": r"\d seeds \(\d+(, \d+)+\)",
        "what its intervals speak for": r"intervals (speak for|do not cover)",
        "the rule": r"Differences are judged by a (paired )?t test",
        "the verdict": r"(?m)\A# .+\n\n.*(confirmed|undecided|Not distinguishable|It is (higher|lower))",
    }
    return [name for name, pattern in parts.items() if not re.search(pattern, page)]


def test_there_are_pages():
    assert len(STUDIES) >= 19
    assert not BEFORE - set(STUDIES)


@pytest.mark.parametrize("name", STUDIES)
def test_a_page_says_what_it_rests_on(name):
    missing = lacks((RESULTS / f"{name}.md").read_text(encoding="utf-8"))
    if name in BEFORE:
        assert missing, f"{name} was run again: take it off the list"
    else:
        assert not missing, f"{name} lacks {', '.join(missing)}"
