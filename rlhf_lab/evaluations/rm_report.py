"""The report card of a reward: what it gets right, what it owes to length, whether its confidence can be believed, and
how it relates to the truth and to its own parts.

Trains nothing. Held-out pairs are scored as labelled; replies of `needs.policy` to held-out prompts are scored as they
come. Whatever the reward graph is, every term that leaves a reply unscored leaves it out of the numbers, counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.config import registry
from rlhf_lab.core.files import write_json, write_text
from rlhf_lab.core.types import FloatArray, Oracle, Pair, Reward, RewardBatch
from rlhf_lab.evaluations import rm_figures
from rlhf_lab.evaluations.evaluator import held_out_evaluator
from rlhf_lab.evaluations.reward_audit import (
    FILLER,
    audit_margins,
    filler_shifts,
    filler_slopes,
    length_matched,
    prompt_ids,
    words,
)
from rlhf_lab.evaluations.settings import RewardReport
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.rewards.learned.bt import ScoreScale, member_folders
from rlhf_lab.statistics import calibration
from rlhf_lab.statistics.association import overall, within_prompts
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.reward_distance import starc_distance
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report

PAIRS_FILE = "pairs.jsonl"
PRIMARY = (
    *("accuracy", "longer_wins", "accuracy/longer_chosen", "accuracy/shorter_chosen", "accuracy/length_matched"),
    *("filler_shift", "filler_slope", "filler_bias", "ece", "ece_perfect", "ece_scaled", "brier", "temperature"),
    *("gold_correlation/within", "length_correlation/given_gold", "spearman/corpus", "spearman/ood", "starc/gold"),
    *("disagreement", "unscored"),
)


class ReportCard:
    """Audits the reward graph of the run; see metrics.py."""

    def __init__(self, settings: RewardReport, run: Run):
        self.settings, self.run = settings, run
        source, model = run.needs["policy"], run.config.model
        self.model, self.encoder = load_policy(source, model, device=run.device), load_encoder(source, model)
        self.reward: Reward | None = build_reward(run)
        self.evaluator = held_out_evaluator(run, self.model, self.encoder, self.reward)

    def finish(self) -> Result:
        assert self.reward is not None, "config.check refuses a report without what its reward reads"
        run, reward = self.run, self.reward
        name = Path(str(run.config.needs["policy"])).name
        self.evaluator.evaluate(name, self.model)
        found, shown = replies_report(reward, self.evaluator.rows(name), run.corpus.oracle)
        pairs = list(run.corpus.test[: run.config.evaluation.pairs]) if run.corpus.preferences else []
        if pairs:
            unit = logit_unit(run)
            if unit is None:
                run.note("the reward is not the logit of one Bradley-Terry model: ece takes Δ in its own units")
            scored = ScoredPairs.of(reward, pairs)
            found = pairs_report(reward, scored, unit or 1.0, self.settings.bins, run.corpus.oracle) | found
            shown |= rm_figures.pair_figures(scored.margin_N, unit or 1.0, pairs, self.settings.bins)
            write_text(run.folder / PAIRS_FILE, rm_figures.pair_rows(scored.margin_N, pairs))
        write_json(run.folder / rm_figures.FILE, shown)
        known = {**found, **corpus_report(run.corpus, self.encoder)}
        return Result(self.evaluator.policies, known, [metric for metric in PRIMARY if metric in found])


def logit_unit(run: Run) -> float | None:
    """What one unit of the run's reward is in logits; None when it is not the logit of one Bradley-Terry model.

    A reward model's raw score is a logit; the `bt` term divides it by the sd of raw scores. The graph's own temperature
    and ceiling are part of what is audited.
    """
    graph = run.config.reward
    (name, term), *more = graph.terms.items()
    if more or registry.kind_of("reward", term) != "bt":
        return None
    folders = member_folders(run.needs["reward"])
    scale = ScoreScale.read(folders[0])
    as_it_is = graph.weighting[name] == 1 and term.standardise == "none" and term.transform == "none"
    return scale.sd if as_it_is and scale.logit and len(folders) == 1 and not scale.attributes else None


@dataclass(frozen=True)
class ScoredPairs:
    """Held-out pairs and what the reward says of both sides.

    Attributes:
        prompt_N: cluster of each pair.
        margin_N: r(chosen) − r(rejected), NaN where a side is unscored.
    """

    pairs: Sequence[Pair]
    chosen: RewardBatch
    rejected: RewardBatch
    prompt_N: np.ndarray
    margin_N: FloatArray

    @classmethod
    def of(cls, reward: Reward, pairs: Sequence[Pair]) -> ScoredPairs:
        prompts = [pair.prompt for pair in pairs]
        chosen, rejected = (reward(prompts, [getattr(pair, side) for pair in pairs]) for side in ("chosen", "rejected"))
        return cls(pairs, chosen, rejected, prompt_ids(pairs), chosen.total_N - rejected.total_N)

    def replies(self) -> tuple[list[str], list[str], RewardBatch]:
        """(prompts, replies, scores) of all chosen and then all rejected replies."""
        parts = {
            name: np.concatenate([values, self.rejected.parts[name]]) for name, values in self.chosen.parts.items()
        }
        scores = RewardBatch(np.concatenate([self.chosen.total_N, self.rejected.total_N]), parts)
        replies = [pair.chosen for pair in self.pairs] + [pair.rejected for pair in self.pairs]
        return [pair.prompt for pair in self.pairs] * 2, replies, scores


def pairs_report(
    reward: Reward, scored: ScoredPairs, unit: float, bins: int, oracle: Oracle | None = None
) -> dict[str, Any]:
    """Metrics of labelled pairs.

    Args:
        unit: of the reward in logits.
    """
    margin_N, prompt_N, known = scored.margin_N, scored.prompt_N, ~np.isnan(scored.margin_N)
    wins_N = np.where(known, margin_N > 0, np.nan)
    found = audit_margins(margin_N, scored.pairs)
    found["unscored"] = clustered_rate(~known, prompt_N)
    if (margin_N == 0).any():
        found["ties"] = clustered_rate(np.where(known, margin_N == 0, np.nan), prompt_N)
    matched = length_matched(scored.pairs)
    if matched.any():
        found["accuracy/length_matched"] = clustered_rate(wins_N[matched], prompt_N[matched])
    found["accuracy/rejected_padded"] = padded_accuracy(reward, scored)
    prompts, replies, scores = scored.replies()
    fillers = filler_report(reward, prompts, replies, scores.total_N, oracle)
    found |= {f"{name}/pairs": value for name, value in fillers.items()}
    found |= calibration_report(margin_N * unit, prompt_N, bins) | {"logit_unit": unit}
    found |= {f"{name}/corpus": value for name, value in disagreement_report(scores, prompts).items()}
    if oracle:
        columns = {"reward": scores.total_N, "truth": truth(oracle, prompts, replies)}
        found["spearman/corpus"] = overall(columns, prompts, ranks=True).correlation("reward", "truth")
    return found


def padded_accuracy(reward: Reward, scored: ScoredPairs) -> Estimate:
    """Accuracy when `FILLER` is appended to the rejected side."""
    texts = [f"{pair.rejected} {FILLER}" for pair in scored.pairs]
    margin_N = scored.chosen.total_N - reward([pair.prompt for pair in scored.pairs], texts).total_N
    return clustered_rate(np.where(np.isnan(margin_N), np.nan, margin_N > 0), scored.prompt_N)


def calibration_report(logit_N: FloatArray, clusters_N: np.ndarray, bins: int) -> dict[str, Any]:
    """Calibration of (N,) logit margins as they are, and after a temperature that was fitted on other prompts."""
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
    reward: Reward, prompts: list[str], replies: list[str], scores_N: FloatArray, oracle: Oracle | None
) -> dict[str, Any]:
    """What generic filler does to the scores of replies, and how much of that the truth explains.

    Filler costs truth, and a reward that follows the truth falls with it. `filler_bias` adds that loss back at the rate
    at which the reward pays for truth, the slope within prompts at equal length; the rate is taken as known.
    """
    shifts = filler_shifts(reward, prompts, replies, scores_N)
    slopes_N = filler_slopes(shifts)
    found = {"filler_shift": clustered_mean(shifts["two"], prompts), "filler_slope": clustered_mean(slopes_N, prompts)}
    if oracle is None:
        return found
    gold_N = filler_slopes(filler_shifts(lambda *texts: RewardBatch(truth(oracle, *texts)), prompts, replies))
    found["filler_slope/gold"] = clustered_mean(np.where(np.isnan(slopes_N), np.nan, gold_N), prompts)
    columns = {"reward": scores_N, "truth": truth(oracle, prompts, replies), "words": words(replies)}
    rate = within_prompts(columns, prompts).slope("reward", "truth", "words").mean
    if not math.isnan(rate):
        found["filler_bias"] = clustered_mean(slopes_N - rate * gold_N, prompts)
    return found


def replies_report(
    reward: Reward, rows: list[dict[str, Any]], oracle: Oracle | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(metrics, figures) of policy replies, from the rows of evaluation.jsonl."""
    prompts, replies = [row["prompt"] for row in rows], [row["response"] for row in rows]
    names = [key for key in rows[0] if key.startswith("reward/")]
    parts = {key.removeprefix("reward/"): floats([row[key] for row in rows]) for key in names}
    scores_N = floats([row["proxy"] for row in rows])
    found = filler_report(reward, prompts, replies, scores_N, oracle)
    found |= disagreement_report(RewardBatch(scores_N, parts), prompts)
    columns, rewards = {"reward": scores_N, "words": words(replies) / 10}, rm_figures.distinct(scores_N, parts)
    if oracle is None:
        moves = within_prompts(columns, prompts)
        found["length_correlation"] = moves.correlation("reward", "words")
        found["length_slope"] = moves.slope("reward", "words")
    else:
        truth_N = truth(oracle, prompts, replies)
        found |= truth_report({**columns, "truth": truth_N}, prompts)
        further = {name: values for name, values in rewards.items() if name != "reward"}
        found |= {f"starc/gold/{name}": starc_distance(values, truth_N, prompts) for name, values in further.items()}
        rewards["truth"] = truth_N
    return found, rm_figures.reply_figures(rewards, words(replies), prompts)


def truth_report(columns: Mapping[str, FloatArray], prompts: list[str]) -> dict[str, Any]:
    """How the reward relates to truth and length over policy replies.

    Args:
        columns: `reward`, `truth` and `words` (tens of words), (N,) each.
    """
    moves, score = within_prompts(columns, prompts), {name: columns[name] for name in ("reward", "truth")}
    return {
        "gold_correlation": overall(score, prompts).correlation("reward", "truth"),
        "gold_correlation/within": moves.correlation("reward", "truth"),
        "length_correlation": moves.correlation("reward", "words"),
        "length_correlation/given_gold": moves.correlation("reward", "words", "truth"),
        "length_slope": moves.slope("reward", "words"),
        "length_slope/given_gold": moves.slope("reward", "words", "truth"),
        "spearman/ood": overall(score, prompts, ranks=True).correlation("reward", "truth"),
        "starc/gold": starc_distance(columns["reward"], columns["truth"], prompts),
    }


def disagreement_report(batch: RewardBatch, prompts: list[str]) -> dict[str, Estimate]:
    """Mean disagreement of every ensemble in the graph; nothing without one."""
    found = {name: values for name, values in batch.parts.items() if name.rpartition("/")[2] == "disagreement"}
    means = {name: clustered_mean(values, prompts) for name, values in found.items()}
    return {"disagreement": next(iter(means.values()))} if len(means) == 1 else means


def truth(oracle: Oracle, prompts: Sequence[str], replies: Sequence[str]) -> FloatArray:
    """What the world knows about the worth of replies, (N,): their true reward, else whether the answer is right."""
    measured = oracle.measure(prompts, replies)
    return measured["gold"] if "gold" in measured else measured["correct"]


def build(settings: RewardReport, run: Run) -> ReportCard:
    return ReportCard(settings, run)
