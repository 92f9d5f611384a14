"""Settings of re-scoring saved replies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rlhf_lab.algorithms.settings.evaluation import EvaluationSettings
from rlhf_lab.registry import register
from rlhf_lab.train.settings import Rule


@register("algorithm", "rescore")
@dataclass(frozen=True)
class Rescore(EvaluationSettings):
    """Replies that another stage saved, in `needs.rollouts`, under other weightings of the reward: no model is called.

    The terms of `reward` must be among those that the replies were scored with.

    Args:
        weightings: each a mapping of term → weight, as in `reward.weights`; empty takes the reward as it is configured.
        choose_from: replies per prompt that a weighting chooses from, n; 0 is half of those that are saved.
        policy: whose replies; empty takes the first policy that the stage evaluated.
    """

    uses: ClassVar[tuple[str, ...]] = ("reward",)
    required_needs: ClassVar[tuple[str, ...]] = ("rollouts",)
    data_roles: ClassVar[tuple[str, ...]] = ("rollouts",)
    shares_work: ClassVar[bool] = False
    weightings: tuple[dict[str, float], ...] = ()
    choose_from: int = 0
    policy: str = ""

    def rules(self) -> tuple[Rule, ...]:
        finite = all(math.isfinite(weight) for weights in self.weightings for weight in weights.values())
        return (
            *super().rules(),
            (self.choose_from >= 0, f"choose_from={self.choose_from} must be 0 (half of them) or above"),
            (finite, f"weightings={list(self.weightings)}; write finite numbers"),
        )
