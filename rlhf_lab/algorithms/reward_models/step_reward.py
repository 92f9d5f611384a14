"""Process and outcome reward models: one binary head, at the end of every step or at the last token.

Both train on solutions of the same policy to the same problems. They differ in the positions that the head reads and in
the source of the labels. The score head has no bias and starts at zero, so every probability starts at ½.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from rlhf_lab.algorithms.reward_models.settings import OutcomeModel, ProcessModel
from rlhf_lab.core.errors import ArtifactError, DataError
from rlhf_lab.core.transfer import to_device
from rlhf_lab.environments.maths.chains import StepOracle, step_lines
from rlhf_lab.losses.reward_model import step_loss
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.steps import StepRow, step_logits, step_positions, step_row
from rlhf_lab.rewards.learned.process import JudgeFile, StepJudge, load_judge
from rlhf_lab.sampling.solutions import (
    Solutions,
    Trajectory,
    annotated,
    followed_labels,
    in_agreement,
    perturbed_solutions,
    problems,
)
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.statistics.reward_bench import NO_ERROR
from rlhf_lab.statistics.steps import auroc, first_wrong
from rlhf_lab.training.batching import epoch_steps, micro_batches
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size

HELD_OUT_PROBLEMS = 256
"""Maximum number of held-out problems in the audit."""


class StepMicroBatch(NamedTuple):
    """One forward pass: rows, and the (row, column) positions of their N labels."""

    batch: TokenBatch
    row_N: Tensor
    column_N: Tensor
    label_N: Tensor


class StepRewardModelling(Algorithm):
    """Training of a binary head on solutions. The unit of the loss is a label, so long solutions weigh more."""

    settings: ProcessModel | OutcomeModel

    def __init__(self, settings: ProcessModel | OutcomeModel, run: Run):
        self.settings, self.run = settings, run
        self.kind = "prm" if isinstance(settings, ProcessModel) else "orm"
        source, model_settings = run.needs["policy"], run.config.model
        self.encoder = load_encoder(source, model_settings)
        self.max_length = settings.max_length
        self.trained_as = JudgeFile(self.kind, settings.max_length, settings.tools)
        policy = load_policy(source, model_settings, device=run.device).requires_grad_(False)
        solutions, self.label_metrics = training_solutions(settings, run, Solutions(run, policy, self.encoder))
        del policy  # its memory is free before the reward model is loaded
        model = load_reward_model(source, model_settings, device=run.load_device, trained=True)
        self.model = trainable(model, model_settings.lora, run.seed("lora"))
        self._encode(solutions)
        self.lengths = [row.last + 1 for row in self.rows]
        self.steps = epoch_steps(self.lengths, settings, run.seed("steps/order"))
        self.total_steps = len(self.steps)

    def _encode(self, solutions: list[Trajectory]) -> None:
        """Tokenise solutions and find the columns that have labels; solutions without a label are excluded."""
        self.rows: list[StepRow] = []
        self.columns: list[list[int]] = []
        self.labels: list[list[float]] = []
        self.cut = 0
        for solution in solutions:
            response = self.trained_as.read(solution.response)
            lines = step_lines(response)
            row = step_row(self.encoder, solution.prompt, response, lines, self.max_length)
            self.cut += len(lines) - len(row.ends)
            if self.kind == "prm":
                labels = self._step_labels(solution)[: len(row.ends)]
                columns = row.columns[: len(labels)]
            else:
                labels = [solution.correct]
                columns = [row.last]
            if columns:  # a row may be truncated before its first step
                self.rows.append(row)
                self.columns.append(columns)
                self.labels.append(labels)
        if not self.rows:
            raise DataError(
                f"none of {len(solutions)} solutions has a step within algorithm.max_length={self.max_length} tokens, "
                "so there is nothing to train on; raise it"
            )

    def _step_labels(self, solution: Trajectory) -> list[float]:
        """Return the labels of a solution's steps; `up_to_first_error` drops those after the first wrong step."""
        settings = self.settings
        labels = list(solution.labels)
        # Monte Carlo labels are fractions of completions, not verdicts, so every step keeps its own.
        if isinstance(settings, ProcessModel) and settings.labels != "monte_carlo" and settings.up_to_first_error:
            first = first_wrong(labels)
            return labels if first == NO_ERROR else labels[: first + 1]
        return labels

    def collect(self, step: int) -> StepBatch:
        indices = self.steps[step]
        splits = micro_batches(indices, self.lengths, self.settings.micro_batch_tokens)
        units = sum(len(self.columns[i]) for i in indices)
        return StepBatch([self._make_micro_batch(split) for split in splits], units=units)

    def _make_micro_batch(self, indices: list[int]) -> StepMicroBatch:
        device = self.run.device
        batch = TokenBatch.from_rows([self.rows[i].row for i in indices], device)
        positions = step_positions([self.columns[i] for i in indices], device)
        return StepMicroBatch(batch, *positions, to_device([x for i in indices for x in self.labels[i]], device))

    def loss(self, micro: StepMicroBatch) -> LossOutput:
        logits_N = step_logits(self.model, micro.batch)[micro.row_N, micro.column_N]
        right_N = ((logits_N > 0) == (micro.label_N > 0.5)).float()
        return LossOutput(step_loss(logits_N, micro.label_N.to(logits_N.dtype)), {"accuracy": right_N})

    def finish(self) -> Result:
        """Audit the model on held-out solutions with a planted error, whatever labels it was trained on."""
        labels = [label for solution_labels in self.labels for label in solution_labels]
        audit = self._audit_planted()
        metrics = {
            **audit,
            "positions": len(labels),
            "trajectories": len(self.rows),
            "positive": float(np.mean(labels)),
            "cut": self.cut,
            **self.label_metrics,
            **model_size(self.model),
            **corpus_report(self.run.corpus, self.encoder),
        }
        return Result(metrics=metrics, primary=[*audit, "trajectories", "positive"])

    def _audit_planted(self) -> dict[str, Estimate]:
        """Return accuracy, ranking and calibration on held-out planted errors; empty if none could be generated."""
        pairs = problems(self.run, "test", HELD_OUT_PROBLEMS)
        planted = perturbed_solutions(self.run, pairs, 1, self.run.seed("steps/held_out"))
        encoder = self.encoder.uncounted()  # solutions of the audit do not count as training data
        judge = StepJudge(self.model, encoder, self.trained_as, self.run.device, 16384)
        judgements = judge([solution.prompt for solution in planted], [solution.response for solution in planted])
        rows: list[tuple[str, float, float]] = []  # (prompt, probability, label) of each judged position
        for solution, judgement in zip(planted, judgements, strict=True):
            if self.kind == "prm":
                # All models are audited up to the first error, whatever they were trained on. Without an error,
                # NO_ERROR is −1 and `0 or None` keeps all steps. Steps beyond max_length have no probability.
                labels = solution.labels[: first_wrong(solution.labels) + 1 or None]
                rows += [(solution.prompt, p, label) for p, label in zip(judgement.steps, labels, strict=False)]
            else:
                rows.append((solution.prompt, judgement.last, solution.correct))
        if not rows:
            self.run.note("no held-out demonstration could be perturbed, so the model is not audited")
            return {}
        prompts, p_N, label_N = (np.array(column) for column in zip(*rows, strict=True))
        return {
            "accuracy/planted": clustered_rate(((p_N > 0.5) == (label_N > 0.5)).astype(float), prompts),
            "auroc/planted": auroc(p_N, label_N > 0.5, prompts),
            "brier/planted": clustered_mean((p_N - label_N) ** 2, prompts),
        }

    def save_extra(self, directory: Path) -> None:
        self.trained_as.write(directory)


def build(settings: ProcessModel | OutcomeModel, run: Run) -> StepRewardModelling:
    return StepRewardModelling(settings, run)


def training_solutions(
    settings: ProcessModel | OutcomeModel, run: Run, source: Solutions
) -> tuple[list[Trajectory], dict[str, Any]]:
    """Return (the labelled trajectories of a stage, metrics of the labels).

    Raises ConfigError or DataError if labels are unavailable, ArtifactError if `needs.judge` is no process reward
    model.
    """
    pairs = problems(run, "train", settings.problems)
    labels = label_source(settings, run)
    if labels == "perturbed":
        perturbed = perturbed_solutions(run, pairs, settings.trajectories, run.seed("steps/perturbed"))
        if not perturbed:
            raise DataError(
                "no demonstration could be perturbed; they need steps like 5 + 3 = 8 and #### N at the end. Use other "
                "data, or algorithm.labels=monte_carlo"
            )
        return perturbed, {}
    demonstrations = [source.graded(pair.prompt, pair.chosen) for pair in pairs] if settings.demonstrations else []
    sampled = source.sample([pair.prompt for pair in pairs], settings.trajectories, "steps/train")
    solutions = demonstrations + sampled
    if labels == "outcome":
        return solutions, {}
    if labels == "annotated":
        return annotated(run, solutions), {}
    assert isinstance(settings, ProcessModel), "an outcome model has labels=outcome"
    if labels == "monte_carlo":
        return source.complete(solutions, settings.rollouts, settings.estimate), {}
    return _consensus(run, source.complete(solutions, settings.rollouts, "hard"))


def label_source(settings: ProcessModel | OutcomeModel, run: Run) -> str:
    """Return the source of a stage's labels; `auto` uses the data's step labels if it has any, else perturbations."""
    if isinstance(settings, OutcomeModel):
        return "outcome"
    if settings.labels != "auto":
        return settings.labels
    return followed_labels(run, "perturbed")


def _consensus(run: Run, completed: list[Trajectory]) -> tuple[list[Trajectory], dict[str, Any]]:
    """Return the solutions whose first wrong step is the same by completions and `needs.judge`, and metrics of this."""
    judge = load_judge(run.needs["judge"], run.config.model, run.device)
    if judge.trained_as.kind != "prm":
        raise ArtifactError(
            f"needs.judge={run.needs['judge']} was trained as {judge.trained_as.kind}, which judges no steps; use a "
            "process reward model, such as needs.judge=prm_perturbed"
        )
    judged = judge([each.prompt for each in completed], [each.response for each in completed])
    agreeing = in_agreement(completed, [each.steps for each in judged])
    if not agreeing:
        raise DataError(
            f"completions and needs.judge agree on none of {len(completed)} solutions; use a better judge, more "
            "algorithm.rollouts, or algorithm.labels=monte_carlo"
        )
    metrics = {"consensus/kept": len(agreeing) / len(completed)}
    # a world that judges steps shows what the filter does to the labels
    if isinstance(run.corpus.oracle, StepOracle):
        metrics["consensus/right_before"] = _located_right(run, completed)
        metrics["consensus/right"] = _located_right(run, agreeing)
    return agreeing, metrics


def _located_right(run: Run, solutions: list[Trajectory]) -> float:
    """Return the fraction of solutions whose labels have the same first wrong step as the true labels."""
    truth = annotated(run, solutions)
    same = [first_wrong(a.labels) == first_wrong(b.labels) for a, b in zip(solutions, truth, strict=True)]
    return float(np.mean(same))
