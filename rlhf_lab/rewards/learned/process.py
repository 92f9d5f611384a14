"""Process and outcome reward models as rewards: text in, probabilities out.

Both are a single head on a language model. A process reward model is read at the end of every step, an outcome reward
model at the last token. Either can be read at both positions, so a report can compare them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import write_json
from rlhf_lab.core.types import FloatArray, RewardBatch
from rlhf_lab.environments.maths.chains import step_lines
from rlhf_lab.models.build import load_encoder, load_reward_model
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.one_base import OneBase
from rlhf_lab.models.passes import over_rows
from rlhf_lab.models.steps import step_logits, step_row
from rlhf_lab.rewards.learned.settings import OutcomeModelTerm, Process
from rlhf_lab.rewards.rules.calculator import with_results
from rlhf_lab.training.run import Run

JUDGE_FILE = "step_judge.json"
"""File next to a model's weights that marks it as a process or outcome reward model."""
AGGREGATIONS: dict[str, Callable[[FloatArray], float]] = {
    "min": lambda steps: float(steps.min()),
    "mean": lambda steps: float(steps.mean()),
    "prod": lambda steps: float(steps.prod()),
    "last": lambda steps: float(steps[-1]),
}
"""Name → function that combines the probabilities of a response's steps, in order, into one number."""


class Judged(NamedTuple):
    """Probabilities that a judge assigns to one response.

    Attributes:
        cut: True if the response has steps beyond the judge's maximum length.
    """

    steps: FloatArray
    last: float
    cut: bool = False


@dataclass(frozen=True)
class JudgeFile:
    """Description of the target a judge was trained to predict, stored next to its model.

    Attributes:
        kind: `prm` for step correctness, `orm` for the outcome.
        max_length: tokens per row in training.
        tools: tools that the judge uses while it reads: `none` or `calculator`.
    """

    kind: str
    max_length: int
    tools: str = "none"

    def read(self, response: str) -> str:
        """Return a response as the judge reads it: with the results of its tools."""
        return with_results(response) if self.tools == "calculator" else response

    @classmethod
    def load(cls, directory: str | Path) -> JudgeFile:
        """Read the description in a directory. Raise ArtifactError if it has no process or outcome reward model."""
        path = Path(directory) / JUDGE_FILE
        if not path.is_file():
            raise ArtifactError(
                f"{directory} has no {JUDGE_FILE}: it is not a process or outcome reward model; train one with "
                "+recipe=prm"
            )
        return cls(**json.loads(path.read_text()))

    def write(self, directory: Path) -> None:
        write_json(directory / JUDGE_FILE, asdict(self))


class StepJudge:
    """Trained head on a language model that predicts whether a response's steps and its answer are right."""

    def __init__(self, model: Any, encoder: Encoder, trained_as: JudgeFile, device: str, batch_tokens: int):
        self.model, self.encoder, self.trained_as = model, encoder, trained_as
        self.device, self.batch_tokens = device, batch_tokens

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[Judged]:
        """Return the probabilities for each response. Steps beyond `max_length` tokens are not read."""
        responses = [self.trained_as.read(response) for response in responses]
        lines = [step_lines(response) for response in responses]
        rows = [
            step_row(self.encoder, prompt, response, response_lines, self.trained_as.max_length)
            for prompt, response, response_lines in zip(prompts, responses, lines, strict=True)
        ]
        columns = [[*row.columns, row.last] for row in rows]  # token positions at which the probability is read
        judged: dict[int, Judged] = {}

        def compute(batch: TokenBatch) -> FloatArray:
            return step_logits(self.model, batch).double().sigmoid().cpu().numpy()

        token_rows = [row.row for row in rows]
        for index, p_BT in over_rows(token_rows, compute, self.batch_tokens, self.device, title="step judge"):
            for i, p_T in zip(index, p_BT, strict=True):
                # The last column is the last token of the response; the others are the ends of its steps.
                probabilities = p_T[columns[i]]
                cut = len(rows[i].ends) < len(lines[i])
                judged[i] = Judged(probabilities[:-1], float(probabilities[-1]), cut)
        return [judged[i] for i in range(len(rows))]


def load_judge(
    source: str, model_settings: Any, device: str, batch_tokens: int = 16384, base: OneBase | None = None
) -> StepJudge:
    """Load the process or outcome reward model in a directory.

    Args:
        base: see `load_reward_model`.
    """
    trained_as = JudgeFile.load(source)
    model = load_reward_model(source, model_settings, device=device, base=base)
    encoder = load_encoder(source, model_settings)
    return StepJudge(model, encoder, trained_as, device, batch_tokens)


class ProcessReward:
    collective = True

    def __init__(self, judge: StepJudge, settings: Process):
        self.judge, self.settings = judge, settings

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Score responses. Parts: every aggregation, and `steps`, the number of steps.

        A response that exceeds the judge's maximum length is unscored, because its last steps would not be judged.
        """
        judged = self.judge(prompts, responses)
        parts = {name: self._aggregate(judged, name) for name in AGGREGATIONS}
        parts["steps"] = np.array([len(judgement.steps) for judgement in judged], dtype=np.float64)
        return RewardBatch(parts[self.settings.aggregate], parts)

    def _aggregate(self, judged: Sequence[Judged], name: str) -> FloatArray:
        aggregate = AGGREGATIONS[name]
        no_step = self.settings.no_step
        # An aggregate of no probabilities is undefined, so a response without steps gets the configured value.
        values = [aggregate(judgement.steps) if len(judgement.steps) else no_step for judgement in judged]
        return np.where([judgement.cut for judgement in judged], np.nan, values)


class OutcomeReward:
    collective = True

    def __init__(self, judge: StepJudge):
        self.judge = judge

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Score responses. A response that exceeds the judge's maximum length is unscored."""
        judged = self.judge(prompts, responses)
        p_right = [np.nan if judgement.cut else judgement.last for judgement in judged]
        return RewardBatch(np.array(p_right, dtype=np.float64))


def build(settings: Process | OutcomeModelTerm, run: Run) -> ProcessReward | OutcomeReward:
    """Return the reward of the settings. Raise ArtifactError if the model is not of the kind (prm or orm) they name."""
    role = str(settings.needs_role)
    judge = load_judge(run.needs[role], run.config.model, run.device, settings.batch_tokens, run.base)
    # The two kinds have the same architecture, so only the file tells which one this is.
    kind = judge.trained_as.kind
    if kind != role:
        raise ArtifactError(f"needs.{role}={run.needs[role]} was trained as {kind}; use reward={kind}")
    return ProcessReward(judge, settings) if isinstance(settings, Process) else OutcomeReward(judge)
