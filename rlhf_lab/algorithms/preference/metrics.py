"""Metrics that rlhf_lab/algorithms/preference/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

PREFERENCE_STEP = (
    Metric("accuracy", "share of pairs, or of unpaired examples, whose implicit reward margin is positive"),
    Metric(
        "margin",
        "mean implicit-reward margin, as the loss defines it; sigmoid: β·(log-ratio of chosen − of rejected); of an "
        "unpaired example β·log-ratio, with the sign of its label",
    ),
    Metric("chosen_logp", "mean log π(chosen), nats per reply"),
    Metric("rejected_logp", "mean log π(rejected), nats per reply"),
    Metric("chosen_drift", "mean log π(chosen) − log π_ref(chosen), nats per reply (losses with a reference)"),
    Metric("z_ref", "estimated KL(π ‖ π_ref) that rewards are measured against, nats per reply (kto)"),
)
"""dpo.py"""

EXAMPLES = (
    Metric("examples/liked", "replies for training that were liked (data=unpaired)"),
    Metric("examples/disliked", "replies for training that were disliked (data=unpaired)"),
)
"""dpo.py on unpaired data, when it ends"""

ROUND = (
    Metric("round", "round of roll out and training, from 1"),
    Metric("pairs", "pairs made in the round"),
    Metric("prompts_cut", "prompts of the round that lost their beginning to rollout.max_prompt_tokens"),
    Metric("ties", "prompts without a pair: all samples equal in reward or text"),
    Metric("reward_best", "mean reward of the chosen replies"),
    Metric("reward_worst", "mean reward of the rejected replies"),
    Metric(
        "pair_gold_agreement",
        "share of the round's pairs whose chosen reply also has the higher gold, ties half",
        better="higher",
    ),
    Metric(
        "staleness", "mean age in rounds of the trained pairs that a policy sampled; 0 is on-policy", title="staleness"
    ),
    Metric("buffer_pairs", "pairs the round draws from"),
    Metric(
        "consistency",
        "CREAM's C: agreement of the reward's ranking with the policy's implicit reward (consistency=cream)",
    ),
)
"""dpo_iterative.py"""

OF_A_RUN = (
    Metric("pair_gold_agreement/<round>", "`pair_gold_agreement` of one round, with its interval"),
    Metric("ties/<round>", "`ties` of one round"),
)
"""dpo_iterative.py, when it ends"""
