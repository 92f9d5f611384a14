"""Rubric reward model: least squares on grades of single responses, with one output or one per attribute.

Its audit has error and correlation on held-out graded responses, then the audit of the Bradley-Terry model on the same
pairs and responses. Both models see the same training pairs in the same order and differ only in their labels.
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
from rlhf_lab.algorithms.reward_models.grades import SIDES, read_grades
from rlhf_lab.algorithms.reward_models.reward_members import SCORING_TOKENS
from rlhf_lab.algorithms.reward_models.settings import RubricRM
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.transfer import to_device
from rlhf_lab.core.types import FloatArray, GradingOracle, Pair, Rubric
from rlhf_lab.evaluations.reward_audit import HELD_OUT_PAIRS, audit_pairs, filler_shift, prompt_ids
from rlhf_lab.losses.reward_model import squared_error
from rlhf_lab.models.build import load_reward_model, reward_outputs
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.pair_rows import pair_batch, pair_length, pair_rows
from rlhf_lab.rewards.learned.bt import BTReward, Scorer, ScoreScale
from rlhf_lab.rewards.learned.settings import BradleyTerry
from rlhf_lab.sampling.policy_responses import PolicyResponses
from rlhf_lab.statistics.association import pooled_products
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.batching import epoch_steps, micro_batches
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size

JUDGE = 0
"""Seed of the simulated judge that grades the data. It is the same in all runs, like the labels of a corpus."""


def score_weights(weights: Mapping[str, float] | None, rubric: Rubric) -> FloatArray:
    """Return the weight of each attribute, (A,), absolute values summing to 1. Raise ConfigError for unknown ones."""
    unknown = [name for name in weights or {} if name not in rubric.attributes]
    if unknown:
        raise ConfigError(
            f"algorithm.weights names unknown attributes {', '.join(unknown)}; the data grades "
            f"{', '.join(rubric.attributes)}"
        )
    if weights is None:
        weights = dict.fromkeys(rubric.attributes, 1.0)
    named_A = np.array([weights.get(name, 0.0) for name in rubric.attributes])
    return named_A / np.abs(named_A).sum()


class RubricModelling(Algorithm):
    """Training on graded responses of the corpus and, if there is a judge, of the policy."""

    settings: RubricRM

    def __init__(self, settings: RubricRM, run: Run):
        self.settings, self.run = settings, run
        self.stored = read_grades(run) if "grades" in run.needs else None
        rubric = self.stored.rubric if self.stored else run.corpus.rubric
        if rubric is None:
            raise ConfigError(f"data={run.corpus.name} has no grades; use data=mini_hh, data=helpsteer2 or data=graded")
        self.rubric: Rubric = rubric
        self.weights_A = score_weights(settings.weights, self.rubric)
        self.responses = PolicyResponses(run)
        self.encoder, self.max_length = self.responses.encoder, settings.max_length
        self.model = self._load_model()
        self.corpus_pairs = self._with_grades(training_pairs(settings, run), "training")
        self.audited = self._with_grades(run.corpus.test[:HELD_OUT_PAIRS], "held-out")
        policy_pairs = self._sample_policy_pairs(len(self.corpus_pairs))
        pairs = [*self.corpus_pairs, *policy_pairs]
        self.rows = [pair_rows(self.encoder, pair, self.max_length) for pair in pairs]
        self.lengths = [pair_length(pair) for pair in self.rows]
        # Graded separately: a corpus may have its own grades, but the policy's responses never do.
        grades = [self._grade_pairs(pairs) for pairs in (self.corpus_pairs, policy_pairs) if pairs]
        grades_2NA = np.concatenate(grades, axis=1)
        self.targets_2NA = torch.tensor(self._regression_targets(grades_2NA), dtype=torch.float32)
        # Same purpose and index as the first Bradley-Terry member, so that both models see the same order of pairs.
        self.steps = epoch_steps(self.lengths, settings, run.seed("reward_model/order", 0))
        self.total_steps = len(self.steps)

    def _load_model(self) -> nn.Module:
        outputs = len(self.weights_A) if self.settings.target == "attributes" else 1
        settings, run = self.run.config.model, self.run
        source = run.needs["policy"]
        model = load_reward_model(source, settings, outputs=outputs, device=run.load_device, trained=True)
        return trainable(model, settings.lora, run.seed("lora"))

    def _with_grades(self, pairs: Sequence[Pair], which: str) -> list[Pair]:
        """Return the pairs that have grades. Without `needs.grades` these are all pairs."""
        if self.stored is None:
            return list(pairs)
        graded = self.stored.graded(pairs)
        if not graded:
            raise ArtifactError(
                f"needs.grades={self.run.needs['grades']} has no grades for any of the {len(pairs)} {which} pairs; "
                "grade more pairs: raise algorithm.max_pairs and algorithm.heldout_pairs of grade_pairs"
            )
        if len(graded) < len(pairs):
            self.run.note(f"{len(pairs) - len(graded)} of {len(pairs)} {which} pairs have no grades and are excluded")
        return graded

    def _sample_policy_pairs(self, corpus_pairs: int) -> list[Pair]:
        """Sample pairs of different policy responses to training prompts; none if no judge can grade new responses."""
        if self.stored is not None:
            self.run.note("grades are those of needs.grades: the rubric model trains only on the corpus")
            return []
        count = round(corpus_pairs * self.settings.on_policy_fraction / (1 - self.settings.on_policy_fraction))
        if count and not isinstance(self.run.corpus.oracle, GradingOracle):
            self.run.note(f"data={self.run.corpus.name} has no judge: the rubric model trains only on the corpus")
            return []
        prompts, first, second = self.responses.sample_pairs("train", count)
        candidates = zip(prompts, first, second, strict=True)
        return [Pair(prompt, a, b) for prompt, a, b in candidates if a != b]

    def _grade_pairs(self, pairs: Sequence[Pair]) -> FloatArray:
        """Return grades of chosen and rejected responses, (2, N, A): from `needs.grades`, the data or its judge."""
        if self.stored is not None:
            return self.stored.of(pairs)
        if all("grades_chosen" in pair.meta for pair in pairs):
            grades = [[pair.meta[f"grades_{side}"] for pair in pairs] for side in SIDES]
            return np.array(grades, dtype=np.float64)
        oracle = self.run.corpus.oracle
        if not isinstance(oracle, GradingOracle):
            raise ConfigError(f"data={self.run.corpus.name} has pairs without grades and no judge")
        prompts = [pair.prompt for pair in pairs]
        return np.stack([oracle.grade(prompts, [getattr(p, side) for p in pairs], seed=JUDGE) for side in SIDES])

    def _regression_targets(self, grades: FloatArray) -> FloatArray:
        """Return the targets for grades (…, A): fractions of the scale, (…, A), or their weighted mean, (…, 1)."""
        fractions = self.rubric.shares(grades)
        if self.settings.target == "attributes":
            return fractions
        return (fractions @ self.weights_A)[..., None]

    def collect(self, step: int) -> StepBatch:
        micro = []
        for split in micro_batches(self.steps[step], self.lengths, self.settings.micro_batch_tokens, rows=2):
            targets_BA = to_device(self.targets_2NA[:, split].flatten(0, 1), self.run.device)
            batch = pair_batch([self.rows[i] for i in split], self.run.device)
            micro.append((batch, targets_BA))
        return StepBatch(micro, units=2 * len(self.steps[step]))

    def loss(self, micro: tuple[TokenBatch, torch.Tensor]) -> LossOutput:
        """Return the squared error of each response."""
        batch, targets_BA = micro
        outputs_BA = reward_outputs(self.model, batch)
        return LossOutput(squared_error(outputs_BA, targets_BA.to(outputs_BA.dtype)))

    def evaluate(self, step: int) -> None:
        audit = self._audit_grades(self._build_scorer())
        self.run.log(step + 1, heldout_mse=audit["mse"].mean)

    def finish(self) -> Result:
        """Fix the score scale on policy responses to training prompts, then audit on graded responses and pairs."""
        prompts, responses, _ = self.responses.for_scale()
        self.scorer = self._build_scorer().fix_scale(prompts, responses)
        reward = BTReward([self.scorer], BradleyTerry())
        audit = audit_pairs(reward, self.run.corpus.test[:HELD_OUT_PAIRS])
        audit |= self._audit_grades(self.scorer)
        audit["filler_shift"] = filler_shift(reward, prompts, responses)
        metrics = {
            **audit,
            "pairs/corpus": len(self.corpus_pairs),
            "pairs/on_policy": len(self.rows) - len(self.corpus_pairs),
            **selection_metrics(self.corpus_pairs),
            **model_size(self.model),
            **corpus_report(self.run.corpus, self.encoder),
        }
        primary = ["accuracy", "longer_wins", "gold_agreement", "filler_shift", "mse", "correlation"]
        return Result(metrics=metrics, primary=[name for name in primary if name in audit])

    def _audit_grades(self, scorer: Scorer) -> dict[str, Any]:
        """Return error and correlation on held-out responses, clustered by prompt (definitions: metrics.py)."""
        pairs = self.audited
        # First all chosen responses, then all rejected ones: N is twice the number of pairs.
        prompts = [pair.prompt for pair in pairs] * 2
        responses = [getattr(pair, side) for side in SIDES for pair in pairs]
        clusters = np.tile(prompt_ids(pairs), 2)
        attributes = self.rubric.attributes
        fraction_NA = self.rubric.shares(self._grade_pairs(pairs).reshape(len(responses), -1))
        outputs_NA = scorer.outputs(prompts, responses)
        score_N = scorer.weighted(outputs_NA)
        target_N = fraction_NA @ self.weights_A
        audit: dict[str, Any] = {"mse": clustered_mean((score_N - target_N) ** 2, clusters)}
        # All correlations come from one table of columns: score, target, grades, outputs, and gold if known.
        columns = {"score": score_N, "target": target_N}
        for i, name in enumerate(attributes):
            columns[f"grade/{name}"] = fraction_NA[:, i]
        if self.settings.target == "attributes":
            for i, name in enumerate(attributes):
                columns[f"output/{name}"] = outputs_NA[:, i]
                squared_error_N = (outputs_NA[:, i] - fraction_NA[:, i]) ** 2
                audit[f"mse/{name}"] = clustered_mean(squared_error_N, clusters)
        true_NA = self._true_fractions(prompts, responses)
        if true_NA is not None:
            columns["truth"] = true_NA @ self.weights_A
        statistics = pooled_products(columns, clusters)
        audit["correlation"] = statistics.correlation("score", "target")
        for name in attributes:
            # A scalar model has no output per attribute, so its score is compared with every grade.
            output = f"output/{name}" if f"output/{name}" in columns else "score"
            audit[f"correlation/{name}"] = statistics.correlation(output, f"grade/{name}")
        if "truth" in columns:
            audit["correlation/truth"] = statistics.correlation("score", "truth")
            audit["judge_correlation"] = statistics.correlation("target", "truth")
        return audit

    def _true_fractions(self, prompts: list[str], responses: list[str]) -> FloatArray | None:
        """Return the true grades as fractions of the scale, (N, A); None if unknown or of a different rubric."""
        if self.rubric != self.run.corpus.rubric:
            return None
        truth = self.run.corpus.oracle.measure(prompts, responses) if self.run.corpus.oracle else {}
        if any(name not in truth for name in self.rubric.attributes):
            return None
        true_grades_NA = np.stack([truth[name] for name in self.rubric.attributes], axis=1)
        return self.rubric.shares(true_grades_NA)

    def save_extra(self, directory: Path) -> None:
        """Save the scale with the model and, for several outputs, their names and weights."""
        self.scorer.scale.write(directory)

    def _build_scorer(self) -> Scorer:
        scale = ScoreScale(max_length=self.max_length, logit=False)
        if self.settings.target == "attributes":
            scale = replace(scale, attributes=self.rubric.attributes, weights=tuple(self.weights_A.tolist()))
        encoder = self.encoder.uncounted()  # responses of an audit do not count as training data
        return Scorer(self.model, encoder, scale, self.run.device, SCORING_TOKENS)


def build(settings: RubricRM, run: Run) -> RubricModelling:
    return RubricModelling(settings, run)
