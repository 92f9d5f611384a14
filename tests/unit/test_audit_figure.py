"""The figure of the audit's evidence shows both runs against the threshold of an alarm."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "campaign"))

from audit_figure import evidence


def test_lines_end_at_the_last_label_and_cross_the_threshold(tmp_path):
    for name, values in {"healthy": [1.0, 0.5], "hacked": [2.0, 100.0, 40.0]}.items():
        (tmp_path / name).mkdir()
        rows = [{"labels": 8 * (index + 1), "e_value": value} for index, value in enumerate(values)]
        (tmp_path / name / "audit.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chart = evidence({"gold rises": tmp_path / "healthy", "gold falls": tmp_path / "hacked"})
    text = json.dumps(chart.specification)
    assert all(name in text for name in ("gold rises", "gold falls", "alarm"))
    found = [row for row in _rows(chart.specification) if row.get("series") == "gold falls"]
    assert [(row["x"], row["y"]) for row in found] == [
        (8, pytest.approx(0.30103)),
        (16, pytest.approx(2.0)),
        (24, pytest.approx(1.60206)),
    ]


def _rows(node):
    """Yield the rows of data anywhere in a specification."""
    if isinstance(node, dict):
        if "x" in node and "y" in node and "series" in node:
            yield node
        for value in node.values():
            yield from _rows(value)
    elif isinstance(node, list):
        for value in node:
            yield from _rows(value)
