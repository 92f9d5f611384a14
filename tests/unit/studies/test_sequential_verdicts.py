"""Verdicts at every look: scales, outcomes, published effects, failed seeds, and decisions that stand."""

from __future__ import annotations

import math
from dataclasses import replace

import memory_study
import numpy as np
import pytest

from rlhf_lab.core.metrics import scale_of
from rlhf_lab.statistics.sequential import Looks, beyond_p, discordant_p, looks_at, smaller_p
from rlhf_lab.studies.claims import AFTER_LOOK, CONFIRMED, NOT_SWEPT, REFUTED, SMALLER, UNCLEAR, UNTESTED
from rlhf_lab.studies.finding import looks_sentence
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.look_log import LookLog
from rlhf_lab.studies.registration import RegisteredClaim, Registration, SeedLook
from rlhf_lab.studies.replicates import log_scale, logit_scale
from rlhf_lab.studies.sequential import claim_states, look_at, skewness_in_errors
from rlhf_lab.studies.verdict import verdicts


def claim(direction: str, level: int = 1, metric: str = "gold", **more: object) -> dict[str, object]:
    return {"metric": metric, "level": level, "direction": direction, "versus": None, "margin": 0.0, "by": None, **more}


def study_of(*claims: dict[str, object], metric: str = "gold", rows: int = 0, **levels: list[float]) -> Study:
    """A study whose levels l0 (the baseline), l1, … have these values for seeds 0, 1, …; runs state no error."""
    values_LS = np.array([levels[name] for name in sorted(levels)])
    bare = np.full(values_LS.shape, math.nan)
    values_LSM4 = np.stack([values_LS, bare, bare, np.full(values_LS.shape, rows)], axis=-1)[:, :, None, :]
    study = memory_study.build(values_LSM4, (metric,), range(len(levels)), memory_study.REDRAWN)
    return replace(study, predicts=claims, log=LookLog(tuple(range(values_LS.shape[1]))))


def looked(study: Study, *counts: int) -> Study:
    """The study after looks at these numbers of seeds."""
    for count in counts:
        study = replace(study, log=look_at(study, count)[0])
    return study


GAPS = [1.0, 1.2, 0.9, 1.1, 1.0, 0.8]
NONE = [0.5, -0.6, 0.1, 0.3, -0.4, 0.1]


def test_claims_are_decided_at_every_look_and_stay_decided():
    base = [0.0] * 6
    study = study_of(claim("higher"), claim("lower"), claim("higher", level=2), l0=base, l1=GAPS, l2=NONE)
    study = looked(study, 3, 4, 5)
    assert study.log is not None
    p_L = beyond_p(looks_at(GAPS), 0.0)  # runs without a stated error have a least sd of a thousandth, far below .1
    assert 3 * p_L[2] > 0.05 > 3 * p_L[3]  # Holm over three claims, of which two are equally small
    assert [dict(look.decided) for look in study.log.looks] == [{}, {0: CONFIRMED, 1: REFUTED}, {}]
    assert [look.levels for look in study.log.looks] == [("1", "0", "2"), ("2", "0"), ("2", "0")]
    rows = verdicts(study)
    assert [row.verdict for row in rows] == [CONFIRMED, REFUTED, UNCLEAR]
    assert rows[0].sentence.startswith("Confirmed: gold reward is higher, max pairs 1 against max pairs 0: ")
    assert rows[0].notes == "; decided at 4 seeds"
    assert rows[0].p_holm == pytest.approx(3 * beyond_p(looks_at(GAPS), 0.0)[4], rel=1e-3)
    # The same values, read again with the recorded looks: nothing is decided anew, whatever later values are.
    frame = study.frame.copy()
    frame.loc[(frame["level"] == "1") & (frame["seed"] == 3), "gold"] = -50.0
    assert [row.verdict for row in verdicts(replace(study, frame=frame))] == [CONFIRMED, REFUTED, UNCLEAR]
    assert [look.seeds for look in looked(study, 4).log.looks] == [3, 4, 5]  # a look is not repeated
    assert looks_sentence(study.log).startswith("The claims were looked at n = 3, 4, 5. Their tests")


def test_before_the_third_seed_nothing_is_tested():
    study = study_of(claim("higher"), claim("higher", level=7), l0=[0.0] * 6, l1=GAPS)
    assert [state.verdict for state in claim_states(study)] == [UNTESTED, NOT_SWEPT]
    assert [row.verdict for row in verdicts(study)] == [UNTESTED, NOT_SWEPT]
    assert looks_sentence(study.log) == "The claims were not looked at yet."
    # A claim about a level outside the sweep is not part of the family.
    assert looked(study, 3).log.looks[0].decided == {0: CONFIRMED}


def test_seeds_seen_before_a_claim_do_not_count():
    base = [0.0] * 6
    later = [5.0, -5.0, 5.0, 1.1, 1.0, 1.05]
    study = study_of(claim("higher"), claim("higher", level=2), l0=base, l1=GAPS, l2=later)
    first, second = RegisteredClaim("a", {}, ""), RegisteredClaim("b", {}, "2030-01-01", seen=(0, 1, 2))
    study = replace(study, registration=Registration("x", (first, second), looks=(SeedLook("", (0, 1, 2)),)))
    study = looked(study, 3)
    assert [row.verdict for row in verdicts(study)] == [CONFIRMED, UNTESTED]  # three seeds are left
    assert "fewer than three seeds completed and were scored on both sides; without seeds 0, 1, 2" in (
        verdicts(study)[1].sentence
    )
    stopped = replace(
        study, log=replace(study.log, stopped="the limit of 6 seeds is reached"), command="x study.max_seeds=6 a=1"
    )
    row = verdicts(stopped)[1]
    assert row.verdict == AFTER_LOOK and "`x a=1 study.max_seeds=18` tests it on other seeds." in row.sentence
    study = looked(study, 4, 5, 6)
    p = beyond_p(looks_at(later[3:]), 0.0)[2]
    row = verdicts(study)[1]
    assert row.comparison.difference.clusters == 3
    assert row.comparison.difference.mean == pytest.approx(np.mean(later[3:]))
    assert row.p_holm == pytest.approx(p, rel=1e-3) and row.p_holm < 0.05  # a family of its own
    assert row.notes.startswith("; decided at 6 seeds; without seeds 0, 1, 2, which had been seen when ")
    # A withdrawn claim of the first family still counts in it.
    withdrawn = RegisteredClaim("c", {}, "", withdrawn="2030-01-01")
    family = replace(study.registration, withdrawn=(withdrawn,))
    assert verdicts(replace(study, registration=family))[0].p_holm == pytest.approx(2 * verdicts(study)[0].p_holm)


def test_amounts_are_judged_as_ratios():
    assert [
        scale_of(name) for name in ("kl", "tokens", "seconds", "verbose", "accuracy/truth", "gold", "gold_fell")
    ] == [*("log", "log", "log", "logit", "logit", "raw", "raw")]
    base, level = [1.0, 2.0, 1.0, 4.0], [20.0, 44.0, 18.0, 90.0]
    study = looked(study_of(claim("higher", metric="kl"), metric="kl", l0=base, l1=level), 3, 4)
    logs = np.log(level) - np.log(base)
    state = claim_states(study)[0]
    assert state.verdict == CONFIRMED
    assert state.ratio is not None and state.comparison is not None
    assert state.ratio.mean == pytest.approx(math.exp(logs.mean()))
    assert state.ratio.low < state.ratio.mean < state.ratio.high
    assert state.comparison.difference.mean == pytest.approx(41)  # in the metric's unit: 43 − 2
    assert "; ratio 20.5 [14.7, 28.8]" in verdicts(study)[0].notes
    assert log_scale(np.array([2.0, -0.1]), np.array([0.1, 0.1]))[0] == pytest.approx([math.log(2), math.log(0.001)])
    assert log_scale(np.array([2.0]), np.array([0.1]))[1] == pytest.approx([0.05])


def test_rates_are_judged_as_odds():
    # 0 of 9 rows: (0 + ½)/10 = .05, logit −2.944; slope 9/10 / (.05 · .95) = 18.95. 9 of 9: the opposite.
    values_N, sd_N = logit_scale(np.array([0.0, 1.0]), np.array([0.01, 0.01]), np.array([9.0, 9.0]))
    assert values_N == pytest.approx([-math.log(19), math.log(19)])
    assert sd_N == pytest.approx([0.01 * 0.9 / 0.0475] * 2)
    study = study_of(
        claim("lower", metric="verbose"),
        metric="verbose",
        rows=100,
        l0=[0.5, 0.6, 0.4, 0.55, 0.5],
        l1=[0.1, 0.12, 0.06, 0.1, 0.08],
    )
    rows = verdicts(looked(study, 3, 4, 5))
    assert rows[0].verdict == CONFIRMED and "; odds ratio 0." in rows[0].notes


@pytest.mark.slow
def test_outcomes_are_judged_by_discordant_pairs():
    ones, zeros = [1.0] * 9, [0.0] * 9
    study = study_of(claim("higher", metric="gold_fell"), metric="gold_fell", l0=zeros, l1=ones)
    study = looked(study, *range(3, 10))
    assert study.log is not None
    p = 2 * discordant_p(np.arange(1, 8), np.zeros(7))
    assert p[5] > 0.05 > p[6]  # seven pairs of one kind decide
    assert next(look.seeds for look in study.log.looks if look.decided) == 7
    state = claim_states(study)[0]
    assert (state.verdict, state.decided_at) == (CONFIRMED, 7)


def test_a_smaller_effect_than_the_published_one():
    base = [0.0] * 6
    study = looked(study_of(claim("lower", published=-3.0), l0=base, l1=NONE), 3, 4, 5, 6)
    state = claim_states(study)[0]
    assert smaller_p(looks_at(NONE), -3.0)[2] < 0.05
    assert (state.verdict, state.decided_at) == (SMALLER, 3)
    assert verdicts(study)[0].sentence.startswith("Smaller than published (−3): gold reward, max pairs 1 against")
    # An effect that exists is confirmed, and may be smaller than the published one too.
    both = looked(study_of(claim("higher", published=3.0), l0=base, l1=GAPS), 3, 4)
    assert claim_states(both)[0].verdict == CONFIRMED
    assert "smaller than the published +3" in verdicts(both)[0].notes
    # Without looks, the t test of all seeds: −.0 ± .41 against −3.
    fixed = replace(study, log=None)
    assert verdicts(fixed)[0].verdict == SMALLER
    assert verdicts(replace(both, log=None))[0].verdict == CONFIRMED
    # Published ratios of amounts are tested on the log scale.
    amounts = study_of(claim("lower", metric="kl", published=0.2), metric="kl", l0=[5.0, 4.0, 6.0], l1=[4.9, 4.1, 6.0])
    assert claim_states(looked(amounts, 3))[0].verdict == SMALLER
    assert verdicts(replace(amounts, log=None))[0].verdict == SMALLER
    assert "(ratio of 0.2)" in verdicts(looked(amounts, 3))[0].sentence
    # Amounts fall to 0.7, further than the published 0.9.
    more = study_of(claim("lower", metric="kl", published=0.9), metric="kl", l0=[5.0, 4.0, 6.0], l1=[3.5, 2.8, 4.25])
    state = claim_states(looked(more, 3))[0]
    assert state.verdict == CONFIRMED and not state.smaller


@pytest.mark.slow
def test_sameness_and_its_opposite():
    base = [0.0] * 6
    claims = (claim("same", margin=2.0), claim("same", margin=0.1), claim("same", level=2, margin=0.1))
    states = claim_states(looked(study_of(*claims, l0=base, l1=GAPS, l2=NONE), 3, 4, 5, 6))
    assert [state.verdict for state in states] == [CONFIRMED, REFUTED, UNCLEAR]


def test_too_many_failed_seeds_give_no_verdict():
    study = study_of(claim("higher"), l0=[0.0] * 12, l1=GAPS * 2)
    frame = study.frame.copy()
    frame.loc[(frame["level"] == "1") & (frame["seed"] == 1), "status"] = "failed"
    study = looked(replace(study, frame=frame), *range(3, 10))
    row = verdicts(study)[0]
    assert row.verdict == UNCLEAR  # one of nine seeds failed: 11 %
    assert "; no verdict, because 11% of its seeds have no result on both sides" in row.notes
    assert verdicts(looked(study, 10))[0].verdict == CONFIRMED  # one of ten


def test_an_open_claim_says_how_many_seeds_would_decide_it():
    gaps = [1.0, 0.2, 0.9, 0.1]
    study = looked(study_of(claim("higher"), l0=[0.0] * 4, l1=gaps), 3, 4)
    seeds = claim_states(study)[0].seeds
    mean, sd = np.mean(gaps), np.std(gaps, ddof=1)
    # One look at this number of seeds, with the same mean and standard deviation, decides, and one at fewer does not.
    assert seeds is not None and seeds > 4
    for count, is_decided in ((seeds, True), (seeds - 1, False)):
        look = Looks(np.array([mean]), np.array([sd / math.sqrt(count)]), np.array([float(count)]))
        assert bool(beyond_p(look, 0.0)[0] <= 0.05) == is_decided


def test_skewness_is_reported_from_six_seeds_on():
    assert math.isnan(skewness_in_errors(np.array([0.0, 0.0, 0.0, 0.0, 9.0])))
    # G₁ of five zeros and a one is √6 (n = 6), its standard error √(6·6·5/(4·7·9)) = .845.
    assert skewness_in_errors(np.array([0, 0, 0, 0, 0, 1.0])) == pytest.approx(math.sqrt(6) / 0.8452, rel=1e-3)
    study = looked(study_of(claim("higher"), l0=[0.0] * 6, l1=[0.1, 0.0, 0.1, 0.05, 0.0, 9.0]), 6)
    assert "the differences are skewed" in verdicts(study)[0].notes
