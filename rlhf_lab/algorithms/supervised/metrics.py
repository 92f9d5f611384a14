"""Metrics that rlhf_lab/algorithms/supervised/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

SFT = (
    Metric(
        "heldout_nll",
        "mean −log p of a held-out response token, nats, EOS included",
        title="held-out loss",
        unit="nats",
        better="lower",
    ),
)
"""sft.py"""

SELF_TRAINING = (
    Metric("sampling_temperature", "sampling temperature that the balance score chose for the round"),
    Metric("reward_threshold", "minimum reward of an accepted solution that the balance score chose for the round"),
    Metric("balance", "B-STaR's balance score of the round's selection (arXiv:2412.17256)", better="higher"),
    Metric("explored", "fraction of the round's prompts with a right solution among the samples", better="higher"),
    Metric("distinct_right", "distinct right solutions among the samples of a prompt, mean", better="higher"),
    Metric("accepted", "fraction of the round's samples that are accepted"),
    Metric("precision", "fraction of the distinct accepted solutions that are right", better="higher"),
    Metric("agreement", "fraction of the samples that are accepted and right, or neither", better="higher"),
)
"""Logged by self_training.py, with `round` and `rows` (number of distinct accepted solutions that are trained on)"""

OF_A_RUN = tuple(Metric(f"{metric.name}/<round>", f"`{metric.name}` of one round") for metric in SELF_TRAINING)
"""Logged by self_training.py at the end of the run"""
