"""The faults of the mutation campaign, as data: where, what becomes what, and what a researcher would get wrong.

A fault is worth its place when a careful developer could make it, when it does not crash, and when the numbers that
come out look plausible. `anchors.py` finds the place of each in the syntax tree; where there is none, or more than one,
the campaign and tests/lint/test_mutations.py refuse the row. Faults of a pack are in its folder beside this file.

A fault is written like a diff: `name in where`, the harm, the code before (-) and after (+); see `anchors.Mutant`.
"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from anchors import Mutant, read_mutants

LOSSES = """
k3_reversed in k3
    GRPO's penalty estimates the KL in the other direction
    - ref - logp
    + logp - ref
simpo_gamma_not_times_beta in simpo
    the target margin is another one than the setting's name says
    - beta * gamma_beta_ratio
    + gamma_beta_ratio
kto_undesirable_side_reversed in kto
    KTO makes undesirable replies likelier
    - z_ref - rejected_B
    + rejected_B - z_ref
robust_dpo_scale in robust
    robust DPO is no longer unbiased under flipped labels
    - signed_B / (1 - 2 * label_smoothing)
    + signed_B / (1 - label_smoothing)
orpo_summed_logps in PREFERENCE_LOSSES
    ORPO's odds are of whole replies, so that long replies are pushed down
    - Objective('ORPO', orpo, ('policy',), per_token=True)
    + Objective('ORPO', orpo, ('policy',))
cream_mixture_reversed in Objective.__call__
    labels that two rankings agree on are trained on the wrong way round
    - consistency_B * labelled.per_pair_B + (1 - consistency_B) * swapped.per_pair_B
    + (1 - consistency_B) * labelled.per_pair_B + consistency_B * swapped.per_pair_B
ppo_optimistic_clip in _clipped_loss
    the trust region takes the better of two losses and bounds nothing
    - torch.maximum
    + torch.minimum
gspo_ratio_of_sums in gspo
    GSPO's ratio grows with the length of the reply
    - log_ratio.new_zeros(tokens.rows).index_add(0, tokens.row, log_ratio) / count_R
    + log_ratio.new_zeros(tokens.rows).index_add(0, tokens.row, log_ratio)
value_clip_optimistic in value_loss
    the critic is not held near its old values
    - torch.maximum
    + torch.minimum
reward_margin_sign in reward_model.bradley_terry
    a reward model with a margin is satisfied sooner instead of later
    - chosen_B - rejected_B - margin
    + chosen_B - rejected_B + margin
idealised_ranking_beta in idealised_ranking
    the ceiling of DPO's ranking accuracy is that of another β
    - torch.logit(p_chosen_B, eps=1e-06) / beta
    + torch.logit(p_chosen_B, eps=1e-06) * beta
"""

LOG_PROBABILITIES = """
first_reply_token_skipped in TokenBatch._targets
    the first token of every reply is neither trained on nor counted in its log-probability
    - column_T >= first_B1
    + column_T > first_B1
eos_not_counted in TokenBatch._targets
    nothing learns to end a reply
    - column_T < length_B1
    + column_T < length_B1 - 1
trainer_temperature_inverted in ResponseStates.logps
    ratios compare two temperatures
    - _LinearLogProb.apply(*inputs, self.target_N, 1.0 / temperature, truncation, self.cap)
    + _LinearLogProb.apply(*inputs, self.target_N, temperature, truncation, self.cap)
gradient_without_temperature in _LinearLogProb.backward
    the gradient is scaled by the sampling temperature
    - grad_N[chunk].float() * ctx.inv_tau
    + grad_N[chunk].float()
exact_kl_reversed in _token_kl
    evaluated KL is KL(reference ‖ policy)
    - log_p.exp() * (log_p - log_q)
    + log_q.exp() * (log_q - log_p)
kl_reference_at_temperature_1 in _exact_kl
    a policy that has not moved has a KL above 0 at temperatures other than 1
    - _logits(*q_inputs, chunk, q.cap).mul_(1.0 / temperature)
    + _logits(*q_inputs, chunk, q.cap)
kto_reference_point_unclamped in positive_kl
    KTO's KL estimate is negative in half of the first steps
    - log_ratio_N.mean().clamp(min=0)
    + log_ratio_N.mean()
kto_reference_point_matched in shifted_rows
    KTO's KL estimate is the log-ratio of the very replies that are trained on
    - rows[i - 1]
    + rows[i]
"""

SAMPLING = """
sampler_logps_at_temperature_1 in drawing.draw
    old log-probabilities are not those of the distribution that was sampled
    - if vocab <= ONE_LEVEL:
    -     token_R1 = _find_share(p_RV.cumsum(1), noise_R1)[0]
    -     return token_R1[:, 0], p_RV.gather(1, token_R1).log_()[:, 0]
    + if vocab <= ONE_LEVEL:
    +     token_R1 = _find_share(p_RV.cumsum(1), noise_R1)[0]
    +     return token_R1[:, 0], logits_RV.softmax(1, dtype=torch.float32).gather(1, token_R1).log_()[:, 0]
ended_by_length in OneTurn.rows
    a reply whose EOS is the last token allowed pays the penalty of an unfinished one
    - tokens[length - 1] in self.stop_ids
    + length < self.slots
batches_share_noise in LocalSampler._sample_rows
    prompts of different batches draw the same noise, and a reply depends on its batch
    - noise(0)[torch.tensor(numbers)]
    + noise(0)[:len(numbers)]
padding_visible in Decoder.start
    replies to short prompts attend to a padding token when prompts differ in length
    - position >= length_B[:, None]
    + position > length_B[:, None]
position_off_by_one in Decoding._admit
    the sampler's policy is another one than the trainer's
    - len(self.prompts[number])
    + len(self.prompts[number]) - 1
newcomers_see_slots_of_others in GroupCache._wider_mask
    rows that take the places of finished ones attend to tokens that nobody wrote for them
    - F.pad(self.mask_BT[:, self.width:], (0, slots), value=-torch.inf)
    + F.pad(self.mask_BT[:, self.width:], (0, slots), value=0.0)
slots_of_live_rows_dropped in GroupCache.keep
    rows that joined late lose their first tokens from the cache
    - first_B - unread
    + first_B
fallback_positions_off_by_one in ModelDecoder.start
    architectures without a decoder of the lab's own sample from shifted positions
    - (mask_BT.cumsum(1) - 1).clamp(min=0)
    + mask_BT.cumsum(1)
"""

PASSES = """
packed_replies_see_each_other in PackedRows.mask
    log-probabilities of a reply depend on the other replies to its prompt
    - self.start_RW
    + self.prompt_start_RW
packed_replies_begin_at_position_0 in PackedRows.of
    a packed reply is read as if it had no prompt before it
    - Piece(response, row * row_width + prompt, prompt, column, prompt_start, prompt_end)
    + Piece(response, row * row_width + prompt, 0, column, prompt_start, prompt_end)
reward_adapter_in_the_shared_base in OneBase.reward_model
    the reward model's adapter changes the policy and its reference
    - add_products(model, adapter, shared=True)
    + add_products(model, adapter, shared=False)
"""

CREDIT = """
importance_ratio_inverted in OnPolicy._correct
    tokens that an older policy drew too often weigh more, not less
    - old_N - sampler_N
    + sampler_N - old_N
grpo_population_sd in grpo
    advantages are √(G/(G − 1)) times as large as the paper's and TRL's
    - (scored_B - 1).clamp
    + scored_B.clamp
unscored_is_zero in dr_grpo
    a reply that the reward abstained on is trained on as if it had scored 0
    - group.scores_BG
    + group.scores_BG.nan_to_num(0.0)
gae_bootstraps_last_value in gae
    the longest reply is credited with reward after its end
    - torch.zeros_like(values_RT[:, :1])
    + values_RT[:, -1:]
approx_kl_reversed in OnPolicy.policy_loss
    `target_kl` stops on the KL in the direction that samples do not estimate
    - k3(old_N, logp_N.detach())
    + k3(logp_N.detach(), old_N)
kl_in_reward_by_k3 in OnPolicy._penalise_and_credit
    the reward's KL penalty does not push a token back up that has become too unlikely
    - k1(tokens['old'], tokens['ref'])
    + k3(tokens['old'], tokens['ref'])
kl_in_loss_rewarded in OnPolicy.policy_loss
    the policy is paid for leaving its reference
    - loss_N + self.beta * penalty_N
    + loss_N - self.beta * penalty_N
controller_counts_iterations in OnPolicy._penalise_and_credit
    the adaptive coefficient hardly moves
    - len(scores_R)
    + 1
target_kl_per_pass in OnPolicy.accept_step
    `target_kl` is compared with nats per micro-batch, so that it depends on micro_batch_tokens
    - total_kl / tokens
    + total_kl / len(sums)
loss_units_of_iteration in OnPolicy.collect
    the learning rate shrinks with the number of updates per iteration
    - loss_units(settings.aggregation or '', len(rows), sampled_tokens)
    + loss_units(settings.aggregation or '', len(experience.rows), sampled_tokens)
ppo_penalty_rewarded in ProximalPolicyOptimisation.credit
    PPO is paid for KL
    - reward_N = -penalty_N
    + reward_N = penalty_N.clone()
grpo_penalty_rewarded in GroupPolicyOptimisation.credit
    GRPO with the KL in the reward is paid for KL
    - scores_R - experience.row_sums(penalty_N)
    + scores_R + experience.row_sums(penalty_N)
remax_baseline_sampled in Rollouts._score_greedy_responses
    ReMax's baseline is one more sample instead of the greedy reply
    - self.collector.collect(model, tasks, 1, 0, temperature=0.0, prompts=prompts)
    + self.collector.collect(model, tasks, 1, 0, prompts=prompts)
scaled_reward_is_centred in RewardShaper.__call__
    half of all rewards change their sign
    - rewards.astype(np.float64)
    + rewards.astype(np.float64) - self.mean
"""

DATA = """
split_by_pair in SplitRow.decides_split
    pairs of one prompt are in train and in test
    - self.asked or self.identity
    + self.asked + self.prompt + self.chosen
train_prompts_stay_in_test in load_corpus
    a given test file keeps prompts that were trained on
    - {short_digest(pair.identity) for pair in train.pairs}
    + {short_digest(pair.identity) for pair in test.pairs}
length_ties_are_wins in SplitReader.add
    the length bias of a corpus is overstated
    - len(split.chosen) > len(split.rejected)
    + len(split.chosen) >= len(split.rejected)
split_at_first_reply in split_response
    earlier turns of the assistant become part of the reply, or conversations are dropped
    - normalise(transcript).rpartition
    + normalise(transcript).partition
cut_reply_gets_eos in Encoder.fit
    the policy learns to stop in mid-sentence at max_length
    - reply_ids[:room]
    + reply_ids if len(reply_ids) <= room else [*reply_ids[:room - 1], self.eos_id]
long_prompt_loses_its_end in Encoder.prompt
    a long conversation is answered without its question
    - ids[len(prefix) + len(ids) - max_tokens:]
    + ids[:max_tokens - len(prefix)]
on_policy_label_probability in PolicyResponses.labelled_pairs
    `ideal_accuracy` of on-policy pairs and DPO's ideal ranking read the wrong side
    - Pair(prompt, b, a, {'p_chosen': 1 - p})
    + Pair(prompt, b, a, {'p_chosen': p})
annotator_temperature in Annotator.probability
    labels are less noisy than the setting says
    - 2 * self.temperature
    + self.temperature
epochs_repeat_order in plan_steps
    every epoch sees the same batches in the same order
    - seed + epoch
    + seed
"""

INFERENCE = """
clusters_ignored in clustered_mean
    replies to one prompt count as independent: intervals are too narrow
    - _standard_error(values_N - mean, cluster_N)
    + _standard_error(values_N - mean, np.arange(values_N.size))
no_small_sample_factor in _standard_error
    with 3 seeds intervals are 18 % too narrow
    - sums_G.size / (sums_G.size - 1) * np.square(sums_G).sum()
    + np.square(sums_G).sum()
df_of_rows in inference._interval
    degrees of freedom count replies instead of prompts or seeds
    - stats.t.ppf((1 + level) / 2, clusters - 1)
    + stats.t.ppf((1 + level) / 2, cluster_N.size - 1)
one_sided_p in t_comparison
    p-values are half as large
    - 2 * stats.t.sf(abs(gap) / error, freedom)
    + stats.t.sf(abs(gap) / error, freedom)
holm_not_monotone in holm
    a weaker finding can be more significant than a stronger one
    - np.maximum.accumulate(weighted)
    + weighted
wilson_width in _wilson_bounds
    intervals of rates have the wrong width
    - 4 * n * n
    + 4 * n
unanimous_rate_counts_rows in _wilson_of_clusters
    8 of 8 replies to two prompts look like eight independent successes
    - float(clusters)
    + float(outcomes_N.size)
temperature_interval_unclustered in fit_temperature
    the interval of a fitted temperature is too narrow where a prompt has several pairs
    - np.bincount(pairs.prompt_n, weights=margin_n * miss_n)
    + margin_n * miss_n
rescaled_by_its_own_fit in rescaled
    calibration after rescaling is measured on the pairs it was fitted to
    - fit_temperature(margin_N[half_N != side], cluster_N[half_N != side])
    + fit_temperature(margin_N[half_N == side], cluster_N[half_N == side])
signed_confidence in calibration.confidence
    confidence below ½ counts as confidence, and a wrong pair looks honest
    - np.abs(floats(margin_N))
    + floats(margin_N)
"""

STUDIES = """
equal_differences_are_certain in paired_difference
    three seeds that happen to agree give a p-value of 0
    - max(observed_error, least_error(least_N, cluster_N))
    + observed_error
outcomes_without_their_coin in min_sd_of_outcomes
    three of three runs against none of three is called certain
    - np.abs(difference_N).sum() + 1
    + np.abs(difference_N).sum()
sameness_from_one_side in inference.equivalence
    a difference beyond its margin is confirmed as none
    - margin - abs(gap)
    + margin + abs(gap)
shared_prompts_forgotten in crossed_difference
    on given data intervals speak for these prompts alone
    - ms_runs + ms_prompts_above_rest
    + ms_runs
one_corpus_for_all_seeds in check.completed
    every seed of a study trains and is tested on the same data
    - config.data.of_run(config.seed)
    + config.data.of_run(0)
claims_not_adjusted in verdict.verdicts
    of many claims one is confirmed by chance
    - family_holm(study, p_values)
    + p_values
withdrawn_claims_forgotten in family_holm
    dropping the claims that look hopeless confirms others
    - [1.0] * withdrawn_in_family(study, claim)
    + []
seen_seeds_count in without_seeds
    a claim written after a look is confirmed by what was looked at
    - ~study.frame[column].isin(seeds)
    + slice(None)
errors_of_shared_prompts_dropped in _add_prompt_error_to_difference
    differences of metrics without values by prompt are too sure of themselves
    - seed_variance + prompt_variance
    + seed_variance
"""

MEASURES = """
ties_are_wins in EpisodeLog._summarise
    a policy that copies its reference wins every time
    - win_or_tie(columns[judge] - base[judge])
    + (columns[judge] >= base[judge]).astype(np.float64)
judged_by_proxy in EpisodeLog._summarise
    the win rate is judged by the reward that was trained on
    - 'gold' if 'gold' in metrics else 'proxy' if 'proxy' in metrics else None
    + 'proxy' if 'proxy' in metrics else 'gold' if 'gold' in metrics else None
kl_without_temperature in Evaluator._kl.compute
    evaluated KL is of a distribution that nothing was sampled from
    - exact_kl(model, self.reference, batch, temperature=temperature)
    + exact_kl(model, self.reference, batch)
reward_per_nat_without_baseline in EpisodeLog._summarise
    the gain per nat is the reward per nat
    - columns['proxy'] - base['proxy']
    + columns['proxy']
best_of_n_per_nat_without_baseline in best_of_n.estimates
    best of n looks better or worse per nat by the policy's own reward
    - values['proxy'] - proxy_P
    + values['proxy']
chosen_drift_of_rejected in preference_step
    training curves show the drift of the wrong side
    - policy.chosen - ref.chosen
    + policy.rejected - ref.rejected
heldout_drift_sign in Evaluator._pair_metrics
    likelihood displacement looks like its opposite
    - (now.chosen - ref.chosen).double
    + (ref.chosen - now.chosen).double
implicit_accuracy_without_reference in Evaluator._pair_metrics
    the accuracy of the implicit reward is the ranking accuracy
    - now.chosen - ref.chosen > now.rejected - ref.rejected
    + now.chosen > now.rejected
null_is_zero in estimates.floats
    unscored replies pull means towards 0
    - np.nan
    + 0.0
gold_agreement_ties_are_wins in audit_margins
    a reward that says nothing agrees with the truth
    - np.sign(margin_N) * np.sign(gold) / 2 + 0.5
    + np.where(np.isnan(margin_N), np.nan, margin_N * gold >= 0)
"""

AGENTS = """
tools_are_trained_on in Episode.sampled
    an agent is trained to write what its tools answer
    - segment.sampled
    + True
tool_tokens_count_as_length in Episode.sampled_tokens
    what tools answer counts as the length of the policy's turns
    - self.turns
    + self.segments
parting_reads_the_reward in IterationBatch.parting_N
    an agent that solves more tasks is taken for one that hacks
    - self.unverified_N - outcome_N
    + self.unverified_N + outcome_N
curriculum_prefers_the_solved in EdgeCurriculum.draw
    training draws the tasks that are solved already
    - 4 * self.success()[tried] * (1 - self.success()[tried])
    + self.success()[tried]
curriculum_record_never_fades in EdgeCurriculum.observe
    the record of a task exceeds its episodes, and its success rate 1
    - KEPT * self.rewards_N[position]
    + self.rewards_N[position]
pass_at_k_with_replacement in pass_at_k
    pass@k is the biased estimate of the plug-in rate
    - np.prod(1.0 - k / i)
    + (1.0 - right / n) ** k
mcnemar_effect_of_ties in _with_exact_effect
    tasks that both solve count as lost, and no effect seems detectable
    - a[task][0] > b[task][0]
    + a[task][0] >= b[task][0]
sign_flip_one_sided in sign_flip_exact
    p-values of agents are half of what they are
    - np.abs(sums)
    + sums
calls_of_a_reply_lost in response_message
    text before a call that looks like one hides the call
    - reply.rpartition
    + reply.partition
"""

TURNS = """
ppo_early_scores_twice in ProximalPolicyOptimisation.credit
    what an episode earned before its last turn is credited a second time at its end
    - last_scores_R - experience.row_sums(early_N)
    + last_scores_R
ppo_early_scores_lost in ProximalPolicyOptimisation.credit
    PPO credits no turn before the last one, and an episode counts for less than it scored
    - reward_N + early_N
    + reward_N
ppo_returns_by_policy_lambda in ProximalPolicyOptimisation.credit
    the critic is trained on returns of the wrong λ
    - self._gae(experience, reward_N, value_N, value_lam)
    + self._gae(experience, reward_N, value_N, lam)
early_scores_on_first_tokens in early_scores
    all tokens of a turn but the first are trained without what the turn earned
    - [0.0] * (len(turn.token_ids) - 1) + [score]
    + [score] + [0.0] * (len(turn.token_ids) - 1)
early_scores_not_scaled in Rollouts._score_groups
    with a running scale the parts of an episode no longer add up to its score
    - reward / self.shaper.scale
    + reward
early_scores_of_clipped_totals in Rollouts._score_groups
    clipping the reward moves credit to the last turn and changes its sign
    - batch.turns is not None and (not self.settings.reward_clip)
    + batch.turns is not None
early_scores_of_other_episodes in EpisodeGroup.keep
    behind a rollout filter episodes are credited with the turns of others
    - [self.early[i] for i in indices] if self.early else []
    + self.early
running_scale_within_batches in RewardShaper.observe
    the running scale misses that rewards rise during training, so that steps grow
    - within_batch + delta ** 2 * self.count * len(scored) / total
    + within_batch
overlong_over_all_turns in Rollouts._shape
    an agent is punished for long conversations instead of replies that are cut off
    - len(episode.turns[-1].token_ids)
    + episode.sampled_tokens
dr_grpo_divides_by_one_turn in OnPolicy._plan_updates
    the effective learning rate of Dr. GRPO grows with the number of turns
    - self.longest_episode
    + self.max_new_tokens
kl_of_environment_tokens in Evaluator._kl
    evaluated KL counts text that the policy did not write
    - experience.masks
    + None
turns_share_noise in SeveralTurns.noise
    all turns of an episode are drawn by the same luck, and episodes look less varied than they are
    - self.noise_of_turn(self.turn[row])
    + self.noise_of_turn(0)
episode_one_token_too_long in SeveralTurns._end_turn_if_over
    episodes are longer than the limit that memory and Dr. GRPO count on
    - len(self.finished[row].token_ids) < max_tokens_left
    + len(self.finished[row].token_ids) <= max_tokens_left
turn_without_room in end_turn
    an episode goes on where no token of the policy fits any more
    - len(row.token_ids) + len(follows) < most_tokens
    + len(row.token_ids) + len(follows) <= most_tokens
cut_turn_goes_on in end_turn
    the environment answers half sentences, and the policy is trained on what came of that
    - ended and fits
    + fits
luck_shared_by_a_group in Conversations.answer
    the episodes of a group meet the same luck, so that their differences understate it
    - seed_for(self.seed, 'environment', row)
    + seed_for(self.seed, 'environment', row // self.group)
finish_replaces_the_reward in Conversations.exchange
    episodes that reach the limit of turns lose what their last turn earned
    - last.reward + final_reward
    + final_reward
"""

SAMPLED_ELSEWHERE = """
correction_cap_exponentiated in importance_weights
    weights of old tokens are capped at e² where the setting says 2
    - math.log(cap)
    + cap
sequence_correction_by_mean in OnPolicy._correct
    the correction by whole replies hardly corrects
    - experience.row_sums(log_ratio_N)
    + experience.row_sums(log_ratio_N) / torch.tensor(experience.sampled_lengths)
one_iteration_staler in Rollouts._draw_later
    replies are an iteration older than the study says
    - iteration + self.settings.staleness
    + iteration + self.settings.staleness + 1
kl_of_stale_samples_by_new_weights in on_policy._sampled_logps
    KL and entropy are estimated with samples of one policy and probabilities of another
    - experience.tokens.get('drawn', experience.tokens['old'])
    + experience.tokens['old']
vllm_turns_share_seed in VllmSampler._turns.ask
    every turn that vLLM samples is drawn by the luck of the first
    - seed_for(row.seed, 'turn', turn) if turn else row.seed
    + row.seed
vllm_rows_share_seeds in row_seed
    replies to different prompts are drawn by the same luck
    - prompt * group + sample
    + prompt + sample
vllm_ignores_the_tokens_used in VllmSampler._turns.ask
    episodes sampled by vLLM are longer than those of the lab
    - max_tokens_left - row.opened - len(row.tokens.token_ids)
    + max_tokens_left
packed_second_token_of_another_reply in PackedRows.slots_before
    the second token of a packed reply is predicted from the first token of another one
    - in_reply_N < 0
    + in_reply_N <= 0
packed_prompts_counted_per_row in Lengths.minimum
    the choice between packed and padded passes overrates the cost of packing
    - sum(self.slots) - sum(self.prompts) + sum(prompts)
    + sum(self.slots)
"""

PREFERENCES = """
kto_references_permuted in UnpairedKTO.loss
    unpaired examples are compared with the reference probabilities of others
    - self.ref_N[torch.tensor(indices)]
    + self.ref_N[:len(indices)]
kto_reference_point_reversed in positive_kl
    KTO's reference point estimates the KL in the other direction
    - sequence_logps(model, rows, device) - sequence_logps(reference, rows, device)
    + sequence_logps(reference, rows, device) - sequence_logps(model, rows, device)
kto_unpaired_shift_reversed in kto_unpaired
    disliked replies are made likelier
    - z_ref - ratio_B
    + z_ref + ratio_B
kto_disliked_weight_unused in kto_unpaired
    the weight of disliked examples has no effect
    - undesirable_weight * torch.sigmoid(-beta * (z_ref - ratio_B))
    + desirable_weight * torch.sigmoid(-beta * (z_ref - ratio_B))
buffer_one_round_too_long in IteratedDPO._start_round
    buffer=current trains on the pairs of an older policy too
    - index - self._rounds_in_buffer() + 1
    + index - self._rounds_in_buffer()
consistency_of_the_newest_round in IteratedDPO._precompute
    old labels are trusted as much as those of the newest round
    - [buffered.consistency for buffered in buffer for _ in buffered.pairs]
    + [current.consistency for buffered in buffer for _ in buffered.pairs]
implicit_reward_without_reference in RollOut._consistency_rate
    CREAM compares the reward with how likely replies are instead of with the implicit reward
    - sequence_logps(model, rows, self.run.device) - sequence_logps(reference, rows, self.run.device)
    + sequence_logps(model, rows, self.run.device)
corpus_fraction_of_sampled_pairs in IteratedDPO._wanted_corpus_pairs
    corpus_fraction=.5 mixes in a third
    - sampled_pairs * fraction / (1 - fraction)
    + sampled_pairs * fraction
round_steps_ignore_the_corpus in IteratedDPO.__init__
    corpus pairs take the place of updates on sampled ones
    - prompts / (1 - settings.corpus_fraction)
    + prompts
codebooks_by_column in pair_rows.response_logps
    codebooks are told apart by the length of the prompt
    - (column_N - batch.prompt_len_B[row_N]) % codebooks
    + column_N % codebooks
codebooks_as_long_as_the_reply in PairInputs.of_codebooks
    losses per token of a codebook are four times too small
    - length_B.repeat_interleave(codebooks) / codebooks
    + length_B.repeat_interleave(codebooks)
"""

STORED_WEIGHTS = """
rslora_scaled_as_lora in lora._scale
    reward models with rsLoRA on the shared base score as if they had hardly been trained
    - math.sqrt(rank) if config.use_rslora else rank
    + rank
products_without_scale in products_of
    policies on four bits are saved with another strength of their adapter
    - adapted.scaling[NAME] * b
    + b
reward_head_rounded in _round_matrices
    rewards of models in bfloat16 have three digits, and close replies the same one
    - parameter.ndim >= 2 and (not name.startswith(f'{HEAD}.'))
    + parameter.ndim >= 2
scores_under_autocast in scalar_head
    rewards have three digits under autocast
    - torch.autocast(states.device.type, enabled=False)
    + torch.autocast(states.device.type, dtype=torch.bfloat16)
cache_of_all_heads in ModelShape.kv_bytes
    plans refuse what fits, by the grouped heads of its attention
    - self.kv_heads
    + self.heads
first_member_not_planned in copies._member_count
    an ensemble is planned with one model too few
    - 1 + _1
    + _1
pairs_planned_as_one_row in copies.step_rows
    preference training is planned with half of its rows
    - settings.rows_per_unit * units
    + units
"""


WATCHED = """
gate_not_adjusted in verdicts.decide
    a gate with many checks refuses good runs
    - holm([verdict.p_worse for verdict in verdicts])
    + [verdict.p_worse for verdict in verdicts]
gate_margin_on_the_wrong_side in _from_intervals
    a change within the margin is called a regression
    - margin_p_values(gain, check.demand.margin)
    + margin_p_values(gain, -check.demand.margin)
gate_on_a_few_shared_prompts in verdicts._measured
    runs of different prompts are compared on the few that they share
    - max(SHARED, ALIKE * larger)
    + SHARED
alarm_one_iteration_late in Detector._count_alarms
    the lead of an alarm over the fall of gold is one iteration short
    - self.iteration - 1
    + self.iteration
prompts_of_iterations_joined in detector._join_batches
    replies to different prompts count as replies to one
    - number_N + offset
    + number_N
fall_error_of_single_iterations in gold_fall.gold_fall
    falls in long runs are judged by the wrong standard error
    - np.square(error_T[piece]).mean() / len(piece)
    + np.square(error_T[piece]).mean()
cusum_forgets_sampling in Baseline.noise
    the monitor is blind to shifts of the length
    - self.sd ** 2 / prompts + self.drift ** 2
    + self.sd ** 2 + self.drift ** 2
baseline_taken_as_exact in Baseline.z
    false alarms right behind a short warm-up
    - math.hypot(error, baseline_error)
    + error
shift_kl_biased in shift_kl
    small iterations look as if the reward had shifted
    - (p_K * np.log(p_K / q_K)).sum() - bias
    + (p_K * np.log(p_K / q_K)).sum()
unscored_by_a_guard_passes in _gated
    replies that a guard could not read are rewarded
    - np.where(np.isnan(gate_N), np.nan, total_N)
    + total_N
calibration_noise_too_independent in perfect_ece
    a calibrated reward model looks miscalibrated where prompts have several pairs
    - math.sqrt(dependence)
    + dependence
ece_interval_by_fixed_size in expected_calibration_error
    calibration looks more uncertain where prompts have different numbers of pairs
    - np.abs(weights_DP @ gap_sums_PB).sum(axis=1) / pairs_drawn_D
    + np.abs(weights_DP @ gap_sums_PB).sum(axis=1) / pairs
welch_freedom_pooled in unpaired_difference
    unpaired comparisons with one noisy side are too sure
    - error ** 4 / denominator
    + float(groups - 2)
overoptimisation_residual_sd in overoptimization.fit_curve
    fitted curves look closer to their points than they are
    - residual_squares / freedom
    + residual_squares / d_N.size
"""

WORLDS = """
less_than_or_equal in instructions.RELATIONS
    instructions with "less than" are followed at the limit
    - count < threshold
    + count <= threshold
majority_ties_win in _winning_subsets
    maj@k counts every tie as won
    - Fraction(sizes[k - own], ties + 1)
    + Fraction(sizes[k - own])
users_are_learned in ChatTemplate.turns
    SFT of conversations learns what users and tools say
    - [False] * len(after)
    + [True] * len(after)
mixture_remainders_reversed in row_counts
    left-over rows go to the sources that are due the least
    - counts[name] - rows * parts[name]
    + rows * parts[name] - counts[name]
made_rows_of_held_out_prompts in mixture._refuse
    synthetic rows train on the prompts of the test split
    - source != OWN and pair.prompt in held_out
    + False
contamination_by_count in EvaluationItems.find
    a long evaluation item that is quoted hides a short one that is copied
    - counts[number] / self._grams_of[number]
    + counts[number]
near_duplicates_by_precision in duplicates.overlap
    rows are rejected by another overlap than the one that is documented
    - 2 * common_subsequence(first, second) / (len(first) + len(second))
    + common_subsequence(first, second) / max(len(first), len(second))
subsequence_with_repetition in duplicates._common_subsequence
    a word that occurs once is matched with every occurrence in the other text
    - (flat + matches | flat - matches) & every_bit
    + flat & ~matches
"""

UNITS = """
unlike_units_added in _read_sum
    2 hours 30 dollars are 7230 seconds
    - summands > 1 and len(kinds) == 1
    + summands > 1
glass_is_a_plural in units._stem
    3 glasses are not 3 glass
    - len(word) > 3 and (not word.endswith('ss'))
    + len(word) > 3
division_ends_with_one_unit in units._unit
    W/m K is W·K/m, so that right answers in thermodynamics are wrong
    - power = 1
    + power = sign = 1
case_of_symbols_ignored in units._known
    5 Mg are 5 mg
    - (name, name.casefold())
    + (name.casefold(), name)
conversion_upside_down in equivalence.in_one_unit
    5 km are 0.005 m
    - factor * unit.factor
    + factor / unit.factor
percent_times_a_hundred in equivalence.same_number
    10 % is 1000 and not 0.1
    - (percent, percent / 100)
    + (percent, percent * 100)
mixed_numbers_multiplied in equivalence.parse_plain_number
    2 1/2 is 1
    - whole + Fraction(above, below)
    + whole * Fraction(above, below)
millions_dropped_in_votes in equivalence.as_ballot
    5 million and 5 are one answer of a vote
    - number[0] * quantity.scale
    + number[0]
"""

GRAPH = """
gate_above_its_floor in combine._gated
    responses that just pass a gate are punished
    - gate_N < gate.floor
    + gate_N <= gate.floor
any_confidence_pays in combine.calibrate
    low confidence in a good response is rewarded
    - stated_N - 0.5
    + stated_N
ceiling_for_one_of_two in combine.bounded
    two responses may differ by more than max_confidence
    - math.log(_1) / 2
    + math.log(_1)
"""

ESTIMATORS = """
k3_not_clamped in policy.k3
    one token that the policy has dropped decides the step, or makes it infinite
    - (ref - logp).clamp(max=K3_CLAMP)
    + ref - logp
k3_clamped_on_both_sides in policy.k3
    tokens that became much likelier than under the reference cost 9 nats at most, without a gradient
    - (ref - logp).clamp(max=K3_CLAMP)
    + (ref - logp).clamp(min=-K3_CLAMP, max=K3_CLAMP)
adaptive_beta_not_clipped in adaptive_beta
    one iteration with a high KL multiplies the coefficient
    - min(max(_1, -0.2), 0.2)
    + _1
canon_unscored_responses_first in advantage.canon
    an unscored response takes a place in the lower half
    - torch.inf
    + -torch.inf
canon_halves_of_all_responses in advantage.canon
    with unscored responses the halves of a group are not equal
    - scored_BG.sum(1, keepdim=True) + 1
    + scores_BG.shape[1] + 1
reversed_pair_keeps_its_lengths in PairInputs.reversed
    CREAM's reversed pair is divided by the lengths of the other responses
    - PairTokens(self.tokens.rejected, self.tokens.chosen)
    + self.tokens
peak_of_seeds_in_distance in _summarise_seeds
    the KL at the peak is its square root
    - _exp(2 * value)
    + _exp(value)
"""

SAMPLES = """
unknown_samples_are_wrong in repeated_samples._outcomes
    pass@k falls where a verifier abstains
    - outcomes[~np.isnan(outcomes)]
    + np.nan_to_num(outcomes)
trials_of_unknown_samples in evaluations.repeated_samples.repeated_samples
    intervals of pass@k are too narrow where outcomes are unknown
    - int(np.isfinite(correct_N).sum())
    + len(correct_N)
trials_are_prompts in clustered_fraction
    intervals of pass@k are as wide as those of one sample per prompt
    - max(trials, values_N.size)
    + values_N.size
pass_beyond_what_is_known in repeated_samples.pass_at_k
    pass@8 of four known samples is 1
    - 1.0 - all_wrong if k <= n else np.nan
    + 1.0 - all_wrong
partial_credit_is_correct in VerifierOracle.measure
    a response that follows one of three instructions is correct
    - score_N >= 1
    + score_N > 0
abstained_is_incorrect in VerifierOracle.measure
    rows without an answer pull accuracy towards 0
    - np.where(np.isnan(score_N), np.nan, score_N >= 1)
    + (score_N >= 1).astype(np.float64)
"""

RATES = """
adapter_rate_of_one_adamw in with_tuned
    adapters under adamw_8bit are trained at a tenth of their rate
    - optimizer in ('adamw', 'adamw_8bit')
    + optimizer == 'adamw'
adapter_rate_of_a_shared_critic in with_tuned
    the head of a shared critic is trained at ten times its rate
    - ('lr',) if written.get('critic') == 'shared' else ('lr', 'critic_lr')
    + ('lr', 'critic_lr')
written_settings_replaced in with_tuned
    a learning rate that is written is replaced by the model's
    - written.get(key) is None
    + True
"""

RESUMED = """
waste_forgotten_on_resume in Rollouts.load_state_dict
    a resumed run wastes fewer groups than an uninterrupted one
    - int(state['wasted'])
    + 0
waste_by_rewards in EpisodeGroup.wasted
    groups that penalties tell apart count as wasted, though they are trained on
    - _same(self.scores)
    + _same(self.rewards)
"""

PENALTIES = """
overlong_from_the_limit in RewardShaper.penalties
    no response is ever punished for its length
    - self.max_new_tokens - settings.overlong_tokens
    + self.max_new_tokens
penalty_for_ending in RewardShaper.penalties
    the policy is punished for ending its responses
    - ~np.asarray(ended, dtype=bool)
    + np.asarray(ended, dtype=bool)
penalties_of_unscored_responses in penalty_means
    penalties are logged of responses that nothing was subtracted from
    - np.isfinite(reward)
    + True
score_sd_of_rewards in group_metrics
    a policy that is trained on penalties alone is said to have no signal
    - np.nanstd([group.scores for group in trained])
    + np.nanstd([group.rewards for group in trained])
any_fall_is_learning in loss_did_not_fall
    a loss that wanders is said to have fallen in half of all runs
    - math.hypot(*errors)
    + 0.0
"""

OPTIMISED = """
warmup_from_zero in optim.lr_scale
    the first update of every run does nothing
    - (step + 1) / warmup
    + step / warmup
cosine_to_zero in optim.lr_scale
    final_lr_fraction has no effect
    - final_fraction + (1 - final_fraction) * 0.5 * _1
    + 0.5 * _1
biases_decayed in Optimizers._add_part
    norms and biases are decayed
    - {'params': [p for p in adamw_parameters if p.ndim < 2], 'weight_decay': 0.0}
    + {'params': [p for p in adamw_parameters if p.ndim < 2], 'weight_decay': self.settings.weight_decay}
embeddings_by_muon in _is_hidden_matrix
    Muon orthogonalises the updates of embeddings and heads
    - parameter.ndim == 2 and (not any(layer in name for layer in not_hidden))
    + parameter.ndim == 2
schedule_ignored in Optimizers.step
    every step has the peak learning rate
    - peak * scale
    + peak
critic_of_unscaled_scores in ppo.build_critic
    a critic from the reward model starts with values of another scale than the rewards
    - weight_1d / sd
    + weight_1d
explained_variance_is_squared_error in explained_variance
    a critic with a constant error seems to explain nothing
    - (returns_N - values_N).var(unbiased=False)
    + (returns_N - values_N).square().mean()
"""

CHECKED = """
all_alternatives_required in capabilities.missing
    algorithms that train on pairs or on single responses refuse data with one of them
    - not item & provides
    + item not in provides
joined_flags_are_read_together in capabilities.reads
    a part that works with pairs is said not to read pairs or single responses
    - item & capability
    + capability in item
suggested_data_for_one_part in matching.suitable_data
    messages suggest data that another part of the run refuses
    - (everything, part.requires)
    + (part.requires,)
upper_bound_included in ranges.Lt.holds
    label smoothing of ½ for robust DPO, which divides by 0, is accepted
    - number < self.bound
    + number <= self.bound
infinite_settings in Bound.allows
    an infinite learning rate is accepted
    - Finite().allows(value) and self.holds(value)
    + self.holds(value)
details_are_logged in measures.named
    what only the annotator reads appears in tables as a metric
    - measure.logged
    + True
"""

AUDITED = """
audit_bet_knows_the_comparison in EProcess.update
    the bet depends on the comparison it is placed on, so that the error rate has no guarantee
    - self.log_e += math.log1p(self.bet() * x)
    + self.log_e += math.log1p(MAX_BET * abs(x) * 2 * x)
audit_bets_on_the_policy in EProcess.update
    the alarm rings when the policy is better than its start
    - 0.5 - score
    + score - 0.5
audit_process_forgets_its_maximum in EProcess.update
    an alarm is missed if the e-value has fallen again at the end of the iteration
    - max(self.log_max, self.log_e)
    + self.log_e
audit_bound_of_one_look in eprocess.lower_bound
    lower bounds hold at one look and not at all of them
    - math.log(looks / alpha)
    + math.log(1 / alpha)
audit_bound_too_narrow in eprocess.lower_bound
    policies are certified too early
    - 2 * len(scores)
    + 4 * len(scores)
audit_reuses_start_responses in Auditor._buy
    start responses are compared again and again, which breaks the guarantee
    - seed('audit/start', iteration)
    + seed('audit/start', 0)
audit_same_prompts in Auditor._buy
    every iteration is audited on the same prompts
    - seed('audit/prompts', iteration)
    + seed('audit/prompts', 0)
audit_unanswered_count_for_start in Auditor._add
    missing=win counts unanswered comparisons against the policy
    - 1.0 if math.isnan(score) else score
    + 0.0 if math.isnan(score) else score
audit_missing_favours_certificate in Auditor.lower_bound
    unanswered comparisons certify a policy
    - 0.0 if math.isnan(score) else score
    + 1.0 if math.isnan(score) else score
audit_stop_keeps_last_weights in OnPolicy.finish
    a stopped run delivers the policy that the alarm is about
    - self.audit.restore_certified()
    + None
audit_certifies_after_alarm in Auditor.check
    a policy is certified although the e-process has found it worse
    - not is_worse and self.lower_bound() >= 0.5 - self.settings.delta
    + self.lower_bound() >= 0.5 - self.settings.delta
"""

SEQUENTIAL = """
sequential_every_look_anew in _smallest_p
    verdicts are taken back at later looks
    - np.minimum.accumulate(np.where(tested_L, p_L, np.inf), axis=-1)
    + np.where(tested_L, p_L, np.inf)
sequential_looks_unweighted in _smallest_p
    late looks use more than their share of the level
    - stdtr(count_L - 1, -t_L) / _weight(count_L)
    + stdtr(count_L - 1, -t_L)
sequential_normal_tails in _smallest_p
    three seeds decide by the normal distribution
    - stdtr(count_L - 1, -t_L)
    + stdtr(1e6 * count_L, -t_L)
sequential_two_sided_once in sequential.two_sided
    the better of two directions is tested as if it had been named before
    - 2 * np.minimum(first_L, second_L)
    + np.minimum(first_L, second_L)
sequential_same_by_one_side in sequential.same_p
    a difference beyond the margin on one side counts as the same
    - np.maximum(_1, _2)
    + np.minimum(_1, _2)
sequential_smaller_than_negative in sequential.smaller_p
    effects are called smaller than published when they are larger
    - published < 0
    + published > 0
sequential_interval_one_sided in sequential_interval
    sequential intervals hold with 90 % where 95 % is printed
    - boundary_of((1 - level) / 2)
    + boundary_of(1 - level)
sequential_interval_last_look in sequential_interval
    the interval of a stopped study is not that of its test
    - np.maximum.accumulate(mean_L - half_L, axis=-1)
    + mean_L - half_L
discordant_pairs_swapped in discordant_p
    0/1 outcomes are decided for the side that loses
    - betainc(c_L + 0.5, b_L + 0.5, 0.5)
    + betainc(b_L + 0.5, c_L + 0.5, 0.5)
sequential_floor_dropped in looks_at
    three equal seeds decide a claim
    - np.maximum(variance_S, min_sd ** 2)
    + variance_S
sequential_failed_seeds_decide in ClaimEvidence.p_at
    claims are decided by the seeds that survived
    - self.failed_L[position] > MAX_FAILED
    + self.failed_L[position] > 1
published_ratio_as_difference in ClaimEvidence.smaller_p
    published ratios are compared with log ratios
    - math.log(published)
    + published
smaller_before_direction in sequential._decide
    confirmed claims are reported as smaller than published
    - family_holm(study, {**p_values, index: main_p})[index] > ALPHA
    + family_holm(study, {**p_values, index: main_p})[index] <= ALPHA
"""

RANKED = """
ranks_across_strata in rank_correlation._pooled
    a difference between worlds looks like a correlation
    - stratum_n == name
    + stratum_n == stratum_n
resamples_across_strata in rank_correlation._resamples
    intervals of pooled correlations mix strata
    - start + rng.integers(0, count, size=(DRAWS, count))
    + rng.integers(0, len(stratum_n), size=(DRAWS, count))
signed_rivals in compare_predictors
    a rival that predicts with the other sign loses to a useless predictor
    - abs(first_value) - abs(second_value)
    + first_value - second_value
crossing_interval_by_one_seed in find_crossing
    the interval of a crossing ignores how seeds differ
    - np.interp(grid_P, position_K, difference_K)
    + np.interp(grid_P, position_K, difference_SK[0])
"""

ATTACKED = """
attack_keeps_worst in AttackSearch.round
    the search keeps the responses that the reward likes least
    - -found.score
    + found.score
attack_forgets_parents in AttackSearch.round
    transcripts of attacks show the last edit as all of them
    - (*parent.edits, step)
    + (step,)
attack_gain_of_search_scores in AttackStage._measure
    gains are 0
    - self.reward(prompts, responses).total_N
    + scale.starts.reward_PS[:, 0]
attack_gain_unscaled in AttackStage._measure
    gains of rewards with other scales cannot be compared
    - (reward_P - scale.starts.reward_PS[:, 0]) / scale.reward_sd
    + reward_P - scale.starts.reward_PS[:, 0]
attack_longer_than_allowed in AttackSearch._new_response
    gains from mere length count as an exploit of another kind
    - len(text.split()) <= self.max_words
    + len(text) <= 50 * self.max_words
"""

RETRIED = """
retry_after_ignored in RetryPolicy.wait_s
    services that ask for a pause are called at once
    - backoff_s(failures, self.pause_s) if retry_after_s is None else retry_after_s
    + backoff_s(failures, self.pause_s)
one_retry_too_many in RetryPolicy.wait_s
    requests are repeated more often than allowed
    - failures > self.retries
    + failures > self.retries + 1
waits_forever in RetryPolicy.wait_s
    a service that asks for a year is obeyed
    - wait > LONGEST_WAIT_S
    + wait > 1e12
client_errors_repeated in http_retry.is_passing
    wrong requests are paid for again and again
    - status >= 500
    + status >= 400
"""

SEARCHED = """
beam_keeps_worst in BeamSearch._select
    beam search returns what the verifier likes least
    - -beam.score
    + beam.score
beam_counts_shared_tokens_again in BeamSearch.search
    beam search seems to cost more than best-of-n
    - len(each.token_ids) - len(beam.token_ids)
    + len(each.token_ids)
beam_drops_finished in BeamSearch.search
    complete solutions are lost when longer ones are extended
    - [beam for beam in own if beam.finished]
    + [beam for beam in own if not beam.finished and beam.score > 1e9]
"""

TABLES = (
    *(LOSSES, LOG_PROBABILITIES, SAMPLING, PASSES, CREDIT, DATA, INFERENCE, STUDIES, MEASURES, AGENTS, TURNS),
    *(SAMPLED_ELSEWHERE, PREFERENCES, STORED_WEIGHTS, WATCHED, WORLDS, UNITS, GRAPH, ESTIMATORS, SAMPLES, RATES),
    *(RESUMED, PENALTIES, OPTIMISED, CHECKED, AUDITED, SEQUENTIAL, RANKED, ATTACKED, RETRIED, SEARCHED),
)
MUTANTS: tuple[Mutant, ...] = (
    *(mutant for table in TABLES for mutant in read_mutants(table)),
    *(
        mutant
        for file in sorted(Path(__file__).parent.glob("*/mutations.py"))
        for mutant in run_path(str(file))["MUTANTS"]
    ),
)
