"""Measures that only one environment returns: named in `core/measures.py`, logged by rollouts and evaluations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlhf_lab.algorithms.policy_gradient.rollouts import truth_means
from rlhf_lab.core.measures import own_measures
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.core.types import Corpus, Oracle
from rlhf_lab.evaluations.rescoring import read_replies
from rlhf_lab.reports.policy_table import PolicyTable

GRADED = {
    "gold": np.array([0.0, 1.0]),
    "verified/parses": np.array([1.0, 1.0]),
    "hesitations": np.array([3.0, 1.0]),
    "time/turn": np.array([np.nan, 2.0]),
}
"""What `grade` of an environment returns of two episodes."""


def test_what_the_lab_does_not_know_gets_a_name_of_its_own():
    assert list(own_measures(GRADED)) == ["measure/hesitations", "measure/time.turn"]
    assert undeclared(own_measures(GRADED)) == []


def test_rollouts_log_it():
    """Means over the episodes that have it: (3 + 1)/2, and 2 alone."""
    assert truth_means(GRADED) == {"gold": 0.5, "measure/hesitations": 2.0, "measure/time.turn": 2.0}


def test_a_saved_column_is_read_for_another_weighting(tmp_path: Path):
    rows = [
        {"policy": "SFT", "prompt_id": 0, "response": "a", "proxy": 1.0, "measure/hesitations": value}
        for value in (3.0, None)
    ]
    (tmp_path / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_replies(tmp_path).columns["measure/hesitations"] == pytest.approx([3.0, np.nan], nan_ok=True)


def test_it_has_a_column_on_the_console():
    metrics = {"measure/hesitations": {"mean": 2.0}, "gold": {"mean": 0.5}, "reward/hesitations": {"mean": 1.0}}
    assert PolicyTable([{"name": "SFT", "metrics": metrics}]).columns == {
        "gold": "gold",
        "measure/hesitations": "hesitations",
    }


def test_details_of_a_world_are_not_logged():
    class World(Oracle):
        details = frozenset({"words"})

        def measure(self, prompts, responses):
            return {name: np.ones(len(prompts)) for name in ("gold", "words", "hesitations")}

        def prefer(self, prompts, first, second, *, seed):
            raise NotImplementedError

    corpus = Corpus("", [], [], "", oracle=World())
    assert list(corpus.measure(corpus.episodes(["Q"], ["a"]))) == ["gold", "hesitations"]
