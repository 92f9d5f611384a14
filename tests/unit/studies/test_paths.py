"""Policies that a figure joins by a line, and the text of the page next to it (`results/gains.py`)."""

from __future__ import annotations

import pytest
from synthetic_runs import POLICIES, edited

from rlhf_lab.reports.report import write_report
from rlhf_lab.reports.run.frontier import kl_frontier, proxy_against_gold
from rlhf_lab.results.gains import policies_on_path
from rlhf_lab.results.rundir import read_run

BENDS = "A line that bends down to the right is over-optimisation."
APART = "Each point is a policy of a separate method: no line joins them"


def of_kind(directory, kind):
    (directory / "config.yaml").write_text(f"algorithm:\n  kind: {kind}\nseed: 0\n")
    return directory


def points(chart):
    """(policy, whether its line goes through it) of every point of a figure."""
    rows = [row for table in chart.specification["datasets"].values() for row in table if "t1" in row]
    return {(row["t1"], not row.get("apart", False)) for row in rows}  # t1 is the second line of its tooltip


def test_an_iterative_run_joins_its_rounds_and_not_its_baseline(make_run):
    directory = make_run()
    run = read_run(directory)
    assert policies_on_path(run) == set(POLICIES) - {"one-pass DPO"}
    for chart in (proxy_against_gold(run), kl_frontier(run)):
        assert points(chart) == {(name, name != "one-pass DPO") for name in POLICIES}
    assert BENDS in write_report(directory).read_text()


@pytest.mark.parametrize("kind", ["compare", "rescore", "test_time"])
def test_policies_of_different_methods_are_points(make_run, kind):
    directory = of_kind(make_run(policies=("SFT", "dpo", "ppo", "grpo")), kind)
    run = read_run(directory)
    assert policies_on_path(run) == frozenset()
    for chart in (proxy_against_gold(run), kl_frontier(run)):
        assert points(chart) == {(name, False) for name in ("SFT", "dpo", "ppo", "grpo")}
    page = write_report(directory).read_text()
    assert BENDS not in page and APART in page


def test_best_of_more_and_more_samples_is_a_path(make_run):
    run = read_run(of_kind(make_run(policies=("SFT", "best of 4", "best of 16")), "best_of_n"))
    assert policies_on_path(run) == {"SFT", "best of 4", "best of 16"}


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["success", "correct"])
def test_a_benchmark_with_answers_is_not_said_to_lack_the_truth(make_run, metric):
    directory = make_run(gold=False)
    assert "the true value of responses is unknown here" in write_report(directory).read_text()
    file = directory / "result.json"
    with edited(file) as result:
        for policy in result["policies"]:
            policy["metrics"][metric] = {"mean": 0.5, "low": 0.4, "high": 0.6, "n": 60, "clusters": 30}
    page = write_report(directory).read_text()
    assert "answers are verified: it is known which are correct" in page
    assert "no gold reward:" not in page
    assert ("undecidable without a gold reward" in page) == (metric == "success")  # an alert reads `correct`
