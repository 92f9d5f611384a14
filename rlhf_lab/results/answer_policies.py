"""Answers of runs that compare policies, paired by prompt, select among samples, or evaluate golden sets."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf_lab.algorithms.preference.settings import IterativeDPO
from rlhf_lab.results.gains import compare_policies, policy_mean, policy_names
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact, metric_title, p_equals, signed
from rlhf_lab.statistics.inference import Comparison, Estimate

ONE_PASS = IterativeDPO.evidence.baseline_policy
"""Name of the policy that one pass of DPO trained."""
ACCURACY, TOKENS = "accuracy@", "tokens@"
"""Prefixes of metrics of selection among samples; the number of samples follows."""


def against_one_pass(run: StoredRun) -> str | None:
    """Compare the result of iterative DPO with that of one pass of DPO.

    Without a one-pass policy, compare it with the starting policy.
    """
    names = policy_names(run)
    # The policies of the rounds come last; the very last one is the run's model.
    last = names[-1] if names else ONE_PASS
    if ONE_PASS not in names or last == ONE_PASS:
        return against_reference(run)
    metric = judge(run)
    comparison = compare_policies(run, last, ONE_PASS, metric)
    if comparison is None:
        return None
    title = metric_title(metric)
    if is_clear(comparison):
        verdict, direction = ("Yes", "higher") if comparison.difference.mean > 0 else ("No", "lower")
        size = unsigned(comparison.difference)
        evidence = f"{last} against {ONE_PASS}, {p_equals(comparison.p_value)}"
        return f"{verdict}: iterating scores {size} {direction} in {title} than one pass ({evidence})."
    return unclear(f"iterating and one pass of DPO ({last} against {ONE_PASS})", title, comparison)


def against_reference(run: StoredRun) -> str | None:
    """Compare the last policy with the first, in gold reward if known or else in the proxy, with its KL."""
    names = policy_names(run)
    if len(names) < 2:
        return None
    metric = judge(run)
    comparison = compare_policies(run, names[-1], names[0], metric)
    if comparison is None:
        return None
    title = metric_title(metric)
    distance = at_kl(run, names[-1])
    if not is_clear(comparison):
        return unclear(f"{names[-1]} and {names[0]}", title, comparison, distance)
    return f"{_raises_or_lowers(names, title, comparison)}{distance}."


def reward_and_truth(run: StoredRun) -> str | None:
    """Return how far training raised its own reward, and whether gold followed; accuracy if answers are verified."""
    names = policy_names(run)
    if len(names) < 2:
        return None
    if judge(run) == "correct":
        return _accuracy_sentence(run, names)
    proxy = compare_policies(run, names[-1], names[0], "proxy")
    gold = compare_policies(run, names[-1], names[0], "gold")
    if proxy is None or gold is None or not run.has_gold:
        return against_reference(run)
    distance = at_kl(run, names[-1])
    if is_clear(proxy):
        change = f"{_raises_or_lowers(names, metric_title('proxy'), proxy)}{distance}"
    else:
        change = f"{names[-1]} does not clearly change the proxy reward ({_change_with_p(proxy)}){distance}"
    # An interval of width 0 would look like certainty.
    if is_nothing(gold):
        return f"{change}; the gold reward is the same on every prompt."
    if not is_clear(gold):
        evidence = f"{_change_with_p(gold)}{_detectable_clause(gold)}"
        return f"{change}; it is undecided whether the gold reward follows ({evidence})."
    follows, verb = ("follows", "rises") if gold.difference.mean > 0 else ("does not follow", "falls")
    return f"{change}; the gold reward {follows}: it {verb} by {_size_with_p(gold)}."


def best_policy(run: StoredRun) -> str | None:
    """Return the policy with the highest score, and its lead over the second one."""
    metric = judge(run)
    means = {name: policy_mean(run, name, metric) for name in policy_names(run)}
    scored = {name: mean for name, mean in means.items() if mean is not None and not math.isnan(mean.mean)}
    if len(scored) < 2:
        return None
    best, second = sorted(scored, key=lambda name: scored[name].mean, reverse=True)[:2]
    title = metric_title(metric)
    winner = f"{best} has the highest {title}, {compact(scored[best])}{at_kl(run, best)}"
    comparison = compare_policies(run, best, second, metric)
    if comparison is None:
        return f"{winner}; next is {second} with {compact(scored[second])}."
    if is_clear(comparison):
        return f"{winner}; that is {_size_with_p(comparison)} above {second}."
    evidence = f"{_change_with_p(comparison)}{_detectable_clause(comparison)}"
    return f"{winner}, but is not distinguishable from {second} ({evidence})."


def judge(run: StoredRun) -> str:
    """Return the metric that compares policies: correct answers, else gold, else the reward that training maximises."""
    if any("correct" in policy.metrics for policy in run.policies):
        return "correct"
    return "gold" if run.has_gold else "proxy"


def at_kl(run: StoredRun, policy: str) -> str:
    """Return a clause with the KL of a policy; empty if it is unknown."""
    divergence = policy_mean(run, policy, "kl")
    if divergence is None or math.isnan(divergence.mean):
        return ""
    return f", at a KL of {compact(divergence.mean)} nats"


def is_clear(comparison: Comparison) -> bool:
    """Return True if a difference is significant at 5 %."""
    return not math.isnan(comparison.p_value) and comparison.p_value <= 0.05


def unclear(sides: str, title: str, comparison: Comparison, circumstance: str = "") -> str:
    """Return the sentence for a difference that is not significant.

    Args:
        sides: the two policies, "a and b".
        circumstance: clause that applies to the comparison, such as the KL; starts with a comma.
    """
    if is_nothing(comparison):
        return f"No difference: {sides} have the same {title} on every prompt{circumstance}."
    gap = signed(comparison.difference)
    evidence = "" if math.isnan(comparison.p_value) else f" ({p_equals(comparison.p_value)})"
    detectable = _detectable_clause(comparison)
    return f"Not distinguishable: {sides} differ by {gap} in {title}{evidence}{circumstance}{detectable}."


def is_nothing(comparison: Comparison) -> bool:
    """Return True if both sides scored the same on every prompt; the interval would then have width 0."""
    difference = comparison.difference
    return difference.mean == difference.low == difference.high == 0


def unsigned(value: Estimate) -> str:
    """Return a difference without its sign, for sentences that state the direction in words."""
    return compact(value if value.mean >= 0 else value.negated())


def _raises_or_lowers(names: Sequence[str], title: str, comparison: Comparison) -> str:
    verb = "raises" if comparison.difference.mean > 0 else "lowers"
    size = unsigned(comparison.difference)
    first, last = names[0], names[-1]
    return f"{last} {verb} the {title} by {size} over {first} ({p_equals(comparison.p_value)})"


def _size_with_p(comparison: Comparison) -> str:
    return f"{unsigned(comparison.difference)} ({p_equals(comparison.p_value)})"


def _change_with_p(comparison: Comparison) -> str:
    evidence = "" if math.isnan(comparison.p_value) else f", {p_equals(comparison.p_value)}"
    return f"{signed(comparison.difference)}{evidence}"


def _detectable_clause(comparison: Comparison) -> str:
    """Return a clause with the minimum detectable difference; empty if it is unknown or 0."""
    effect = comparison.minimum_detectable_effect
    if not math.isfinite(effect) or effect == 0:
        return ""
    return f"; a difference of {compact(effect)} would have been found with 80 % power"


def _accuracy_sentence(run: StoredRun, names: list[str]) -> str | None:
    """Return the change in accuracy of samples, paired by prompt.

    Greedy accuracy has no rows per prompt, so both values are reported side by side without a test.
    """
    comparison = compare_policies(run, names[-1], names[0], "correct")
    if comparison is None:
        return None
    if is_clear(comparison):
        sentence = f"{_raises_or_lowers(names, metric_title('correct'), comparison)}{at_kl(run, names[-1])}"
    else:
        sides = f"{names[-1]} and {names[0]}"
        sentence = unclear(sides, metric_title("correct"), comparison).rstrip(".")
    before = policy_mean(run, names[0], "correct_greedy")
    after = policy_mean(run, names[-1], "correct_greedy")
    if before is None or after is None:
        return f"{sentence}."
    return f"{sentence}; greedy accuracy goes from {compact(before)} to {compact(after)}."


def chosen_among_samples(run: StoredRun) -> str | None:
    """Return accuracy and tokens with the minimum and the maximum number of samples."""
    sizes = sorted(int(name.removeprefix(ACCURACY)) for name in run.results if name.startswith(ACCURACY))
    if not sizes:
        return None
    smallest, largest = sizes[0], sizes[-1]
    answer = "; ".join(_samples_clause(run, size) for size in dict.fromkeys((largest, smallest)))
    return f"{answer[0].upper()}{answer[1:]}."


def _samples_clause(run: StoredRun, size: int) -> str:
    samples = "one sample" if size == 1 else f"{size} samples"
    tokens = run.results.get(f"{TOKENS}{size}")
    cost = f" for {tokens.mean:.0f} tokens a prompt" if tokens is not None else ""
    accuracy = compact(run.results[f"{ACCURACY}{size}"])
    return f"with {samples} {accuracy} of the prompts are answered correctly{cost}"


def golden_sets(run: StoredRun) -> str | None:
    """Return the fraction passed of every golden set and task, and the `gate` command that judges them."""
    if not run.policies:
        return None
    policy = run.policies[-1]
    fractions = [f"{key.partition('/')[2]} {compact(value)}" for key, value in policy.metrics.items() if "/" in key]
    if not fractions:
        return f"{policy.name} was evaluated on no golden set; the suite's metrics are those of other runs."
    passed = ", ".join(fractions)
    return f"{policy.name}, fraction passed: {passed}; `python -m rlhf_lab gate` compares them with the suite's limits."
