"""Levels of a study that are dominated in two metrics, with the uncertainty of its comparisons taken into account."""

from __future__ import annotations

from dataclasses import replace

import memory_study
import numpy as np
import pytest
from synthetic_runs import edit

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
NONE = [np.nan, np.nan, np.nan]


def study_of(*levels: tuple[list[float], list[float]], metrics=METRICS, margin=0.02):
    """A study whose levels 0, 1, … have these values of both metrics, a seed each; runs state no errors."""
    values_LSM = np.array(levels).transpose(0, 2, 1)
    bare = np.full(values_LSM.shape, np.nan)
    values_LSM4 = np.stack([values_LSM, bare, bare, np.zeros(values_LSM.shape)], axis=-1)
    study = memory_study.build(values_LSM4, metrics, range(len(levels)), memory_study.REDRAWN)
    return replace(study, fronts=({"metrics": list(metrics), "margin": margin},))


def standings(study) -> list[str]:
    (pareto_front,) = fronts_of(study)
    return [row.standing for row in pareto_front.levels]


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


def test_a_level_is_dominated_only_beyond_the_interval():
    """b − a in the first metric: .10 .11 .09, mean .1, sd .01, error .01/√3 = .00577, t(2) = 4.303: ± .0248, so low is
    .0752 > 0. In the second: .01 0 −.01, ± .0248: low is −.0248. With a margin of .03 b dominates a; with .02 it may be
    worse by more than that."""
    a = ([0.60, 0.61, 0.62], [0.50, 0.51, 0.52])
    b = ([0.70, 0.72, 0.71], [0.51, 0.51, 0.51])
    assert standings(study_of(a, b, margin=0.03)) == [DOMINATED, ON_FRONT]
    assert standings(study_of(a, b, margin=0.02)) == [UNCLEAR, ON_FRONT]


def test_a_trade_is_a_front():
    a = ([0.70, 0.71, 0.72], [0.40, 0.41, 0.42])
    b = ([0.60, 0.61, 0.62], [0.60, 0.61, 0.62])
    c = ([0.50, 0.51, 0.52], [0.30, 0.31, 0.32])
    study = study_of(a, b, c)
    assert standings(study) == [ON_FRONT, ON_FRONT, DOMINATED]
    (pareto_front,) = fronts_of(study)
    assert pareto_front.levels[2].dominated_by == ("0", "1")
    beyond = "; beyond the intervals, max pairs 2 is dominated by max pairs 0 and max pairs 1."
    assert pareto_conclusion(study).endswith(beyond)
    # a metric may be better when it is lower
    assert standings(study_of(a, b, metrics=("accuracy", "truncated"))) == [ON_FRONT, DOMINATED]


@pytest.mark.parametrize(
    ("a", "b", "standing_of_a"),
    [
        # means of a are behind in both metrics, and seeds spread too far to say so
        (([0.60, 0.70, 0.50], [0.60, 0.50, 0.70]), ([0.65, 0.55, 0.75], [0.70, 0.60, 0.65]), UNCLEAR),
        # seeds spread by .1 and the difference of each is .05: paired, b is better beyond the interval
        (([0.50, 0.60, 0.70], [0.50, 0.60, 0.70]), ([0.55, 0.651, 0.749], [0.50, 0.601, 0.70]), DOMINATED),
        (([0.1], [0.1]), ([0.9], [0.9]), UNCLEAR),
        (([0.7, 0.71, 0.72], NONE), ([0.1, 0.11, 0.12], [0.5, 0.51, 0.52]), UNSCORED),
    ],
    ids=["noise", "paired", "one seed", "no value"],
)
def test_what_dominates_and_what_does_not(a, b, standing_of_a):
    assert standings(study_of(a, b)) == [standing_of_a, ON_FRONT]


def test_a_front_needs_directions_and_two_metrics():
    check_fronts([ParetoSettings(["accuracy", "agent_accuracy"])])
    with pytest.raises(ConfigError, match="tokens has no direction"):
        check_fronts([ParetoSettings(["accuracy", "tokens"])])
    with pytest.raises(ValueError, match="a Pareto front has two different metrics"):
        ParetoSettings(["accuracy"])


@pytest.mark.slow
def test_pages_show_the_front(make_study):
    directory = make_study()
    assert "## Pareto front" not in markdown_of(directory)
    fronts = [{"metrics": ["gold", "win_rate"], "margin": 0.1}]
    edit(directory / "study.json", fronts=fronts, metrics=["gold", "win_rate"])
    page = markdown_of(directory)
    assert "## Pareto front of gold reward and" in page and "not worse in the other by 0.1" in page
    report = write_study_report(directory)
    assert (directory / "front.svg").is_file() and "standing" in report.read_text()


def markdown_of(directory) -> str:
    study = read_study(directory)
    sections = build_sections(study)
    return markdown(study, sections, write_conclusion(study, sections))
