"""Report card of a reward: accuracy, length dependence, calibration, and relation to ground truth and to its parts.

Trains nothing. It scores both sides of held-out labelled pairs, and responses of `needs.policy` to held-out prompts. A
response that a term of the reward graph leaves unscored is excluded and counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.config import registry
from rlhf_lab.core.files import write_json
from rlhf_lab.core.types import FloatArray, Oracle, Pair, RewardBatch, TextReward
from rlhf_lab.evaluations import rm_figures
from rlhf_lab.evaluations.evaluator import ScoredPolicyStage
from rlhf_lab.evaluations.reward_audit import (
    FILLER,
    audit_margins,
    filler_shifts,
    filler_slopes,
    length_matched,
    prompt_ids,
    with_gold,
    words,
)
from rlhf_lab.evaluations.settings import RewardReport
from rlhf_lab.rewards.graph import text_reward
from rlhf_lab.rewards.learned.bt import ScoreScale, member_folders
from rlhf_lab.statistics import calibration
from rlhf_lab.statistics.association import pooled_products, within_prompts
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.rows import column
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report

PRIMARY = (
    *("accuracy", "longer_wins", "accuracy/longer_chosen", "accuracy/shorter_chosen", "accuracy/length_matched"),
    *("filler_shift", "filler_slope", "filler_bias", "ece", "ece_perfect", "ece_scaled", "brier", "temperature"),
    *("gold_correlation/within", "length_correlation/given_gold", "spearman/corpus", "spearman/ood"),
    *("disagreement", "unscored"),
)


class ReportCard(ScoredPolicyStage):
    """Stage that audits the reward graph of the run; see metrics.py."""

    missing = "needs.reward is not set; algorithm=rm_report audits it (or use reward=gold)"
    settings: RewardReport

    def finish(self) -> Result:
        run = self.run
        reward = text_reward(self.reward, run.corpus)
        # the last part of a path or hub id is short enough for a table
        name = Path(str(run.config.needs["policy"])).name
        self.evaluator.evaluate(name, self.model)
        metrics, figures = responses_report(reward, self.evaluator.rows(name), run.corpus.oracle)
        pairs = run.corpus.test[: run.config.evaluation.pairs] if run.corpus.preferences else []
        pairs = with_gold(pairs, run.corpus.oracle)
        if pairs:
            unit = logit_unit(run)
            if unit is None:
                run.note(
                    "the reward is not the logit of a single Bradley-Terry model: ece uses Δ in units of the reward"
                )
            scored = ScoredPairs.of(reward, pairs)
            metrics = pairs_report(reward, scored, unit or 1.0, self.settings.bins, run.corpus.oracle) | metrics
            figures |= rm_figures.pair_figures(scored.margin_N, unit or 1.0, pairs, self.settings.bins)
        write_json(run.directory / rm_figures.FILE, figures)
        primary = [metric for metric in PRIMARY if metric in metrics]
        return Result(self.evaluator.policies, {**metrics, **corpus_report(run.corpus, self.encoder)}, primary)


def logit_unit(run: Run) -> float | None:
    """Return the logits per unit of the run's reward; None if it is not the logit of a single Bradley-Terry model.

    A reward model's raw score is a logit, and the `bt` term divides it by the standard deviation of raw scores. The
    graph's own temperature and ceiling are part of the audit.
    """
    graph = run.config.reward
    (name, term), *further_terms = graph.terms.items()
    # a sum of terms has no logit interpretation
    if further_terms or registry.kind_of("reward", term) != "bt":
        return None
    folders = member_folders(run.needs["reward"])
    scale = ScoreScale.read(folders[0])
    # any other weight or transform changes the unit
    unchanged = graph.weighting[name] == 1 and term.standardise == "none" and term.transform == "none"
    one_logit = scale.logit and len(folders) == 1 and not scale.attributes
    return scale.sd if unchanged and one_logit else None


@dataclass(frozen=True)
class ScoredPairs:
    """Held-out pairs with the scores of both sides.

    Attributes:
        prompt_N: cluster label of each pair.
        margin_N: r(chosen) − r(rejected), NaN if a side is unscored.
    """

    pairs: Sequence[Pair]
    chosen: RewardBatch
    rejected: RewardBatch
    prompt_N: np.ndarray
    margin_N: FloatArray

    @classmethod
    def of(cls, reward: TextReward, pairs: Sequence[Pair]) -> ScoredPairs:
        prompts = [pair.prompt for pair in pairs]
        chosen = reward(prompts, [pair.chosen for pair in pairs])
        rejected = reward(prompts, [pair.rejected for pair in pairs])
        return cls(pairs, chosen, rejected, prompt_ids(pairs), chosen.total_N - rejected.total_N)

    def responses(self) -> tuple[list[str], list[str], RewardBatch]:
        prompts = [pair.prompt for pair in self.pairs] * 2
        responses = [pair.chosen for pair in self.pairs] + [pair.rejected for pair in self.pairs]
        total_N = np.concatenate([self.chosen.total_N, self.rejected.total_N])
        parts = {name: np.concatenate([x_N, self.rejected.parts[name]]) for name, x_N in self.chosen.parts.items()}
        return prompts, responses, RewardBatch(total_N, parts)


def pairs_report(
    reward: TextReward, scored: ScoredPairs, unit: float, bins: int, oracle: Oracle | None = None
) -> dict[str, Any]:
    """Return the metrics of labelled pairs.

    Args:
        unit: logits per unit of reward.
    """
    margin_N = scored.margin_N
    prompt_N = scored.prompt_N
    is_scored = ~np.isnan(margin_N)
    wins_N = np.where(is_scored, margin_N > 0, np.nan)
    metrics = audit_margins(margin_N, scored.pairs)
    metrics["unscored"] = clustered_rate(~is_scored, prompt_N)
    if (margin_N == 0).any():
        metrics["ties"] = clustered_rate(np.where(is_scored, margin_N == 0, np.nan), prompt_N)
    matched = length_matched(scored.pairs)
    if matched.any():
        metrics["accuracy/length_matched"] = clustered_rate(wins_N[matched], prompt_N[matched])
    metrics["accuracy/rejected_padded"] = padded_accuracy(reward, scored)
    prompts, responses, scores = scored.responses()
    fillers = filler_report(reward, prompts, responses, scores.total_N, oracle)
    metrics |= {f"{name}/pairs": value for name, value in fillers.items()}
    metrics |= calibration_report(margin_N * unit, prompt_N, bins)
    metrics["logit_unit"] = unit
    metrics |= {f"{name}/corpus": value for name, value in disagreement_report(scores, prompts).items()}
    if oracle:
        columns = {"reward": scores.total_N, "truth": truth(oracle, prompts, responses)}
        metrics["spearman/corpus"] = pooled_products(columns, prompts, ranks=True).correlation("reward", "truth")
    return metrics


def padded_accuracy(reward: TextReward, scored: ScoredPairs) -> Estimate:
    """Return the accuracy if `FILLER` is appended to the rejected side."""
    prompts = [pair.prompt for pair in scored.pairs]
    padded = [f"{pair.rejected} {FILLER}" for pair in scored.pairs]
    margin_N = scored.chosen.total_N - reward(prompts, padded).total_N
    wins_N = np.where(np.isnan(margin_N), np.nan, margin_N > 0)
    return clustered_rate(wins_N, scored.prompt_N)


def calibration_report(logit_N: FloatArray, clusters_N: np.ndarray, bins: int) -> dict[str, Any]:
    """Return the calibration of logit margins, (N,), unscaled and with a temperature fitted on other prompts."""
    scaled_N = calibration.rescaled(logit_N, clusters_N)
    return {
        "ece": calibration.expected_calibration_error(logit_N, clusters_N, bins),
        "ece_perfect": calibration.perfect_ece(logit_N, clusters_N, bins),
        "ece_scaled": calibration.expected_calibration_error(scaled_N, clusters_N, bins),
        "overconfidence": calibration.overconfidence(logit_N, clusters_N),
        "brier": calibration.brier(logit_N, clusters_N),
        "brier_scaled": calibration.brier(scaled_N, clusters_N),
        "temperature": calibration.fit_temperature(logit_N, clusters_N),
    }


def filler_report(
    reward: TextReward, prompts: list[str], responses: list[str], scores_N: FloatArray, oracle: Oracle | None
) -> dict[str, Any]:
    """Return the effect of generic filler on the scores of responses, and the part that the gold reward explains.

    Filler lowers the gold reward, and a reward that follows gold decreases with it. `filler_bias` adds that loss back
    at the rate at which the reward pays for gold: the slope within prompts at equal length. The uncertainty of this
    rate is ignored.
    """
    shifts = filler_shifts(reward, prompts, responses, scores_N)
    slope_N = filler_slopes(shifts)
    metrics = {"filler_shift": clustered_mean(shifts["two"], prompts), "filler_slope": clustered_mean(slope_N, prompts)}
    if oracle is None:
        return metrics

    def true_reward(prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        return RewardBatch(truth(oracle, prompts, responses))

    gold_slope_N = filler_slopes(filler_shifts(true_reward, prompts, responses))
    # Only the responses that the reward scored, so that both slopes are means over the same responses.
    comparable_N = np.where(np.isnan(slope_N), np.nan, gold_slope_N)
    metrics["filler_slope/gold"] = clustered_mean(comparable_N, prompts)
    columns = {"reward": scores_N, "truth": truth(oracle, prompts, responses), "words": words(responses)}
    rate = within_prompts(columns, prompts).slope("reward", "truth", "words").mean
    if not math.isnan(rate):
        metrics["filler_bias"] = clustered_mean(slope_N - rate * gold_slope_N, prompts)
    return metrics


def responses_report(
    reward: TextReward, rows: list[dict[str, Any]], oracle: Oracle | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (metrics, figures) of policy responses, from the rows of evaluation.jsonl."""
    prompts = [row["prompt"] for row in rows]
    responses = [row["response"] for row in rows]
    scores_N = column(rows, "proxy")
    parts = {key.removeprefix("reward/"): column(rows, key) for key in rows[0] if key.startswith("reward/")}
    metrics = filler_report(reward, prompts, responses, scores_N, oracle)
    metrics |= disagreement_report(RewardBatch(scores_N, parts), prompts)
    columns = {"reward": scores_N, "words": words(responses) / 10}  # slopes are per 10 words
    if oracle is None:
        within = within_prompts(columns, prompts)
        metrics["length_correlation"] = within.correlation("reward", "words")
        metrics["length_slope"] = within.slope("reward", "words")
    else:
        metrics |= truth_report({**columns, "truth": truth(oracle, prompts, responses)}, prompts)
    return metrics, {"score_by_length": rm_figures.score_by_length(scores_N, words(responses))}


def truth_report(columns: Mapping[str, FloatArray], prompts: list[str]) -> dict[str, Any]:
    """Return the relations between reward, ground truth and length over policy responses.

    Args:
        columns: `reward`, `truth` and `words` (in units of ten words), (N,) each.
    """
    within = within_prompts(columns, prompts)
    scores = {name: columns[name] for name in ("reward", "truth")}
    return {
        "gold_correlation": pooled_products(scores, prompts).correlation("reward", "truth"),
        "gold_correlation/within": within.correlation("reward", "truth"),
        "length_correlation": within.correlation("reward", "words"),
        "length_correlation/given_gold": within.correlation("reward", "words", "truth"),
        "length_slope": within.slope("reward", "words"),
        "length_slope/given_gold": within.slope("reward", "words", "truth"),
        "spearman/ood": pooled_products(scores, prompts, ranks=True).correlation("reward", "truth"),
    }


def disagreement_report(batch: RewardBatch, prompts: list[str]) -> dict[str, Estimate]:
    """Return the mean disagreement of every ensemble in the graph; {} without an ensemble."""
    means = {
        name: clustered_mean(values_N, prompts)
        for name, values_N in batch.parts.items()
        if name.rpartition("/")[2] == "disagreement"
    }
    if len(means) == 1:  # a single ensemble needs no prefix to distinguish it
        return {"disagreement": next(iter(means.values()))}
    return means


def truth(oracle: Oracle, prompts: Sequence[str], responses: Sequence[str]) -> FloatArray:
    """Return the true value of responses, (N,): the gold reward if the world has one, else 1 for a right answer."""
    measured = oracle.measure(prompts, responses)
    return measured["gold"] if "gold" in measured else measured["correct"]


def build(settings: RewardReport, run: Run) -> ReportCard:
    return ReportCard(settings, run)
