"""The faults of the mutation campaign, as data: where, what becomes what, and what a researcher would get wrong.

A fault is worth its place when a careful developer could make it, when it does not crash, and when the numbers that
come out look plausible. The text to replace stands in its file exactly once, or the campaign and
tests/unit/test_mutants.py refuse it: whoever changes the line changes the row here.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One fault.

    Attributes:
        name: for people and for `--only`.
        file: from the root of the checkout.
        before, after: source text.
        harm: what a researcher would get wrong.
    """

    name: str
    file: str
    before: str
    after: str
    harm: str

    def apply(self, text: str) -> str:
        """The file's text with the fault in it. Raises ValueError unless `before` stands there exactly once."""
        count = text.count(self.before)
        if count != 1:
            raise ValueError(
                f"mutant {self.name}: its text stands {count} times in {self.file}, not once; "
                f"correct it in tests/campaign/mutations.py: {self.before!r}"
            )
        return text.replace(self.before, self.after)


ADVANTAGE, KL = "rlhf_lab/losses/advantage.py", "rlhf_lab/losses/kl.py"
POLICY, PREFERENCE = "rlhf_lab/losses/policy.py", "rlhf_lab/losses/preference.py"
LOGPROBS, ENCODING = "rlhf_lab/models/logprobs.py", "rlhf_lab/models/encoding.py"
SAMPLER, DECODER = "rlhf_lab/sampling/local.py", "rlhf_lab/sampling/decoder.py"
DECODING, CACHE = "rlhf_lab/sampling/decoding.py", "rlhf_lab/sampling/cache.py"
PACKING = "rlhf_lab/models/packing.py"
ON_POLICY, EVALUATION = "rlhf_lab/algorithms/policy_gradient/on_policy.py", "rlhf_lab/evaluations/evaluator.py"
STATISTICS, CALIBRATION = "rlhf_lab/statistics/inference.py", "rlhf_lab/statistics/calibration.py"
LOADING, PAIR_ROWS = "rlhf_lab/data/loading.py", "rlhf_lab/models/pair_rows.py"

LOSSES = (
    Mutant(
        "k3_reversed",
        KL,
        "log_r = (ref - logp).clamp",
        "log_r = (logp - ref).clamp",
        "GRPO's penalty estimates the KL in the other direction",
    ),
    Mutant(
        "simpo_gamma_not_times_beta",
        PREFERENCE,
        "margin_B - beta * gamma_beta_ratio",
        "margin_B - gamma_beta_ratio",
        "the target margin is another one than the setting's name says",
    ),
    Mutant(
        "kto_undesirable_side_reversed",
        PREFERENCE,
        "torch.sigmoid(-beta * (z_ref - rejected_B))",
        "torch.sigmoid(-beta * (rejected_B - z_ref))",
        "KTO makes undesirable replies likelier",
    ),
    Mutant(
        "robust_dpo_scale",
        PREFERENCE,
        "signed_B / (1 - 2 * label_smoothing)",
        "signed_B / (1 - label_smoothing)",
        "robust DPO is no longer unbiased under flipped labels",
    ),
    Mutant(
        "orpo_summed_logps",
        "rlhf_lab/losses/objective.py",
        'Objective("ORPO", preference.orpo, ("policy",), per_token=True)',
        'Objective("ORPO", preference.orpo, ("policy",))',
        "ORPO's odds are of whole replies, so that long replies are pushed down",
    ),
    Mutant(
        "cream_mixture_reversed",
        "rlhf_lab/losses/objective.py",
        "consistency_B * labelled.per_pair_B + (1 - consistency_B) * swapped.per_pair_B",
        "(1 - consistency_B) * labelled.per_pair_B + consistency_B * swapped.per_pair_B",
        "labels that two rankings agree on are trained on the wrong way round",
    ),
    Mutant(
        "ppo_optimistic_clip",
        POLICY,
        "loss = torch.maximum(unclipped, clipped)",
        "loss = torch.minimum(unclipped, clipped)",
        "the trust region takes the better of two losses and bounds nothing",
    ),
    Mutant(
        "gspo_ratio_of_sums",
        POLICY,
        "index_add(0, tokens.row, log_ratio) / count_R",
        "index_add(0, tokens.row, log_ratio)",
        "GSPO's ratio grows with the length of the reply",
    ),
    Mutant(
        "value_clip_optimistic",
        "rlhf_lab/losses/value.py",
        "torch.maximum(squared_error_N, (clipped_N - returns_N).square())",
        "torch.minimum(squared_error_N, (clipped_N - returns_N).square())",
        "the critic is not held near its old values",
    ),
    Mutant(
        "reward_margin_sign",
        "rlhf_lab/losses/reward_model.py",
        "logsigmoid(chosen_B - rejected_B - margin)",
        "logsigmoid(chosen_B - rejected_B + margin)",
        "a reward model with a margin is satisfied sooner instead of later",
    ),
    Mutant(
        "idealised_ranking_beta",
        PREFERENCE,
        "torch.logit(p_chosen_B, eps=1e-6) / beta > 0",
        "torch.logit(p_chosen_B, eps=1e-6) * beta > 0",
        "the ceiling of DPO's ranking accuracy is that of another β",
    ),
)

LOG_PROBABILITIES = (
    Mutant(
        "first_reply_token_skipped",
        ENCODING,
        "(column_T >= first_B1)",
        "(column_T > first_B1)",
        "the first token of every reply is neither trained on nor counted in its log-probability",
    ),
    Mutant(
        "eos_not_counted",
        ENCODING,
        "(column_T < length_B1)",
        "(column_T < length_B1 - 1)",
        "nothing learns to end a reply",
    ),
    Mutant(
        "trainer_temperature_inverted",
        LOGPROBS,
        "self.target_N, 1.0 / temperature, truncation, self.cap)",
        "self.target_N, temperature, truncation, self.cap)",
        "ratios compare two temperatures",
    ),
    Mutant(
        "gradient_without_temperature",
        LOGPROBS,
        "g = grad_N[chunk].float() * ctx.inv_tau",
        "g = grad_N[chunk].float()",
        "the gradient is scaled by the sampling temperature",
    ),
    Mutant(
        "exact_kl_reversed",
        LOGPROBS,
        "(log_p.exp() * (log_p - log_q)).sum(1)",
        "(log_q.exp() * (log_q - log_p)).sum(1)",
        "evaluated KL is KL(reference ‖ policy)",
    ),
    Mutant(
        "kl_reference_at_temperature_1",
        LOGPROBS,
        "_logits(*q_inputs, chunk, q.cap).mul_(1.0 / temperature)",
        "_logits(*q_inputs, chunk, q.cap)",
        "a policy that has not moved has a KL above 0 at temperatures other than 1",
    ),
    Mutant(
        "kto_reference_point_unclamped",
        PAIR_ROWS,
        "log_ratio_N.mean().clamp(min=0)",
        "log_ratio_N.mean()",
        "KTO's KL estimate is negative in half of the first steps",
    ),
    Mutant(
        "kto_reference_point_matched",
        PAIR_ROWS,
        "rows[i - 1][1][: max(max_length - len(prompt), 1)]",
        "rows[i][1][: max(max_length - len(prompt), 1)]",
        "KTO's KL estimate is the log-ratio of the very replies that are trained on",
    ),
)

SAMPLING = (
    Mutant(
        "sampler_logps_at_temperature_1",
        "rlhf_lab/sampling/drawing.py",
        "token_R1 = _find_share(p_RV.cumsum(1), noise_R1)[0]\n        return token_R1[:, 0], p_RV.gather",
        "token_R1 = _find_share(p_RV.cumsum(1), noise_R1)[0]\n"
        "        return token_R1[:, 0], logits_RV.softmax(1, dtype=torch.float32).gather",
        "old log-probabilities are not those of the distribution that was sampled",
    ),
    Mutant(
        "ended_by_length",
        "rlhf_lab/sampling/turns.py",
        "ended = tokens[length - 1] in self.stop_ids",
        "ended = length < self.slots",
        "a reply whose EOS is the last token allowed pays the penalty of an unfinished one",
    ),
    Mutant(
        "batches_share_noise",
        SAMPLER,
        "noise(0)[torch.tensor(numbers)]",
        "noise(0)[: len(numbers)]",
        "prompts of different batches draw the same noise, and a reply depends on its batch",
    ),
    Mutant(
        "padding_visible",
        DECODER,
        "mask_BT.masked_fill_(position >= length_B[:, None], -torch.inf)",
        "mask_BT.masked_fill_(position > length_B[:, None], -torch.inf)",
        "replies to short prompts attend to a padding token when prompts differ in length",
    ),
    Mutant(
        "position_off_by_one",
        DECODING,
        "torch.tensor([len(self.prompts[number]) for number",
        "torch.tensor([len(self.prompts[number]) - 1 for number",
        "the sampler's policy is another one than the trainer's",
    ),
    Mutant(
        "newcomers_see_slots_of_others",
        CACHE,
        "generated_BT = F.pad(self.mask_BT[:, self.width :], (0, slots), value=-torch.inf)",
        "generated_BT = F.pad(self.mask_BT[:, self.width :], (0, slots), value=0.0)",
        "rows that take the places of finished ones attend to tokens that nobody wrote for them",
    ),
    Mutant(
        "slots_of_live_rows_dropped",
        CACHE,
        "self.first_B = first_B - unread",
        "self.first_B = first_B",
        "rows that joined late lose their first tokens from the cache",
    ),
    Mutant(
        "fallback_positions_off_by_one",
        SAMPLER,
        "(mask_BT.cumsum(1) - 1).clamp(min=0)",
        "mask_BT.cumsum(1)",
        "architectures without a decoder of the lab's own sample from shifted positions",
    ),
)

PASSES = (
    Mutant(
        "packed_replies_see_each_other",
        PACKING,
        "in_prompt_RWW.logical_or_(column_W >= self.begin_RW[..., None])",
        "in_prompt_RWW.logical_or_(column_W >= self.prompt_begin_RW[..., None])",
        "log-probabilities of a reply depend on the other replies to its prompt",
    ),
    Mutant(
        "packed_replies_begin_at_position_0",
        PACKING,
        "Piece(reply, row * row_width + prompt, prompt, column, prompt_begin, prompt_end)",
        "Piece(reply, row * row_width + prompt, 0, column, prompt_begin, prompt_end)",
        "a packed reply is read as if it had no prompt before it",
    ),
    Mutant(
        "reward_adapter_in_the_shared_base",
        "rlhf_lab/models/one_base.py",
        "add_products(model, adapter, shared=True)",
        "add_products(model, adapter, shared=False)",
        "the reward model's adapter changes the policy and its reference",
    ),
)

CREDIT = (
    Mutant(
        "importance_ratio_inverted",
        ON_POLICY,
        "log_ratio_N = old_N - sampler_N",
        "log_ratio_N = sampler_N - old_N",
        "tokens that an older policy drew too often weigh more, not less",
    ),
    Mutant(
        "grpo_population_sd",
        ADVANTAGE,
        "centred_BG.square().sum(1) / (scored_B - 1).clamp(min=1)",
        "centred_BG.square().sum(1) / scored_B.clamp(min=1)",
        "advantages are √(G/(G − 1)) times as large as the paper's and TRL's",
    ),
    Mutant(
        "unscored_is_zero",
        ADVANTAGE,
        'section 3.2)."""\n    scores_BG = group.scores_BG\n',
        'section 3.2)."""\n    scores_BG = group.scores_BG.nan_to_num(0.0)\n',
        "a reply that the reward abstained on is trained on as if it had scored 0",
    ),
    Mutant(
        "gae_bootstraps_last_value",
        ADVANTAGE,
        "torch.cat([values_RT[:, 1:], torch.zeros_like(values_RT[:, :1])], dim=1)",
        "torch.cat([values_RT[:, 1:], values_RT[:, -1:]], dim=1)",
        "the longest reply is credited with reward after its end",
    ),
    Mutant(
        "approx_kl_reversed",
        ON_POLICY,
        "k3(old_N, logp_N.detach())",
        "k3(logp_N.detach(), old_N)",
        "`target_kl` stops on the KL in the direction that samples do not estimate",
    ),
    Mutant(
        "kl_in_reward_by_k3",
        ON_POLICY,
        "penalty_N = self.beta * k1(tokens",
        "penalty_N = self.beta * k3(tokens",
        "the reward's KL penalty does not push a token back up that has become too unlikely",
    ),
    Mutant(
        "kl_in_loss_rewarded",
        ON_POLICY,
        "loss_N = loss_N + self.beta * penalty_N",
        "loss_N = loss_N - self.beta * penalty_N",
        "the policy is paid for leaving its reference",
    ),
    Mutant(
        "controller_counts_iterations",
        ON_POLICY,
        "horizon=settings.kl_horizon, samples=len(scores_R))",
        "horizon=settings.kl_horizon, samples=1)",
        "the adaptive coefficient hardly moves",
    ),
    Mutant(
        "target_kl_per_pass",
        ON_POLICY,
        "total_kl / tokens >",
        "total_kl / len(sums) >",
        "`target_kl` is compared with nats per micro-batch, so that it depends on micro_batch_tokens",
    ),
    Mutant(
        "loss_units_of_iteration",
        ON_POLICY,
        'loss_units(settings.aggregation or "", len(rows), sampled_tokens)',
        'loss_units(settings.aggregation or "", len(experience.rows), sampled_tokens)',
        "the learning rate shrinks with the number of updates per iteration",
    ),
    Mutant(
        "ppo_penalty_rewarded",
        "rlhf_lab/algorithms/policy_gradient/ppo.py",
        "reward_N = -penalty_N",
        "reward_N = penalty_N.clone()",
        "PPO is paid for KL",
    ),
    Mutant(
        "grpo_penalty_rewarded",
        "rlhf_lab/algorithms/policy_gradient/grpo.py",
        "scores_R - experience.row_sums(penalty_N)",
        "scores_R + experience.row_sums(penalty_N)",
        "GRPO with the KL in the reward is paid for KL",
    ),
    Mutant(
        "remax_baseline_sampled",
        "rlhf_lab/algorithms/policy_gradient/rollouts.py",
        "tasks, 1, 0, temperature=0.0, prompts=prompts)",
        "tasks, 1, 0, prompts=prompts)",
        "ReMax's baseline is one more sample instead of the greedy reply",
    ),
    Mutant(
        "scaled_reward_is_centred",
        "rlhf_lab/algorithms/policy_gradient/shaping.py",
        "rewards.astype(np.float64) / self.scale",
        "(rewards.astype(np.float64) - self.mean) / self.scale",
        "half of all rewards change their sign",
    ),
)

DATA = (
    Mutant(
        "split_by_pair",
        LOADING,
        "held_out(split.prompt or split.chosen, settings.test_fraction)",
        "held_out(split.prompt + split.chosen, settings.test_fraction)",
        "pairs of one prompt are in train and in test",
    ),
    Mutant(
        "train_prompts_stay_in_test",
        LOADING,
        "seen = {_short_digest(pair.prompt) for pair in train.pairs}",
        "seen = {_short_digest(pair.prompt) for pair in test.pairs}",
        "a given test file keeps prompts that were trained on",
    ),
    Mutant(
        "length_ties_are_wins",
        LOADING,
        "self.longer += len(split.chosen) > len(split.rejected)",
        "self.longer += len(split.chosen) >= len(split.rejected)",
        "the length bias of a corpus is overstated",
    ),
    Mutant(
        "split_at_first_reply",
        "rlhf_lab/data/replies.py",
        "normalise(transcript).rpartition(REPLY)",
        "normalise(transcript).partition(REPLY)",
        "earlier turns of the assistant become part of the reply, or conversations are dropped",
    ),
    Mutant(
        "cut_reply_gets_eos",
        ENCODING,
        "return prompt_ids, reply_ids[:room]",
        "return prompt_ids, reply_ids if len(reply_ids) <= room else [*reply_ids[: room - 1], self.eos_id]",
        "the policy learns to stop in mid-sentence at max_length",
    ),
    Mutant(
        "long_prompt_loses_its_end",
        ENCODING,
        "ids = ids[len(prefix) + len(ids) - max_tokens :]",
        "ids = ids[: max_tokens - len(prefix)]",
        "a long conversation is answered without its question",
    ),
    Mutant(
        "on_policy_label_probability",
        "rlhf_lab/algorithms/reward_models/reward_model.py",
        'Pair(prompt, b, a, {"p_chosen": 1 - p})',
        'Pair(prompt, b, a, {"p_chosen": p})',
        "`ideal_accuracy` of on-policy pairs and DPO's ideal ranking read the wrong side",
    ),
    Mutant(
        "annotator_temperature",
        "rlhf_lab/environments/annotator.py",
        "difference / (2 * self.temperature)",
        "difference / self.temperature",
        "labels are less noisy than the setting says",
    ),
    Mutant(
        "epochs_repeat_order",
        "rlhf_lab/training/batching.py",
        "manual_seed((seed + epoch) % 2**63)",
        "manual_seed(seed % 2**63)",
        "every epoch sees the same batches in the same order",
    ),
)

INFERENCE = (
    Mutant(
        "clusters_ignored",
        STATISTICS,
        "_standard_error(values_N - mean, cluster_N)",
        "_standard_error(values_N - mean, np.arange(values_N.size))",
        "replies to one prompt count as independent: intervals are too narrow",
    ),
    Mutant(
        "no_small_sample_factor",
        STATISTICS,
        "math.sqrt(sums_G.size / (sums_G.size - 1) * np.square(sums_G).sum())",
        "math.sqrt(np.square(sums_G).sum())",
        "with 3 seeds intervals are 18 % too narrow",
    ),
    Mutant(
        "df_of_rows",
        STATISTICS,
        "stats.t.ppf((1 + level) / 2, clusters - 1)) * error",
        "stats.t.ppf((1 + level) / 2, cluster_N.size - 1)) * error",
        "degrees of freedom count replies instead of prompts or seeds",
    ),
    Mutant(
        "one_sided_p",
        STATISTICS,
        "p_value = float(2 * stats.t.sf(abs(gap) / error, freedom))",
        "p_value = float(stats.t.sf(abs(gap) / error, freedom))",
        "p-values are half as large",
    ),
    Mutant(
        "holm_not_monotone",
        STATISTICS,
        "np.minimum(np.maximum.accumulate(weighted), 1.0)",
        "np.minimum(weighted, 1.0)",
        "a weaker finding can be more significant than a stronger one",
    ),
    Mutant(
        "wilson_width",
        STATISTICS,
        "z2 / (4 * n * n)",
        "z2 / (4 * n)",
        "intervals of rates have the wrong width",
    ),
    Mutant(
        "unanimous_rate_counts_rows",
        STATISTICS,
        "float(clusters)",
        "float(outcomes_N.size)",
        "8 of 8 replies to two prompts look like eight independent successes",
    ),
    Mutant(
        "temperature_interval_unclustered",
        CALIBRATION,
        "scores_P = np.bincount(prompt_n, weights=margin_n * miss_n)",
        "scores_P = margin_n * miss_n",
        "the interval of a fitted temperature is too narrow where a prompt has several pairs",
    ),
    Mutant(
        "rescaled_by_its_own_fit",
        CALIBRATION,
        "fit_temperature(margin_N[half_N != side], cluster_N[half_N != side]).mean",
        "fit_temperature(margin_N[half_N == side], cluster_N[half_N == side]).mean",
        "calibration after rescaling is measured on the pairs it was fitted to",
    ),
    Mutant(
        "signed_confidence",
        CALIBRATION,
        "np.exp(-np.abs(floats(margin_N)))",
        "np.exp(-floats(margin_N))",
        "confidence below ½ counts as confidence, and a wrong pair looks honest",
    ),
)

STUDIES = (
    Mutant(
        "equal_differences_are_certain",
        STATISTICS,
        "error = max(observed_error, least_error(least_N, cluster_N))",
        "error = observed_error",
        "three seeds that happen to agree give a p-value of 0",
    ),
    Mutant(
        "outcomes_without_their_coin",
        STATISTICS,
        "discordant = (np.abs(difference_N).sum() + 1) / pairs",
        "discordant = np.abs(difference_N).sum() / pairs",
        "three of three runs against none of three is called certain",
    ),
    Mutant(
        "sameness_from_one_side",
        STATISTICS,
        "(margin - abs(gap)) / error",
        "(margin + abs(gap)) / error",
        "a difference beyond its margin is confirmed as none",
    ),
    Mutant(
        "shared_prompts_forgotten",
        "rlhf_lab/statistics/crossed.py",
        "total = ms_runs + ms_prompts_above_rest",
        "total = ms_runs",
        "on given data intervals speak for these prompts alone",
    ),
    Mutant(
        "one_corpus_for_all_seeds",
        "rlhf_lab/config/root.py",
        "data=root.data.of_run(root.seed)",
        "data=root.data.of_run(0)",
        "every seed of a study trains and is tested on the same data",
    ),
    Mutant(
        "claims_not_adjusted",
        "rlhf_lab/studies/verdict.py",
        "adjusted = holm(p_values)",
        "adjusted = p_values",
        "of many claims one is confirmed by chance",
    ),
    Mutant(
        "panels_adjusted_apart",
        "rlhf_lab/studies/table.py",
        "sections += _adjust_panels(panels)",
        "sections += [one for panel in panels for one in _adjust_panels([panel])]",
        "the more panels a study has, the more it finds",
    ),
    Mutant(
        "errors_of_shared_prompts_dropped",
        "rlhf_lab/studies/replicates.py",
        "math.sqrt(seed_variance + prompt_variance),",
        "math.sqrt(seed_variance),",
        "differences of metrics without values by prompt are too sure of themselves",
    ),
)

MEASURES = (
    Mutant(
        "ties_are_wins",
        EVALUATION,
        "wins = np.sign(column[judge] - base[judge]) / 2 + 0.5",
        "wins = (column[judge] >= base[judge]).astype(np.float64)",
        "a policy that copies its reference wins every time",
    ),
    Mutant(
        "judged_by_proxy",
        EVALUATION,
        'judge = "gold" if "gold" in metrics else "proxy" if "proxy" in metrics else None',
        'judge = "proxy" if "proxy" in metrics else "gold" if "gold" in metrics else None',
        "the win rate is judged by the reward that was trained on",
    ),
    Mutant(
        "kl_without_temperature",
        EVALUATION,
        "exact_kl(model, self.reference, batch, temperature=temperature)",
        "exact_kl(model, self.reference, batch)",
        "evaluated KL is of a distribution that nothing was sampled from",
    ),
    Mutant(
        "reward_per_nat_without_baseline",
        EVALUATION,
        'ratio_of_means(column["proxy"] - base["proxy"], column["kl"], clusters)',
        'ratio_of_means(column["proxy"], column["kl"], clusters)',
        "the gain per nat is the reward per nat",
    ),
    Mutant(
        "best_of_n_per_nat_without_baseline",
        "rlhf_lab/evaluations/best_of_n.py",
        'values["proxy"] - proxy_P, np.full(len(prompts), kl)',
        'values["proxy"], np.full(len(prompts), kl)',
        "best of n looks better or worse per nat by the policy's own reward",
    ),
    Mutant(
        "chosen_drift_of_rejected",
        "rlhf_lab/algorithms/preference/dpo.py",
        'metrics["chosen_drift"] = policy.chosen - ref.chosen',
        'metrics["chosen_drift"] = policy.rejected - ref.rejected',
        "training curves show the drift of the wrong side",
    ),
    Mutant(
        "heldout_drift_sign",
        EVALUATION,
        "clustered_mean((now.chosen - ref.chosen).double().numpy(), clusters)",
        "clustered_mean((ref.chosen - now.chosen).double().numpy(), clusters)",
        "likelihood displacement looks like its opposite",
    ),
    Mutant(
        "implicit_accuracy_without_reference",
        EVALUATION,
        "(now.chosen - ref.chosen > now.rejected - ref.rejected)",
        "(now.chosen > now.rejected)",
        "the accuracy of the implicit reward is the ranking accuracy",
    ),
    Mutant(
        "null_is_zero",
        EVALUATION,
        "[math.nan if row[key] is None else row[key] for row in rows]",
        "[0.0 if row[key] is None else row[key] for row in rows]",
        "unscored replies pull means towards 0",
    ),
    Mutant(
        "gold_agreement_ties_are_wins",
        "rlhf_lab/evaluations/reward_audit.py",
        "np.sign(margin_N) * np.sign(gold) / 2 + 0.5",
        "np.where(np.isnan(margin_N), np.nan, margin_N * gold >= 0)",
        "a reward that says nothing agrees with the truth",
    ),
)

CALL_SCORES, GAIA = "rlhf_lab/agents/call_scores.py", "rlhf_lab/environments/gaia/official.py"
PASS_AT_K, MCNEMAR = "rlhf_lab/statistics/repeated_samples.py", "rlhf_lab/statistics/paired_tasks.py"
GRADER, REPAIRS = "rlhf_lab/sandbox/grader.py", "rlhf_lab/environments/repairs/interpreter.py"
ATTEMPTS, CURRICULUM = (
    "rlhf_lab/evaluations/agents/attempts.py",
    "rlhf_lab/algorithms/policy_gradient/curriculum.py",
)

AGENTS = (
    Mutant(
        "tools_are_trained_on",
        "rlhf_lab/core/episodes.py",
        "return [segment.sampled for segment in self.segments for _ in segment.token_ids]",
        "return [True for segment in self.segments for _ in segment.token_ids]",
        "an agent is trained to write what its tools answer",
    ),
    Mutant(
        "tool_tokens_count_as_length",
        "rlhf_lab/core/episodes.py",
        "sum(len(segment.token_ids) for segment in self.turns)",
        "sum(len(segment.token_ids) for segment in self.segments)",
        "what tools answer counts as the length of the policy's turns",
    ),
    Mutant(
        "busy_tool_without_luck_of_its_own",
        "rlhf_lab/environments/tools/flaky.py",
        'uniform(f"{seed}/{tool.name}/{calls}")',
        'uniform(f"{seed}/{tool.name}")',
        "a busy tool is busy for ever, so that calling it again never helps",
    ),
    Mutant(
        "parting_reads_the_reward",
        "rlhf_lab/monitoring/detector.py",
        "return self.unverified_N - outcome_N",
        "return self.unverified_N + outcome_N",
        "an agent that solves more tasks is taken for one that hacks",
    ),
    Mutant(
        "curriculum_prefers_the_solved",
        CURRICULUM,
        "weights = 4 * self.success()[tried] * (1 - self.success()[tried])",
        "weights = self.success()[tried]",
        "training draws the tasks that are solved already",
    ),
    Mutant(
        "curriculum_record_never_fades",
        CURRICULUM,
        "self.rewards_N[position] = KEPT * self.rewards_N[position] + sum(scored)",
        "self.rewards_N[position] = self.rewards_N[position] + sum(scored)",
        "the record of a task exceeds its episodes, and its success rate 1",
    ),
    Mutant(
        "subsequence_with_repetition",
        CALL_SCORES,
        "lengths[column] = diagonal + 1 if item == other",
        "lengths[column] = lengths[column - 1] + 1 if item == other",
        "a call made once is matched with every one expected, in the order of calls",
    ),
    Mutant(
        "matched_calls_not_one_to_one",
        CALL_SCORES,
        "matched = round(best_pairing(same_ME))",
        "matched = round(float(same_ME.max(axis=1, initial=0.0).sum())) if same_ME.size else 0",
        "the same call made ten times is ten right calls",
    ),
    Mutant(
        "retries_count_against_an_agent",
        CALL_SCORES,
        "if call.failed and key in worked_later:",
        "if call.failed and key not in worked_later:",
        "calls that a busy tool made necessary count, and calls that never worked do not",
    ),
    Mutant(
        "gaia_number_keeps_its_commas",
        GAIA,
        'str.maketrans("", "", "$%,")',
        'str.maketrans("", "", "$%")',
        "an answer of 1,000 is wrong where 1000 is right",
    ),
    Mutant(
        "gaia_list_prefix_is_right",
        GAIA,
        "if len(answers) != len(golds):",
        "if len(answers) < len(golds):",
        "a list with more elements than the right one is right",
    ),
    Mutant(
        "gaia_list_elements_without_punctuation",
        GAIA,
        "return _plain(answer) == _plain(gold)\n\n\ndef _plain",
        "return _plain(answer).translate(PUNCTUATION) == _plain(gold).translate(PUNCTUATION)\n\n\ndef _plain",
        "scores are above those of the leaderboard",
    ),
    Mutant(
        "pass_at_k_with_replacement",
        PASS_AT_K,
        "float(np.prod(1.0 - k / np.arange(n - right + 1, n + 1)))",
        "float((1.0 - right / n) ** k)",
        "pass@k is the biased estimate of the plug-in rate",
    ),
    Mutant(
        "mcnemar_effect_of_ties",
        MCNEMAR,
        "only_a = sum(a[task][0] > b[task][0] for task in shared)",
        "only_a = sum(a[task][0] >= b[task][0] for task in shared)",
        "tasks that both solve count as lost, and no effect seems detectable",
    ),
    Mutant(
        "sign_flip_one_sided",
        MCNEMAR,
        "np.mean(np.abs(sums) >= observed - slack)",
        "np.mean(sums >= observed - slack)",
        "p-values of agents are half of what they are",
    ),
    Mutant(
        "grader_believes_any_report",
        GRADER,
        "if line.startswith(self._nonce.encode()):",
        'if line.startswith(self._nonce.encode()) or b"messages" in line:',
        "a program that prints a report passes its hidden tests",
    ),
    Mutant(
        "no_message_is_a_pass",
        GRADER,
        'passed=messages.count(""),',
        "passed=len(messages),",
        "every test of a failing program counts as passed",
    ),
    Mutant(
        "ptrace_allowed",
        "rlhf_lab/sandbox/jail/seccomp.py",
        '"ptrace": (101, 117), ',
        "",
        "a program can read the memory of the one that grades it",
    ),
    Mutant(
        "redirects_unchecked",
        "rlhf_lab/evaluations/agents/web_pages.py",
        "        _check_address(newurl, self._allow_private)\n        return super()",
        "        return super()",
        "a page of the web leads an agent to services of this machine",
    ),
    Mutant(
        "attempts_known_without_facts",
        ATTEMPTS,
        '        "facts": dict(question.task.facts),\n',
        "",
        "a resumed benchmark takes attempts whose right answer has changed since",
    ),
    Mutant(
        "attempts_known_without_draw",
        ATTEMPTS,
        '"draw": draw, "seed": seed}',
        '"seed": seed}',
        "several attempts at a task are one attempt counted several times",
    ),
    Mutant(
        "budget_ignores_what_is_spent",
        "rlhf_lab/judges/store.py",
        "counted + question.reserve_usd > budget_usd",
        "question.reserve_usd > budget_usd",
        "a run spends its budget over and over",
    ),
    Mutant(
        "loop_reads_the_last_element",
        REPAIRS,
        'for number in list(values["v"]):',
        'for number in list(values["v"])[:-1]:',
        "programs are judged without the last number of their list",
    ),
    Mutant(
        "swapped_operands",
        REPAIRS,
        "compute(first, second)",
        "compute(second, first)",
        "a subtraction in a repaired program has the wrong sign",
    ),
    Mutant(
        "calls_of_a_reply_lost",
        "rlhf_lab/data/transcript.py",
        "content, boundary, calls = reply.rpartition(CALLS)",
        "content, boundary, calls = reply.partition(CALLS)",
        "text before a call that looks like one hides the call",
    ),
)

MUTANTS: tuple[Mutant, ...] = (
    *(*LOSSES, *LOG_PROBABILITIES, *SAMPLING, *PASSES, *CREDIT),
    *(*DATA, *INFERENCE, *STUDIES, *MEASURES),
    *AGENTS,
)
