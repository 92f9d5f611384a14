"""Process and outcome reward models as rewards: text in, probabilities out.

Both are one head on a language model. A process reward model is asked at the end of every step, an outcome reward model
at the last token; either can be asked at both places, which is how a report compares them.
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
    """What a judge says of one reply.

    Attributes:
        steps: probability at the end of each step.
        last: probability at the last token.
        cut: whether the reply went on beyond what the judge reads.
    """

    steps: FloatArray
    last: float
    cut: bool = False


@dataclass(frozen=True)
class JudgeFile:
    """What a judge was trained to say; lies beside its model.

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
    """A trained head that says of any reply how likely its steps, and its answer, are right."""

    def __init__(self, model: Any, encoder: Encoder, told: JudgeFile, device: str, batch_tokens: int):
        self.model, self.encoder, self.told = model, encoder, told
        self.device, self.batch_tokens = device, batch_tokens

    @torch.no_grad()
    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[Judged]:
        """Probabilities for each reply; steps beyond `max_length` tokens are not seen."""
        lines = [step_lines(r) for r in responses]
        pairs = zip(prompts, responses, lines, strict=True)
        rows = [step_row(self.encoder, p, r, own, self.told.max_length) for p, r, own in pairs]
        columns = [[*row.columns, row.last] for row in rows]
        found: dict[int, Judged] = {}

        def compute(batch: TokenBatch) -> FloatArray:
            return step_logits(self.model, batch).double().sigmoid().cpu().numpy()

        for part, p_BT in over_rows([row.row for row in rows], compute, self.batch_tokens, self.device):
            for i, p_T in zip(part, p_BT, strict=True):
                values = p_T[columns[i]]
                found[i] = Judged(values[:-1], float(values[-1]), len(rows[i].ends) < len(lines[i]))
        return [found[i] for i in range(len(rows))]


def load_judge(source: str, model_settings: Any, device: str, batch_tokens: int = 16384) -> StepJudge:
    """The process or outcome reward model in a folder; `model_settings` are those of `model=…`."""
    told = JudgeFile.read(source)
    model = load_reward_model(source, model_settings, device=device)
    return StepJudge(model, load_encoder(source, model_settings), told, device, batch_tokens)


class ProcessReward:
    """One number from the probabilities of a reply's steps."""

    def __init__(self, judge: StepJudge, settings: Process):
        self.judge, self.settings = judge, settings

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Parts: every aggregation, and `steps`, how many there were. A reply that is longer than what the judge reads
        is unscored: its last steps would go unjudged."""
        judged = self.judge(prompts, responses)
        parts = {name: self._column(judged, name) for name in AGGREGATIONS}
        parts["steps"] = np.array([len(each.steps) for each in judged], dtype=np.float64)
        return RewardBatch(parts[self.settings.aggregate], parts)

    def _column(self, judged: Sequence[Judged], name: str) -> FloatArray:
        value = AGGREGATIONS[name]
        empty = self.settings.no_step
        known = [value(each.steps) if len(each.steps) else empty for each in judged]
        return np.where([each.cut for each in judged], np.nan, known)


class OutcomeReward:
    """The probability that the answer is right."""

    def __init__(self, judge: StepJudge):
        self.judge = judge

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        judged = self.judge(prompts, responses)
        return RewardBatch(np.array([np.nan if each.cut else each.last for each in judged], dtype=np.float64))


def build(settings: Process | Outcome, run: Run) -> ProcessReward | OutcomeReward:
    role = str(settings.needs_role)
    judge = load_judge(run.needs[role], run.config.model, run.device, settings.batch_tokens)
    if judge.told.kind != role:
        raise ArtifactError(
            f"needs.{role}={run.needs[role]} was trained as {judge.told.kind}; use reward={judge.told.kind}"
        )
    return ProcessReward(judge, settings) if isinstance(settings, Process) else OutcomeReward(judge)
