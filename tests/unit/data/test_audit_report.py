"""The result of an audit: what was found is a table, what was not is a sentence."""

from __future__ import annotations

import pytest

from rlhf_lab.core.console import console
from rlhf_lab.data.audit import AuditReport, AuditResult, render

FINDINGS = [
    AuditResult("empty replies", "train", 3, 12, "pairs", "nothing to learn", "row 7"),
    AuditResult("empty replies", "test", 0, 4, "pairs", "nothing to learn"),
    AuditResult("repeated prompts", "train", 0, 12, "prompts", "they count twice"),
]


def test_a_finding_is_a_share_of_what_was_looked_at():
    assert FINDINGS[0].share == 0.25
    assert AuditResult("none", "test", 0, 0, "pairs", "why").share == 0.0
    report = AuditReport("mine", FINDINGS)
    assert report.count("empty replies", "train") == 3
    with pytest.raises(KeyError, match="did not run on 'all'"):
        report.count("empty replies", "all")


def test_what_is_shown():
    skipped = {"leaks": "a test file", "labels": "a test file"}
    report = AuditReport("mine", FINDINGS, {"train/pairs": 12.0, "test/pairs": 4.0}, skipped)
    with console.capture() as captured:
        console.print(render(report))
    shown = " ".join(captured.get().split())
    assert "Audit of mine" in shown and "25.00%" in shown and "row 7" in shown
    assert "Checked, none found: repeated prompts." in shown
    assert "Not checked: leaks, labels (needs a test file)." in shown
