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

from rlhf_lab.algorithms.pair_selection.selection import selection_metrics, training_pairs
from rlhf_lab.algorithms.reward_models.settings import RubricRM
from rlhf_lab.core.errors import ConfigError
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

    def __init__(self, settings: RubricRM, run: Run):
        self.settings, self.run = settings, run
        if run.corpus.rubric is None:
            raise ConfigError(f"data={run.corpus.name} has no grades; use data=mini_hh, data=helpsteer2 or data=graded")
        self.rubric: Rubric = run.corpus.rubric
        self.weights_A = score_weights(settings.weights, self.rubric)
        self.replies = PolicyReplies(run)
        self.encoder, self.max_length = self.replies.encoder, settings.max_length
        self.model = self._model()
        pairs = training_pairs(settings, run)
        own = self._own_pairs(len(pairs))
        self.corpus_pairs = len(pairs)
        self.rows = [pair_rows(self.encoder, pair, self.max_length) for pair in [*pairs, *own]]
        self.lengths = [pair_length(pair) for pair in self.rows]
        grades_2NA = np.concatenate([self._grades(part) for part in (pairs, own) if part], axis=1)
        self.targets_2NA = torch.tensor(self._targets(grades_2NA), dtype=torch.float32)
        self.steps = epoch_steps(self.lengths, settings, run.seed("reward_model/order", 0))
        self.total_steps = len(self.steps)

    def _model(self) -> Any:
        outputs = len(self.weights_A) if self.settings.target == "attributes" else 1
        settings, run = self.run.config.model, self.run
        model = load_reward_model(run.needs["policy"], settings, outputs=outputs, device=run.load_device)
        return trainable(model, settings.lora, run.seed("lora"))

    def _own_pairs(self, corpus_pairs: int) -> list[Pair]:
        """Two different replies of the policy to each of some training prompts; none where nobody can grade them."""
        wanted = round(corpus_pairs * self.settings.on_policy_fraction / (1 - self.settings.on_policy_fraction))
        if wanted and not isinstance(self.run.corpus.oracle, Grading):
            self.run.note(f"data={self.run.corpus.name} has no judge: the rubric model trains on the corpus alone")
            return []
        asked, first, second = self.replies.twice("train", wanted)
        return [Pair(prompt, a, b) for prompt, a, b in zip(asked, first, second, strict=True) if a != b]

    def _grades(self, pairs: Sequence[Pair]) -> FloatArray:
        """Grades of the chosen and of the rejected replies, (2, N, A): those that the data have, else the judge's."""
        if all("grades_chosen" in pair.meta for pair in pairs):
            return np.array([[pair.meta[f"grades_{side}"] for pair in pairs] for side in SIDES], dtype=np.float64)
        oracle, prompts = self.run.corpus.oracle, [pair.prompt for pair in pairs]
        if not isinstance(oracle, Grading):
            raise ConfigError(f"data={self.run.corpus.name} has pairs without grades and no judge")
        return np.stack([oracle.grade(prompts, [getattr(p, side) for p in pairs], seed=JUDGE) for side in SIDES])

    def _targets(self, grades: FloatArray) -> FloatArray:
        """What the head is to say of replies with these grades (…, A): shares of the scale, or (…, 1), their score."""
        shares = self.rubric.shares(grades)
        return shares if self.settings.target == "attributes" else (shares @ self.weights_A)[..., None]

    def collect(self, step: int) -> StepBatch:
        parts = micro_batches(self.steps[step], self.lengths, (self.settings.micro_batch_tokens + 1) // 2)
        micro = []
        for part in parts:
            targets_BA = self.targets_2NA[:, part].flatten(0, 1).to(self.run.device)
            micro.append((pair_batch([self.rows[i] for i in part], self.run.device), targets_BA))
        return StepBatch(micro, units=2 * len(self.steps[step]))

    def loss(self, micro: tuple[TokenBatch, torch.Tensor]) -> LossOutput:
        """Squared error of each reply."""
        batch, targets_BA = micro
        outputs_BA = reward_outputs(self.model, batch)
        return LossOutput(squared_error(outputs_BA, targets_BA.to(outputs_BA.dtype)))

    def evaluate(self, step: int) -> None:
        found = self._audit_grades(self._scorer())
        self.run.log(step + 1, heldout_mse=found["mse"].mean)

    def finish(self) -> Result:
        """Fix the score's scale on the policy's replies to training prompts; audit it on graded replies and pairs."""
        asked, replies, _ = self.replies.for_scale()
        self.scorer = self._scorer().fix_scale(asked, replies)
        reward = BTReward([self.scorer], BradleyTerry())
        audit = audit_pairs(reward, self.run.corpus.test[:HELD_OUT_PAIRS]) | self._audit_grades(self.scorer)
        audit["filler_shift"] = filler_shift(reward, asked, replies)
        counts = {"pairs/corpus": self.corpus_pairs, "pairs/on_policy": len(self.rows) - self.corpus_pairs}
        chosen = selection_metrics(self.settings, self.run)
        known = {**counts, **chosen, **model_size(self.model), **corpus_report(self.run.corpus, self.encoder)}
        primary = ["accuracy", "longer_wins", "gold_agreement", "filler_shift", "mse", "correlation"]
        return Result(metrics={**audit, **known}, primary=[name for name in primary if name in audit])

    def _audit_grades(self, scorer: Scorer) -> dict[str, Any]:
        """Error and correlation on the replies of held-out pairs, as estimates clustered by prompt; see metrics.py."""
        pairs = self.run.corpus.test[:HELD_OUT_PAIRS]
        prompts, replies = [p.prompt for p in pairs] * 2, [getattr(p, side) for side in SIDES for p in pairs]
        clusters, names = np.tile(prompt_ids(pairs), 2), self.rubric.attributes
        shares_NA = self.rubric.shares(self._grades(pairs).reshape(len(replies), -1))
        outputs_NA = scorer.outputs(prompts, replies)
        score_N, target_N = scorer.weighted(outputs_NA), shares_NA @ self.weights_A
        found: dict[str, Any] = {"mse": clustered_mean((score_N - target_N) ** 2, clusters)}
        columns = {"score": score_N, "target": target_N, **{f"grade/{n}": shares_NA[:, i] for i, n in enumerate(names)}}
        if self.settings.target == "attributes":
            for i, name in enumerate(names):
                columns[f"output/{name}"] = outputs_NA[:, i]
                found[f"mse/{name}"] = clustered_mean((outputs_NA[:, i] - shares_NA[:, i]) ** 2, clusters)
        true_NA = self._true_shares(prompts, replies)
        if true_NA is not None:
            columns["truth"] = true_NA @ self.weights_A
        moves = overall(columns, clusters)
        found["correlation"] = moves.correlation("score", "target")
        for name in names:
            output = f"output/{name}" if f"output/{name}" in columns else "score"
            found[f"correlation/{name}"] = moves.correlation(output, f"grade/{name}")
        if "truth" in columns:
            found["correlation/truth"] = moves.correlation("score", "truth")
            found["judge_correlation"] = moves.correlation("target", "truth")
        return found

    def _true_shares(self, prompts: list[str], replies: list[str]) -> FloatArray | None:
        """What grades without error would be, as shares, (N, A); None where nobody knows."""
        known = self.run.corpus.oracle.measure(prompts, replies) if self.run.corpus.oracle else {}
        if any(name not in known for name in self.rubric.attributes):
            return None
        return self.rubric.shares(np.stack([known[name] for name in self.rubric.attributes], axis=1))

    def save_extra(self, folder: Path) -> None:
        """The scale travels with the model; with several outputs, so do their names and weights."""
        self.scorer.scale.write(folder)

    def _scorer(self) -> Scorer:
        scale = ScoreScale(max_length=self.max_length, logit=False)
        if self.settings.target == "attributes":
            scale = replace(scale, attributes=self.rubric.attributes, weights=tuple(self.weights_A.tolist()))
        return Scorer(self.model, self.encoder, scale, self.run.device, BATCH_TOKENS)


def build(settings: RubricRM, run: Run) -> RubricModelling:
    return RubricModelling(settings, run)
