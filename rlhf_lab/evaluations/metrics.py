"""Metrics that rlhf_lab/evaluations/ emits."""

from __future__ import annotations

from rlhf_lab.core.measures import CALLS, CORRECT, GARBLE, GOLD, UNDECLARED, VERBOSE, VERIFIED, VERIFIED_PART
from rlhf_lab.core.metrics import Metric

EVALUATOR = (
    GOLD,
    CORRECT,
    Metric(
        "correct_greedy",
        "`correct` for one greedy response per prompt",
        title="greedy accuracy",
        better="higher",
        column="greedy",
        by_category=True,
    ),
    Metric(
        "pass@<k>",
        "probability that one or more of k sampled responses to a prompt are right, over all subsets of k samples "
        "(evaluation.pass_at)",
        better="higher",
    ),
    Metric(
        "maj@<k>",
        "probability that the most frequent final answer of k sampled responses is right, over all subsets of k "
        "samples; ties are broken at random, responses without an answer have no vote",
        better="higher",
    ),
    VERIFIED,
    VERIFIED_PART,
    CALLS,
    UNDECLARED,
    Metric("gold/<category>", "mean gold reward in one category of prompts (speech)", better="higher"),
    Metric("proxy/<category>", "mean proxy reward in one category of prompts (speech)", relative_to=("reward",)),
    Metric(
        "proxy",
        "reward that training maximises; a single reward model is in sd of the reference policy's responses",
        title="proxy reward",
        better="higher",
        column="proxy",
        relative_to=("reward",),
    ),
    Metric("reward/<term>", "value of a term of the reward graph, per response (evaluation.jsonl only)"),
    Metric(
        "win_rate",
        "fraction of responses that are better than the reference's response to the same prompt, ties count half; "
        "by gold if it is known, else by proxy",
        title="win rate",
        better="higher",
        column="win rate",
        relative_to=("reference", "gold"),
    ),
    Metric(
        "kl",
        "KL(policy ‖ reference) per response in nats, exact over the vocabulary at every state the policy visited",
        title="KL",
        unit="nats",
        column="KL (nats)",
        relative_to=("reference",),
    ),
    Metric(
        "reward_per_nat",
        "gain in proxy over the reference divided by KL; absent if KL is below 0.05 nats or its half-width exceeds "
        "half of it",
        title="proxy per nat",
        better="higher",
        column="proxy/nat",
        relative_to=("reward", "reference"),
    ),
    Metric(
        "tokens", "response length, EOS included", title="tokens", phrase="length of a reply in tokens", column="tokens"
    ),
    VERBOSE,
    GARBLE,
    Metric(
        "ended",
        "fraction of responses that ended with EOS within the token limit",
        title="ended",
        better="higher",
        phrase="share of replies that end by themselves",
        kind="rate",
    ),
    Metric(
        "chosen_logp_drift",
        "log π(chosen) − log π_ref(chosen) on held-out pairs, nats per response",
        title="chosen log-prob drift",
        unit="nats",
        relative_to=("reference",),
    ),
    Metric(
        "ranking_accuracy",
        "fraction of held-out pairs with log π(chosen) > log π(rejected)",
        title="ranking accuracy",
        better="higher",
        column="ranking",
    ),
    Metric(
        "implicit_accuracy",
        "ranking accuracy of log π − log π_ref, which is the implicit reward",
        title="implicit accuracy",
        better="higher",
        relative_to=("reference",),
    ),
    Metric(
        "idealised_ranking",
        "ranking accuracy of the optimum of the DPO objective, from the annotator's probabilities",
        title="idealised ranking",
    ),
)
"""evaluator.py"""

TEST_TIME = (
    Metric(
        "accuracy@<k>",
        "fraction of held-out prompts whose selected response is right: selected among k samples by the strategy, "
        "over all subsets of k; the greedy strategy has one response for every k",
        better="higher",
    ),
    Metric(
        "tokens@<k>",
        "tokens that the policy generates per prompt for `accuracy@<k>`: k responses, or the greedy one; the tokens "
        "that a verifier reads are not counted",
        unit="tokens",
        better="lower",
    ),
)
"""test_time.py"""

COMPARE = (
    Metric("gold_sd", "standard deviation of gold over responses", title="gold sd"),
    Metric(
        "proxy_sd",
        "standard deviation of proxy over responses",
        title="proxy sd",
        column="proxy sd",
        relative_to=("reward",),
    ),
    Metric(
        "seconds",
        "wall time of the stage that trained the policy, with its own evaluation, without earlier stages; that of "
        "the last attempt if it was interrupted; absent for a policy that was trained elsewhere",
        title="training time",
        unit="s",
        better="lower",
        column="seconds",
    ),
)
"""compare.py"""

REWARD_AUDIT = (
    Metric("filler_shift/pairs", "`filler_shift` over the responses of held-out pairs"),
    Metric("filler_slope/pairs", "`filler_slope` over the responses of held-out pairs"),
    Metric("filler_slope/gold/pairs", "`filler_slope/gold` over the responses of held-out pairs"),
    Metric("filler_bias/pairs", "`filler_bias` over the responses of held-out pairs"),
    Metric("accuracy", "fraction of pairs with r(chosen) > r(rejected)", title="accuracy", better="higher"),
    Metric("margin", "mean r(chosen) − r(rejected), raw score"),
    Metric(
        "longer_wins",
        "accuracy of preferring the longer response (in characters) on the same pairs, ties count half",
        title="longer wins",
    ),
    Metric(
        "accuracy/longer_chosen",
        "accuracy on pairs whose chosen response is the longer one",
        title="accuracy, longer chosen",
        better="higher",
    ),
    Metric(
        "accuracy/shorter_chosen",
        "accuracy on pairs whose chosen response is the shorter one",
        title="accuracy, shorter chosen",
        better="higher",
    ),
    Metric(
        "accuracy/length_matched",
        "accuracy on pairs whose responses differ by up to a tenth of the longer one, in words",
        title="accuracy, length matched",
        better="higher",
    ),
    Metric(
        "gold_agreement",
        "fraction of held-out pairs in the same order as by gold, ties count half",
        title="agreement with gold",
        better="higher",
    ),
    Metric(
        "ideal_accuracy",
        "accuracy with knowledge of the annotator's probabilities: the upper limit",
        title="ideal accuracy",
    ),
    Metric(
        "filler_shift",
        "score change if two generic sentences are appended to the response, in sd of policy responses",
        title="filler shift",
    ),
    Metric(
        "filler_slope",
        "score change per 10 words of generic filler: least squares through 0 over three fillers",
        title="filler per 10 words",
    ),
    Metric("filler_slope/gold", "`filler_slope` of gold, which filler lowers in the embedded world"),
    Metric(
        "filler_bias",
        "filler_slope after adding back the gold that filler costs, at the rate at which the reward pays for gold: "
        "length bias per 10 words, in units of the reward",
        title="length bias per 10 words",
    ),
)
"""reward_audit.py"""

REWARD_REPORT = (
    Metric(
        "unscored", "fraction of pairs in which the reward leaves a side unscored", title="unscored", better="lower"
    ),
    Metric("ties", "fraction of scored pairs with equal scores, which count as wrong in accuracy and as half in ece"),
    Metric(
        "accuracy/rejected_padded",
        "accuracy if a filler of two sentences is appended to the rejected response",
        title="accuracy, rejected padded",
        better="higher",
    ),
    Metric("logit_unit", "logits per unit of reward: the sd of raw scores for a single Bradley-Terry term, else 1"),
    Metric(
        "ece",
        "count-weighted calibration error of σ(|Δ|) over bins of equal count, with its sampling noise",
        title="calibration error",
        better="lower",
        phrase="calibration error",
    ),
    Metric(
        "ece_perfect",
        "ece of perfectly calibrated confidences on the same number of pairs: mean, 95 % range",
        title="calibration error if perfect",
    ),
    Metric(
        "ece_scaled",
        "ece after dividing Δ by a temperature fitted on the other half of the prompts",
        title="calibration error, scaled",
        better="lower",
        phrase="calibration error after scaling",
    ),
    Metric("overconfidence", "mean confidence − accuracy on the same pairs", title="overconfidence"),
    Metric("brier", "mean squared distance of confidence from outcome", title="Brier score", better="lower"),
    Metric("brier_scaled", "Brier score after temperature scaling", title="Brier score, scaled", better="lower"),
    Metric(
        "temperature",
        "T that maximises the likelihood of σ(Δ/T); above 1 the reward is overconfident",
        title="temperature",
        phrase="fitted temperature",
    ),
    Metric(
        "gold_correlation",
        "correlation of reward and gold over policy responses",
        title="correlation with gold",
        better="higher",
    ),
    Metric(
        "gold_correlation/within",
        "correlation of reward and gold within prompts, which a policy can learn from",
        title="correlation with gold within prompts",
        better="higher",
    ),
    Metric("length_correlation", "correlation of reward and words within prompts", title="correlation with length"),
    Metric(
        "length_correlation/given_gold",
        "partial correlation of reward and words within prompts, controlling for gold",
        title="correlation with length given gold",
    ),
    Metric("length_slope", "reward per 10 words within prompts, in units of the reward"),
    Metric("length_slope/given_gold", "`length_slope`, controlling for gold", title="reward per 10 words given gold"),
    Metric(
        "spearman/corpus",
        "rank correlation of reward and gold over the responses of held-out pairs (in distribution)",
        title="rank correlation, corpus",
        better="higher",
    ),
    Metric(
        "spearman/ood",
        "rank correlation of reward and gold over policy responses, which were never labelled",
        title="rank correlation, policy replies",
        better="higher",
        phrase="rank correlation with gold on policy replies",
    ),
    Metric(
        "disagreement",
        "standard deviation between the members of an ensemble, mean over policy responses, in sd of scores",
        title="disagreement",
    ),
    Metric("disagreement/corpus", "`disagreement` over the responses of held-out pairs"),
)
"""rm_report.py"""

BENCHMARK = (
    Metric(
        "score",
        "the benchmark's headline number: mean of its sections (RewardBench), of its subsets (RewardBench 2), accuracy "
        "(RewardMATH), mean F1 over its subsets (ProcessBench)",
        better="higher",
    ),
    Metric("<subset>", "accuracy of a subset by the benchmark's rule; RewardBench 2's Ties by its own formula"),
    Metric(
        "section/<name>",
        "RewardBench: accuracy of a section, subsets weighted by their prescribed counts",
        better="higher",
    ),
    Metric("ties_allowed", "RewardMATH: accuracy if the right solution may tie for the highest score", better="higher"),
    Metric(
        "mrr",
        "RewardMATH: mean of 1/rank of the right solution; a wrong one with the same score comes first",
        better="higher",
    ),
    Metric("<subset>/f1, /error, /correct", "ProcessBench: F1 and the two accuracies"),
    Metric("items", "number of prompts, problems or solutions that were read"),
    Metric("unscored", "number of items with a response that the reward leaves unscored"),
)
"""rm_bench.py"""

PROBE = (
    Metric(
        "probe/<attribute>",
        "correlation of an attribute of responses with its prediction from the reward model's last hidden state, by a "
        "linear probe that was fitted on other prompts",
        better="higher",
    ),
    Metric("probe_before/<attribute>", "the same for the policy that the reward model was trained from"),
    Metric(
        "effect/<attribute>",
        "change of the score per standard deviation of the attribute among responses to one prompt, in standard "
        "deviations of the score; at equal gold if gold is known",
    ),
    Metric("rows", "number of responses that are probed"),
)
"""rm_probe.py"""

STEP_REPORT = (
    Metric("planted_process_error", "`process_error` on planted solutions"),
    Metric("planted_process_correct", "`process_correct` on planted solutions"),
    Metric(
        "caught_5",
        "fraction of the policy's right answers with a wrong step that are flagged, at 5 % false alarms",
        title="caught at 5 %",
        better="higher",
    ),
    Metric(
        "caught_10",
        "`caught_5` at 10 % false alarms",
        title="caught at 10 %",
        better="higher",
        phrase="share of wrong reasoning caught at 10 % false alarms",
    ),
    Metric(
        "false_alarm_5",
        "fraction of sound samples that are flagged at the threshold for 5 %, which was chosen on other prompts",
        title="false alarms at 5 %",
        better="lower",
    ),
    Metric("false_alarm_10", "`false_alarm_5` at 10 %", title="false alarms at 10 %", better="lower"),
    Metric(
        "planted_caught_5",
        "`caught_5` among planted solutions whose second mistake restores the right answer",
        title="planted caught at 5 %",
        better="higher",
    ),
    Metric(
        "planted_caught_10",
        "`planted_caught_5` at 10 % false alarms",
        title="planted caught at 10 %",
        better="higher",
        phrase="share of planted mistakes caught at 10 % false alarms",
    ),
    Metric(
        "planted_false_alarm_5",
        "fraction of right demonstrations that are flagged at the threshold for 5 %",
        better="lower",
    ),
    Metric("planted_false_alarm_10", "`planted_false_alarm_5` at 10 %", better="lower"),
    Metric(
        "process_f1",
        "ProcessBench F1 on samples of the policy (arXiv:2412.06559)",
        title="ProcessBench F1",
        better="higher",
    ),
    Metric("process_error", "fraction of samples with a wrong step whose first wrong step is located", better="higher"),
    Metric("process_correct", "fraction of sound samples in which no step is flagged", better="higher"),
    Metric(
        "planted_process_f1", "ProcessBench F1 on planted solutions", title="planted ProcessBench F1", better="higher"
    ),
    Metric(
        "auroc_sound",
        "probability that a sound sample scores above one that is not sound, ties count half",
        title="AUROC, sound",
        better="higher",
    ),
    Metric("auroc_correct", "`auroc_sound` for a right answer against a wrong one", better="higher"),
    Metric("auroc_steps", "AUROC of right steps against the first wrong step of each sample", better="higher"),
    Metric(
        "brier_steps",
        "mean squared difference of a step's probability and its label, up to the first wrong step of each sample",
        better="lower",
    ),
    Metric(
        "brier_outcome",
        "mean squared difference of the score and the correctness of the answer",
        title="Brier, outcome",
        better="lower",
    ),
    Metric(
        "best_of_n",
        "accuracy of the sample with the highest score among n, over all subsets of n",
        title="best of n",
        better="higher",
        phrase="accuracy of best-of-n",
    ),
    Metric("best_of_n/<aggregation>", "`best_of_n` with another aggregation of the steps"),
    Metric("majority", "accuracy of the most frequent answer of n", title="majority vote", better="higher"),
    Metric(
        "weighted_vote",
        "accuracy of the answer whose samples have the highest sum of scores among n",
        title="weighted vote",
        better="higher",
    ),
    Metric(
        "oracle",
        "fraction of problems with a right answer among n: the upper limit of selection",
        title="oracle",
        better="higher",
    ),
    Metric("correct", "accuracy of one sample"),
    Metric(
        "critical",
        "fraction of samples with a right answer and a wrong step",
        title="right by wrong steps",
        better="lower",
    ),
    Metric("score/by_percentile", "percentiles of the score over samples; the steps in metrics.jsonl are percents"),
    Metric("caught/by_percent_false_alarms", "`caught` at 1, 2, 3, … % false alarms"),
    Metric("planted_caught/by_percent_false_alarms", "`planted_caught` at 1, 2, 3, … % false alarms"),
    Metric("sound", "fraction of samples whose answer and steps are all right"),
)
"""step_report.py"""

BEST_OF_N = (
    Metric("kl", "ln n − (n−1)/n, nats: exact without ties in proxy and repeated responses, else an upper bound"),
    Metric(
        "win_rate",
        "fraction of selected responses better than an independent response to the same prompt, ties count half",
    ),
)
"""best_of_n.py"""

RESCORING = (
    Metric("proxy", "the reward under the weighting, if there is only one"),
    Metric("reward/<term>", "value of a term for the selected response, before transform and weight"),
    Metric(
        "win_rate",
        "fraction of selected responses better by gold than an independent response of the policy, ties half",
    ),
    Metric(
        "rank_gold",
        "Spearman's ρ of the reward with gold among the responses to a prompt, mean over prompts",
        title="rank correlation with gold",
        better="higher",
    ),
    Metric(
        "rank_first",
        "Spearman's ρ with the first weighting; in a stage with one weighting, with the saved reward",
        title="rank correlation with the first",
    ),
    Metric(
        "same_choice",
        "fraction of prompts whose best response among the first n is also the best under the first weighting",
        title="same choice",
    ),
    Metric("kl", "ln n − (n−1)/n, nats: an upper bound if responses tie or repeat"),
)
"""rescoring.py"""

DESIGN_REPORT = (
    Metric(
        "gain",
        "gold of the best of n by the reward minus that of one response, in standard deviations of the policy's gold",
        title="gain in gold",
        unit="sd",
        better="higher",
    ),
    Metric(
        "proxy_gain", "`gain` of the reward itself, in its own standard deviations", title="gain in proxy", unit="sd"
    ),
    Metric(
        "gap",
        "gain in proxy minus gain in gold: the part of the reward's gain that is not real",
        title="gap",
        unit="sd",
        better="lower",
    ),
    Metric("gold_sd", "standard deviation of gold over the policy's responses, gold points"),
    Metric(
        "spearman/gold",
        "Spearman's ρ of the reward with gold over the policy's responses",
        title="ρ with gold",
        better="higher",
    ),
    Metric("gold_correlation/within", "correlation of the reward with gold among the responses to a prompt"),
)
"""design_report.py"""

RESCORE = (
    Metric("replies", "number of saved responses that were scored again"),
    Metric("prompts", "number of their prompts"),
)
"""rescore.py"""
