"""Stages that read responses: the spread of a metric across them, and the weightings of their scores."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from support import checked

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.evaluations.compare import standard_deviation
from rlhf_lab.evaluations.rescore import build
from rlhf_lab.training.run import Run


def rows(*values: float | None) -> list[dict]:
    """Two responses to each prompt."""
    return [{"prompt_id": i // 2, "gold": value} for i, value in enumerate(values)]


def test_the_standard_deviation_is_that_of_the_scored_replies():
    found = standard_deviation(rows(1.0, 3.0, 2.0, None, 6.0, 4.0), "gold")
    assert found.mean == pytest.approx(np.std([1, 3, 2, 6, 4], ddof=1))
    assert (found.n, found.clusters) == (5, 3)
    assert 0 <= found.low < found.mean < found.high


def test_nothing_scored_has_no_standard_deviation():
    found = standard_deviation(rows(None, None), "gold")
    assert math.isnan(found.mean) and found.n == 0


SAVED = [
    {"prompt_id": prompt, "sample_id": sample, "reward/bt": bt, "reward/length": length}
    for prompt, sample, bt, length in ((0, 0, 1.0, -1.0), (0, 1, 0.0, 2.0), (1, 0, 3.0, 0.0), (1, 1, 1.0, 4.0))
]


def rescored(directory: Path, *overrides: str) -> Run:
    """A stage that scores the four responses above again."""
    (directory / "saved").mkdir()
    lines = [{"policy": "SFT", "prompt": "Q", "response": "A", "proxy": row["reward/bt"], **row} for row in SAVED]
    (directory / "saved" / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    config = checked("study/reward_weights", "reward=[bt,length]", "reward.weights=null", *overrides)
    return Run(directory, config, {"rollouts": str(directory / "saved")})


def test_each_weighting_chooses_its_own_best_reply(tmp_path):
    run = rescored(tmp_path, "algorithm.weightings=[{bt:1},{length:1}]", "algorithm.choose_from=2")
    policies = {policy["name"]: policy["metrics"] for policy in build(run.config.algorithm, run).finish().policies}
    means = {
        name: [metrics[f"reward/{term}"]["mean"] for term in ("bt", "length")] for name, metrics in policies.items()
    }
    assert means == {"SFT": [1.25, 1.25], "1 bt": [2.0, -0.5], "1 length": [0.5, 3.0]}


def test_a_weighting_of_a_term_that_is_not_there_is_named(tmp_path):
    run = rescored(tmp_path, "algorithm.weightings=[{rubric:1}]")
    with pytest.raises(ConfigError, match=r"algorithm\.weightings: .*rubric"):
        build(run.config.algorithm, run)
