"""Settings of the stage that constructs a reward of named criteria."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.ranges import Ge, Lt
from rlhf_lab.training.settings import ModelCopies, StageSettings


@register("algorithm", "criteria_reward")
@dataclass(frozen=True)
class CriteriaRewardSettings(StageSettings):
    """A reward of named criteria for `reward=design`: the parts of a reward design that need no language model.

    The criteria are those of the data's domain (`rewards/criteria/sets.py`), standardised on training responses. A
    criterion is validated on labelled pairs: by Spearman's ρ of its difference (first minus second response) with which
    of them won.

    Args:
        design: `hand` uses weights set by a person. `calibrated` keeps those whose criterion is validated with the sign
            of its weight, and multiplies by the slope that maps a difference of grades to the log-odds of the labels.
            `fitted` fits Bradley-Terry weights of the criteria that are validated with either sign.
        max_pairs: maximum number n of training pairs, from the start of the corpus. 0 is all.
        validation_pairs: number of these, from the start, on which `calibrated` and `fitted` validate.
        min_agreement: minimum ρ of a criterion that is kept.
        precision: 1/variance of the zero-mean prior on fitted weights.
        heldout_pairs: maximum number of held-out pairs, from the start.
    """

    requires: ClassVar[Requirements] = (Capability.PAIRS, Capability.SINGLE_TURN)
    makes_model: ClassVar[bool] = False
    compares_policies: ClassVar[bool] = False
    is_distributed: ClassVar[bool] = False
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

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return []
