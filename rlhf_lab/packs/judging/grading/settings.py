"""Settings of the stage in which a judge grades pairs. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.ranges import BySize, Ge
from rlhf_lab.training.settings import StageSettings
from rlhf_lab.training.stage_spec import Evidence, ModelCopies, Outputs, Resources, RewardUse


@register("algorithm", "grade")
@dataclass(frozen=True)
class GradeStage(StageSettings):
    """Grades by a judge of both responses of each pair of `data`, for `rubric_rm` (`needs.grades`) and `data=graded`.

    Trains nothing: it writes grades.jsonl, one row per response.

    Args:
        rubric: YAML file with the criteria (docs/judging/judging.md); empty is five criteria, 1…5.
        reference: column of the data with a reference answer that the judge takes as right; empty is none.
        max_tokens: maximum number of tokens of an answer of the judge.
        max_pairs: maximum number of training pairs, selected at random as `rubric_rm` does for its own `max_pairs`. 0
            is all.
        heldout_pairs: maximum number of held-out pairs, from the start, to audit models trained on the grades.
    """

    requires: ClassVar[Requirements] = (Capability.PAIRS, Capability.SINGLE_TURN)
    outputs = Outputs(model=False)
    reward_use = RewardUse(asks_judge=True)
    resources = Resources(distributed=False)
    evidence = Evidence(compares_policies=False, chance_metric="label_agreement", answer="graded_pairs")
    by_size = BySize(smoke={"max_pairs": 200, "heldout_pairs": 50}, smoke_real={"max_pairs": 16, "heldout_pairs": 8})
    rubric: str = ""
    reference: str = ""
    max_tokens: Annotated[int, Ge(1)] = 512
    max_pairs: Annotated[int, Ge(0, hint="0 is all")] = 0
    heldout_pairs: Annotated[int, Ge(0, hint="0 is none")] = 1000

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return []
