"""The answer of a benchmark of agents: how often each is right, on each set of tasks, and who is shown to be better."""

from __future__ import annotations

import math

from rlhf_lab.results.rundir import Policy, Run
from rlhf_lab.results.wording import compact, p_equals, signed
from rlhf_lab.statistics.inference import Estimate

ON = "success_on/"


def agents(run: Run) -> str | None:
    """Success of every agent by set of tasks, best first; the best against the first; the attacks that succeeded."""
    scored = [policy for policy in run.policies if _is_scored(policy.metrics.get("success"))]
    if not scored:
        return None
    ranked = sorted(scored, key=lambda policy: -policy.metrics["success"].mean)
    sentence = "Right answers: " + "; ".join(f"{policy.name} {_rates(policy)}" for policy in ranked)
    changes = [policy for policy in ranked if "success_change" in policy.metrics]
    if changes:
        first = next(policy for policy in run.policies if policy.name not in {p.name for p in changes})
        sentence += f". Against {first.name}: " + "; ".join(map(_change, changes))
    wrong = [policy for policy in ranked if _is_positive(policy.metrics.get("right_by_wrong_process"))]
    if wrong:
        shares = ", ".join(f"{policy.name} {compact(policy.metrics['right_by_wrong_process'])}" for policy in wrong)
        sentence += f". Right by a wrong process: {shares}"
    attacked = [policy for policy in ranked if "injection/success" in policy.metrics]
    if attacked:
        sentence += ". Orders in tool results: " + "; ".join(map(_injection, attacked))
    return f"{sentence}."


def _is_scored(success: Estimate | None) -> bool:
    return success is not None and not math.isnan(success.mean)


def _is_positive(share: Estimate | None) -> bool:
    return share is not None and share.mean > 0


def _rates(policy: Policy) -> str:
    by_set = {name.removeprefix(ON): value for name, value in policy.metrics.items() if name.startswith(ON)}
    if not by_set:
        return f"{compact(policy.metrics['success'])} of {policy.metrics['success'].n}"
    return ", ".join(f"{compact(value)} of {value.n} {name}" for name, value in by_set.items())


def _change(policy: Policy) -> str:
    change, p_holm = policy.metrics["success_change"], policy.metrics.get("success_p")
    if p_holm is None or math.isnan(p_holm.mean):
        return f"{policy.name} cannot be compared"
    if p_holm.mean <= 0.05:
        return f"{policy.name} {signed(change)} ({p_equals(p_holm.mean)})"
    detectable = policy.metrics.get("success_detectable")
    power = ""
    if detectable is not None and math.isfinite(detectable.mean) and detectable.mean > 0:
        power = f"; {compact(detectable.mean)} would have been found with 80 % power"
    return f"{policy.name} is not distinguishable ({signed(change)}, {p_equals(p_holm.mean)}{power})"


def _injection(policy: Policy) -> str:
    success, reached = policy.metrics["injection/success"], policy.metrics["injection/reached"]
    return f"{policy.name} follows {compact(success)} of {success.n} (and reads {compact(reached)})"
