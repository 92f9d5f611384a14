"""Who judged a win rate stands beside it: gold where it is known, else the reward that training maximised."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from synthetic_runs import edit, edited

from rlhf_lab.reports.comparison.report import compare
from rlhf_lab.reports.policy_table import PolicyTable
from rlhf_lab.reports.report import write_run_report, write_study_report
from rlhf_lab.results.outcome import outcome
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.table import build_sections, rich_table

BY_REWARD, BY_GOLD = "win rate by the training reward", "win rate by gold"


def with_wins(directory: Path) -> Path:
    """A run in whose result every policy but the first has a win rate."""
    with edited(directory / "result.json") as result:
        for policy in result["policies"][1:]:
            policy["metrics"]["win_rate"] = {"mean": 0.6, "low": 0.5, "high": 0.7, "n": 60, "clusters": 30}
    return directory


def printed(renderable: object) -> str:
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


@pytest.mark.slow
@pytest.mark.parametrize("gold", [True, False])
def test_of_a_run(make_run: Callable[..., Path], gold: bool) -> None:
    directory = with_wins(make_run(gold=gold))
    write_run_report(directory)
    for page in ("table.md", "report.html"):
        text = (directory / page).read_text()
        assert ((BY_GOLD in text), (BY_REWARD in text)) == (gold, not gold), page
    titles = [row[-1] for row in outcome(directory).tables["policies"].rows if row[1] == "win_rate"]
    assert set(titles) == {BY_GOLD if gold else BY_REWARD}  # of the table that trackers get
    policies = json.loads((directory / "result.json").read_text())["policies"]
    assert ("win rate: by the training reward" in printed(PolicyTable(policies))) != gold


@pytest.mark.slow
@pytest.mark.parametrize("gold", [True, False])
def test_of_a_study(make_study: Callable[..., Path], gold: bool) -> None:
    directory = make_study(seeds=2, gold=gold)
    edit(directory / "study.json", metrics=["proxy", "win_rate"], primary="win_rate")
    for job in sorted((directory / "jobs").iterdir()):
        with_wins(job / "run")
    write_study_report(directory)
    for page in ("table.md", "report.html", "plot.svg"):
        text = (directory / page).read_text()
        assert ((BY_GOLD in text), (BY_REWARD in text)) == (gold, not gold), page
    study = read_study(directory)
    assert (BY_REWARD in printed(rich_table(study, build_sections(study)))) != gold


@pytest.mark.parametrize("gold", [True, False])
def test_of_a_comparison(make_run: Callable[..., Path], gold: bool) -> None:
    runs = [with_wins(make_run(name, gold=gold, seed=seed)) for seed, name in enumerate(("a", "b"))]
    text = compare(*runs, to=runs[0] / "comparison").page.read_text().lower()
    assert ((BY_GOLD in text), (BY_REWARD in text)) == (gold, not gold)
