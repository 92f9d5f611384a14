"""Crossings of a study: their settings, their sentences, and their table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rlhf_lab.config.study_settings import CrossingSettings, StudySettings
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.studies.crossing import crossing_conclusion, crossing_markdown, crossings_of
from rlhf_lab.studies.frame import read_study

METRICS = ("success/chain_2", "success/chain_4", "success/chain_8")


def study_of(make_study, values: dict[str, list[list[float]]]):
    """A study whose levels have these values of the metrics, a seed per row; runs state no errors of their own."""
    study = read_study(make_study(seeds=1))
    rows = []
    for level, seeds in values.items():
        for seed, of_metrics in enumerate(seeds):
            row = {"index": len(rows), "status": "completed", "error": "", "run": None, "changed": "", "seed": seed}
            row |= {"level": level, "algorithm.buffer": level}
            for name, value in zip(METRICS, of_metrics, strict=True):
                row |= {name: value, f"{name}/low": np.nan, f"{name}/high": np.nan, f"{name}/n": 0}
            rows.append(row)
    plan = {"metrics": list(METRICS), "at": [2, 4, 8], "unit": "hops"}
    return replace(
        study, frame=pd.DataFrame(rows), policies=pd.DataFrame(), crossings=(plan,), metrics=METRICS,
        primary=METRICS[0], baseline=next(iter(values)), labels={"algorithm.buffer": "{}"},
    )  # fmt: skip


LIST = [[0.90, 0.70, 0.20], [0.92, 0.71, 0.22], [0.88, 0.69, 0.18]]
NOTES = [[0.85, 0.72, 0.52], [0.86, 0.73, 0.55], [0.84, 0.70, 0.51]]


def test_a_crossing_with_its_interval(make_study):
    study = study_of(make_study, {"list": LIST, "notes": NOTES})
    (row,) = crossings_of(study)
    # mean differences −.05 at 2 and .0167 at 4: −.05 + .0667·(x − 2)/2 = 0 at 3.5
    assert row.crossing.at == pytest.approx(3.5, abs=0.01)
    assert 2 < row.crossing.low < 3.5 < row.crossing.high < 8
    assert crossing_conclusion(study).startswith("By the means, notes is ahead of list from 3.5")
    page = crossing_markdown(study)
    assert "## Crossing of notes and list" in page and "| hops | difference |" in page and "| 8 | +0.327" in page


def test_the_side_with_lower_values_leads_if_lower_is_better(make_study):
    study = study_of(make_study, {"list": LIST, "notes": NOTES})
    names = {name: f"safety/many_shot/{index}" for index, name in enumerate(METRICS)}
    renamed = {f"{old}{end}": f"{new}{end}" for old, new in names.items() for end in ("", "/low", "/high", "/n")}
    plan = study.crossings[0] | {"metrics": list(names.values())}
    study = replace(study, frame=study.frame.rename(columns=renamed), crossings=(plan,))
    assert crossing_conclusion(study).startswith("By the means, list is ahead of notes from 3.5")


def test_levels_that_do_not_cross(make_study):
    study = study_of(make_study, {"list": LIST, "notes": [[value + 0.1 for value in row] for row in LIST]})
    assert crossing_conclusion(study) == "The means of notes and list do not cross between 2 and 8 hops."


def test_an_unscored_position_has_no_crossing(make_study):
    unscored = [[value, float("nan"), other] for value, _, other in NOTES]
    study = study_of(make_study, {"list": LIST, "notes": unscored})
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
