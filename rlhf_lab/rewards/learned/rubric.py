"""Rubric model as a reward: the standardised score, with the attributes as parts if the model has several outputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import RewardBatch
from rlhf_lab.rewards.learned.bt import Scorer, load_members
from rlhf_lab.rewards.learned.settings import RubricModel
from rlhf_lab.training.run import Run


class RubricReward:
    """Reward from one rubric model.

    Args:
        attributes: attributes whose mean is the reward; empty takes the model's standardised score.
    """

    collective = True

    def __init__(self, scorer: Scorer, attributes: Sequence[str] = ()):
        self.scorer = scorer
        self.attributes = tuple(attributes)

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        """Score responses. For a model with several outputs, parts are attributes as fractions of their scale, 0…1."""
        outputs_NA = self.scorer.outputs(prompts, responses)
        parts = {name: outputs_NA[:, i] for i, name in enumerate(self.scorer.scale.attributes)}
        if not self.attributes:
            return RewardBatch(self.scorer.standardised(outputs_NA), parts)
        return RewardBatch(np.mean([parts[name] for name in self.attributes], axis=0), parts)


def build(settings: RubricModel, run: Run) -> RubricReward:
    """Return the reward of the settings with the model in `needs.rubric`. Raise ConfigError for an ensemble."""
    source = run.needs["rubric"]
    scorers = load_members(source, run.config.model, run.device, settings.batch_tokens, run.note, run.base)
    if len(scorers) > 1:
        raise ConfigError(f"needs.rubric={source} is an ensemble of {len(scorers)} members; use reward=bt")
    known = scorers[0].scale.attributes
    unknown = [name for name in settings.attributes if name not in known]
    if unknown:
        single = "a single score; train it with algorithm.target=attributes"
        has = f"it has {', '.join(known) or single}"
        raise ConfigError(
            f"attributes={list(settings.attributes)}: the model in needs.rubric has no {unknown[0]}; {has}"
        )
    return RubricReward(scorers[0], settings.attributes)
