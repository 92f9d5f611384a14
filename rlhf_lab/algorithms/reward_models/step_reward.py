"""Process and outcome reward models: one binary head, at the end of every step or at the last token.

Both train on solutions of the same policy to the same problems and differ in where they are asked and by whom they are
told. The score head has no bias and starts at zero, so every probability starts at ½.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlhf_lab.algorithms.reward_models.settings import OutcomeModel, ProcessModel
from rlhf_lab.core.errors import DataError
from rlhf_lab.environments.maths.chains import step_lines
from rlhf_lab.losses.process import step_loss
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.steps import StepRow, places, step_logits, step_row
from rlhf_lab.rewards.learned.process import JudgeFile, StepJudge
from rlhf_lab.sampling.solutions import Solutions, Trajectory, annotated, perturbed_solutions, problems
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.reward_bench import NO_ERROR
from rlhf_lab.statistics.steps import auroc, first_wrong
from rlhf_lab.training.batching import epoch_steps, micro_batches
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size

HELD_OUT_PROBLEMS = 256


class Micro(NamedTuple):
    """A forward pass: rows, and the places in them that have labels."""

    batch: TokenBatch
    row_N: Tensor
    column_N: Tensor
    label_N: Tensor


class StepRewardModelling(Algorithm):
    """Trains the head where `kind` says. A unit of the loss is a label, so long solutions weigh more."""

    def __init__(self, settings: ProcessModel | OutcomeModel, run: Run):
        self.settings, self.run = settings, run
        self.kind = "prm" if isinstance(settings, ProcessModel) else "orm"
        source, model_settings = run.needs["policy"], run.config.model
        self.encoder = load_encoder(source, model_settings)
        self.max_length = settings.max_length
        policy = load_policy(source, model_settings, device=run.device).requires_grad_(False)
        solutions = training_solutions(settings, run, Solutions(run, policy, self.encoder))
        del policy
        model: Any = load_reward_model(source, model_settings, device=run.load_device)
        self.model = trainable(model, model_settings.lora, run.seed("lora"))
        self._encode(solutions)
        self.lengths = [row.last + 1 for row in self.rows]
        self.steps = epoch_steps(self.lengths, settings, run.seed("steps/order"))
        self.total_steps = len(self.steps)

    def _encode(self, solutions: list[Trajectory]) -> None:
        """Rows with the places that have labels; solutions without any are left out."""
        self.rows: list[StepRow] = []
        self.columns: list[list[int]] = []
        self.labels: list[list[float]] = []
        self.cut = 0
        for each in solutions:
            lines = step_lines(each.reply)
            row = step_row(self.encoder, each.prompt, each.reply, lines, self.max_length)
            self.cut += len(lines) - len(row.ends)
            labels = self._labels(each)[: len(row.ends)] if self.kind == "prm" else [each.correct]
            columns = row.columns[: len(labels)] if self.kind == "prm" else [row.last]
            if columns:
                self.rows.append(row)
                self.columns.append(columns)
                self.labels.append(labels)

    def _labels(self, solution: Trajectory) -> list[float]:
        """Step labels, up to the first wrong one where that is all that is asked."""
        settings, labels = self.settings, list(solution.labels)
        told = isinstance(settings, ProcessModel) and settings.labels != "monte_carlo"
        if told and settings.up_to_first_error:
            first = first_wrong(labels)
            return labels if first == NO_ERROR else labels[: first + 1]
        return labels

    def collect(self, step: int) -> StepBatch:
        indices = self.steps[step]
        parts = micro_batches(indices, self.lengths, self.settings.micro_batch_tokens)
        units = sum(len(self.columns[i]) for i in indices)
        return StepBatch([self._micro(part) for part in parts], units=units)

    def _micro(self, part: list[int]) -> Micro:
        device = self.run.device
        batch = TokenBatch.from_rows([self.rows[i].row for i in part], device)
        row_N, column_N = places([self.columns[i] for i in part], device)
        label_N = torch.tensor([label for i in part for label in self.labels[i]], device=device)
        return Micro(batch, row_N, column_N, label_N)

    def loss(self, micro: Micro) -> LossOutput:
        logits_N = step_logits(self.model, micro.batch)[micro.row_N, micro.column_N]
        right_N = ((logits_N > 0) == (micro.label_N > 0.5)).float()
        return LossOutput(step_loss(logits_N, micro.label_N.to(logits_N.dtype)), {"accuracy": right_N})

    def finish(self) -> Result:
        """What the model says of held-out solutions with a planted mistake, whatever it was trained on."""
        labels = [label for each in self.labels for label in each]
        counts = {
            "positions": len(labels),
            "trajectories": len(self.rows),
            "positive": float(np.mean(labels)),
            "cut": self.cut,
        }
        audit = self._audit()
        known = {**counts, **model_size(self.model), **corpus_report(self.run.corpus, self.encoder)}
        return Result(metrics={**audit, **known}, primary=[*audit, "trajectories", "positive"])

    def _audit(self) -> dict[str, Estimate]:
        """Accuracy, ranking and calibration on held-out planted solutions; nothing where none could be made."""
        pairs = problems(self.run, "test", HELD_OUT_PROBLEMS)
        planted = perturbed_solutions(self.run, pairs, 1, self.run.seed("steps/held_out"))
        judge = StepJudge(self.model, self.encoder, JudgeFile(self.kind, self.max_length), self.run.device, 16384)
        judged = judge([each.prompt for each in planted], [each.reply for each in planted])
        rows: list[tuple[str, float, float]] = []
        for each, said in zip(planted, judged, strict=True):
            if self.kind == "prm":
                labels = each.labels[: first_wrong(each.labels) + 1 or None]  # for all models up to the first error
                rows += [(each.prompt, p, label) for p, label in zip(said.steps, labels, strict=False)]
            else:
                rows.append((each.prompt, said.last, each.correct))
        if not rows:
            self.run.note("no held-out demonstration could be perturbed: the model is not audited")
            return {}
        prompts, p_N, label_N = (np.array(column) for column in zip(*rows, strict=True))
        return {
            "accuracy/planted": clustered_rate(((p_N > 0.5) == (label_N > 0.5)).astype(float), prompts),
            "auroc/planted": auroc(p_N, label_N > 0.5, prompts),
            "brier/planted": clustered_mean((p_N - label_N) ** 2, prompts),
        }

    def save_extra(self, folder: Path) -> None:
        JudgeFile(self.kind, self.max_length).write(folder)


def build(settings: ProcessModel | OutcomeModel, run: Run) -> StepRewardModelling:
    return StepRewardModelling(settings, run)


def training_solutions(settings: ProcessModel | OutcomeModel, run: Run, source: Solutions) -> list[Trajectory]:
    """The labelled trajectories of a stage. Raises ConfigError where the data cannot give the labels asked for."""
    pairs = problems(run, "train", settings.problems)
    if isinstance(settings, ProcessModel) and settings.labels == "perturbed":
        found = perturbed_solutions(run, pairs, settings.trajectories, run.seed("steps/perturbed"))
        if not found:
            raise DataError("no demonstration could be perturbed; they need steps like 5 + 3 = 8 and #### N at the end")
        return found
    demonstrations = [source.graded(pair.prompt, pair.chosen) for pair in pairs] if settings.demonstrations else []
    sampled = source.sample([pair.prompt for pair in pairs], settings.trajectories, "steps/train")
    solutions = demonstrations + sampled
    if isinstance(settings, OutcomeModel):
        return solutions
    if settings.labels == "monte_carlo":
        return source.complete(solutions, settings.rollouts, settings.estimate)
    return annotated(run, solutions)
