"""Order of the policies that a run evaluated, and which of them is the run's own.

`judge`, `compare`, `label`, `gate` and studies all ask here, so that they speak of the same policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def in_training_order(stored: Iterable[str], sampled: Iterable[str]) -> list[str]:
    """Names of a run's policies: the starting policy first, the run's own policy last.

    Args:
        stored: policies of result.json, which a stage writes in the order of training.
        sampled: policies of evaluation.jsonl, in the order of their evaluation: an iterative run samples its baseline
            after its own last policy. Only the names that `stored` lacks are used, e.g. those of an unfinished run.
    """
    return list(dict.fromkeys([*stored, *sampled]))


def own_policy(names: Sequence[str]) -> str | None:
    """The policy that a run made, among its policies in training order; None where it evaluated none."""
    return names[-1] if names else None
