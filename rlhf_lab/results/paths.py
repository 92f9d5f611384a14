"""Evaluated policies of a run that form one path of training, so that a figure may connect them by a line."""

from __future__ import annotations

from rlhf_lab.results.gains import policy_names
from rlhf_lab.results.rundir import StoredRun
from rlhf_lab.results.stage import stage_settings


def policies_on_path(run: StoredRun) -> frozenset[str]:
    """Return the policies that are successive points of one method, such as iterations; none if each is its own method.

    A rising proxy with a falling gold reward means over-optimisation only along such a sequence.
    """
    settings = stage_settings(run)
    if not settings.evidence.one_path:
        return frozenset()
    return frozenset(policy_names(run)) - {settings.evidence.baseline_policy}
