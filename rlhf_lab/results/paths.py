"""Which evaluated policies of a run lie on one path, so that a figure may join them by a line."""

from __future__ import annotations

from rlhf_lab.results.answer import algorithm_settings
from rlhf_lab.results.gains import policy_names
from rlhf_lab.results.rundir import Run


def policies_on_path(run: Run) -> frozenset[str]:
    """Policies that follow one another along one method; none where every policy is a method of its own.

    Only along such a path does gold that falls while the proxy rises mean over-optimisation.
    """
    settings = algorithm_settings(str((run.settings.get("algorithm") or {}).get("kind", "")))
    if not settings.one_path:
        return frozenset()
    return frozenset(policy_names(run)) - {settings.baseline_policy}
