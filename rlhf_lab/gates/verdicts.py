"""Verdicts of checks: bounds first, then the comparison with the accepted run.

A check without a score fails. A bound is violated if the mean is beyond it. A comparison is a regression if the
candidate is worse by more than the margin, at the suite's level after Holm's adjustment over all comparisons of the
suite. Without a margin, equality cannot be proved, so "no regression found" states the change that would have been
detected. With a margin, the candidate is "not worse" if the interval of the difference excludes a loss larger than the
margin. If neither a regression nor "not worse" is shown, the check is undecided, and the verdict estimates the number
of prompts that would decide it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.metrics import metric as metric_of
from rlhf_lab.gates.scores import Scores, SuiteCheck
from rlhf_lab.results.wording import compact
from rlhf_lab.statistics.estimates import Comparison, Estimate
from rlhf_lab.statistics.inference import error_of_interval, holm, unpaired_from_intervals
from rlhf_lab.statistics.paired_rates import margin_p_values, paired_by_prompt, prompts_to_find

SHARED = 2
"""Minimum number of prompts for a test; one prompt has no spread."""
ANOTHER_SCALE = (
    "not compared, because the accepted run was scored by another reward or source of gold, or measured from another "
    "reference policy; evaluate both with one, or set compare: false"
)
ALIKE = 0.9
"""Minimum fraction of the larger prompt set that both runs must have in common to be compared prompt by prompt."""


@dataclass(frozen=True)
class CheckVerdict:
    """A decided check.

    Attributes:
        value, accepted: estimates of the candidate and of the accepted run; `accepted` is None without an accepted run.
        gain: candidate − accepted, positive if the candidate is better.
        p_worse: adjusted p-value of "worse by more than the margin"; NaN without a comparison.
        p_not_worse: p-value of "not worse by more than the margin"; NaN without a comparison.
        state: `pass`, `below bound`, `regression` and `unscored` (these three fail), or `undecided`.
        words: reason for the state.
        remarks: limitations of the comparison, in words.
        unit: noun of the independent unit of the comparison, such as "prompt".
        incomparable: reason why the values cannot be compared; "" if they can.
    """

    check: SuiteCheck
    value: Estimate
    accepted: Estimate | None = None
    gain: Comparison | None = None
    p_worse: float = math.nan
    p_not_worse: float = math.nan
    state: str = "pass"
    words: str = ""
    remarks: tuple[str, ...] = ()
    unit: str = "prompt"
    incomparable: str = ""

    @property
    def failed(self) -> bool:
        return self.state in ("below bound", "regression", "unscored")


def decide(
    candidate: Sequence[tuple[SuiteCheck, Scores]], accepted: dict[str, Scores], alpha: float
) -> list[CheckVerdict]:
    """Return a verdict per check, in their order.

    Args:
        accepted: check → its values in the accepted run. A check that is missing here is not compared.
    """
    # first all p-values, because Holm's adjustment needs the whole family
    verdicts = [
        _measured(check, scores, accepted.get(check.name) if check.demand.compare else None)
        for check, scores in candidate
    ]
    adjusted = holm([verdict.p_worse for verdict in verdicts])
    return [_decide(replace(verdict, p_worse=p), alpha) for verdict, p in zip(verdicts, adjusted, strict=True)]


def direction(check: SuiteCheck) -> str:
    """Return `higher` or `lower`; "" if neither the suite's entry nor the metric states a direction."""
    return check.demand.better or metric_of(check.metric).better


def require_directions(checks: Sequence[SuiteCheck]) -> None:
    """Raise ConfigError with all checks that are to be compared but have no direction."""
    unknown = [check for check in checks if check.demand.compare and not direction(check)]
    if unknown:
        raise ConfigError(
            [
                f"{check.name}: it is unknown whether a higher {check.metric} is better; "
                "set better: higher|lower, or compare: false"
                for check in unknown
            ]
        )


def _measured(check: SuiteCheck, now: Scores, before: Scores | None) -> CheckVerdict:
    """Return the check with its comparison; p-values are not yet adjusted."""
    if before is None:
        return CheckVerdict(check, now.estimate)
    if now.scale and before.scale and now.scale != before.scale:
        return CheckVerdict(check, now.estimate, before.estimate, incomparable=ANOTHER_SCALE)
    margin = check.demand.margin
    shared = sum(prompt in before.outcomes for prompt in now.outcomes)
    larger = max(len(now.outcomes), len(before.outcomes))
    notes: tuple[str, ...] = ()
    if shared < larger:
        notes += (f"the runs have {shared} of {larger} prompts in common",)
    if now.version != before.version:
        notes += (f"the accepted run used another version of {check.metric.replace('/', '.', 1)}",)
    if shared < max(SHARED, ALIKE * larger):
        return replace(_from_intervals(check, now.estimate, before.estimate), remarks=notes)
    # the difference is positive if the candidate is better, in either direction of the metric
    worse_side, better_side = (now, before) if direction(check) == "lower" else (before, now)
    # the candidate's clusters are used: prompts that both runs have are the same, and so are their clusters
    gain = paired_by_prompt(worse_side.outcomes, better_side.outcomes, now.clusters)
    p_not_worse, p_worse = margin_p_values(gain, margin)
    if not margin and not math.isnan(gain.p_value):
        # without a margin, test the difference itself, exactly if outcomes are single; an improvement is no regression
        p_worse = gain.p_value if gain.difference.mean < 0 else 1.0
    return CheckVerdict(check, now.estimate, before.estimate, gain, p_worse, p_not_worse, remarks=notes, unit=now.unit)


def _from_intervals(check: SuiteCheck, now: Estimate, before: Estimate) -> CheckVerdict:
    """Compare runs with too few prompts in common, or without rows, by a z test of their intervals and the margin."""
    verdict = CheckVerdict(check, now, before)
    z, _ = unpaired_from_intervals(before, now)
    # with one prompt the interval is all of [0, 1], so it says nothing
    if math.isnan(z) or min(now.clusters, before.clusters) < SHARED:
        return verdict
    mean = (before.mean - now.mean) if direction(check) == "lower" else (now.mean - before.mean)
    error = math.hypot(error_of_interval(before), error_of_interval(now))
    # 1.96 and 2.8 = 1.96 + 0.84: normal quantiles of a 95 % interval and of 80 % power
    interval = Estimate(mean, mean - 1.96 * error, mean + 1.96 * error, now.n, min(now.clusters, now.n))
    test = "z test of two intervals, unpaired"  # the t test with infinitely many degrees of freedom
    gain = Comparison(interval, math.nan, 2.8 * error, test, standard_error=error, freedom=math.inf)
    p_not_worse, p_worse = margin_p_values(gain, check.demand.margin)
    return replace(verdict, gain=gain, p_worse=p_worse, p_not_worse=p_not_worse)


def _decide(verdict: CheckVerdict, alpha: float) -> CheckVerdict:
    """Return the verdict with its state (such as "below bound") and a short explanation in words."""
    demand = verdict.check.demand
    mean = verdict.value.mean
    counts = f"{verdict.value.n} scored, {verdict.value.unscored} unscored"
    if math.isnan(mean):
        return replace(verdict, state="unscored", words=counts)
    if demand.min is not None and mean < demand.min:
        return replace(verdict, state="below bound", words=f"{compact(mean)} is below min {demand.min:g}")
    if demand.max is not None and mean > demand.max:
        return replace(verdict, state="below bound", words=f"{compact(mean)} is above max {demand.max:g}")
    near = _near_bound(verdict)
    missing = counts if verdict.value.unscored else ""
    if verdict.accepted is None:
        return replace(verdict, words="; ".join(filter(None, [near or "nothing to compare with", missing])))
    state, words = _compare(verdict, alpha)
    parts = [words, *verdict.remarks, near, missing]
    return replace(verdict, state=state, words="; ".join(filter(None, parts)))


def _near_bound(verdict: CheckVerdict) -> str:
    """Return the bounds that the mean satisfies but the interval exceeds, in words; "" if there are none."""
    demand = verdict.check.demand
    value = verdict.value
    bounds = []
    if demand.min is not None and value.low < demand.min:
        bounds.append(f"min {demand.min:g}")
    if demand.max is not None and value.high > demand.max:
        bounds.append(f"max {demand.max:g}")
    return f"the interval extends beyond {' and '.join(bounds)}" if bounds else ""


def _compare(verdict: CheckVerdict, alpha: float) -> tuple[str, str]:
    gain = verdict.gain
    margin = verdict.check.demand.margin
    if verdict.incomparable:
        return "undecided", verdict.incomparable
    if gain is None or math.isnan(verdict.p_worse):
        return "undecided", "no comparison is possible: there is no interval"
    change = gain.difference
    # identical outcomes have no p-value worth reporting
    if change.mean == change.low == change.high == 0:
        return "pass", f"equal on all {change.clusters} {verdict.unit}s"
    if verdict.p_worse <= alpha:
        beyond = f" by more than the margin {margin:g}" if margin else ""
        return "regression", f"worse{beyond}, p = {verdict.p_worse:.2g}"
    if margin and verdict.p_not_worse <= alpha:
        return "pass", f"not worse by {margin:g}, p = {verdict.p_not_worse:.2g}"
    if margin:
        if change.high < 0:
            open_question = f"worse, but possibly by less than {margin:g}"
        else:
            open_question = f"neither worse nor not worse by {margin:g}"
        return "undecided", f"{open_question}; {_units_needed(verdict, gain, margin + change.mean)}"
    detectable = gain.minimum_detectable_effect
    if not math.isfinite(detectable):
        return "undecided", "no regression found, and the detectable change is unknown"
    return "pass", f"no regression found; a change of {compact(detectable)} would have been detected with 80 % power"


def _units_needed(verdict: CheckVerdict, gain: Comparison, distance: float) -> str:
    """Return how many prompts, or other units, would decide the check if difference and spread stay as observed.

    Args:
        verdict: the check.
        gain: its comparison.
        distance: distance of the observed difference from the edge of the margin.
    """
    count = prompts_to_find(gain, abs(distance))
    if not math.isfinite(count) or count > 1e7:
        return f"no feasible number of {verdict.unit}s would decide"
    requested = gain.difference.clusters
    return f"about {max(count, requested + 1):,.0f} {verdict.unit}s would decide ({requested} were used)"
