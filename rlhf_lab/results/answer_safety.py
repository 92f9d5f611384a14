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


def golden_sets(run: Run) -> str | None:
    """The share of every golden set and task, and the command that judges them."""
    if not run.policies:
        return None
    policy = run.policies[-1]
    shares = [f"{key.partition('/')[2]} {compact(value)}" for key, value in policy.metrics.items() if "/" in key]
    if not shares:
        return f"{policy.name} was asked no golden set; the suite's metrics are of other runs."
    return f"{policy.name} passes: {', '.join(shares)}; `python -m rlhf_lab gate` says what that means."
