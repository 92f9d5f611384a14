"""Settings of MT-Bench. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.ranges import Ge
from rlhf_lab.evaluations.settings import EvaluationSettings
from rlhf_lab.training.stage_spec import ClusterUnit, ModelCopies, Resources

if TYPE_CHECKING:
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "mt_bench")
@dataclass(frozen=True)
class MTBench(EvaluationSettings):
    """Grades from 1 to 10 by a judge (`judge=…`) of `needs.policy` on questions of two turns (arXiv:2306.05685).

    The policy answers the first turn, then the second with its first response in the conversation. Further policies in
    `needs` get the same questions. At most `evaluation.prompts` questions are used, with equally many of each category
    as far as possible, and `evaluation.samples_per_prompt` conversations per question. As in FastChat, only questions
    of the categories math, reasoning and coding are graded with a reference answer, from the column `reference`.

    Args:
        max_tokens: maximum number of tokens of an answer of the judge.
    """

    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    inputs = replace(
        EvaluationSettings.inputs, any_policies=True, sections=("model", "rollout", "evaluation"), needs=("policy",)
    )
    reward_use = replace(EvaluationSettings.reward_use, measures_gold=False, asks_judge=True)
    resources = Resources(distributed=False)
    evidence = replace(
        EvaluationSettings.evidence, clusters=ClusterUnit("question", "question", "prompt_id"), answer="mt_bench"
    )
    max_tokens: Annotated[int, Ge(1)] = 512

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        """Return the models in memory at the same time: one policy, as policies are evaluated one by one."""
        return [ModelCopies("policy")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        turns = 2
        return [(evaluation.prompts, evaluation.samples_per_prompt)] * turns
