"""Rates over runs that a study claims: their arithmetic, verdicts, page, settings and registration."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from rlhf_lab.config.study_settings import RateSettings
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.reports.study.claims import rates
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.studies.claims import AFTER_LOOK, CONFIRMED, REFUTED, UNCLEAR, UNTESTED
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.rates import decide_rate, rate_in_words, rate_markdown, rates_of
from rlhf_lab.studies.registration import (
    RegisteredClaim,
    Registration,
    SeedLook,
    claim_meaning,
    correlation_meaning,
    kind_of,
    rate_meaning,
)
from rlhf_lab.studies.registration_text import registration_lines
from rlhf_lab.studies.table import build_sections, markdown

FALSE = {"metric": "false/warning", "direction": "lower", "than": 0.5}


@pytest.fixture
def base(make_study):
    """A study with one seed, whose jobs are replaced."""
    return read_study(make_study(seeds=1))


def study_of(base, outcomes: dict[int, list[float]], *claims: dict):
    """Return a study whose runs have these outcomes: seed → one value per run."""
    rows = [
        {"index": 10 * seed + run, "status": "completed", "error": "", "run": None, "changed": "", "level": str(run)}
        | {"beta": run, "seed": seed, "false/warning": value}
        for seed, values in outcomes.items()
        for run, value in enumerate(values)
    ]
    frame = pd.DataFrame(rows)
    frame = frame.assign(**{f"false/warning/{side}": math.nan for side in ("low", "high")}, **{"false/warning/n": 0})
    return replace(
        base,
        frame=frame,
        policies=pd.DataFrame(),
        factors=("beta", "seed"),
        compare="beta",
        baseline="0",
        metrics=("false/warning",),
        primary="false/warning",
        rates=claims or (FALSE,),
    )


def test_a_rate_of_independent_runs(base):
    """No false alarm in 10 seeds: Wilson's upper bound is z²/(n + z²) with n = 10 and z = 1.96, 3.8415/13.8415."""
    study = study_of(base, {seed: [0.0] for seed in range(10)})
    (row,) = rates_of(study)
    assert row.verdict == CONFIRMED and (row.rate.low, row.rate.high) == (0, pytest.approx(0.2775, abs=1e-4))
    # Two claims: 97.5 % each, z = 2.2414, 5.0239/15.0239.
    two = study_of(base, {seed: [0.0] for seed in range(10)}, FALSE, FALSE | {"than": 0.3})
    assert [row.verdict for row in rates_of(two)] == [CONFIRMED, UNCLEAR]
    assert rates_of(two)[0].rate.high == pytest.approx(0.3344, abs=1e-4)


def test_runs_of_a_seed_are_no_new_seeds(base):
    """Ten seeds with four equal runs each say no more than ten runs."""
    once = study_of(base, {seed: [0.0] for seed in range(10)})
    four = study_of(base, {seed: [0.0] * 4 for seed in range(10)})
    assert rates_of(four)[0].rate.high == rates_of(once)[0].rate.high


def test_runs_without_the_outcome_are_counted_and_left_out(base):
    """Six of eight runs that count have an alarm; the other eight fell or are undecided."""
    outcomes = {seed: [float(seed > 1), math.nan] for seed in range(8)}
    study = study_of(base, outcomes)
    (row,) = rates_of(study)
    assert row.rate.mean == 0.75 and (row.rate.n, row.rate.unscored) == (8, 8)
    assert row.verdict == UNCLEAR and "over 8 runs of 8 seeds, 8 runs do not count" in row.sentence
    page = markdown(study, build_sections(study), write_conclusion(study, build_sections(study)))
    assert (
        "## Rates over runs" in page
        and rate_markdown(study) in page
        and f"The claim is undecided. {row.sentence}" in page
    )
    section = rates(StudyResults(study))
    assert section is not None and section.table.rows[0][1:4] == (UNCLEAR, "8", "8")
    none = replace(study, rates=())
    assert rates(StudyResults(none)) is None and rate_markdown(none) == ""
    empty = study_of(base, {seed: [math.nan] for seed in range(8)})
    assert rates_of(empty)[0].verdict == UNTESTED


@pytest.mark.parametrize(
    ("low", "high", "direction", "expected"),
    [
        (0.55, 0.9, "higher", CONFIRMED),
        (0.55, 0.9, "lower", REFUTED),
        (0.1, 0.45, "higher", REFUTED),
        (0.1, 0.45, "lower", CONFIRMED),
        (0.45, 0.55, "higher", UNCLEAR),
    ],
)
def test_the_rule(low, high, direction, expected):
    assert decide_rate(FALSE | {"direction": direction}, Estimate((low + high) / 2, low, high, 9, 9)) == expected


def test_seeds_that_were_seen_do_not_count(base):
    """The seeds seen have no alarm; the others all have one."""
    study = study_of(base, {seed: [float(seed >= 10)] for seed in range(20)})
    jobs = [{"overrides": {"beta": beta, "seed": 3}, "settings": str(beta)} for beta in (1, 0)]
    plan = {"compare": "beta", "jobs": jobs}
    meaning = rate_meaning(plan, FALSE)
    assert meaning["settings"] == {"beta": ["0", "1"]}
    seen = tuple(range(10))
    entry = RegisteredClaim("0" * 64, meaning, "2026-01-01T00:00", seen=seen)
    later = replace(study, registration=Registration("x", rates=(entry,), looks=(SeedLook("2026-01-01T00:00", seen),)))
    (row,) = rates_of(later)
    assert row.verdict == REFUTED and row.rate.mean == 1 and "; without seeds 0, 1, 2" in row.sentence
    # Seeds that the study does not have need no mention.
    other = replace(later, frame=later.frame[~later.frame["seed"].isin(seen)])
    assert "without seeds" not in rates_of(other)[0].sentence
    assert any(line.startswith("Rate 1 (000000000000) was registered on ") for line in registration_lines(later))
    first = replace(later, frame=study.frame[study.frame["seed"] < 10])
    assert rates_of(first)[0].verdict == AFTER_LOOK and "`seed=10,11," in rate_markdown(first)
    # Dropping a rate after a look does not make the others easier: two rates are 97.5 % each.
    dropped = replace(study, registration=Registration("x", withdrawn=(entry,)))
    two = replace(study, rates=(FALSE, FALSE | {"than": 0.3}))
    assert rates_of(dropped)[0].rate == rates_of(two)[0].rate != rates_of(study)[0].rate
    gone = replace(later, registration=replace(later.registration, rates=(), withdrawn=(entry,)))
    assert any("Withdrawn" in line and "lower than 50% of runs" in line for line in registration_lines(gone))


def test_kinds_of_claims_are_told_apart():
    jobs = [{"overrides": {"beta": 0}, "settings": "a"}]
    plan = {"compare": "beta", "baseline": 0, "by": "", "jobs": jobs}
    claim = {"metric": "kl", "level": 1, "direction": "lower", "margin": 0.0}
    ranks = {"metric": "kl", "outcome": "gold", "direction": "negative"}
    meanings = [rate_meaning(plan, FALSE), claim_meaning(plan, claim), correlation_meaning(plan, ranks)]
    assert [kind_of(meaning) for meaning in meanings] == ["rate", "claim", "correlation"]
    revised = Registration("x").revised(meanings, "2026-01-01T00:00")
    assert [len(entries) for entries in (revised.claims, revised.correlations, revised.rates)] == [1, 1, 1]


def test_settings_are_refused_with_a_message():
    with pytest.raises(ConfigError, match="than"):
        RateSettings("false/warning", "lower", than=1.5)


def test_small_rates_are_not_rounded():
    assert rate_in_words(FALSE | {"than": 0.005}).endswith("lower than 0.5% of runs")
