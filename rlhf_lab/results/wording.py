"""How numbers and metric names read in tables, figures and findings."""

from __future__ import annotations

import math
import re

from rlhf_lab.statistics.inference import Estimate, format_estimate

TITLES = {
    "gold": ("gold reward", "the true reward of the simulated world, per response"),
    "proxy": ("proxy reward", "the reward that training maximises, per response"),
    "gold_sd": ("gold sd", "standard deviation of the gold reward across responses"),
    "proxy_sd": ("proxy sd", "standard deviation of the proxy reward across responses"),
    "win_rate": (
        "win rate",
        "share of responses preferred over the starting policy's, by gold if known, else by the training reward",
    ),
    "kl": ("KL, nats", "divergence from the reference policy, nats per response"),
    "reward_per_nat": ("proxy per nat", "proxy reward gained over the starting policy per nat of KL"),
    "tokens": ("tokens", "response length"),
    "verbose": ("verbose", "share of responses padded with filler"),
    "garble": ("garbled", "share of responses that are not language"),
    "correct": ("accuracy of samples", "share of sampled responses whose final answer is right"),
    "caught_5": ("caught at 5 %", "right answers with a wrong step that are flagged, at 5 % false alarms"),
    "caught_10": ("caught at 10 %", "right answers with a wrong step that are flagged, at 10 % false alarms"),
    "false_alarm_5": ("false alarms at 5 %", "sound solutions that are flagged, by a threshold from other problems"),
    "false_alarm_10": ("false alarms at 10 %", "sound solutions that are flagged, by a threshold from other problems"),
    "planted_caught_5": ("planted caught at 5 %", "the same for planted mistakes that bring the right answer back"),
    "planted_caught_10": ("planted caught at 10 %", "the same for planted mistakes that bring the right answer back"),
    "process_f1": ("ProcessBench F1", "first wrong step named, or none: harmonic mean over wrong and sound samples"),
    "planted_process_f1": ("planted ProcessBench F1", "the same on demonstrations with and without a planted mistake"),
    "auroc_sound": ("AUROC, sound", "probability that a sound sample scores above one that is not"),
    "brier_outcome": ("Brier, outcome", "mean squared difference of the score and whether the answer is right"),
    "weighted_vote": ("weighted vote", "accuracy of the answer whose n samples have the highest sum of scores"),
    "best_of_n": ("best of n", "accuracy of the sample of n that the judge scores highest"),
    "majority": ("majority vote", "accuracy of the most frequent answer of n samples"),
    "oracle": ("oracle", "share of problems with a right answer among n samples"),
    "critical": ("right by wrong steps", "share of samples whose answer is right and a step of which is wrong"),
    "correct_greedy": ("greedy accuracy", "share of prompts whose most likely response has the right answer"),
    "peak_gib": ("peak memory, GiB", "most memory the stage held: resident set on a CPU, allocated on a GPU"),
    "memory/peak": ("peak, MiB", "most memory of training in one process; what a CPU process held before is taken off"),
    "memory/parameters": ("parameters, MiB", "parameters of the trained model that one process holds"),
    "memory/gradients": ("gradients, MiB", "gradients that one process holds after a backward pass"),
    "memory/optimizer": ("optimiser, MiB", "optimiser state that one process holds"),
    "step_seconds": ("step, s", "median wall time of an optimiser step"),
    "generated_tokens": ("generated tokens", "response tokens sampled for training"),
    "wasted_groups": ("wasted groups", "share of groups whose responses all have the same score"),
    "ended": ("ended", "share of responses that end by themselves within the token limit"),
    "chosen_logp_drift": ("chosen log-prob drift, nats", "change of the log-probability of preferred replies"),
    "seconds": ("training time, s", "wall time of the stage that made the policy, its own evaluation included"),
    "ranking_accuracy": ("ranking accuracy", "share of held-out pairs whose chosen reply is more likely"),
    "accuracy": ("accuracy", "share of held-out pairs ordered as labelled"),
    "implicit_accuracy": ("implicit accuracy", "share of held-out pairs that the implicit reward orders as labelled"),
    "parameters/trained": ("trained parameters", "parameters that training changes"),
    "checkpoint_mib": ("checkpoint, MiB", "what restores the policy: all its weights, or the adapter on its base"),
    "rank_gold": ("rank correlation with gold", "Spearman's ρ of the reward with gold among the replies to a prompt"),
    "rank_first": ("rank correlation with the first", "the same with the reward that is compared with"),
    "same_choice": ("same choice", "share of prompts whose best reply is the same under both rewards"),
    "reward/bt": ("learned reward", "what the learned reward model says of the responses, before weighting"),
    "accuracy/multi_turn": ("accuracy, several turns", "of pairs in whose prompt the human speaks repeatedly"),
    "accuracy/averaged": ("accuracy, averaged weights", "the same for the mean of the members' weights"),
    "idealised_ranking": ("idealised ranking", "ranking accuracy of the optimum of the DPO objective"),
    "parameters": ("parameters", "of the policy, frozen ones included"),
    "heldout_nll": ("held-out loss, nats", "mean −log p of a token of a held-out reply"),
    "stopped_at": ("stopped at", "iteration, from 0, at which the monitor ended training"),
    "row_tokens": ("row tokens", "tokens of a held-out prompt and reply, as the reward model reads them"),
    "turns": ("turns read", "turns of the human that the reward model reads"),
    "truncated": ("truncated", "share of held-out rows that are cut to the longest row the model takes"),
    "hacked": ("hacked", "share of runs whose true reward fell significantly from its peak"),
    "gold_fall": ("gold fell at", "iteration, from 0, at which the fall of the true reward is significant"),
    "alarm_share/hard_stop": (
        "checkpoints in strong warning",
        "share of those after warm-up: two signals in alarm",
    ),
    "alarm_share/warning": ("checkpoints in alarm", "share of those after warm-up with a signal in alarm"),
    "in_time/hard_stop": (
        "strong warning in time",
        "share of hacked runs with one before the true reward fell",
    ),
    "in_time/warning": ("warning in time", "share of hacked runs with a warning before the true reward fell"),
    "false/hard_stop": ("false strong warnings", "share of runs that did not hack with a strong warning"),
    "false/warning": ("false warnings", "share of runs that did not hack with a warning"),
    "false/length_z": ("false alarms, length z", "share of runs that did not hack in which the rule was in alarm"),
    "false/reward_kl": ("false alarms, reward KL", "share of runs that did not hack in which the rule was in alarm"),
    "false/length_cusum": ("false alarms, CUSUM", "share of runs that did not hack in which the rule was in alarm"),
    "false/disagreement": ("false alarms, disagreement", "the same for the CUSUM of the ensemble's disagreement"),
    "lead/hard_stop": (
        "lead of strong warning",
        "iterations from the first one to the fall of the true reward",
    ),
    "lead/warning": ("lead of warning", "iterations from the first warning to the fall of the true reward"),
    "lead/length_z": ("lead, length z", "iterations from the rule's first alarm to the fall of the true reward"),
    "lead/reward_kl": ("lead, reward KL", "iterations from the rule's first alarm to the fall of the true reward"),
    "lead/length_cusum": ("lead, CUSUM", "iterations from the rule's first alarm to the fall of the true reward"),
    "lead/disagreement": ("lead, disagreement", "the same for the CUSUM of the ensemble's disagreement"),
    "staleness": ("staleness", "rounds between sampling a pair and training on it"),
    "selection/label_accuracy": ("kept labels right", "share of chosen pairs labelled as the true reward orders them"),
    "selection/longer_chosen": ("kept pairs, longer chosen", "share of them whose chosen reply is the longer one"),
    "selection/words": ("kept pairs, words longer", "words of the chosen reply − of the rejected, mean over them"),
    "longer_wins": ("longer wins", "accuracy of preferring the longer reply on the same pairs, ties half"),
    "accuracy/longer_chosen": ("accuracy, longer chosen", "accuracy on pairs whose chosen reply is the longer one"),
    "accuracy/shorter_chosen": ("accuracy, shorter chosen", "accuracy on pairs whose chosen reply is the shorter one"),
    "accuracy/length_matched": ("accuracy, length matched", "on pairs whose lengths differ by a tenth at most"),
    "accuracy/rejected_padded": ("accuracy, rejected padded", "accuracy with a filler appended to the rejected reply"),
    "accuracy/on_policy": ("accuracy on policy", "accuracy on labelled pairs of the policy's own replies"),
    "gold_agreement": ("agreement with gold", "share of held-out pairs ordered as the true reward orders them"),
    "ideal_accuracy": ("ideal accuracy", "accuracy of knowing the annotator's probabilities"),
    "filler_shift": ("filler shift", "score change when two generic sentences are appended"),
    "filler_slope": ("filler per 10 words", "score change per 10 words of generic filler, on policy replies"),
    "filler_bias": ("length bias per 10 words", "filler per 10 words, with the truth that filler costs added back"),
    "ece": ("calibration error", "count-weighted gap between confidence and accuracy, bins of equal count"),
    "ece_perfect": ("calibration error if perfect", "what right confidences would show on as many pairs, 95 % range"),
    "ece_scaled": ("calibration error, scaled", "after a temperature fitted on the other half of the prompts"),
    "overconfidence": ("overconfidence", "mean confidence − accuracy"),
    "brier": ("Brier score", "mean squared distance of confidence from outcome; .25 is a coin"),
    "brier_scaled": ("Brier score, scaled", "after a temperature fitted on the other half of the prompts"),
    "temperature": ("temperature", "T for which σ(Δ/T) is most likely; above 1 the reward is overconfident"),
    "gold_correlation": ("correlation with gold", "over policy replies, all prompts together"),
    "gold_correlation/within": ("correlation with gold within prompts", "what a policy can learn from"),
    "length_correlation": ("correlation with length", "of the score with the words of the policy's replies"),
    "length_correlation/given_gold": ("correlation with length given gold", "within prompts, the truth held fixed"),
    "length_slope/given_gold": ("reward per 10 words given gold", "within prompts, the truth held fixed"),
    "spearman/corpus": ("rank correlation, corpus", "of reward and truth over the replies of held-out pairs"),
    "spearman/ood": ("rank correlation, policy replies", "of reward and truth where no annotator chose"),
    "starc/gold": ("distance from gold", "STARC: 0 orders replies alike, .71 is unrelated, 1 opposite"),
    "disagreement": ("disagreement", "standard deviation between the members of an ensemble, in sd of scores"),
    "mse": ("squared error", "of the score on the target's scale 0…1, on held-out graded replies"),
    "correlation": ("correlation with grades", "of the score with the target, on held-out graded replies"),
    "correlation/truth": ("correlation with true grades", "of the score with what grades without error would be"),
    "judge_correlation": ("judge's correlation", "of the judge's own grades with what they would be without error"),
    "unscored": ("unscored", "share of pairs in which the reward leaves a side unscored"),
}


PHRASES = {
    "accuracy/multi_turn": "accuracy on pairs of several turns",
    "alarm_share/hard_stop": "share of checkpoints in strong warning",
    "alarm_share/warning": "share of checkpoints in alarm",
    "best_of_n": "accuracy of best-of-n",
    "caught_10": "share of wrong reasoning caught at 10 % false alarms",
    "ece": "calibration error",
    "ece_scaled": "calibration error after scaling",
    "ended": "share of replies that end by themselves",
    "garble": "garble rate",
    "hacked": "share of hacked runs",
    "memory/optimizer": "memory of the optimiser",
    "memory/parameters": "memory of the parameters",
    "parameters/trained": "number of trained parameters",
    "planted_caught_10": "share of planted mistakes caught at 10 % false alarms",
    "row_tokens": "length of a row in tokens",
    "selection/label_accuracy": "share of right labels among the kept pairs",
    "spearman/ood": "rank correlation with gold on policy replies",
    "temperature": "fitted temperature",
    "tokens": "length of a reply in tokens",
    "truncated": "share of rows that are cut",
    "verbose": "verbose rate",
}
"""Metrics that are called otherwise within a sentence than above a column."""
UNITS = re.compile(r", (nats|GiB|MiB|s)$")


def metric_phrase(name: str) -> str:
    """A metric within a sentence: "KL is lower with …", without its unit."""
    return PHRASES.get(name) or UNITS.sub("", metric_title(name))


def metric_title(name: str) -> str:
    return TITLES[name][0] if name in TITLES else name.replace("_", " ")


def judged_title(name: str, has_gold: bool) -> str:
    """The title of a metric; of a win rate also who judges it where nobody knows the true reward."""
    return "win rate by the training reward" if name == "win_rate" and not has_gold else metric_title(name)


def metric_note(name: str) -> str:
    return TITLES[name][1] if name in TITLES else ""


def digits_for(size: float) -> int:
    """Decimals that show three significant digits of `size`, at most 4."""
    if not math.isfinite(size) or size == 0:
        return 2
    return min(4, max(0, 2 - math.floor(math.log10(abs(size)))))


def _digits_for_error(half: float) -> int:
    """Decimals of an estimate: those that show two digits of its uncertainty, at most 4."""
    return min(4, max(0, 1 - math.floor(math.log10(half))))


SMOKE_CAVEAT = "Smoke size: it ran; its numbers mean nothing."
"""Stands where the limits of a result would, or before its finding."""


def compact(value: Estimate | float) -> str:
    """A number with a sensible count of decimals; an estimate with its interval, when it has one."""
    if not isinstance(value, Estimate):
        return "–" if math.isnan(value) else _minus(f"{value:.{digits_for(value)}f}")
    if value.n == 0 and not math.isnan(value.mean):  # a bare number: nothing is known about its uncertainty
        return compact(value.mean)
    half = (value.high - value.low) / 2 if value.bounded else 0.0
    digits = _digits_for_error(half) if half > 0 else digits_for(value.mean)
    return _minus(format_estimate(value, digits=digits))


def like(value: float, gap: Estimate) -> str:
    """A number with as many decimals as a difference that it is part of."""
    half = (gap.high - gap.low) / 2 if gap.bounded else 0.0
    digits = _digits_for_error(half) if half > 0 else digits_for(gap.mean)
    return "–" if math.isnan(value) else _minus(f"{value:.{digits}f}")


def rough(value: float) -> str:
    """A number to two significant digits, never in powers of ten."""
    if not math.isfinite(value) or value == 0:
        return compact(value)
    return f"{value:.{min(4, max(0, 1 - math.floor(math.log10(abs(value)))))}f}"


def _minus(text: str) -> str:
    """A typographic minus, and none before a zero."""
    return re.sub(r"-(?=0(\.0*)?( |$))", "", text).replace("-", "−")


def signed(value: Estimate) -> str:
    """A difference: compact, with an explicit plus."""
    return ("+" if value.mean > 0 else "") + compact(value)


def p_text(p: float) -> str:
    if math.isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def p_equals(p: float) -> str:
    """A p-value with its name, on one line."""
    text = p_text(p)
    return f"p {text}".replace(" ", "\u00a0") if text.startswith("<") else f"p\u00a0=\u00a0{text}"


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
