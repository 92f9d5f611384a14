"""Verdicts of a study that adds seeds until its claims are decided (`study.until=decided`).

The tests are those of `statistics/sequential.py`, which hold at every look. Claims that were registered together form
one family for Holm's adjustment at every look (`registration.py`), and a claim that one look decides stays decided.

- Direction: two one-sided tests on the scale of the metric (`replicates.py`); for 0/1 outcomes, discordant pairs.
- Same within a margin: two one-sided tests against its opposite, in the metric's unit.
- Smaller than published: a one-sided test at the level that Holm's adjustment gives to the claim itself. Whatever the
  true difference is, a false verdict on the claim has at most the probability of this level. If it is at least the
  published one, only "smaller" is false. If it is smaller, only the opposite direction is false, which is tested at
  half the level. If it is 0, both directions are false.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from rlhf_lab.core.metrics import scale_of
from rlhf_lab.core.types import FloatArray
from rlhf_lab.statistics.inference import Comparison, Estimate
from rlhf_lab.statistics.sequential import (
    FIRST,
    LAST,
    Looks,
    beyond_p,
    discordant_p,
    one_sided_p,
    same_p,
    sequential_interval,
    smaller_p,
    two_sided,
)
from rlhf_lab.studies.claims import (
    ALPHA,
    CONFIRMED,
    NOT_SWEPT,
    REFUTED,
    SMALLER,
    UNCLEAR,
    UNTESTED,
    compared_levels,
    family_holm,
    family_of,
    missing_levels,
    panel_of_claim,
    seen_seeds,
    withdrawn_in_family,
)
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.look_log import Look, LookLog
from rlhf_lab.studies.pairing import paired_jobs
from rlhf_lab.studies.replicates import OUTCOMES, level_difference, scaled_difference, scaled_pairs

MAX_FAILED = 0.1
"""Maximum fraction of seeds without results on both sides of a claim; above it, the claim is not decided."""
SKEW_SEEDS = 6
"""Minimum number of seeds for which the skewness of differences is reported."""


@dataclass(frozen=True)
class ClaimEvidence:
    """Data of one claim (an entry of `Study.predicts`) at every look.

    Attributes:
        raw, scaled: differences in the metric's unit, and on its scale.
        wins: for 0/1 outcomes, (pairs in which only the level is 1, pairs in which only the other is), (L,) each.
        failed_L: (L,) fraction of seeds that should have both sides but lack one.
        comparison: t comparison of all seeds in the metric's unit; None without a pair.
        skewness: skewness of the differences on the metric's scale, over its standard error; NaN below `SKEW_SEEDS`.
        excluded: number of seeds of the last look that had been seen before the claim was registered.
    """

    claim: Mapping[str, Any]
    raw: Looks
    scaled: Looks
    wins: tuple[FloatArray, FloatArray] | None
    failed_L: FloatArray
    comparison: Comparison | None
    skewness: float
    excluded: int = 0

    def direction_p(self) -> tuple[FloatArray, FloatArray]:
        if self.wins is not None:
            return discordant_p(*self.wins), discordant_p(*self.wins[::-1])
        return one_sided_p(self.scaled), one_sided_p(self.scaled.negated())

    def within_p(self) -> tuple[FloatArray, FloatArray]:
        margin = self.claim["margin"]
        return same_p(self.raw, margin), beyond_p(self.raw, margin)

    def smaller_p(self) -> FloatArray:
        """Return the p-values of "smaller than published", (L,); 1 for a claim without a published effect.

        The published effect is a difference in the metric's unit; for a metric on a log scale it is a ratio.
        """
        published = self.claim.get("published")
        if published is None:
            return np.ones_like(self.raw.mean_L)
        if scale_of(self.claim["metric"]) == "log":
            return smaller_p(self.scaled, math.log(published))
        return smaller_p(self.raw, published)

    def main_p(self) -> FloatArray:
        """Return the p-values of the claim or its opposite, without "smaller than published", (L,)."""
        if self.claim["direction"] == "same":
            return np.minimum(*self.within_p())
        return two_sided(*self.direction_p())

    def p_at(self, position: int) -> float:
        """Return the p-value of the claim at a look; 1 if too many seeds failed, because then nothing is decided."""
        if self.failed_L[position] > MAX_FAILED:
            return 1.0
        return float(min(self.main_p()[position], self.smaller_p()[position]))

    def future(self) -> ClaimEvidence:
        """Return looks at all further numbers of seeds, if means and standard deviations stay as in the last look."""
        count = int(self.raw.count_L[-1])
        counts_F = np.arange(count, LAST + 1, dtype=np.float64)
        wins = self.wins and (self.wins[0][-1] * counts_F / count, self.wins[1][-1] * counts_F / count)
        raw, scaled = _extended(self.raw, counts_F), _extended(self.scaled, counts_F)
        return dataclasses.replace(self, raw=raw, scaled=scaled, wins=wins)


def _extended(looks: Looks, counts_F: FloatArray) -> Looks:
    deviation = looks.error_L[-1] * math.sqrt(looks.count_L[-1])
    return Looks(np.full(counts_F.shape, looks.mean_L[-1]), deviation / np.sqrt(counts_F), counts_F)


@dataclass(frozen=True)
class ClaimState:
    """A claim after the last look.

    Attributes:
        verdict: one of `claims.VERDICTS`; a claim that is still open is `not distinguishable`.
        decided_at: number of seeds at the look that decided the claim; None for an open claim.
        comparison: difference in the metric's unit with its sequential interval; None without a pair.
        ratio: ratio (log scale) or odds ratio (logit scale) with its sequential interval; None for other scales.
        p_holm: sequential p-value after Holm; NaN before the first look.
        smaller: True if the effect is also smaller than the published one, at the same level.
        failed: fraction of seeds without a pair.
        skewed: True if the differences are skewed by more than two standard errors of skewness.
        seeds: number of seeds at which an open claim is decided if mean and standard deviation stay; None if unknown
            or above `statistics.sequential.LAST`.
    """

    verdict: str
    decided_at: int | None = None
    comparison: Comparison | None = None
    ratio: Estimate | None = None
    p_holm: float = math.nan
    smaller: bool = False
    failed: float = 0.0
    skewed: bool = False
    seeds: int | None = None


def claim_states(study: Study) -> list[ClaimState]:
    """Return the state of every claim of a study after its recorded looks."""
    return _judge(study, [look.seeds for look in _log(study).looks])[0]


def look_at(study: Study, seeds: int) -> tuple[LookLog, list[ClaimState]]:
    """Look at the first `seeds` seeds of a study. Return its log with this look, and the state of every claim.

    A look that the log has already is not repeated.
    """
    counts = sorted({*(look.seeds for look in _log(study).looks), seeds})
    states, looks = _judge(study, counts)
    return dataclasses.replace(_log(study), looks=tuple(looks)), states


def _log(study: Study) -> LookLog:
    assert study.log is not None, "only studies with until=decided have looks"
    return study.log


def _judge(study: Study, counts: Sequence[int]) -> tuple[list[ClaimState], list[Look]]:
    """Judge all claims at looks after these numbers of seeds; recorded decisions stand."""
    swept = [index for index, claim in enumerate(study.predicts) if not missing_levels(study, claim)]
    if not (swept and counts):
        verdicts = [UNTESTED if index in swept else NOT_SWEPT for index in range(len(study.predicts))]
        return [ClaimState(verdict) for verdict in verdicts], [Look(count, {}, ()) for count in counts]
    evidence = {index: _evidence(study, study.predicts[index], counts) for index in swept}
    recorded = {look.seeds: look for look in _log(study).looks}
    decided: dict[int, tuple[str, int]] = {}  # claim → (verdict, number of seeds)
    looks: list[Look] = []
    p_holm: dict[int, float] = {}
    for position, count in enumerate(counts):
        p_values = {index: of_claim.p_at(position) for index, of_claim in evidence.items()}
        p_holm = family_holm(study, p_values)
        look = recorded.get(count)
        if look is None:
            new = {}
            for index in swept:
                if index not in decided and p_holm[index] <= ALPHA:
                    new[index] = _decide(study, index, evidence[index], p_values, position)
            open_claims = [study.predicts[index] for index in swept if index not in decided and index not in new]
            levels = dict.fromkeys(level for claim in open_claims for level in compared_levels(study, claim))
            look = Look(count, new, tuple(levels))
        decided |= {index: (verdict, count) for index, verdict in look.decided.items()}
        looks.append(look)
    states = [ClaimState(NOT_SWEPT)] * len(study.predicts)
    for index in swept:
        claim = study.predicts[index]
        open_claims_of_family = [other for other in family_of(study, claim) if other in swept and other not in decided]
        # Withdrawn claims stay in the family and are never decided.
        open_count = len(open_claims_of_family) + withdrawn_in_family(study, claim)
        states[index] = _state(evidence[index], p_holm[index], decided.get(index), open_count)
    return states, looks


def _decide(study: Study, index: int, evidence: ClaimEvidence, p_values: Mapping[int, float], position: int) -> str:
    """Return the verdict on a claim that Holm's adjustment of `p_values` decides at a look."""
    main_p = float(evidence.main_p()[position])
    # The direction is the more informative verdict, so "smaller" is reported only if it is needed for the decision.
    if family_holm(study, {**p_values, index: main_p})[index] > ALPHA:
        return SMALLER
    claimed = evidence.claim["direction"]
    if claimed == "same":
        within_L, beyond_L = evidence.within_p()
        return CONFIRMED if within_L[position] < beyond_L[position] else REFUTED
    higher_L, lower_L = evidence.direction_p()
    direction = "higher" if higher_L[position] < lower_L[position] else "lower"
    return CONFIRMED if direction == claimed else REFUTED


def _state(evidence: ClaimEvidence, p_holm: float, decision: tuple[str, int] | None, open_count: int) -> ClaimState:
    """Return the state of a claim after the last look.

    Args:
        decision: (verdict, number of seeds) of a decided claim.
        open_count: number of open claims in its family.
    """
    failed = float(evidence.failed_L[-1])
    if evidence.comparison is None or evidence.raw.count_L[-1] < FIRST:
        verdict, decided_at = decision or (UNTESTED, None)
        return ClaimState(verdict, decided_at, p_holm=p_holm, failed=failed)
    gap = _with_bounds(evidence.comparison.difference, evidence.raw)
    ratio = None
    if scale_of(evidence.claim["metric"]) != "raw":
        log_gap = dataclasses.replace(gap, mean=float(evidence.scaled.mean_L[-1]), low=-math.inf, high=math.inf)
        logs = _with_bounds(log_gap, evidence.scaled)
        ratio = dataclasses.replace(logs, mean=math.exp(logs.mean), low=math.exp(logs.low), high=math.exp(logs.high))
    verdict, decided_at = decision or (UNCLEAR, None)
    # A confirmed claim keeps its place in the family, next to the open ones.
    smaller = verdict == CONFIRMED and float(evidence.smaller_p()[-1]) <= ALPHA / (open_count + 1)
    return ClaimState(
        verdict,
        decided_at,
        dataclasses.replace(evidence.comparison, difference=gap),
        ratio,
        p_holm,
        smaller,
        failed,
        skewed=abs(evidence.skewness) > 2,
        seeds=None if decision else _seeds_to_decide(evidence, ALPHA / open_count),
    )


def _seeds_to_decide(evidence: ClaimEvidence, level: float) -> int | None:
    """Return the number of seeds at which a claim's p-value reaches `level` if its differences stay as observed."""
    future = evidence.future()
    p_F = np.minimum(future.main_p(), future.smaller_p())
    reached_F = np.flatnonzero(p_F <= level)
    return int(future.raw.count_L[reached_F[0]]) + evidence.excluded if reached_F.size else None


def _with_bounds(gap: Estimate, looks: Looks) -> Estimate:
    """Return an estimate with the sequential interval of the last look.

    Bounds of all looks are intersected. If the present mean is outside, because differences drift, the interval is that
    of the last look alone, which is wider and also valid.
    """
    low_L, high_L = sequential_interval(looks)
    if not low_L[-1] <= gap.mean <= high_L[-1]:
        last = Looks(looks.mean_L[-1:], looks.error_L[-1:], looks.count_L[-1:])
        low_L, high_L = sequential_interval(last)
    return dataclasses.replace(gap, low=float(low_L[-1]), high=float(high_L[-1]))


def _evidence(study: Study, claim: Mapping[str, Any], counts: Sequence[int]) -> ClaimEvidence:
    level, versus = compared_levels(study, claim)
    name = claim["metric"]
    panels = []
    for count in counts:
        seeds = _log(study).seeds[:count]
        first_seeds = dataclasses.replace(study, frame=study.frame[study.frame["seed"].isin(seeds)])
        panels.append(panel_of_claim(first_seeds, claim) or dataclasses.replace(study, frame=study.frame[:0]))
    raw = [level_difference(panel, name, level, versus) for panel in panels]
    scaled = [scaled_difference(panel, name, level, versus) for panel in panels]
    expected_L = np.array([_planned_pairs(panel, level, versus) for panel in panels], dtype=np.float64)
    raw_looks = _looks(raw)
    missing_L = np.maximum(expected_L - raw_looks.count_L, 0)
    pairs = scaled_pairs(panels[-1], name, level, versus)
    return ClaimEvidence(
        claim,
        raw_looks,
        _looks(scaled),
        _wins(panels, claim, level, versus) if OUTCOMES.match(name) else None,
        missing_L / np.maximum(expected_L, 1),
        raw[-1],
        math.nan if pairs is None else skewness_in_errors(pairs.a_N - pairs.b_N),
        len({*seen_seeds(study, claim)} & {*_log(study).seeds[: counts[-1]]}),
    )


def _looks(comparisons: Sequence[Comparison | None]) -> Looks:
    rows = []
    for found in comparisons:
        rows.append(
            (found.difference.mean, found.standard_error, found.difference.clusters)
            if found
            else (math.nan, math.nan, 0)
        )
    return Looks(*np.array(rows, dtype=np.float64).T)


def _planned_pairs(study: Study, level: str, versus: str) -> int:
    first, second = (set(study.frame.loc[study.frame["level"] == side, "seed"]) for side in (level, versus))
    return len(first & second)


def _wins(
    panels: Sequence[Study], claim: Mapping[str, Any], level: str, versus: str
) -> tuple[FloatArray, FloatArray] | None:
    """Return the numbers of pairs in which only one side is 1, (L,) each; None if a seed has several pairs."""
    counts = []
    for panel in panels:
        pairs = paired_jobs(panel, claim["metric"], level, versus).dropna()
        if not pairs["seed"].is_unique:  # pairs of one seed are not independent
            return None
        counts.append(((pairs["a"] > pairs["b"]).sum(), (pairs["a"] < pairs["b"]).sum()))
    first_L, second_L = np.array(counts, dtype=np.float64).T
    return first_L, second_L


def skewness_in_errors(values_N: FloatArray) -> float:
    """Return the skewness of values over its standard error for normal ones; NaN below `SKEW_SEEDS` values.

    The standard error of G₁ is √(6n(n − 1)/((n − 2)(n + 1)(n + 3))) (Joanes & Gill 1998).
    """
    values_N = values_N[~np.isnan(values_N)]
    n = values_N.size
    if n < SKEW_SEEDS or np.ptp(values_N) == 0:
        return math.nan
    error = math.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
    return float(stats.skew(values_N, bias=False)) / error
