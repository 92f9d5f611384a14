"""Settings of the stage that makes a reward of named criteria."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.ranges import Ge, Lt
from rlhf_lab.training.settings import Held, StageSettings


@register("algorithm", "criteria_reward")
@dataclass(frozen=True)
class CriteriaRewardSettings(StageSettings):
    """A reward of named criteria, for `reward=design`: the steps of a reward design that need no language model.

    The criteria are those of the data's domain (`rewards/criteria/sets.py`), standardised on training replies. A
    criterion is validated on labelled pairs: Spearman's ρ of its difference, first reply less second, with which of
    them won.

    Args:
        design: `hand`, the weights that a person wrote; `calibrated`, these on the criteria that are validated in the
            sign of their weight, times the slope that maps a difference of grades to the log-odds of the labels;
            `fitted`, Bradley-Terry weights of the criteria that are validated in either sign.
        max_pairs: most training pairs, the first ones: n. 0 is all.
        validation_pairs: of these, the first ones, which `calibrated` and `fitted` validate on.
        min_agreement: least ρ of a criterion that is kept.
        precision: 1/variance of the prior around 0 on fitted weights.
        heldout_pairs: most held-out pairs, the first ones.
    """

    requires: ClassVar[Requirements] = (Capability.PAIRS, Capability.SINGLE_TURN)
    makes_model: ClassVar[bool] = False
    compares_policies: ClassVar[bool] = False
    shares_work: ClassVar[bool] = False
    chance_metric: ClassVar[str] = "accuracy"
    answer: ClassVar[str] = "pair_ranking"
    smoke: ClassVar[dict[str, float]] = {"max_pairs": 200, "heldout_pairs": 60}
    smoke_real: ClassVar[dict[str, float]] = {"max_pairs": 16, "heldout_pairs": 8}
    design: Literal["hand", "calibrated", "fitted"] = "fitted"
    max_pairs: Annotated[int, Ge(0, hint="0 is all")] = 0
    validation_pairs: Annotated[int, Ge(2)] = 200
    min_agreement: Annotated[float, Ge(0), Lt(1)] = 0.10
    precision: Annotated[float, Ge(0)] = 0.1
    heldout_pairs: Annotated[int, Ge(2)] = 1000

    def held(self, *, adapter: bool) -> list[Held]:
        return []
