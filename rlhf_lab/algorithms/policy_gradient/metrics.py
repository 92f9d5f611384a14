"""Metrics that rlhf_lab/algorithms/policy_gradient/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

ON_POLICY = (
    Metric("clip_fraction", "share of tokens whose ratio the trust region cut"),
    Metric("approx_kl", "k3 estimate of KL(old ‖ new), nats per token"),
    Metric("kl_penalty", "estimate of KL(π ‖ reference) in the loss, nats per token"),
    Metric("ptx_nll", "mean −log π of a corpus reply token, nats"),
    Metric("kl", "KL(π ‖ reference) of the samples: mean over replies of Σ k1, nats per reply"),
    Metric("kl_k3", "the same by k3"),
    Metric(
        "kl_sampled",
        "the same by k1 for all sampled replies, where a rollout filter left some of them; what an adaptive "
        "controller then steers",
    ),
    Metric("beta", "coefficient of the KL penalty in this iteration"),
    Metric("advantage_sd", "standard deviation of the advantages over tokens, before whitening"),
    Metric("token_budget_left", "reply tokens that may still be generated"),
    Metric(
        "sampler_log_ratio",
        "mean of log π(training) − log π(sampler) over sampled tokens, nats; logged where one of the two computes in "
        "bfloat16, or the sampler is another program or has older weights. Minus the KL divergence per token of the "
        "sampler from training",
    ),
    Metric("sampler_log_ratio_max", "the same: largest absolute value of a token"),
    Metric(
        "sampler_ess",
        "effective sample size of the ratios training/sampler as a share of the sample: of replies with "
        "algorithm.correction=sequence, else of tokens",
    ),
    Metric("correction_capped", "share of algorithm.correction's ratios above algorithm.correction_cap"),
    Metric("step0_sampler_gap", "largest |log π(sampler) − log π(trainer)| of a token in the first rollout, nats"),
)
"""on_policy.py"""

ROLLOUTS = (
    Metric("reward", "mean reward of the sampled replies, before shaping", better="higher", relative_to=("reward",)),
    Metric("reward/<node>", "mean of a node of the reward graph over the replies it scored (graphs of several nodes)"),
    Metric("reward_sd", "its standard deviation over replies"),
    Metric("score", "mean score after shaping: what is trained on"),
    Metric("reward_kept", "mean reward of the replies that a rollout filter left, before shaping"),
    Metric(
        "entropy",
        "mean −log π of a token that is trained on, nats: without a filter an estimate of the policy's entropy",
    ),
    Metric("tokens", "mean reply length, EOS included; of an episode of several turns, its sampled tokens"),
    Metric("turns", "mean number of turns that the policy had in an episode (data whose environment answers)"),
    Metric("ended", "share of replies that ended with EOS"),
    Metric("unscored", "share of replies the reward abstained on; they are not trained on"),
    Metric(
        "wasted_groups",
        "share of sampled groups whose replies (those that a filter left) all have the same score after shaping",
        title="wasted groups",
        better="lower",
    ),
    Metric(
        "generated_tokens",
        "reply tokens generated in the iteration, greedy baselines included",
        title="generated tokens",
    ),
    Metric("prompts_cut", "prompts that lost their beginning to rollout.max_prompt_tokens"),
    Metric("score_sd", "standard deviation of the scores that are trained on: rewards after scaling and penalties"),
    Metric("penalty/<name>", "mean over scored replies of what shaping subtracts: missing_eos, overlong"),
)
"""rollouts.py, which also logs the mean of every measure of the data's world: see core/measures.py"""

CURRICULUM = (
    Metric(
        "curriculum/difficulty",
        "1 − the recent success rate of the drawn tasks, mean over those tried before. Tasks drawn by a curriculum are "
        "no sample of the data, and neither are `reward` and `correct` of the samples: compare held-out numbers, not "
        "these curves",
    ),
    Metric("curriculum/informative", "share of sampled groups whose replies have different rewards", better="higher"),
    Metric("curriculum/new", "share of the drawn tasks that were never tried before"),
    Metric("curriculum/tried", "share of all training tasks that were tried before the iteration"),
)
"""curriculum.py, and what rollouts.py logs beside it"""

OF_A_RUN = (Metric("groups", "groups sampled in the whole run"),)
"""on_policy.py, when it ends"""

PPO = (
    Metric("value_loss", "critic's loss per token, before value_weight"),
    Metric(
        "explained_variance",
        "1 − Var(return − value)/Var(return) over the iteration's tokens: 1 is a perfect critic",
        better="higher",
    ),
    Metric("value", "mean value before the iteration's updates"),
    Metric("return", "mean return"),
)
"""ppo.py"""
