"""Levels of a study that are dominated in two metrics, with the uncertainty of its comparisons taken into account."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rlhf_lab.config.study_settings import ParetoSettings
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.reports.report import write_study_report
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.pareto_front import (
    DOMINATED,
    ON_FRONT,
    UNCLEAR,
    UNSCORED,
    dominates,
    fronts_of,
    pareto_conclusion,
)
from rlhf_lab.studies.table import build_sections, markdown
from rlhf_lab.sweeps.sweep import check_fronts

METRICS = ("accuracy", "agent_accuracy")


def study_of(make_study, values: dict[str, tuple[list[float], list[float]]], *, metrics=METRICS, margin=0.02):
    """A study whose levels have these values of both metrics, a seed each; runs state no errors of their own."""
    study = read_study(make_study(seeds=1))
    rows = []
    for level, (first, second) in values.items():
        for seed, pair in enumerate(zip(first, second, strict=True)):
            row = {"index": len(rows), "status": "completed", "error": "", "run": None, "changed": "", "seed": seed}
            row |= {"level": level, "algorithm.buffer": level}
            for name, value in zip(metrics, pair, strict=True):
                row |= {name: value, f"{name}/low": np.nan, f"{name}/high": np.nan, f"{name}/n": 0}
            rows.append(row)
    plan = ({"metrics": list(metrics), "margin": margin},)
    return replace(
        study, frame=pd.DataFrame(rows), policies=pd.DataFrame(), fronts=plan, metrics=metrics, primary=metrics[0],
        baseline=next(iter(values)),
    )  # fmt: skip


def standings(study) -> dict[str, str]:
    (pareto_front,) = fronts_of(study)
    return {row.level: row.standing for row in pareto_front.levels}


@pytest.mark.parametrize(
    ("first_low", "second_low", "margin", "expected"),
    [
        (0.01, -0.01, 0.02, True),  # better in one, worse in the other by less than the margin
        (-0.01, 0.01, 0.02, True),  # the other way round
        (0.01, -0.03, 0.02, False),  # may be worse by more than the margin
        (-0.01, -0.01, 0.02, False),  # better in neither
        (0.0, 0.0, 0.0, False),  # the same level twice
        (0.01, 0.0, 0.0, False),  # without a margin, not worse has to be better
        (0.01, 0.01, 0.0, True),
    ],
)
def test_the_rule(first_low, second_low, margin, expected):
    assert dominates(first_low, second_low, margin) is expected


def test_a_level_is_dominated_only_beyond_the_interval(make_study):
    """b − a in the first metric: .10 .11 .09, mean .1, sd .01, error .01/√3 = .00577, t(2) = 4.303: ± .0248, so low is
    .0752 > 0. In the second: .01 0 −.01, ± .0248: low is −.0248. With a margin of .03 b dominates a; with .02 it may be
    worse by more than that."""
    a = ([0.60, 0.61, 0.62], [0.50, 0.51, 0.52])
    b = ([0.70, 0.72, 0.71], [0.51, 0.51, 0.51])
    study = study_of(make_study, {"a": a, "b": b}, margin=0.03)
    assert standings(study) == {"a": DOMINATED, "b": ON_FRONT}
    smaller = replace(study, fronts=({"metrics": list(METRICS), "margin": 0.02},))
    assert standings(smaller) == {"a": UNCLEAR, "b": ON_FRONT}


def test_a_trade_is_a_front(make_study):
    a = ([0.70, 0.71, 0.72], [0.40, 0.41, 0.42])
    b = ([0.60, 0.61, 0.62], [0.60, 0.61, 0.62])
    c = ([0.50, 0.51, 0.52], [0.30, 0.31, 0.32])
    study = study_of(make_study, {"a": a, "b": b, "c": c})
    assert standings(study) == {"a": ON_FRONT, "b": ON_FRONT, "c": DOMINATED}
    (pareto_front,) = fronts_of(study)
    assert pareto_front.levels[2].dominated_by == ("a", "b")
    assert pareto_conclusion(study).endswith("; beyond the intervals, buffer c is dominated by buffer a and buffer b.")


def test_noise_dominates_nothing(make_study):
    """Means of a are behind in both metrics, and seeds spread too far to say so."""
    a = ([0.60, 0.70, 0.50], [0.60, 0.50, 0.70])
    b = ([0.65, 0.55, 0.75], [0.70, 0.60, 0.65])
    assert standings(study_of(make_study, {"a": a, "b": b})) == {"a": UNCLEAR, "b": ON_FRONT}


def test_pairing_by_seed_decides(make_study):
    """Seeds spread by .1 and the difference of each is .05: paired, b is better beyond the interval."""
    a = ([0.50, 0.60, 0.70], [0.50, 0.60, 0.70])
    b = ([0.55, 0.651, 0.749], [0.50, 0.601, 0.70])
    assert standings(study_of(make_study, {"a": a, "b": b}))["a"] == DOMINATED


def test_one_seed_dominates_nothing(make_study):
    assert standings(study_of(make_study, {"a": ([0.1], [0.1]), "b": ([0.9], [0.9])})) == {"a": UNCLEAR, "b": ON_FRONT}


def test_a_metric_may_be_better_when_it_is_lower(make_study):
    metrics = ("accuracy", "truncated")
    a = ([0.70, 0.71, 0.72], [0.40, 0.41, 0.42])
    b = ([0.60, 0.61, 0.62], [0.60, 0.61, 0.62])
    assert standings(study_of(make_study, {"a": a, "b": b}, metrics=metrics)) == {"a": ON_FRONT, "b": DOMINATED}


def test_a_level_without_a_value_is_on_no_front(make_study):
    nothing = [np.nan, np.nan, np.nan]
    study = study_of(make_study, {"a": ([0.7, 0.71, 0.72], nothing), "b": ([0.1, 0.11, 0.12], [0.5, 0.51, 0.52])})
    assert standings(study) == {"a": UNSCORED, "b": ON_FRONT}


def test_a_front_needs_directions_and_two_metrics():
    check_fronts([ParetoSettings(["accuracy", "agent_accuracy"])])
    with pytest.raises(ConfigError, match="tokens has no direction"):
        check_fronts([ParetoSettings(["accuracy", "tokens"])])
    with pytest.raises(ValueError, match="a Pareto front has two different metrics"):
        ParetoSettings(["accuracy"])


@pytest.mark.slow
def test_pages_show_the_front(make_study):
    directory = make_study()
    plan = json.loads((directory / "study.json").read_text())
    assert "## Pareto front" not in markdown_of(directory)
    plan["fronts"] = [{"metrics": ["gold", "win_rate"], "margin": 0.1}]
    plan["metrics"] = ["gold", "win_rate"]
    (directory / "study.json").write_text(json.dumps(plan))
    page = markdown_of(directory)
    assert (
        "## Pareto front of gold reward and" in page
        and "not worse in the other by 0.1" in page
        and "`front.svg`" in page
    )
    report = write_study_report(directory)
    assert (directory / "front.svg").is_file() and "standing" in report.read_text()


def markdown_of(directory) -> str:
    study = read_study(directory)
    sections = build_sections(study)
    return markdown(study, sections, write_conclusion(study, sections))
