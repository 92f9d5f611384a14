"""Stored grades of pairs are read for the pairs that they are of, and refused for others."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlhf_lab.algorithms.pair_selection.selection import corpus_mark
from rlhf_lab.algorithms.reward_models.grades import HEADER, ROWS, SIDES, read_grades
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.types import Pair

PAIRS = [Pair(f"question {number}", "good", "bad") for number in range(2)]


def run_of(directory: Path, pairs: list[Pair]) -> SimpleNamespace:
    return SimpleNamespace(needs={"grades": str(directory)}, corpus=SimpleNamespace(train=pairs, name="pairs"))


@pytest.fixture
def directory(tmp_path) -> Path:
    """Grades of both pairs; the last response has none."""
    rows = [
        {"prompt": pair.prompt, "response": getattr(pair, side), "length": grade, "unscored": None}
        for pair in PAIRS
        for side, grade in zip(SIDES, (5, 2), strict=True)
    ]
    rows[-1] |= {"length": None, "unscored": "refused"}
    (tmp_path / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    rubric = {"attributes": ["length"], "low": 1, "high": 5}
    (tmp_path / HEADER).write_text(json.dumps({"corpus": corpus_mark(PAIRS), "rubric": rubric}))
    return tmp_path


def test_grades_of_both_sides_are_read(directory):
    stored = read_grades(run_of(directory, PAIRS))
    assert stored.rubric.attributes == ("length",)
    assert stored.graded(PAIRS) == PAIRS[:1]
    assert stored.of(PAIRS[:1]).tolist() == [[[5.0]], [[2.0]]]


def test_grades_of_other_pairs_and_other_folders_are_refused(directory, tmp_path):
    with pytest.raises(ArtifactError, match="has grades of other pairs"):
        read_grades(run_of(directory, PAIRS[:1]))
    with pytest.raises(ArtifactError, match=r"has no grades\.json"):
        read_grades(run_of(tmp_path / "nothing", PAIRS))
