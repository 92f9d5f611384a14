"""Crossings of a study: their settings, their sentences, and their table."""

from __future__ import annotations

from dataclasses import replace

import memory_study
import numpy as np
import pytest

from rlhf_lab.config.study_settings import CrossingSettings, StudySettings
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.reports.study.claims import crossings
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.studies.crossing import crossing_conclusion, crossing_markdown, crossings_of

METRICS = ("success/chain_2", "success/chain_4", "success/chain_8")


def study_of(*levels: list[list[float]]):
    """A study whose levels 0, 1, … have these values of the metrics, a seed per row; runs state no errors."""
    values_LSM = np.array(levels)
    bare = np.full(values_LSM.shape, np.nan)
    values_LSM4 = np.stack([values_LSM, bare, bare, np.zeros(values_LSM.shape)], axis=-1)
    study = memory_study.build(values_LSM4, METRICS, range(len(levels)), memory_study.REDRAWN)
    plan = {"metrics": list(METRICS), "at": [2, 4, 8], "unit": "hops"}
    return replace(study, crossings=(plan,))


LIST = [[0.90, 0.70, 0.20], [0.92, 0.71, 0.22], [0.88, 0.69, 0.18]]
NOTES = [[0.85, 0.72, 0.52], [0.86, 0.73, 0.55], [0.84, 0.70, 0.51]]


def test_a_crossing_with_its_interval():
    study = study_of(LIST, NOTES)
    (row,) = crossings_of(study)
    # mean differences −.05 at 2 and .0167 at 4: −.05 + .0667·(x − 2)/2 = 0 at 3.5
    assert row.crossing.at == pytest.approx(3.5, abs=0.01)
    assert 2 < row.crossing.low < 3.5 < row.crossing.high < 8
    assert crossing_conclusion(study).startswith("By the means, max pairs 1 is ahead of max pairs 0 from 3.5")
    page = crossing_markdown(study)
    assert "## Crossing of max pairs 1 and max pairs 0" in page
    assert "| hops | difference |" in page and "| 8 | +0.327" in page
    (box,) = crossings(StudyResults(study)).values["boxes"]
    assert box.title == "Crossing of max pairs 1 and max pairs 0" and box.table.headings == ("hops", "difference")
    assert box.table.rows[2][0] == "8" and box.table.rows[2][1].startswith("+0.327")


def test_the_side_with_lower_values_leads_if_lower_is_better():
    study = study_of(LIST, NOTES)
    names = {name: f"exploit_gain/{index}" for index, name in enumerate(METRICS)}
    renamed = {f"{old}{end}": f"{new}{end}" for old, new in names.items() for end in ("", "/low", "/high", "/n")}
    plan = study.crossings[0] | {"metrics": list(names.values())}
    study = replace(study, frame=study.frame.rename(columns=renamed), crossings=(plan,))
    assert crossing_conclusion(study).startswith("By the means, max pairs 0 is ahead of max pairs 1 from 3.5")


def test_levels_that_do_not_cross():
    study = study_of(LIST, [[value + 0.1 for value in row] for row in LIST])
    expected = "The means of max pairs 1 and max pairs 0 do not cross between 2 and 8 hops."
    assert crossing_conclusion(study) == expected


def test_an_unscored_position_has_no_crossing():
    unscored = [[value, float("nan"), other] for value, _, other in NOTES]
    study = study_of(LIST, unscored)
    (row,) = crossings_of(study)
    assert row.crossing is None
    assert "Not every position has a pair of runs." in crossing_markdown(study)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metrics": ["a"], "at": [1]}, "at least 2"),
        ({"metrics": ["a", "b"], "at": [1]}, "need the same length"),
        ({"metrics": ["a", "b"], "at": [2, 1]}, "not in ascending order"),
    ],
)
def test_wrong_settings(values, message):
    with pytest.raises(ConfigError, match=message):
        CrossingSettings(**values)


def test_crossings_name_metrics_of_the_study():
    crossing = CrossingSettings(metrics=["a", "b"], at=[1, 2])
    with pytest.raises(ConfigError, match="crossings: b is not among metrics"):
        StudySettings(sweep={"seed": [0, 1]}, compare="seed", metrics=["a"], crossings=[crossing])
