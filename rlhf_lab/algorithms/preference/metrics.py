"""Metrics that rlhf_lab/algorithms/preference/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

PREFERENCE_STEP = (
    Metric("accuracy", "fraction of pairs, or of unpaired examples, whose implicit reward margin is positive"),
    Metric(
        "margin",
        "mean implicit-reward margin as defined by the loss; sigmoid: β·(log-ratio of chosen − of rejected); for an "
        "unpaired example: β·log-ratio with the sign of its label",
    ),
    Metric("chosen_logp", "mean log π(chosen), nats per response"),
    Metric("rejected_logp", "mean log π(rejected), nats per response"),
    Metric("chosen_drift", "mean log π(chosen) − log π_ref(chosen), nats per response (losses with a reference)"),
    Metric("z_ref", "estimated KL(π ‖ π_ref), the reference point of rewards, nats per response (kto)"),
)
"""dpo.py"""

EXAMPLES = (
    Metric("examples/liked", "liked training responses (data=unpaired)"),
    Metric("examples/disliked", "disliked training responses (data=unpaired)"),
    Metric(
        "heldout_accuracy",
        "fraction of held-out responses whose implicit reward has the sign of their label (data=unpaired)",
        title="held-out accuracy",
        better="higher",
        kind="rate",
        relative_to=("reference",),
    ),
    Metric(
        "heldout_accuracy/<label>",
        "`heldout_accuracy` of liked or of disliked responses alone",
        better="higher",
        kind="rate",
        relative_to=("reference",),
    ),
)
"""Logged by dpo.py at the end of a run on unpaired data"""

ROUND = (
    Metric("round", "index of the round of rollout and training, from 1"),
    Metric("pairs", "pairs generated in the round"),
    Metric("prompts_cut", "prompts of the round truncated at the start because of rollout.max_prompt_tokens"),
    Metric("ties", "prompts without a pair: all samples equal in reward or text"),
    Metric("reward_best", "mean reward of the chosen responses"),
    Metric("reward_worst", "mean reward of the rejected responses"),
    Metric(
        "pair_gold_agreement",
        "fraction of the round's pairs whose chosen response also has the higher gold, ties count ½",
        better="higher",
    ),
    Metric(
        "staleness", "mean age in rounds of the trained pairs that a policy sampled; 0 is on-policy", title="staleness"
    ),
    Metric("buffer_pairs", "pairs in the buffer of the round"),
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
"""Logged by dpo_iterative.py at the end of the run"""

STEP_PAIRS = (
    Metric(
        "correct/sampled",
        "fraction of the solutions sampled for pairs of steps whose answer is right",
        title="accuracy of samples",
        better="higher",
        kind="rate",
    ),
    Metric("made/items", "solutions with a wrong answer"),
    Metric("made/rows", "pairs of steps, or of the solutions that contain them", title="synthetic rows"),
    Metric("made/rejected/<problem>", "solutions with a wrong answer that gave no pair, by problem"),
    Metric(
        "made/label_agreement",
        "fraction of pairs of which the world finds the chosen step right and the rejected one the first wrong step",
        title="synthetic labels right",
        better="higher",
        phrase="fraction of right labels among the synthetic pairs",
    ),
)
"""step_pairs.py"""
