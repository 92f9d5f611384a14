"""Process and outcome reward models as rewards: text in, probabilities out.

Both are one head on a language model. A process reward model is read at the end of every step, an outcome reward model
at the last token; either can be read at both places, which is how a report compares them.
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
from rlhf_lab.rewards.learned.settings import Outcome, Process
from rlhf_lab.training.run import Run

JUDGE_FILE = "step_judge.json"
AGGREGATIONS: dict[str, Callable[[FloatArray], float]] = {
    "min": lambda steps: float(steps.min()),
    "mean": lambda steps: float(steps.mean()),
    "prod": lambda steps: float(steps.prod()),
    "last": lambda steps: float(steps[-1]),
}
"""Probabilities of a reply's steps, in order → one number."""


class Judged(NamedTuple):
    """A judge's probabilities for one reply.

    Attributes:
        steps: probability at the end of each step.
        last: probability at the last token.
        cut: whether the reply has steps beyond what the judge reads.
    """

    steps: FloatArray
    last: float
    cut: bool = False


@dataclass(frozen=True)
class JudgeFile:
    """What a judge was trained to predict; saved beside its model.

    Attributes:
        kind: `prm` judges steps, `orm` the outcome.
        max_length: tokens per row it was trained with.
    """

    kind: str
    max_length: int

    @classmethod
    def read(cls, folder: str | Path) -> JudgeFile:
        """Raises ArtifactError for a folder that holds no process or outcome reward model."""
        path = Path(folder) / JUDGE_FILE
        if not path.is_file():
            raise ArtifactError(
                f"{folder} has no {JUDGE_FILE}: it is no process or outcome reward model; train one with +recipe=prm"
            )
        return cls(**json.loads(path.read_text()))

    def write(self, folder: Path) -> None:
        write_json(folder / JUDGE_FILE, asdict(self))


class StepJudge:
    """A trained head on a language model: how likely a reply's steps, and its answer, are right."""

    def __init__(self, model: Any, encoder: Encoder, trained_as: JudgeFile, device: str, batch_tokens: int):
        self.model, self.encoder, self.trained_as = model, encoder, trained_as
        self.device, self.batch_tokens = device, batch_tokens

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[Judged]:
        """Probabilities for each reply; steps beyond `max_length` tokens are not seen."""
        lines = [step_lines(response) for response in responses]
        rows = [
            step_row(self.encoder, prompt, response, reply_lines, self.trained_as.max_length)
            for prompt, response, reply_lines in zip(prompts, responses, lines, strict=True)
        ]
        columns = [[*row.columns, row.last] for row in rows]  # tokens at which the judge is asked
        judged: dict[int, Judged] = {}

        def compute(batch: TokenBatch) -> FloatArray:
            return step_logits(self.model, batch).double().sigmoid().cpu().numpy()

        token_rows = [row.row for row in rows]
        for index, p_BT in over_rows(token_rows, compute, self.batch_tokens, self.device):
            for i, p_T in zip(index, p_BT, strict=True):
                probabilities = p_T[columns[i]]
                cut = len(rows[i].ends) < len(lines[i])
                judged[i] = Judged(probabilities[:-1], float(probabilities[-1]), cut)
        return [judged[i] for i in range(len(rows))]


def load_judge(
    source: str, model_settings: Any, device: str, batch_tokens: int = 16384, base: OneBase | None = None
) -> StepJudge:
    """The process or outcome reward model in a folder; `model_settings` are those of `model=…`.

    Args:
        base: as in `load_reward_model`.
    """
    trained_as = JudgeFile.read(source)
    model = load_reward_model(source, model_settings, device=device, base=base)
    encoder = load_encoder(source, model_settings)
    return StepJudge(model, encoder, trained_as, device, batch_tokens)


class ProcessReward:
    """One number from the probabilities of a reply's steps."""

    collective = True

    def __init__(self, judge: StepJudge, settings: Process):
        self.judge, self.settings = judge, settings

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Parts: every aggregation, and `steps`, how many there were. A reply that is longer than what the judge reads
        is unscored: its last steps would go unjudged."""
        judged = self.judge(prompts, responses)
        parts = {name: self._aggregate(judged, name) for name in AGGREGATIONS}
        parts["steps"] = np.array([len(judgement.steps) for judgement in judged], dtype=np.float64)
        return RewardBatch(parts[self.settings.aggregate], parts)

    def _aggregate(self, judged: Sequence[Judged], name: str) -> FloatArray:
        """One aggregation of each reply's steps, (N,)."""
        aggregate = AGGREGATIONS[name]
        no_step = self.settings.no_step
        values = [aggregate(judgement.steps) if len(judgement.steps) else no_step for judgement in judged]
        return np.where([judgement.cut for judgement in judged], np.nan, values)


class OutcomeReward:
    """The probability that the answer is right."""

    collective = True

    def __init__(self, judge: StepJudge):
        self.judge = judge

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        judged = self.judge(prompts, responses)
        p_right = [np.nan if judgement.cut else judgement.last for judgement in judged]
        return RewardBatch(np.array(p_right, dtype=np.float64))


def build(settings: Process | Outcome, run: Run) -> ProcessReward | OutcomeReward:
    role = str(settings.needs_role)
    judge = load_judge(run.needs[role], run.config.model, run.device, settings.batch_tokens, run.base)
    kind = judge.trained_as.kind
    if kind != role:
        raise ArtifactError(f"needs.{role}={run.needs[role]} was trained as {kind}; use reward={kind}")
    return ProcessReward(judge, settings) if isinstance(settings, Process) else OutcomeReward(judge)
