"""Metrics that rlhf_lab/algorithms/ emits, by the module that logs them."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

SELECTION = (
    Metric("selection/pairs", "corpus pairs that are trained on"),
    Metric(
        "selection/label_accuracy",
        "fraction of selected pairs that gold ranks as labelled, ties count ½ (worlds with gold only)",
        title="kept labels right",
        better="higher",
        phrase="share of right labels among the kept pairs",
    ),
    Metric(
        "selection/longer_chosen",
        "fraction of selected pairs whose chosen response has more words, ties count ½",
        title="kept pairs, longer chosen",
    ),
    Metric(
        "selection/words",
        "mean length of the chosen minus the rejected response, words",
        title="kept pairs, words longer",
    ),
)
"""selection.py"""

CROSS_FIT = (
    Metric("loss", "sum of the fold models' mean losses per pair"),
    Metric(
        "accuracy",
        "fraction of pairs with a cross-fitted margin above 0; its interval treats the fold models as fixed and their "
        "errors as independent",
    ),
    Metric("accuracy/in_sample", "fraction of pairs with an in-sample margin above 0", better="higher"),
    Metric("accuracy/top_half", "accuracy among the half with the largest cross-fitted |m|", better="higher"),
    Metric(
        "accuracy/in_sample/top_half",
        "in-sample accuracy among the half with the largest in-sample |m|",
        better="higher",
    ),
    Metric(
        "label_accuracy",
        "fraction of pairs that gold ranks as labelled, ties count ½ (worlds with gold only)",
        better="higher",
    ),
    Metric(
        "label_accuracy/top_half", "label accuracy among the half with the largest cross-fitted |m|", better="higher"
    ),
    Metric(
        "label_accuracy/in_sample/top_half",
        "label accuracy among the half with the largest in-sample |m|",
        better="higher",
    ),
    Metric("cycle", "number of cycles of margins"),
    Metric("trained_pairs", "training pairs of all fold models; each one trains on those outside its fold"),
)
"""crossfit.py"""


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

ON_POLICY_RUN = (Metric("groups", "groups sampled in the entire run"),)
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

ROUNDS_OF_A_RUN = (
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


REWARD_MODEL = (
    Metric(
        "auroc",
        "probability that a held-out chosen response scores above a rejected one of any prompt, ties count ½; accuracy "
        "compares the two responses of one pair, which is the training objective",
        title="AUC",
        better="higher",
        phrase="AUC on human pairs",
    ),
    Metric(
        "agent_accuracy",
        "fraction of held-out tasks that an agent solves if the reward model chooses one of its attempts at each",
        title="agent accuracy",
        better="higher",
    ),
    Metric("agent_accuracy/one", "fraction of these tasks solved by a random attempt", title="accuracy of one attempt"),
    Metric("agent_accuracy/any", "fraction of these tasks that at least one attempt solves: the upper bound"),
    Metric("agent_accuracy/shortest", "fraction of these tasks solved by the attempt with the smallest word count"),
    Metric("attempts/tasks", "held-out tasks whose attempts were scored"),
    Metric(
        "accuracy/attempts",
        "fraction of correct–wrong pairs of attempts at one held-out task ranked correctly, ties count ½",
        title="accuracy on attempts",
        better="higher",
        phrase="accuracy on pairs of attempts",
    ),
    Metric(
        "auroc/attempts",
        "probability that a correct attempt scores above a wrong one, over all held-out tasks, ties count ½",
        title="AUC on attempts",
        better="higher",
        phrase="AUC on attempts",
    ),
    Metric(
        "accuracy/on_policy",
        "accuracy on held-out pairs sampled from the policy and labelled by the annotator",
        title="accuracy on policy",
        better="higher",
    ),
    Metric(
        "accuracy/multi_turn",
        "accuracy on held-out pairs whose prompt has several human turns",
        title="accuracy, several turns",
        better="higher",
        phrase="accuracy on pairs of several turns",
    ),
    Metric(
        "accuracy/averaged",
        "accuracy of a single model with the mean of the members' weights (WARM)",
        title="accuracy, averaged weights",
        better="higher",
    ),
    Metric(
        "disagreement",
        "standard deviation between the members of an ensemble, mean over policy responses, in sd of scores",
    ),
    Metric("length_correlation", "correlation of score and length of policy responses, in words"),
    Metric("confidence_gain/chosen", "score change from an `unsure` to a `sure` ending of held-out chosen responses"),
    Metric(
        "confidence_gain/rejected", "score change from an `unsure` to a `sure` ending of held-out rejected responses"
    ),
    Metric(
        "row_tokens",
        "tokens of a held-out prompt and response, as read by the model",
        title="row tokens",
        phrase="length of a row in tokens",
    ),
    Metric(
        "turns",
        "human turns in a held-out prompt, as read by the model, before truncation to max_length",
        title="turns read",
    ),
    Metric(
        "truncated",
        "fraction of held-out rows truncated to max_length",
        title="truncated",
        better="lower",
        phrase="share of rows that are cut",
    ),
)
"""reward_model.py"""

RUBRIC = (
    Metric(
        "mse",
        "mean squared error of the score, on the target's scale 0…1, on held-out graded responses",
        title="squared error",
        better="lower",
    ),
    Metric("mse/<attribute>", "mean squared error of the output for an attribute", better="lower"),
    Metric(
        "correlation",
        "correlation of the score with the target on held-out graded responses",
        title="correlation with grades",
        better="higher",
    ),
    Metric(
        "correlation/<attribute>",
        "correlation of an attribute's grade with its output; of a scalar model, with the score",
        better="higher",
    ),
    Metric(
        "correlation/truth",
        "correlation of the score with the target of the true grades, if known",
        title="correlation with true grades",
        better="higher",
    ),
    Metric(
        "judge_correlation",
        "correlation of the judge's grades with the true grades: the quality of the labels",
        title="judge's correlation",
    ),
    Metric("heldout_mse", "mse during training", better="lower"),
)
"""rubric_rm.py"""

STEP_REWARD = (
    Metric("accuracy", "fraction of judged positions whose probability is on the same side of ½ as the label"),
    Metric(
        "accuracy/planted",
        "accuracy on held-out demonstrations and on versions of them with a planted error; a process reward model is "
        "judged at every step, an outcome reward model at the last token",
        better="higher",
    ),
    Metric(
        "auroc/planted",
        "probability that a correct position of those solutions scores above a wrong one, ties count ½",
        better="higher",
    ),
    Metric("brier/planted", "mean squared difference of probability and label on those solutions", better="lower"),
    Metric("positive", "mean training label"),
    Metric("positions", "number of training labels"),
    Metric("trajectories", "number of training solutions"),
    Metric("cut", "steps beyond max_length, which have no label"),
    Metric(
        "consensus/kept",
        "fraction of solutions on whose first wrong step both sources of labels agree",
        title="solutions kept",
    ),
    Metric(
        "consensus/right_before",
        "fraction of all solutions whose completions locate the first wrong step where the world does",
        title="right before the filter",
        better="higher",
    ),
    Metric(
        "consensus/right",
        "the same fraction of the solutions that were kept",
        title="right after the filter",
        better="higher",
    ),
)
"""step_reward.py"""

GRADE = (
    Metric("replies", "responses sent to the judge"),
    Metric("pairs/graded", "pairs whose responses were both sent to the judge"),
    Metric("grade/<criterion>", "mean grade of the responses of the pairs, on the scale of the rubric"),
    Metric(
        "unscored", "fraction of responses without a grade because the judge refused, was truncated or broke the format"
    ),
    Metric("unscored/<reason>", "number of such responses: refused, truncated, invalid"),
    Metric(
        "label_agreement",
        "fraction of pairs whose chosen response has the higher mean grade, ties count ½",
        title="grades agree with labels",
        better="higher",
        phrase="share of pairs that the grades rank as labelled",
    ),
)
"""grade.py"""


CRITERIA_REWARD = (
    Metric("pairs", "labelled pairs used to construct the reward"),
    Metric(
        "log_loss",
        "mean −log of the probability that the reward gives the label of a held-out pair, nats; ln 2 is a coin toss",
        title="log loss",
        better="lower",
    ),
    Metric("slope", "log-odds of a preference per point of the grade"),
    Metric("criteria_kept", "criteria with a weight", title="criteria kept"),
    Metric("weight/<criterion>", "weight of a standardised criterion"),
    Metric(
        "agreement/<criterion>", "Spearman's ρ of a criterion's difference with which response won, on validation pairs"
    ),
)
"""criteria_reward.py"""


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

SELF_TRAINING_RUN = tuple(Metric(f"{metric.name}/<round>", f"`{metric.name}` of one round") for metric in SELF_TRAINING)
"""Logged by self_training.py at the end of the run"""
