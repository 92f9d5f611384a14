"""The answer of a run that asked the golden sets of a suite."""

from __future__ import annotations

from rlhf_lab.results.rundir import Run
from rlhf_lab.results.wording import compact


def golden_sets(run: Run) -> str | None:
    """The share of every golden set and task, and the command that judges them."""
    if not run.policies:
        return None
    policy = run.policies[-1]
    shares = [f"{key.partition('/')[2]} {compact(value)}" for key, value in policy.metrics.items() if "/" in key]
    if not shares:
        return f"{policy.name} was asked no golden set; the suite's metrics are of other runs."
    return f"{policy.name} passes: {', '.join(shares)}; `python -m rlhf_lab gate` says what that means."
