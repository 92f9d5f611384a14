"""Correlations that a study claims: its units, verdicts, sentences, page and settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rlhf_lab.config.study_settings import CorrelationSettings
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.reports.study.claims import correlations
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.rank_correlation import CorrelationDifference
from rlhf_lab.studies.claims import AFTER_LOOK, CONFIRMED, REFUTED, UNCLEAR, UNTESTED
from rlhf_lab.studies.correlations import (
    correlation_markdown,
    correlations_of,
    decide,
    units_of,
)
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.registration import RANKS, RegisteredClaim, Registration, SeedLook
from rlhf_lab.studies.table import build_sections, markdown

CLAIM = {
    "metric": "attack_gain",
    "outcome": "gold",
    "direction": "negative",
    "stronger_than": None,
}


def study_of(make_study, rows: list[dict], **claim):
    """Return a study with these jobs; `world` is its panel, `pairs` a setting and the seed a repetition."""
    frame = pd.DataFrame(
        [
            {"index": index, "status": "completed", "error": "", "run": None, "changed": "", "level": "1"} | row
            for index, row in enumerate(rows)
        ]
    )
    for name in ("attack_gain", "gold", "accuracy"):
        if name not in frame:
            frame[name] = np.nan
        frame = frame.assign(**{f"{name}/low": np.nan, f"{name}/high": np.nan, f"{name}/n": 0})
    return replace(
        read_study(make_study(seeds=1)),
        frame=frame,
        policies=pd.DataFrame(),
        factors=("world", "pairs", "seed"),
        by="world",
        compare="pairs",
        baseline="1",
        metrics=("attack_gain", "gold", "accuracy"),
        primary="attack_gain",
        correlations=(CLAIM | claim,),
    )


def jobs(gold_of, worlds=("a", "b"), settings=12, seeds=2) -> list[dict]:
    """Return jobs whose gold is a function of (world, setting, seed); the gain is the number of the setting."""
    return [
        {"world": world, "pairs": n, "seed": seed, "attack_gain": float(n), "gold": gold_of(world, n, seed)}
        for world in worlds
        for n in range(settings)
        for seed in range(seeds)
    ]


def test_a_unit_is_the_mean_over_the_seeds_of_a_setting(make_study):
    study = study_of(make_study, jobs(lambda world, n, seed: 10 * n + seed, settings=2))
    units = units_of(study, ["gold"])
    assert units["gold"].tolist() == [0.5, 10.5, 0.5, 10.5]
    assert units["panel"].tolist() == ["a", "a", "b", "b"]


def test_a_strong_correlation_is_confirmed_and_shown(make_study):
    study = study_of(make_study, jobs(lambda world, n, seed: -n - seed))
    (verdict,) = correlations_of(study)
    assert verdict.verdict == CONFIRMED and verdict.pooled.n == 24
    assert verdict.pooled.mean == pytest.approx(-1)
    assert [rho.mean for rho in verdict.panels.values()] == pytest.approx([-1, -1])
    words = verdict.sentence
    assert words.startswith("Confirmed: attack gain has a rank correlation of −0.7 or stronger with gold")
    page = markdown(study, build_sections(study), write_conclusion(study, build_sections(study)))
    assert "## Correlations over settings" in page and correlation_markdown(study) in page
    assert f"The claim is confirmed. {words}" in page
    section = correlations(StudyResults(study))
    table, figure = section.values["boxes"]
    assert table.table.rows[0][1] == CONFIRMED and figure.note == words
    assert list(section.files) == ["correlation"]


@pytest.mark.parametrize(
    ("sign", "settings", "verdict", "said"),
    [(1, 12, REFUTED, "Not confirmed"), (-1, 4, UNTESTED, "Not tested, because fewer than 5 settings")],
)
def test_the_opposite_sign_is_not_confirmed_and_few_settings_test_nothing(make_study, sign, settings, verdict, said):
    study = study_of(make_study, jobs(lambda world, n, seed: sign * n, settings=settings))
    (row,) = correlations_of(study)
    assert row.verdict == verdict and row.sentence.startswith(said)
    none = replace(study, correlations=())
    assert correlation_markdown(none) == "" and correlations(StudyResults(none)).values == {"boxes": []}


def test_permuted_outcomes_are_never_confirmed(make_study):
    """Null check: gold of another setting of the same world. The mean of 20 pooled correlations is near 0."""
    rng = np.random.default_rng(0)
    study = study_of(make_study, jobs(lambda world, n, seed: -float(n)))
    pooled = []
    for _ in range(20):
        shuffled = {world: rng.permutation(12) for world in "ab"}
        gold = [
            -float(shuffled[world][int(n)]) for world, n in zip(study.frame["world"], study.frame["pairs"], strict=True)
        ]
        (verdict,) = correlations_of(replace(study, frame=study.frame.assign(gold=gold)))
        assert verdict.verdict != CONFIRMED
        pooled.append(verdict.pooled.mean)
    # The standard deviation of Spearman's ρ of n = 12 is 1/√11 = .30; of the mean of 40 of them .05.
    assert abs(np.mean(pooled)) < 3 * 0.05


@pytest.mark.parametrize("sees", ["scale", "sign"])
def test_a_metric_that_sees_only_the_world_is_not_confirmed(make_study, sees):
    """Null check: gold is lower in world b. A metric that is larger there, or reversed there, predicts no setting."""
    rng = np.random.default_rng(1)
    rows = jobs(lambda world, n, seed: -float(n) - 100 * (world == "b"))
    for row in rows:
        in_b = row["world"] == "b"
        row["attack_gain"] = 100 * in_b + rng.normal() if sees == "scale" else row["attack_gain"] * (-1 if in_b else 1)
    (verdict,) = correlations_of(study_of(make_study, rows))
    assert verdict.verdict in (UNCLEAR, REFUTED) and abs(verdict.pooled.mean) < 0.4


def estimate(mean, low, high) -> Estimate:
    return Estimate(mean, low, high, 24, 24)


@pytest.mark.parametrize(
    ("pooled", "panels", "gap", "expected"),
    [
        (estimate(-0.8, -0.9, -0.5), [estimate(-0.75, -0.9, -0.4)], None, CONFIRMED),
        (estimate(-0.8, -0.9, -0.5), [estimate(-0.6, -0.9, -0.1)], None, UNCLEAR),  # one panel is below the bar
        (estimate(-0.8, -0.9, -0.3), [], None, UNCLEAR),  # the interval reaches below the lower bar
        (estimate(-0.5, -0.69, -0.2), [], None, REFUTED),  # the interval ends below the bar
        (estimate(-0.8, -0.9, -0.5), [], estimate(0.3, 0.1, 0.5), CONFIRMED),
        (estimate(-0.8, -0.9, -0.5), [], estimate(0.1, -0.1, 0.3), UNCLEAR),
        (estimate(-0.8, -0.9, -0.5), [], estimate(-0.2, -0.3, -0.1), REFUTED),  # the rival is stronger
        (Estimate(np.nan, -np.inf, np.inf, 0, 0), [], None, UNTESTED),
    ],
)
def test_the_rule(pooled, panels, gap, expected):
    difference = CorrelationDifference(pooled, pooled, gap) if gap else None
    assert decide(CLAIM, pooled, panels, difference) == expected


def test_a_rival_that_explains_the_outcome_as_well_is_not_beaten(make_study):
    rows = [row | {"accuracy": row["attack_gain"]} for row in jobs(lambda world, n, seed: -n)]
    study = study_of(make_study, rows, stronger_than="accuracy")
    (verdict,) = correlations_of(study)
    assert verdict.rival.difference.mean == pytest.approx(0) and verdict.verdict == UNCLEAR


def test_settings_are_refused_with_a_message():
    with pytest.raises(ConfigError, match="are different metrics"):
        CorrelationSettings("gold", "gold", "positive")


def test_seeds_that_were_seen_do_not_count(make_study):
    """In the seeds seen, gold falls with the gain; in the others it rises. Only the others decide."""
    rows = jobs(lambda world, n, seed: n if seed >= 2 else -n, seeds=4)
    study = study_of(make_study, rows)
    meaning = CLAIM | {"by": "world", "settings": {}, "method": RANKS}
    entry = RegisteredClaim("0" * 64, meaning, "2026-01-01T00:00:00+0000", seen=(0, 1))
    later = replace(
        study, registration=Registration("study", correlations=(entry,), looks=(SeedLook("2026-01-01", (0, 1)),))
    )
    (row,) = correlations_of(later)
    assert row.verdict == REFUTED and row.pooled.mean == pytest.approx(1)
    assert "; without seeds 0, 1, which had been seen when the claim was registered on 2026-01-01." in row.sentence
    first_two = replace(later, frame=study.frame[study.frame["seed"] < 2])
    assert correlations_of(first_two)[0].verdict == AFTER_LOOK
