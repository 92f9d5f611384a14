"""Answer of a run that evaluated the golden sets of a suite."""

from __future__ import annotations

from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.wording import compact


def golden_sets(run: StoredRun) -> str | None:
    """Return the fraction passed of every golden set and task, and the `gate` command that judges them."""
    if not run.policies:
        return None
    policy = run.policies[-1]
    fractions = []
    for key, value in policy.metrics.items():
        _, is_golden, name = key.partition("/")
        if is_golden:
            fractions.append(f"{name} {compact(value)}")
    if not fractions:
        return f"{policy.name} was evaluated on no golden set; the suite's metrics are those of other runs."
    passed = ", ".join(fractions)
    return f"{policy.name}, fraction passed: {passed}; `python -m rlhf_lab gate` compares them with the suite's limits."
