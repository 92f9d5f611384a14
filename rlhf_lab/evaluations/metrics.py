"""Metrics that rlhf_lab/evaluations/ emits."""

from __future__ import annotations

from rlhf_lab.core.measures import CALLS, CORRECT, GARBLE, GOLD, UNDECLARED, VERBOSE, VERIFIED, VERIFIED_PART
from rlhf_lab.core.metrics import Metric

EVALUATOR = (
    GOLD,
    CORRECT,
    Metric(
        "correct_greedy",
        "the same for one greedy reply per prompt",
        title="greedy accuracy",
        better="higher",
        column="greedy",
        by_category=True,
    ),
    Metric(
        "pass@<k>",
        "probability that at least one of k sampled replies to a prompt is right, over all subsets of k of the samples "
        "(evaluation.pass_at)",
        better="higher",
    ),
    Metric(
        "maj@<k>",
        "probability that the most frequent final answer of k sampled replies is right, over all subsets of k of the "
        "samples; ties are broken at random, replies without an answer have no vote",
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
        "reward that training maximises; a single reward model is in sd of the reference policy's replies",
        title="proxy reward",
        better="higher",
        column="proxy",
        relative_to=("reward",),
    ),
    Metric("reward/<term>", "value of a term of the reward graph, per reply (evaluation.jsonl only)"),
    Metric(
        "win_rate",
        "share of prompts' replies better than the reference's reply to the same prompt, ties half; by gold where "
        "it is known, else by proxy",
        title="win rate",
        better="higher",
        column="win rate",
        relative_to=("reference", "gold"),
    ),
    Metric(
        "kl",
        "KL(policy ‖ reference) per reply, nats, exact over the vocabulary at every state the policy visited",
        title="KL",
        unit="nats",
        column="KL (nats)",
        relative_to=("reference",),
    ),
    Metric(
        "reward_per_nat",
        "gain in proxy over the reference divided by KL; absent where KL is below .05 nats or known to less than "
        "half its size",
        title="proxy per nat",
        better="higher",
        column="proxy/nat",
        relative_to=(
            "reward",
            "reference",
        ),
    ),
    Metric(
        "tokens", "reply length, EOS included", title="tokens", phrase="length of a reply in tokens", column="tokens"
    ),
    VERBOSE,
    GARBLE,
    Metric(
        "ended",
        "share of replies that ended with EOS within the token limit",
        title="ended",
        better="higher",
        phrase="share of replies that end by themselves",
        kind="rate",
    ),
    Metric(
        "chosen_logp_drift",
        "log π(chosen) − log π_ref(chosen) on held-out pairs, nats per reply",
        title="chosen log-prob drift",
        unit="nats",
        relative_to=("reference",),
    ),
    Metric(
        "ranking_accuracy",
        "share of held-out pairs with log π(chosen) > log π(rejected)",
        title="ranking accuracy",
        better="higher",
        column="ranking",
    ),
    Metric(
        "implicit_accuracy",
        "the same for log π − log π_ref: accuracy of the implicit reward",
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
        "share of held-out prompts whose chosen reply is right: of k samples by the strategy, over all subsets of k; "
        "of the greedy strategy one reply for every k",
        better="higher",
    ),
    Metric(
        "tokens@<k>",
        "tokens that the policy generates per prompt for that: k replies, or the greedy one; what a verifier reads is "
        "not counted",
        unit="tokens",
        better="lower",
    ),
)
"""test_time.py"""

COMPARE = (
    Metric("gold_sd", "standard deviation of gold across replies", title="gold sd"),
    Metric(
        "proxy_sd",
        "standard deviation of proxy across replies",
        title="proxy sd",
        column="proxy sd",
        relative_to=("reward",),
    ),
    Metric(
        "seconds",
        "wall time of the stage that made the policy, its own evaluation included, stages before it not; of the "
        "last attempt when it was interrupted; absent for a policy that the lab did not train",
        title="training time",
        unit="s",
        better="lower",
        column="seconds",
    ),
)
"""compare.py"""

REWARD_AUDIT = (
    Metric("filler_shift/pairs", "the same over the replies of held-out pairs"),
    Metric("filler_slope/pairs", "the same over the replies of held-out pairs"),
    Metric("filler_slope/gold/pairs", "the same over the replies of held-out pairs"),
    Metric("filler_bias/pairs", "the same over the replies of held-out pairs"),
    Metric("accuracy", "share of pairs with r(chosen) > r(rejected)", title="accuracy", better="higher"),
    Metric("margin", "mean r(chosen) − r(rejected), raw score"),
    Metric(
        "longer_wins",
        "accuracy of preferring the longer reply (characters) on the same pairs, ties half",
        title="longer wins",
    ),
    Metric(
        "accuracy/longer_chosen",
        "accuracy on pairs whose chosen reply is the longer one",
        title="accuracy, longer chosen",
        better="higher",
    ),
    Metric(
        "accuracy/shorter_chosen",
        "accuracy on pairs whose chosen reply is the shorter one",
        title="accuracy, shorter chosen",
        better="higher",
    ),
    Metric(
        "accuracy/length_matched",
        "accuracy on pairs whose replies differ by at most a tenth of the longer one, in words",
        title="accuracy, length matched",
        better="higher",
    ),
    Metric(
        "gold_agreement",
        "share of held-out pairs ordered as gold orders them, ties half",
        title="agreement with gold",
        better="higher",
    ),
    Metric("ideal_accuracy", "accuracy of knowing the annotator's probabilities: the ceiling", title="ideal accuracy"),
    Metric(
        "filler_shift",
        "score change when two generic sentences are appended to the reply, sd of policy replies",
        title="filler shift",
    ),
    Metric(
        "filler_slope",
        "score change per 10 words of generic filler: least squares through 0 over three fillers",
        title="filler per 10 words",
    ),
    Metric("filler_slope/gold", "the same for gold, which filler costs in the embedded world"),
    Metric(
        "filler_bias",
        "filler_slope when the truth that filler costs is added back at the rate the reward pays for truth: length "
        "bias per 10 words, in units of the reward",
        title="length bias per 10 words",
    ),
)
"""reward_audit.py"""

REWARD_REPORT = (
    Metric("unscored", "share of pairs in which the reward leaves a side unscored", title="unscored", better="lower"),
    Metric(
        "ties", "share of scored pairs whose sides have the same score: counted as wrong by accuracy, as half by ece"
    ),
    Metric(
        "accuracy/rejected_padded",
        "accuracy when a filler of two sentences is appended to the rejected reply",
        title="accuracy, rejected padded",
        better="higher",
    ),
    Metric(
        "logit_unit",
        "what one unit of reward is in logits: the sd of raw scores for a single Bradley-Terry term, else 1",
    ),
    Metric(
        "ece",
        "count-weighted calibration error of σ(|Δ|) over bins of equal count, with its sampling noise",
        title="calibration error",
        better="lower",
        phrase="calibration error",
    ),
    Metric(
        "ece_perfect",
        "the ece that these confidences would show on as many pairs if they were right: mean, 95 % range",
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
    Metric("brier_scaled", "the same after temperature scaling", title="Brier score, scaled", better="lower"),
    Metric(
        "temperature",
        "T for which σ(Δ/T) is most likely; above 1 the reward is overconfident",
        title="temperature",
        phrase="fitted temperature",
    ),
    Metric(
        "gold_correlation",
        "correlation of reward and truth over policy replies",
        title="correlation with gold",
        better="higher",
    ),
    Metric(
        "gold_correlation/within",
        "the same within prompts: what a policy can learn from",
        title="correlation with gold within prompts",
        better="higher",
    ),
    Metric("length_correlation", "correlation of reward and words within prompts", title="correlation with length"),
    Metric(
        "length_correlation/given_gold",
        "the same with the truth held fixed",
        title="correlation with length given gold",
    ),
    Metric("length_slope", "reward per 10 words within prompts, in units of the reward"),
    Metric("length_slope/given_gold", "the same with the truth held fixed", title="reward per 10 words given gold"),
    Metric(
        "spearman/corpus",
        "rank correlation of reward and truth over the replies of held-out pairs, in distribution",
        title="rank correlation, corpus",
        better="higher",
    ),
    Metric(
        "spearman/ood",
        "rank correlation of reward and truth over policy replies, which no annotator chose from",
        title="rank correlation, policy replies",
        better="higher",
        phrase="rank correlation with gold on policy replies",
    ),
    Metric(
        "starc/gold",
        "STARC distance of the reward from the truth: 0 same order, .71 unrelated, 1 opposite",
        title="distance from gold",
        better="lower",
    ),
    Metric("starc/gold/<part>", "the same for a term or an ensemble member", better="lower"),
    Metric(
        "disagreement",
        "standard deviation between the members of an ensemble, mean over policy replies, in sd of scores",
        title="disagreement",
    ),
    Metric("disagreement/corpus", "the same over the replies of held-out pairs"),
)
"""rm_report.py"""

BENCHMARK = (
    Metric(
        "score",
        "the benchmark's one number: mean of its sections (RewardBench), of its subsets (RewardBench 2), accuracy "
        "(RewardMATH), mean F1 over its subsets (ProcessBench)",
        better="higher",
    ),
    Metric("<subset>", "accuracy of a subset by the benchmark's rule; RewardBench 2's Ties by its own formula"),
    Metric(
        "section/<name>",
        "RewardBench: accuracy of a section, subsets weighted by their prescribed counts",
        better="higher",
    ),
    Metric("ties_allowed", "RewardMATH: accuracy when the right solution may share the highest score", better="higher"),
    Metric(
        "mrr",
        "RewardMATH: mean of 1/rank of the right solution; a wrong one with the same score comes first",
        better="higher",
    ),
    Metric("<subset>/f1, /error, /correct", "ProcessBench: F1 and the two accuracies"),
    Metric("items", "prompts, problems or solutions read"),
    Metric("unscored", "of these, those with a reply that the reward leaves unscored"),
)
"""rm_bench.py"""

STEP_REPORT = (
    Metric("planted_process_error", "`process_error` on planted solutions"),
    Metric("planted_process_correct", "`process_correct` on planted solutions"),
    Metric(
        "caught_5",
        "share of the policy's right answers with a wrong step that are flagged, at 5 % false alarms",
        title="caught at 5 %",
        better="higher",
    ),
    Metric(
        "caught_10",
        "the same at 10 %",
        title="caught at 10 %",
        better="higher",
        phrase="share of wrong reasoning caught at 10 % false alarms",
    ),
    Metric(
        "false_alarm_5",
        "share of sound samples that are flagged there: the threshold was chosen on other prompts",
        title="false alarms at 5 %",
        better="lower",
    ),
    Metric("false_alarm_10", "the same at 10 %", title="false alarms at 10 %", better="lower"),
    Metric(
        "planted_caught_5",
        "`caught_5` among planted solutions whose second mistake brings the right answer back",
        title="planted caught at 5 %",
        better="higher",
    ),
    Metric(
        "planted_caught_10",
        "the same at 10 %",
        title="planted caught at 10 %",
        better="higher",
        phrase="share of planted mistakes caught at 10 % false alarms",
    ),
    Metric("planted_false_alarm_5", "share of right demonstrations that are flagged there", better="lower"),
    Metric("planted_false_alarm_10", "the same at 10 %", better="lower"),
    Metric(
        "process_f1",
        "ProcessBench F1 on samples of the policy (arXiv:2412.06559)",
        title="ProcessBench F1",
        better="higher",
    ),
    Metric("process_error", "share of samples with a wrong step whose first one is named", better="higher"),
    Metric("process_correct", "share of sound samples in which no step is named", better="higher"),
    Metric(
        "planted_process_f1",
        "ProcessBench F1 on planted solutions",
        title="planted ProcessBench F1",
        better="higher",
    ),
    Metric(
        "auroc_sound",
        "probability that a sound sample scores above one that is not, ties half",
        title="AUROC, sound",
        better="higher",
    ),
    Metric("auroc_correct", "the same for a right answer against a wrong one", better="higher"),
    Metric("auroc_steps", "the same for right steps of samples against the first wrong one of each", better="higher"),
    Metric(
        "brier_steps",
        "mean squared difference of a step's probability and its label, up to the first wrong one of each",
        better="lower",
    ),
    Metric(
        "brier_outcome",
        "the same for the score and whether the answer is right",
        title="Brier, outcome",
        better="lower",
    ),
    Metric(
        "best_of_n",
        "accuracy of the sample of n that the judge scores highest, over all subsets of n",
        title="best of n",
        better="higher",
        phrase="accuracy of best-of-n",
    ),
    Metric("best_of_n/<aggregation>", "the same with another aggregation of the steps"),
    Metric("majority", "accuracy of the most frequent answer of n", title="majority vote", better="higher"),
    Metric(
        "weighted_vote",
        "accuracy of the answer whose samples have the highest sum of scores among n",
        title="weighted vote",
        better="higher",
    ),
    Metric(
        "oracle",
        "share of problems with a right answer among n: the most that choosing can reach",
        title="oracle",
        better="higher",
    ),
    Metric("correct", "accuracy of one sample"),
    Metric(
        "critical",
        "share of samples whose answer is right and a step of which is wrong",
        title="right by wrong steps",
        better="lower",
    ),
    Metric(
        "score/by_percentile",
        "score below which this percent of the samples lie: the steps of metrics.jsonl are percents",
    ),
    Metric("caught/by_percent_false_alarms", "`caught` at 1, 2, 3, … % false alarms"),
    Metric("planted_caught/by_percent_false_alarms", "the same for planted solutions"),
    Metric("sound", "share of samples whose answer and steps are all right"),
)
"""step_report.py"""

BEST_OF_N = (
    Metric("kl", "ln n − (n−1)/n, nats: exact without ties in proxy and repeated replies, else an upper bound"),
    Metric(
        "win_rate",
        "share of chosen replies better than an independent reply of the policy to the same prompt, ties half",
    ),
)
"""best_of_n.py"""

RESCORING = (
    Metric("proxy", "the reward under the weighting, where there is only one"),
    Metric("reward/<term>", "what each term says of the chosen reply, before transform and weight"),
    Metric("win_rate", "share of chosen replies better, by gold, than an independent reply of the policy, ties half"),
    Metric(
        "rank_gold",
        "Spearman's ρ of the reward with gold among the replies to a prompt, mean over prompts",
        title="rank correlation with gold",
        better="higher",
    ),
    Metric(
        "rank_first",
        "the same with the first weighting; in a stage with one weighting, with the reward that was saved",
        title="rank correlation with the first",
    ),
    Metric(
        "same_choice",
        "share of prompts whose best among the first n replies is the first weighting's best too",
        title="same choice",
    ),
    Metric("kl", "ln n − (n−1)/n, nats: an upper bound where replies tie or repeat"),
)
"""rescoring.py"""

DESIGN_REPORT = (
    Metric(
        "gain",
        "gold of the best of n by the reward less that of one reply, in standard deviations of the policy's gold",
        title="gain in gold",
        unit="sd",
        better="higher",
    ),
    Metric(
        "proxy_gain", "the same of the reward itself, in its own standard deviations", title="gain in proxy", unit="sd"
    ),
    Metric(
        "gap",
        "gain in proxy less gain in gold: what the reward promises and does not keep",
        title="gap",
        unit="sd",
        better="lower",
    ),
    Metric("gold_sd", "standard deviation of gold over the policy's replies, gold points"),
    Metric(
        "spearman/gold",
        "Spearman's ρ of the reward with gold over the policy's replies",
        title="ρ with gold",
        better="higher",
    ),
    Metric("gold_correlation/within", "correlation of the reward with gold among the replies to a prompt"),
)
"""design_report.py"""

RESCORE = (
    Metric("replies", "saved replies that were scored again"),
    Metric("prompts", "their prompts"),
)
"""rescore.py"""
