"""Tables say how many rows a number is over: the counts of most numbers once, other counts beside their number."""

from __future__ import annotations

import pytest
from synthetic_runs import edit

from rlhf_lab.config import registry
from rlhf_lab.reports.run.policies import policy_table
from rlhf_lab.results.rundir import algorithm_settings, read_run
from rlhf_lab.results.wording import usual_size, with_own_size
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.training.settings import StageSettings


def estimate(mean: float, n: int, clusters: int) -> Estimate:
    return Estimate(mean, mean - 0.1, mean + 0.1, n, clusters)


@pytest.fixture
def run(make_run):
    """Two policies with 96 responses to 48 prompts; gold has 6 unscored ones, the ranking is over 100 pairs."""
    directory = make_run(policies=("SFT", "DPO"))
    metrics = {
        "gold": estimate(1.0, 90, 47),
        "proxy": estimate(0.5, 96, 48),
        "kl": estimate(0.2, 96, 48),
        "ranking_accuracy": estimate(0.6, 100, 86),
    }
    stored = {name: value.to_dict() for name, value in metrics.items()}
    edit(directory / "result.json", policies=[{"name": name, "metrics": stored} for name in ("SFT", "DPO")])
    (directory / "evaluation.jsonl").write_text("")
    return read_run(directory)


def test_the_usual_size_is_that_of_most_numbers():
    sizes = [estimate(1, 100, 86), None, estimate(1, 96, 48), Estimate(1, 1, 1, 0, 0), estimate(1, 96, 48)]
    assert usual_size(sizes) == (96, 48) and usual_size([None]) is None
    assert usual_size([estimate(1, 2, 1), estimate(1, 3, 1)]) == (2, 1)  # the first one among equals
    assert with_own_size("a", sizes[0], (96, 48)) == "a (100 / 86)"
    assert [with_own_size("a", size, (96, 48)) for size in sizes[2:4]] == ["a", "a"]


def test_the_column_of_a_run_is_true_of_its_row(run):
    columns, rows = policy_table(run)
    titles = [title for title, _ in columns]
    assert rows
    for row in rows:
        values = dict(zip(titles, row[2:], strict=True))
        assert row[1] == "96 / 48"
        assert values["gold reward"] == "1.00 ±0.10 (90 / 47)"
        assert values["proxy reward"] == "0.50 ±0.10"
        assert values["ranking accuracy"] == "0.60 ±0.10 (100 / 86)"


def test_the_settings_of_a_stage_are_those_of_its_algorithm():
    assert algorithm_settings("dpo") is registry.settings_class("algorithm", "dpo")
    assert algorithm_settings("of a plug-in that is gone") is StageSettings
