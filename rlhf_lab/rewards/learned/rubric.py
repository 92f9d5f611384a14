"""The learned rubric model as a reward: the standardised score, with its attributes as parts where it has several."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.learned.bt import Scorer, load_members
from rlhf_lab.rewards.learned.settings import RubricModel
from rlhf_lab.training.run import Run


class RubricReward:
    """Scores replies with one rubric model."""

    collective = True

    def __init__(self, scorer: Scorer):
        self.scorer = scorer

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Parts, for a model with several outputs: each attribute as a share of its scale, about 0…1."""
        outputs_NA = self.scorer.outputs(prompts, responses)
        parts = {name: outputs_NA[:, i] for i, name in enumerate(self.scorer.scale.attributes)}
        return RewardBatch(self.scorer.standardised(outputs_NA), parts)


def build(settings: RubricModel, run: Run) -> RubricReward:
    source = run.needs["rubric"]
    scorers = load_members(source, run.config.model, run.device, settings.batch_tokens, run.note, run.base)
    if len(scorers) > 1:
        raise ConfigError(f"needs.rubric={source} has {len(scorers)} members, so it is no rubric model; use reward=bt")
    return RubricReward(scorers[0])
