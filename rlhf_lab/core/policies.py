"""Order of the policies that a run evaluated, and which of them is the run's own.

`judge`, `compare`, `label`, `gate` and studies all use these functions, so that they refer to the same policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def in_training_order(stored: Iterable[str], sampled: Iterable[str]) -> list[str]:
    """Return the names of a run's policies: the starting policy first, the run's own policy last.

    Args:
        stored: policies of result.json, which a stage writes in the order of training.
        sampled: policies of evaluation.jsonl in the order of their evaluation. An iterative run samples its baseline
            after its own last policy. Only names missing from `stored` are used, e.g. those of an unfinished run.
    """
    # A dict keeps the first position of a name, so the order of `stored` wins.
    return list(dict.fromkeys([*stored, *sampled]))


def own_policy(names: Sequence[str]) -> str | None:
    """Return the policy that a run trained, given its policies in training order; None if it evaluated none."""
    return names[-1] if names else None
