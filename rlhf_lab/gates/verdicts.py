"""What a check's values decide: bounds first, then the comparison with the accepted run.

Without a score a check fails. A bound is broken when the mean lies beyond it. A comparison is a regression when the
candidate is worse by more than the margin, at the suite's level after Holm's adjustment over all comparisons of the
suite. Without a margin nothing can be shown to be as good as before: "no regression found" then comes with what would
have been found. With a margin the candidate is "not worse" when its interval says so; where neither is shown, the check
is undecided, and how many prompts would decide is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.metrics import metric as metric_of
from rlhf_lab.gates.scores import Check, Scores
from rlhf_lab.results.wording import compact
from rlhf_lab.statistics.estimates import Comparison, Estimate
from rlhf_lab.statistics.inference import error_of_interval, holm, unpaired_from_intervals
from rlhf_lab.statistics.paired_rates import margin_p_values, paired_by_prompt, prompts_to_find

SHARED = 2
"""Prompts from which a paired test has a spread to go by."""
ALIKE = 0.9
"""Share of the larger set of prompts that two runs have to share to be compared prompt by prompt."""


@dataclass(frozen=True)
class Verdict:
    """One check, decided.

    Attributes:
        value, accepted: of the candidate, and of the accepted run; None without one.
        gain: candidate − accepted, positive where the candidate is better.
        p_worse: adjusted p of "worse by more than the margin"; NaN without a comparison.
        state: `pass`, `below bound`, `regression` and `unscored` (these three fail), or `undecided`.
        words: what the state rests on.
        remarks: what the comparison leaves out, in words.
    """

    check: Check
    value: Estimate
    accepted: Estimate | None = None
    gain: Comparison | None = None
    p_worse: float = math.nan
    p_not_worse: float = math.nan
    state: str = "pass"
    words: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.state in ("below bound", "regression", "unscored")


def decide(candidate: Sequence[tuple[Check, Scores]], accepted: dict[str, Scores], alpha: float) -> list[Verdict]:
    """A verdict per check, in their order.

    Args:
        accepted: check → its values in the accepted run; a check that is not there is not compared.
    """
    verdicts = []
    for check, scores in candidate:
        before = accepted.get(check.name) if check.demand.compare else None
        verdicts.append(_measured(check, scores, before))
    adjusted = holm([verdict.p_worse for verdict in verdicts])
    return [_decided(replace(verdict, p_worse=p), alpha) for verdict, p in zip(verdicts, adjusted, strict=True)]


def lower_is_better(check: Check) -> bool:
    """By the demand, else by the metric."""
    return direction(check) == "lower"


def direction(check: Check) -> str:
    """`higher` or `lower`; empty where neither the demand nor the metric says which is better."""
    return check.demand.better or metric_of(check.metric).better


def require_directions(checks: Sequence[Check]) -> None:
    """Raises ConfigError naming every check that is to be compared and has no direction."""
    unknown = [check for check in checks if check.demand.compare and not direction(check)]
    if unknown:
        raise ConfigError(
            [
                f"{check.name}: whether more of {check.metric} is better is not known; "
                "write better: higher|lower, or compare: false"
                for check in unknown
            ]
        )


def _measured(check: Check, now: Scores, before: Scores | None) -> Verdict:
    """The check with its comparison, not yet adjusted."""
    if before is None:
        return Verdict(check, now.estimate)
    margin = check.demand.margin
    shared = sum(prompt in before.outcomes for prompt in now.outcomes)
    larger = max(len(now.outcomes), len(before.outcomes))
    remarks: tuple[str, ...] = ()
    if shared < larger:
        remarks += (f"{shared} of {larger} prompts are shared",)
    if now.version != before.version:
        remarks += (f"the accepted run was asked another version of {check.metric.replace('/', '.', 1)}",)
    if shared < max(SHARED, ALIKE * larger):
        return replace(_from_intervals(check, now.estimate, before.estimate), remarks=remarks)
    worse_side, better_side = (now, before) if lower_is_better(check) else (before, now)
    gain = paired_by_prompt(worse_side.outcomes, better_side.outcomes)
    p_not_worse, p_worse = margin_p_values(gain, margin)
    if not margin and not math.isnan(gain.p_value):
        # the test of a difference, exact where outcomes are single; a change for the better is no evidence
        p_worse = gain.p_value if gain.difference.mean < 0 else 1.0
    return Verdict(check, now.estimate, before.estimate, gain, p_worse, p_not_worse, remarks=remarks)


def _from_intervals(check: Check, now: Estimate, before: Estimate) -> Verdict:
    """Runs that share too few prompts, or have no rows: a z test of the two intervals, moved by the margin."""
    verdict = Verdict(check, now, before)
    sign = -1 if lower_is_better(check) else 1
    z, _ = unpaired_from_intervals(before, now)
    if math.isnan(z) or min(now.clusters, before.clusters) < SHARED:  # the interval of one prompt is all of [0, 1]
        return verdict
    gap = now.mean - before.mean
    error = math.hypot(error_of_interval(before), error_of_interval(now))
    margin = check.demand.margin
    z_above = (sign * gap + margin) / error
    p_worse = math.erfc(-z_above / math.sqrt(2)) if z_above < 0 else 1.0
    p_not_worse = math.erfc(z_above / math.sqrt(2)) if z_above > 0 else 1.0
    mean = sign * gap
    interval = Estimate(mean, mean - 1.96 * error, mean + 1.96 * error, now.n, min(now.clusters, now.n))
    gain = Comparison(interval, math.nan, 2.8 * error, "z test of two intervals, unpaired", standard_error=error)
    return replace(verdict, gain=gain, p_worse=min(1.0, p_worse), p_not_worse=min(1.0, p_not_worse))


def _decided(verdict: Verdict, alpha: float) -> Verdict:
    """The verdict with its state and words."""
    demand, mean = verdict.check.demand, verdict.value.mean
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
    state, words = _compared(verdict, alpha)
    said = [words, *verdict.remarks, near, missing]
    return replace(verdict, state=state, words="; ".join(filter(None, said)))


def _near_bound(verdict: Verdict) -> str:
    """A bound that holds for the mean and not for the whole interval; empty where there is none."""
    demand, value = verdict.check.demand, verdict.value
    bounds = []
    if demand.min is not None and value.low < demand.min:
        bounds.append(f"min {demand.min:g}")
    if demand.max is not None and value.high > demand.max:
        bounds.append(f"max {demand.max:g}")
    return f"the interval reaches beyond {' and '.join(bounds)}" if bounds else ""


def _compared(verdict: Verdict, alpha: float) -> tuple[str, str]:
    gain, margin = verdict.gain, verdict.check.demand.margin
    if gain is None or math.isnan(verdict.p_worse):
        return "undecided", "it cannot be compared: there is no interval"
    change = gain.difference
    if change.mean == change.low == change.high == 0:
        return "pass", f"the same on every prompt of {change.clusters}"
    if verdict.p_worse <= alpha:
        beyond = f" by more than the margin {margin:g}" if margin else ""
        return "regression", f"worse{beyond}, p = {verdict.p_worse:.2g}"
    if margin and verdict.p_not_worse <= alpha:
        return "pass", f"not worse by {margin:g}, p = {verdict.p_not_worse:.2g}"
    if margin:
        shown = "worse, and whether by more than" if change.high < 0 else "neither worse nor not worse by"
        open_question = f"{shown} {margin:g}{' is open' if change.high < 0 else ''}"
        return "undecided", f"{open_question}; {_prompts(gain, margin + change.mean)}"
    detectable = gain.minimum_detectable_effect
    if not math.isfinite(detectable):
        return "undecided", "no regression found, and what would have been found is not known"
    return "pass", f"no regression found; a change of {compact(detectable)} would have been found with 80 % power"


def _prompts(gain: Comparison, distance: float) -> str:
    """How many prompts would decide, if difference and spread are as observed.

    Args:
        distance: of the observed difference from the edge of the margin.
    """
    count = prompts_to_find(gain, abs(distance))
    if not math.isfinite(count) or count > 1e7:
        return "more prompts than can be had would decide"
    asked = gain.difference.clusters
    return f"about {max(count, asked + 1):,.0f} prompts would decide ({asked} were asked)"
