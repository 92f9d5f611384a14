"""Conclusions of a safety evaluation, of MT-Bench and of graded pairs, as sentences."""

from __future__ import annotations

import math

from rlhf_lab.results.rundir import EvaluatedPolicy, StoredRun
from rlhf_lab.results.wording import compact, p_equals, signed

RATES = {"safety/attack_success": "attack success", "safety/over_refusal": "over-refusal"}
"""Safety metrics that are rates → their name in the concluding sentence."""


def safety(run: StoredRun) -> str | None:
    """Return a sentence with the attack success and over-refusal of the last policy, and the changes from the first
    policy. Return None if a policy lacks these metrics.
    """
    has_rates = all(key in policy.metrics for policy in run.policies for key in RATES)
    if not run.policies or not has_rates:
        return None
    first = run.policies[0]
    last = run.policies[-1]
    parts = [_rate_in_words(last, key) for key in RATES]
    if last is first:
        return f"{first.name} has {parts[0]} and {parts[1]}."
    changes = "; ".join(_change_in_words(last, key, title) for key, title in RATES.items())
    rates = f"{last.name} has {parts[0]} and {parts[1]}"
    return f"{rates}; against {first.name}: {changes}."


def _rate_in_words(policy: EvaluatedPolicy, key: str) -> str:
    rate = policy.metrics[key]
    bound = policy.metrics.get(f"{key}_below")
    if bound is not None:
        return f"an {RATES[key]} of 0 of {rate.n} responses (below {compact(bound.mean)} with 95 % confidence)"
    return f"an {RATES[key]} of {compact(rate)}"


def _change_in_words(policy: EvaluatedPolicy, key: str, title: str) -> str:
    change = policy.metrics.get(f"{key}_change")
    p_holm = policy.metrics.get(f"{key}_p")
    if change is None or p_holm is None or math.isnan(p_holm.mean):
        return f"{title} cannot be compared"
    # the usual level; p is adjusted for all comparisons of the run
    if p_holm.mean <= 0.05:
        return f"{title} {signed(change)} ({p_equals(p_holm.mean)})"
    # a difference that is not significant is reported with the power of the comparison
    detectable = policy.metrics.get(f"{key}_detectable")
    power = ""
    if detectable is not None and math.isfinite(detectable.mean) and detectable.mean > 0:
        power = f"; a change of {compact(detectable.mean)} would have been found with 80 % power"
    return f"{title} is not distinguishable ({signed(change)}, {p_equals(p_holm.mean)}{power})"


def mt_bench(run: StoredRun) -> str | None:
    """Return a sentence with the grades of each policy, over both turns and by turn; None without grades."""
    sentences = []
    for policy in run.policies:
        grades = [policy.metrics.get(f"mt_bench/{name}") for name in ("score", "turn_1", "turn_2")]
        score, first, second = grades
        if score is None or first is None or second is None or math.isnan(score.mean):
            continue
        turns = f"{compact(first)} in the first turn and {compact(second)} in the second"
        sentences.append(f"{policy.name} is graded {compact(score)} of 10: {turns}.")
    return " ".join(sentences) or None


def graded_pairs(run: StoredRun) -> str | None:
    """Return a sentence: how often a judge's grades rank a pair as labelled, and how many responses have no grade."""
    agreement = run.results.get("label_agreement")
    if agreement is None or math.isnan(agreement.mean):
        return None
    rate = compact(agreement)
    sentence = f"The judge gives the chosen response the higher mean grade in {rate} of the pairs, ties half"
    unscored = run.results.get("unscored")
    if unscored is not None and unscored.mean > 0:
        sentence += f"; {compact(unscored)} of the responses have no grade"
    return f"{sentence}."
