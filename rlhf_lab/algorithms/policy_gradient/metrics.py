"""Metrics that rlhf_lab/algorithms/policy_gradient/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

ON_POLICY = (
    Metric("clip_fraction", "fraction of tokens whose ratio was clipped"),
    Metric("approx_kl", "k3 estimate of KL(old ‖ new), nats per token"),
    Metric("kl_penalty", "estimate of KL(π ‖ reference) in the loss, nats per token"),
    Metric("ptx_nll", "mean −log π of a corpus response token, nats"),
    Metric("kl", "KL(π ‖ reference) of the samples: mean over responses of Σ k1, nats per response"),
    Metric("kl_k3", "KL(π ‖ reference) of the samples, estimated by k3"),
    Metric(
        "kl_sampled",
        "KL(π ‖ reference) by k1 over all sampled responses, if a rollout filter removed some of them; the adaptive "
        "controller then uses this value",
    ),
    Metric("beta", "coefficient of the KL penalty in this iteration"),
    Metric("advantage_sd", "standard deviation of the advantages over tokens, before whitening"),
    Metric("token_budget_left", "response tokens that may still be generated"),
    Metric(
        "sampler_log_ratio",
        "mean of log π(training) − log π(sampler) over sampled tokens, nats. Logged if one of the two computes in "
        "bfloat16, or if the sampler is another program or has older weights. It is minus the KL divergence per token "
        "of the sampler from training",
    ),
    Metric("sampler_log_ratio_max", "maximum of |log π(training) − log π(sampler)| over sampled tokens, nats"),
    Metric(
        "sampler_ess",
        "effective sample size of the ratios training/sampler as a fraction of the sample: over responses with "
        "algorithm.correction=sequence, else over tokens",
    ),
    Metric("correction_capped", "fraction of algorithm.correction's ratios above algorithm.correction_cap"),
    Metric("step0_sampler_gap", "maximum |log π(sampler) − log π(trainer)| over tokens in the first rollout, nats"),
)
"""on_policy.py"""

ROLLOUTS = (
    Metric("reward", "mean reward of the sampled responses, before shaping", better="higher", relative_to=("reward",)),
    Metric("reward/<node>", "mean of a node of the reward graph over the responses it scored (multi-node graphs)"),
    Metric("reward_sd", "standard deviation of the reward over responses"),
    Metric("score", "mean score after shaping, as used for training"),
    Metric("reward_kept", "mean reward of the responses that a rollout filter selected, before shaping"),
    Metric("entropy", "mean −log π of a trained token, nats; without a filter an estimate of the policy's entropy"),
    Metric("tokens", "mean response length, EOS included; for multi-turn episodes, all sampled tokens"),
    Metric("turns", "mean number of policy turns in an episode (data with an environment)"),
    Metric("ended", "fraction of responses that ended with EOS"),
    Metric("unscored", "fraction of responses on which the reward abstained; they are not trained on"),
    Metric(
        "wasted_groups",
        "fraction of sampled groups whose responses (after filtering) all have the same score after shaping",
        title="wasted groups",
        better="lower",
    ),
    Metric(
        "generated_tokens",
        "response tokens generated in the iteration, greedy baselines included",
        title="generated tokens",
    ),
    Metric("prompts_cut", "prompts truncated at the start because of rollout.max_prompt_tokens"),
    Metric("score_sd", "standard deviation of the scores used for training: rewards after scaling and penalties"),
    Metric("penalty/<name>", "mean penalty that shaping subtracts from scored responses: missing_eos, overlong"),
)
"""Logged by rollouts.py, which also logs the mean of every measure that the data source declares: core/measures.py"""

CURRICULUM = (
    Metric(
        "curriculum/difficulty",
        "1 − the recent success rate of the sampled tasks, mean over tasks tried before. A curriculum's tasks are not "
        "a sample of the data, and neither are `reward` and `correct` of the samples: compare held-out metrics, not "
        "these curves",
    ),
    Metric(
        "curriculum/informative", "fraction of sampled groups whose responses have different rewards", better="higher"
    ),
    Metric("curriculum/new", "fraction of the sampled tasks that were never tried before"),
    Metric("curriculum/tried", "fraction of all training tasks that were tried before the iteration"),
)
"""curriculum.py and rollouts.py"""

OF_A_RUN = (Metric("groups", "groups sampled in the entire run"),)
"""Logged by on_policy.py at the end of the run"""

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
