"""Settings of stages that train nothing: they sample from policies that are there and compare them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rlhf_lab.registry import register
from rlhf_lab.train.settings import Rule, StageSettings


@dataclass(frozen=True)
class EvaluationSettings(StageSettings):
    """A stage that only evaluates. It has no learning rate and no model of its own, so nothing can start from it."""

    makes_model: ClassVar[bool] = False
    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "evaluation", "reward")


@register("algorithm", "best_of_n")
@dataclass(frozen=True)
class BestOfN(EvaluationSettings):
    """Best-of-n sampling from `needs.policy`: for n = 2, 4, 8, …, N the reply of n that the reward likes best.

    Args:
        samples: replies per held-out prompt, N; every n is estimated from the same N, over all subsets.
    """

    required_needs: ClassVar[tuple[str, ...]] = ("policy", "reward")
    smoke: ClassVar[dict[str, float]] = {"samples": 8}
    smoke_real: ClassVar[dict[str, float]] = {"samples": 4}
    samples: int = 64

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.samples >= 2, f"samples={self.samples} leaves nothing to choose from; use 2 or more"),
        )


@register("algorithm", "compare")
@dataclass(frozen=True)
class Compare(EvaluationSettings):
    """Policies side by side on the same held-out prompts: `needs.reference` and every other role but `reward`."""

    any_needs: ClassVar[bool] = True
    required_needs: ClassVar[tuple[str, ...]] = ("reference",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward",)
