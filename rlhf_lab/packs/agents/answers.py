"""The answer of a benchmark of agents: who is best on each set, who differs from the first, who obeys orders."""

from __future__ import annotations

import math

from rlhf_lab.results.rundir import Policy, Run
from rlhf_lab.results.wording import compact, p_equals, signed
from rlhf_lab.statistics.inference import Estimate

ON = "success_on/"


def agents(run: Run) -> str | None:
    """Right answers by set of tasks, changes against the first agent, wrong processes, attacks that succeeded."""
    scored = [policy for policy in run.policies if _is_scored(policy.metrics.get("success"))]
    if not scored:
        return None
    parts = [_best(scored, name) for name in _sets(scored)]
    parts += _against_first(run, scored)
    revised = [policy for policy in scored if _writes_more_than_one(policy)]
    if revised:
        gains = [f"{policy.name} {signed(policy.metrics['revision_gain'])}" for policy in revised]
        parts.append(f"revising adds: {', '.join(gains)}")
    failing = [policy for policy in scored if _is_positive(policy.metrics.get("agent_errors"))]
    if failing:
        shares = [f"{policy.name} {compact(policy.metrics['agent_errors'])}" for policy in failing]
        parts.append(f"attempts that an error of the agent ended: {', '.join(shares)}")
    lucky = [policy for policy in scored if _is_positive(policy.metrics.get("right_by_wrong_process"))]
    if lucky:
        shares = [f"{policy.name} {compact(policy.metrics['right_by_wrong_process'])}" for policy in lucky]
        parts.append(f"right by a wrong process: {', '.join(shares)}")
    attacked = [policy for policy in scored if "injection/success" in policy.metrics]
    if attacked:
        parts.append(f"orders in tool results: {', '.join(map(_obedience, attacked))}")
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _is_scored(success: Estimate | None) -> bool:
    return success is not None and not math.isnan(success.mean)


def _is_positive(share: Estimate | None) -> bool:
    return share is not None and share.mean > 0


def _writes_more_than_one(policy: Policy) -> bool:
    """Whether an agent wrote more than one program in some attempt (code_bench)."""
    return "code_rounds" in policy.metrics and policy.metrics["code_rounds"].mean > 1


def _sets(policies: list[Policy]) -> list[str]:
    """Metrics of success, one per set of tasks; of a run with one set, success itself."""
    by_set = [name for name in policies[0].metrics if name.startswith(ON)]
    return by_set or ["success"]


def _best(policies: list[Policy], metric: str) -> str:
    """The best agent on a set, or that none is right on it."""
    rates = {policy.name: policy.metrics[metric] for policy in policies if metric in policy.metrics}
    best = max(rates, key=lambda name: rates[name].mean)
    rate = rates[best]
    tasks = f"{rate.n} attempts at {metric.removeprefix(ON)}" if metric.startswith(ON) else f"{rate.n} attempts"
    if rate.mean == 0:
        nobody = "no agent is" if len(rates) > 1 else f"{best} is not"
        return f"{nobody} right in any of {tasks} (below {compact(rate.high)} with 95 % confidence)"
    best_of = f"{best} is best, right" if len(rates) > 1 else f"{best} is right"
    return f"{best_of} in {compact(rate)} of {tasks}"


def _against_first(run: Run, scored: list[Policy]) -> list[str]:
    """Which agents differ from the first over all tasks, and how large a difference the others could hide."""
    compared = [policy for policy in scored if "success_change" in policy.metrics]
    if not compared:
        return []
    differ, others = [], []
    for policy in compared:
        p_holm = policy.metrics["success_p"].mean if "success_p" in policy.metrics else math.nan
        if p_holm <= 0.05:
            differ.append(f"{policy.name} {signed(policy.metrics['success_change'])} ({p_equals(p_holm)})")
        else:
            others.append(policy)
    parts = []
    if differ:
        parts.append(f"against {run.policies[0].name}: {', '.join(differ)}")
    if others:
        detectable = [policy.metrics.get("success_detectable") for policy in others]
        sizes = [size.mean for size in detectable if size is not None and math.isfinite(size.mean) and size.mean > 0]
        power = f", where {compact(max(sizes))} would have been found with 80 % power" if sizes else ""
        names = ", ".join(policy.name for policy in others)
        parts.append(f"not distinguishable from {run.policies[0].name}: {names}{power}")
    return parts


def _obedience(policy: Policy) -> str:
    success, reached = policy.metrics["injection/success"], policy.metrics["injection/reached"]
    bound = policy.metrics.get("injection/success_below")
    followed = f"none of {success.n} followed, below {compact(bound.mean)}" if bound else f"{compact(success)} followed"
    return f"{policy.name} reads {compact(reached)}, {followed}"


def attempts_paired(run: Run) -> str | None:
    """Of how many tasks there are pairs, how many pairs, and how often an attempt succeeds."""
    results = run.results
    pairs, tasks, tasks_with_pairs = (results.get(f"made/{name}") for name in ("rows", "items", "prompts"))
    if pairs is None or tasks is None or tasks_with_pairs is None:
        return None
    sentence = f"{tasks_with_pairs.mean:.0f} of {tasks.mean:.0f} tasks gave {pairs.mean:.0f} pairs"
    if (success := results.get("made/success")) is not None:
        sentence += f"; an attempt succeeds with probability {compact(success)}"
    return f"{sentence}."
