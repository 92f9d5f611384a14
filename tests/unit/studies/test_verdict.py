"""Verdicts of a study on its claims, and comparisons within the values of another factor."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from synthetic_runs import edited

from rlhf_lab.reports.study.metric_tables import level_dots
from rlhf_lab.results.wording import two_digits
from rlhf_lab.statistics.inference import minimum_detectable_effect, paired_difference
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.table import build_sections, markdown, table_frame
from rlhf_lab.studies.verdict import CONFIRMED, NOT_SWEPT, REFUTED, UNCLEAR, UNTESTED, claim_p, decide, verdicts


def claim(direction: str, level: str = "mixed", **more: object) -> dict[str, object]:
    return {"metric": "gold", "level": level, "direction": direction, "versus": None, "margin": 0.0, "by": None, **more}


@pytest.mark.parametrize(
    ("differences", "direction", "margin", "claims", "verdict"),
    [
        ([1.0, 1.1, 0.9], "higher", 0.0, 1, CONFIRMED),  # t = 1/(.1/√3) = 17.3 on 2 degrees of freedom: p .0033
        ([1.0, 1.1, 0.9], "lower", 0.0, 1, REFUTED),
        ([1.0, 1.1, 0.9], "higher", 0.0, 16, UNCLEAR),  # the smallest of 16 claims: .053
        ([1.0, -1.1, 0.9], "higher", 0.0, 1, UNCLEAR),
        # sd .1, n = 3: one-sided 5 % is t = 2.920, so the margin must be 2.920 · .1/√3 = .169 away from the mean
        ([-0.1, 0.0, 0.1], "same", 0.17, 1, CONFIRMED),
        ([-0.1, 0.0, 0.1], "same", 0.16, 1, UNCLEAR),
        # outside is tested on two sides, t = 4.303: .248 away from the mean of 1
        ([0.9, 1.0, 1.1], "same", 0.75, 1, REFUTED),
        ([0.9, 1.0, 1.1], "same", 0.76, 1, UNCLEAR),
    ],
)
def test_a_claim_is_decided_at_five_percent(differences, direction, margin, claims, verdict):
    comparison = paired_difference(np.array(differences), np.zeros(3), [0, 1, 2])
    generated = claim(direction, margin=margin)
    assert decide(generated, comparison, min(1.0, claims * claim_p(generated, comparison))) == verdict


def test_claims_are_paired_adjusted_and_told(make_study):
    study = read_study(make_study(seeds=4))
    study = replace(study, predicts=(claim("higher"), claim("higher", level="stale"), claim("lower", versus="stale")))
    rows = verdicts(study)
    assert [row.verdict for row in rows] == [CONFIRMED, UNCLEAR, REFUTED]
    done = study.completed.set_index(["level", "seed"])["gold"]
    assert rows[2].comparison is not None
    assert rows[2].comparison.difference.mean == pytest.approx((done["mixed"] - done["stale"]).mean())
    assert all(row.p_holm >= row.comparison.p_value for row in rows if row.comparison)
    assert min(row.p_holm for row in rows) == pytest.approx(3 * min(row.comparison.p_value for row in rows))
    assert rows[2].claim == "gold reward is lower with buffer mixed than with buffer stale"
    assert rows[2].sentence.startswith(
        "Not confirmed: gold reward was expected to be lower, but it is higher, buffer mixed against buffer stale: "
    )
    assert rows[1].seeds is None or rows[1].seeds > 4
    # Detectable at the strictest level of Holm's adjustment: 5 % over three claims.
    gap = rows[1].comparison
    sd = gap.standard_error * np.sqrt(4)
    assert rows[1].detectable.startswith(two_digits(minimum_detectable_effect(sd, 4, alpha=0.05 / 3)))
    conclusion = write_conclusion(study, build_sections(study))
    assert markdown(study, build_sections(study), conclusion).count("**not confirmed**") == 1
    assert conclusion.sentence.startswith("Of 3 claims, 1 is confirmed, 1 not confirmed and 1 undecided. Confirmed: ")
    assert rows[2].sentence in conclusion.sentence
    assert verdicts(replace(study, frame=study.frame[study.frame["seed"] == 0]))[0].verdict == UNTESTED


def test_a_claim_about_a_level_outside_the_sweep_is_said_and_the_measurements_follow(make_study):
    """The command line narrowed the sweep: the claims' level has no job, not even one that failed."""
    study = read_study(make_study(seeds=4))
    outside = claim("lower", level="rolling")
    narrowed = replace(study, predicts=(outside, claim("higher", versus="rolling")))
    assert [row.verdict for row in verdicts(narrowed)] == [NOT_SWEPT, NOT_SWEPT]
    sentence = write_conclusion(narrowed, build_sections(narrowed)).sentence
    assert sentence.startswith("All 2 claims are about levels outside this sweep. Not in this sweep, because no job ")
    assert "has buffer rolling: gold reward is lower with buffer rolling than with buffer current." in sentence
    measured = write_conclusion(replace(study, predicts=()), build_sections(study)).sentence
    assert measured and measured in sentence
    # a claim whose level has jobs is judged as if the other were not there: Holm runs over what was tested
    mixed = replace(study, predicts=(outside, claim("higher")))
    assert verdicts(mixed)[1] == verdicts(replace(study, predicts=(claim("higher"),)))[0]
    assert "Of 2 claims, 1 is confirmed and 1 about levels" in write_conclusion(mixed, build_sections(mixed)).sentence


@pytest.fixture
def divided(make_study):
    """The same study with a second factor: seeds 0 and 1 are of the small model, 2 and 3 of the large one."""
    directory = make_study(seeds=4)
    with edited(directory / "study.json") as plan:
        for job in plan["jobs"]:
            seed = job["overrides"]["seed"]
            job["overrides"] |= {"seed": seed % 2, "model": "small" if seed < 2 else "large"}
        plan |= {"by": "model", "predicts": [claim("higher", by="large"), claim("higher")]}
    return directory


def test_levels_are_compared_within_each_value_of_by(divided):
    study = read_study(divided)
    sections = [section for section in build_sections(study) if section.metric == "gold"]
    assert [section.by for section in sections] == ["small", "large"]
    done = study.completed.set_index(["model", "level", "seed"])["gold"]
    for section in sections:
        mixed = next(row for row in section.rows if row.level == "mixed")
        assert mixed.versus is not None and mixed.versus.difference.n == 2
        expected = (done[section.by]["mixed"] - done[section.by]["current"]).mean()
        assert mixed.versus.difference.mean == pytest.approx(expected)
    assert list(table_frame(study, build_sections(study))["model"][:4]) == ["small"] * 3 + ["large"]
    large, both = verdicts(study)
    assert large.comparison.difference.n == 2 and both.comparison.difference.n == 4
    assert large.claim.endswith("(large)")
    assert "large: buffer mixed" in json.dumps(level_dots(study, build_sections(study)).specification)
    without_claims = write_conclusion(replace(study, predicts=()), build_sections(study)).sentence
    assert "Gold reward (small) is" in without_claims and "Gold reward (large) is" in without_claims
