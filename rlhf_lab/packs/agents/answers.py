"""Conclusions of benchmarks of agents: the best agent on each set, differences from the first, success of attacks."""

from __future__ import annotations

import math

from rlhf_lab.results.rundir import EvaluatedPolicy, StoredRun
from rlhf_lab.results.wording import compact, p_equals, signed
from rlhf_lab.statistics.inference import Estimate

ON = "success_on/"


def agents(run: StoredRun) -> str | None:
    """Summarise a benchmark of agents in one sentence: the best agent on each task set, changes against the first
    agent, errors, right answers reached by wrong tool calls, and successful attacks. Return None if no attempt is
    scored.
    """
    scored = [policy for policy in run.policies if _is_scored(policy.metrics.get("success"))]
    if not scored:
        return None
    # The parts go from the main result to its qualifications.
    # A run with a single task set has only `success`.
    by_set = [name for name in scored[0].metrics if name.startswith(ON)]
    parts = [_best(scored, name) for name in by_set or ["success"]]
    parts += _against_first(run, scored)
    # Only code_bench has this metric: some attempts have more than one program.
    revised = [
        policy for policy in scored if "code_rounds" in policy.metrics and policy.metrics["code_rounds"].mean > 1
    ]
    if revised:
        gains = ", ".join(f"{policy.name} {signed(policy.metrics['revision_gain'])}" for policy in revised)
        parts.append(f"revising adds: {gains}")
    parts += _where_positive(scored, "agent_errors", "attempts that failed with an error of the agent")
    parts += _where_positive(scored, "right_by_wrong_process", "right by a wrong process")
    attacked = [policy for policy in scored if "injection/success" in policy.metrics]
    if attacked:
        parts.append(f"orders in tool results: {', '.join(map(_obedience, attacked))}")
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _where_positive(policies: list[EvaluatedPolicy], metric: str, words: str) -> list[str]:
    """Return a text with the value of a metric for each agent for which it is positive; empty without such an agent."""
    positive = [policy for policy in policies if metric in policy.metrics and policy.metrics[metric].mean > 0]
    fractions = ", ".join(f"{policy.name} {compact(policy.metrics[metric])}" for policy in positive)
    return [f"{words}: {fractions}"] if fractions else []


def _is_scored(success: Estimate | None) -> bool:
    return success is not None and not math.isnan(success.mean)


def _best(policies: list[EvaluatedPolicy], metric: str) -> str:
    """State the best agent on a task set with its success rate, or that no agent succeeds on the set."""
    rates = {policy.name: policy.metrics[metric] for policy in policies if metric in policy.metrics}
    # the first of equally good agents
    best = max(rates, key=lambda name: rates[name].mean)
    rate = rates[best]
    tasks = f"{rate.n} attempts"
    if metric.startswith(ON):
        tasks += f" at {metric.removeprefix(ON)}"
    if rate.mean == 0:
        # The upper end of the interval says how good an agent without any success could still be.
        nobody = "no agent is" if len(rates) > 1 else f"{best} is not"
        return f"{nobody} right in any of {tasks} (below {compact(rate.high)} with 95 % confidence)"
    best_of = f"{best} is best, right" if len(rates) > 1 else f"{best} is right"
    return f"{best_of} in {compact(rate)} of {tasks}"


def _against_first(run: StoredRun, scored: list[EvaluatedPolicy]) -> list[str]:
    """State which agents differ from the first, and the detectable difference for those that do not."""
    # The first agent has no change against itself.
    compared = [policy for policy in scored if "success_change" in policy.metrics]
    if not compared:
        return []
    differ: list[str] = []
    others: list[EvaluatedPolicy] = []
    for policy in compared:
        metrics = policy.metrics
        p_holm = metrics["success_p"].mean if "success_p" in metrics else math.nan
        if p_holm <= 0.05:  # false for NaN, so an agent without a p-value counts as not distinguishable
            change = signed(metrics["success_change"])
            differ.append(f"{policy.name} {change} ({p_equals(p_holm)})")
        else:
            others.append(policy)
    parts = []
    first = run.policies[0].name
    if differ:
        parts.append(f"against {first}: {', '.join(differ)}")
    if others:
        names = ", ".join(policy.name for policy in others)
        detectable = [policy.metrics.get("success_detectable") for policy in others]
        sizes = [size.mean for size in detectable if size and math.isfinite(size.mean) and size.mean > 0]
        power = f"; {compact(max(sizes))} would have been detected with 80 % power" if sizes else ""
        parts.append(f"not distinguishable from {first}: {names}{power}")
    return parts


def _obedience(policy: EvaluatedPolicy) -> str:
    success, reached = policy.metrics["injection/success"], policy.metrics["injection/reached"]
    bound = policy.metrics.get("injection/success_below")
    followed = f"none of {success.n} followed, below {compact(bound.mean)}" if bound else f"{compact(success)} followed"
    return f"{policy.name} reads {compact(reached)}, {followed}"


def attempts_paired(run: StoredRun) -> str | None:
    """State the number of tasks with pairs, the number of pairs, and the success rate of attempts."""
    results = run.results
    pairs, tasks = results.get("made/rows"), results.get("made/items")
    tasks_with_pairs = results.get("made/prompts")
    if pairs is None or tasks is None or tasks_with_pairs is None:
        return None
    numbers = f"{tasks_with_pairs.mean:.0f} of {tasks.mean:.0f} tasks"
    sentence = f"{numbers} gave {pairs.mean:.0f} pairs"
    if (success := results.get("made/success")) is not None:
        sentence += f"; an attempt succeeds with probability {compact(success)}"
    return f"{sentence}."
