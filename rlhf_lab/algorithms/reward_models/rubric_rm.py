"""Rubric reward model: least squares on grades of single replies, one number or one per attribute.

Its audit is that of the Bradley-Terry model, on the same pairs and the same replies, after its own: error and
correlation on held-out graded replies. Both see the same training pairs in the same order; they differ in the labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf_lab.algorithms.pair_selection.selection import selection_metrics, training_pairs
from rlhf_lab.algorithms.reward_models.grades import read_grades
from rlhf_lab.algorithms.reward_models.settings import RubricRM
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.transfer import to_device
from rlhf_lab.core.types import FloatArray, Grading, Pair, Rubric
from rlhf_lab.evaluations.reward_audit import HELD_OUT_PAIRS, audit_pairs, filler_shift, prompt_ids
from rlhf_lab.losses.rubric import squared_error
from rlhf_lab.models.build import load_reward_model, reward_outputs
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.pair_rows import pair_batch, pair_length, pair_rows
from rlhf_lab.rewards.learned.bt import BTReward, Scorer, ScoreScale
from rlhf_lab.rewards.learned.settings import BradleyTerry
from rlhf_lab.sampling.policy_replies import PolicyReplies
from rlhf_lab.statistics.association import overall
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.batching import epoch_steps, micro_batches
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size

BATCH_TOKENS = 16384
"""Padded tokens per forward pass of an audit."""
SIDES = ("chosen", "rejected")
JUDGE = 0
"""Which of the world's judges grades the data: always the same, as the annotator's labels of a corpus are."""


def score_weights(weights: Mapping[str, float] | None, rubric: Rubric) -> FloatArray:
    """Weight of each attribute in the score, (A,), absolute values adding up to 1. Raises ConfigError for others."""
    unknown = [name for name in weights or {} if name not in rubric.attributes]
    if unknown:
        raise ConfigError(
            f"algorithm.weights names {', '.join(unknown)}; the data grade {', '.join(rubric.attributes)}"
        )
    named_A = np.array([1.0 if weights is None else weights.get(name, 0.0) for name in rubric.attributes])
    return named_A / np.abs(named_A).sum()


class RubricModelling(Algorithm):
    """Trains on graded replies of the corpus and, where there is a judge, of the policy."""

    settings: RubricRM

    def __init__(self, settings: RubricRM, run: Run):
        self.settings, self.run = settings, run
        self.stored = read_grades(run) if "grades" in run.needs else None
        rubric = self.stored.rubric if self.stored else run.corpus.rubric
        if rubric is None:
            raise ConfigError(f"data={run.corpus.name} has no grades; use data=mini_hh, data=helpsteer2 or data=graded")
        self.rubric: Rubric = rubric
        self.weights_A = score_weights(settings.weights, self.rubric)
        self.replies = PolicyReplies(run)
        self.encoder, self.max_length = self.replies.encoder, settings.max_length
        self.model = self._load_model()
        corpus_pairs = self._with_grades(training_pairs(settings, run), "training")
        self.audited = self._with_grades(run.corpus.test[:HELD_OUT_PAIRS], "held-out")
        policy_pairs = self._sample_policy_pairs(len(corpus_pairs))
        self.corpus_pairs = len(corpus_pairs)
        self.rows = [pair_rows(self.encoder, pair, self.max_length) for pair in [*corpus_pairs, *policy_pairs]]
        self.lengths = [pair_length(pair) for pair in self.rows]
        # Graded apart: a corpus may bring its own grades, which the policy's replies never have.
        grades = [self._grade_pairs(pairs) for pairs in (corpus_pairs, policy_pairs) if pairs]
        grades_2NA = np.concatenate(grades, axis=1)
        self.targets_2NA = torch.tensor(self._regression_targets(grades_2NA), dtype=torch.float32)
        # The purpose and number of a first Bradley-Terry member, so that both models see the same order of pairs.
        self.steps = epoch_steps(self.lengths, settings, run.seed("reward_model/order", 0))
        self.total_steps = len(self.steps)

    def _load_model(self) -> nn.Module:
        outputs = len(self.weights_A) if self.settings.target == "attributes" else 1
        settings, run = self.run.config.model, self.run
        source = run.needs["policy"]
        model = load_reward_model(source, settings, outputs=outputs, device=run.load_device, trained=True)
        return trainable(model, settings.lora, run.seed("lora"))

    def _with_grades(self, pairs: Sequence[Pair], which: str) -> list[Pair]:
        """The pairs that have grades: all of them but where `needs.grades` has none for some."""
        if self.stored is None:
            return list(pairs)
        graded = self.stored.graded(pairs)
        if not graded:
            raise ArtifactError(
                f"needs.grades={self.run.needs['grades']} has grades for none of the {len(pairs)} {which} pairs; grade "
                "more of them: algorithm.max_pairs and algorithm.heldout_pairs of grade_pairs"
            )
        if len(graded) < len(pairs):
            self.run.note(f"{len(pairs) - len(graded)} of {len(pairs)} {which} pairs have no grades and are left out")
        return graded

    def _sample_policy_pairs(self, corpus_pairs: int) -> list[Pair]:
        """Two different replies of the policy to each of some training prompts; none where nobody can grade them."""
        if self.stored is not None:
            self.run.note("grades are those of needs.grades: the rubric model trains on the corpus alone")
            return []
        count = round(corpus_pairs * self.settings.on_policy_fraction / (1 - self.settings.on_policy_fraction))
        if count and not isinstance(self.run.corpus.oracle, Grading):
            self.run.note(f"data={self.run.corpus.name} has no judge: the rubric model trains on the corpus alone")
            return []
        prompts, first, second = self.replies.twice("train", count)
        return [Pair(prompt, a, b) for prompt, a, b in zip(prompts, first, second, strict=True) if a != b]

    def _grade_pairs(self, pairs: Sequence[Pair]) -> FloatArray:
        """Grades of the chosen and of the rejected replies, (2, N, A): stored ones, the data's, or else the judge's."""
        if self.stored is not None:
            return self.stored.of(pairs)
        if all("grades_chosen" in pair.meta for pair in pairs):
            return np.array([[pair.meta[f"grades_{side}"] for pair in pairs] for side in SIDES], dtype=np.float64)
        oracle = self.run.corpus.oracle
        if not isinstance(oracle, Grading):
            raise ConfigError(f"data={self.run.corpus.name} has pairs without grades and no judge")
        prompts = [pair.prompt for pair in pairs]
        return np.stack([oracle.grade(prompts, [getattr(p, side) for p in pairs], seed=JUDGE) for side in SIDES])

    def _regression_targets(self, grades: FloatArray) -> FloatArray:
        """Targets of the head's outputs for grades (…, A): shares of the scale, (…, A), or their score, (…, 1)."""
        shares = self.rubric.shares(grades)
        if self.settings.target == "attributes":
            return shares
        return (shares @ self.weights_A)[..., None]

    def collect(self, step: int) -> StepBatch:
        # A pair is two rows, so half the budget; rounded up, because 0 means "undivided" and 1 must not become 0.
        max_pair_tokens = (self.settings.micro_batch_tokens + 1) // 2
        micro = []
        for split in micro_batches(self.steps[step], self.lengths, max_pair_tokens):
            targets_BA = to_device(self.targets_2NA[:, split].flatten(0, 1), self.run.device)
            micro.append((pair_batch([self.rows[i] for i in split], self.run.device), targets_BA))
        return StepBatch(micro, units=2 * len(self.steps[step]))

    def loss(self, micro: tuple[TokenBatch, torch.Tensor]) -> LossOutput:
        """Squared error of each reply."""
        batch, targets_BA = micro
        outputs_BA = reward_outputs(self.model, batch)
        return LossOutput(squared_error(outputs_BA, targets_BA.to(outputs_BA.dtype)))

    def evaluate(self, step: int) -> None:
        audit = self._audit_grades(self._build_scorer())
        self.run.log(step + 1, heldout_mse=audit["mse"].mean)

    def finish(self) -> Result:
        """Fix the score's scale on the policy's replies to training prompts; audit it on graded replies and pairs."""
        prompts, replies, _ = self.replies.for_scale()
        self.scorer = self._build_scorer().fix_scale(prompts, replies)
        reward = BTReward([self.scorer], BradleyTerry())
        audit = audit_pairs(reward, self.run.corpus.test[:HELD_OUT_PAIRS]) | self._audit_grades(self.scorer)
        audit["filler_shift"] = filler_shift(reward, prompts, replies)
        metrics = {
            **audit,
            "pairs/corpus": self.corpus_pairs,
            "pairs/on_policy": len(self.rows) - self.corpus_pairs,
            **selection_metrics(self.settings, self.run),
            **model_size(self.model),
            **corpus_report(self.run.corpus, self.encoder),
        }
        primary = ["accuracy", "longer_wins", "gold_agreement", "filler_shift", "mse", "correlation"]
        return Result(metrics=metrics, primary=[name for name in primary if name in audit])

    def _audit_grades(self, scorer: Scorer) -> dict[str, Any]:
        """Error and correlation on the replies of held-out pairs, as estimates clustered by prompt; see metrics.py."""
        pairs = self.audited
        # All chosen replies, then all rejected ones: N is two times the pairs.
        prompts = [pair.prompt for pair in pairs] * 2
        replies = [getattr(pair, side) for side in SIDES for pair in pairs]
        clusters = np.tile(prompt_ids(pairs), 2)
        attributes = self.rubric.attributes
        shares_NA = self.rubric.shares(self._grade_pairs(pairs).reshape(len(replies), -1))
        outputs_NA = scorer.outputs(prompts, replies)
        score_N = scorer.weighted(outputs_NA)
        target_N = shares_NA @ self.weights_A
        audit: dict[str, Any] = {"mse": clustered_mean((score_N - target_N) ** 2, clusters)}
        columns = {"score": score_N, "target": target_N}
        for i, name in enumerate(attributes):
            columns[f"grade/{name}"] = shares_NA[:, i]
        if self.settings.target == "attributes":
            for i, name in enumerate(attributes):
                columns[f"output/{name}"] = outputs_NA[:, i]
                audit[f"mse/{name}"] = clustered_mean((outputs_NA[:, i] - shares_NA[:, i]) ** 2, clusters)
        true_NA = self._true_shares(prompts, replies)
        if true_NA is not None:
            columns["truth"] = true_NA @ self.weights_A
        moments = overall(columns, clusters)
        audit["correlation"] = moments.correlation("score", "target")
        for name in attributes:
            output = f"output/{name}" if f"output/{name}" in columns else "score"
            audit[f"correlation/{name}"] = moments.correlation(output, f"grade/{name}")
        if "truth" in columns:
            audit["correlation/truth"] = moments.correlation("score", "truth")
            audit["judge_correlation"] = moments.correlation("target", "truth")
        return audit

    def _true_shares(self, prompts: list[str], replies: list[str]) -> FloatArray | None:
        """Grades without error, as shares, (N, A); None for data without a known truth, or graded on another rubric."""
        if self.rubric != self.run.corpus.rubric:
            return None
        truth = self.run.corpus.oracle.measure(prompts, replies) if self.run.corpus.oracle else {}
        if any(name not in truth for name in self.rubric.attributes):
            return None
        return self.rubric.shares(np.stack([truth[name] for name in self.rubric.attributes], axis=1))

    def save_extra(self, folder: Path) -> None:
        """Save the scale with the model; with several outputs, their names and weights too."""
        self.scorer.scale.write(folder)

    def _build_scorer(self) -> Scorer:
        scale = ScoreScale(max_length=self.max_length, logit=False)
        if self.settings.target == "attributes":
            scale = replace(scale, attributes=self.rubric.attributes, weights=tuple(self.weights_A.tolist()))
        return Scorer(self.model, self.encoder, scale, self.run.device, BATCH_TOKENS)


def build(settings: RubricRM, run: Run) -> RubricModelling:
    return RubricModelling(settings, run)
