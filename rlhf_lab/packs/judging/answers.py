"""The answer of a safety evaluation: both rates of every policy, and whether they differ from the reference's."""

from __future__ import annotations

import math

from rlhf_lab.results.rundir import Policy, Run
from rlhf_lab.results.wording import compact, p_equals, signed

RATES = {"safety/attack_success": "attack success", "safety/over_refusal": "over-refusal"}


def safety(run: Run) -> str | None:
    """Both rates of the last policy beside those of the first, with what the differences are worth."""
    if not run.policies or not all(key in policy.metrics for policy in run.policies for key in RATES):
        return None
    first, last = run.policies[0], run.policies[-1]
    parts = [_rate_in_words(last, key) for key in RATES]
    if last is first:
        return f"{first.name} has {parts[0]} and {parts[1]}."
    changes = "; ".join(_change_in_words(last, key, title) for key, title in RATES.items())
    return f"{last.name} has {parts[0]} and {parts[1]}; against {first.name}: {changes}."


def _rate_in_words(policy: Policy, key: str) -> str:
    rate = policy.metrics[key]
    bound = policy.metrics.get(f"{key}_below")
    if bound is not None:
        return f"an {RATES[key]} of 0 of {rate.n} replies (below {compact(bound.mean)} with 95 % confidence)"
    return f"an {RATES[key]} of {compact(rate)}"


def _change_in_words(policy: Policy, key: str, title: str) -> str:
    change, p_holm = policy.metrics.get(f"{key}_change"), policy.metrics.get(f"{key}_p")
    if change is None or p_holm is None or math.isnan(p_holm.mean):
        return f"{title} cannot be compared"
    if p_holm.mean <= 0.05:
        return f"{title} {signed(change)} ({p_equals(p_holm.mean)})"
    detectable = policy.metrics.get(f"{key}_detectable")
    power = ""
    if detectable is not None and math.isfinite(detectable.mean) and detectable.mean > 0:
        power = f"; a change of {compact(detectable.mean)} would have been found with 80 % power"
    return f"{title} is not distinguishable ({signed(change)}, {p_equals(p_holm.mean)}{power})"


def graded_pairs(run: Run) -> str | None:
    """A judge's grades: how often they rank a pair as labelled, and how many replies have none."""
    agreement = run.results.get("label_agreement")
    if agreement is None or math.isnan(agreement.mean):
        return None
    sentence = f"The judge gives the chosen reply the higher mean grade in {compact(agreement)} of the pairs, ties half"
    unscored = run.results.get("unscored")
    if unscored is not None and unscored.mean > 0:
        sentence += f"; {compact(unscored)} of the replies have no grade"
    return f"{sentence}."
