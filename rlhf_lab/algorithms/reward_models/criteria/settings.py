"""Settings of the stage that constructs a reward of named criteria."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, Ge, Lt
from rlhf_lab.training.settings import StageSettings
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Outputs, Resources

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "criteria_reward")
@dataclass(frozen=True)
class CriteriaRewardSettings(StageSettings):
    """A reward of named criteria for `reward=design`: the parts of a reward design that need no language model.

    The criteria are those of the data's domain (`rewards/criteria/sets.py`), standardised on training responses. A
    criterion is validated on labelled pairs: by Spearman's ρ between its difference (first minus second response) and
    the winner of the pair (1 if the first response was preferred, else 0).

    Args:
        design: `hand` uses weights set by a person. `calibrated` keeps those whose criterion is validated with the sign
            of its weight, and multiplies by the slope that maps a difference of grades to the log-odds of the labels.
            `fitted` fits Bradley-Terry weights of the criteria that are validated with either sign.
        pairs_from: responses of the training pairs: those of the `corpus`, or samples of `policy` (`needs.policy`),
            labelled by the annotator of a simulated world.
        labels: `annotator` keeps the labels. `gold` replaces them by the order of the true reward, which a reward
            cannot have in practice. Together with `pairs_from` it shows at which step a design loses gold reward.
        max_pairs: maximum number n of training pairs, from the start of the corpus. 0 is all.
        validation_pairs: number of these, from the start, on which `calibrated` and `fitted` validate.
        min_agreement: minimum ρ of a criterion that is kept.
        precision: 1/variance of the zero-mean prior on fitted weights.
        heldout_pairs: maximum number of held-out pairs, from the start.
    """

    requires: ClassVar[Requirements] = (Capability.PAIRS, Capability.SINGLE_TURN)
    inputs = Inputs(sections=("model", "rollout"), optional=("policy",))
    outputs = Outputs(model=False)
    resources = Resources(distributed=False)
    evidence = Evidence(compares_policies=False, chance_metric="accuracy", answer="pair_ranking")
    by_size = BySize(smoke={"max_pairs": 200, "heldout_pairs": 60}, smoke_real={"max_pairs": 16, "heldout_pairs": 8})
    design: Literal["hand", "calibrated", "fitted"] = "fitted"
    pairs_from: Literal["corpus", "policy"] = "corpus"
    labels: Literal["annotator", "gold"] = "annotator"
    max_pairs: Annotated[int, Ge(0, hint="0 is all")] = 0
    validation_pairs: Annotated[int, Ge(2)] = 200
    min_agreement: Annotated[float, Ge(0), Lt(1)] = 0.10
    precision: Annotated[float, Ge(0)] = 0.1
    heldout_pairs: Annotated[int, Ge(2)] = 1000

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("policy", role="policy")] if self.pairs_from == "policy" else []

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(self.max_pairs, 2)] if self.pairs_from == "policy" else []

    def contradictions(self, config: Config) -> list[str]:
        problems = []
        has_policy = bool(config.needs.get("policy"))
        if self.pairs_from == "policy" and not has_policy:
            problems.append("algorithm.pairs_from=policy samples from needs.policy; set it, e.g. +needs.policy=sft")
        if self.pairs_from == "corpus" and has_policy:
            problems.append("needs.policy is used only by algorithm.pairs_from=policy; remove it")
        return problems

    @property
    def requirements(self) -> Requirements:
        text = (Capability.TEXT,) if self.pairs_from == "policy" else ()
        # New responses are labelled by the annotator of a world, which also knows the true reward.
        needs_world = self.pairs_from == "policy" or self.labels == "gold"
        return (*super().requirements, *text, *((Capability.TRUE_REWARD,) if needs_world else ()))

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.pairs_from == "corpus" or self.max_pairs > 0,
                "algorithm.pairs_from=policy needs the number of pairs to sample; set algorithm.max_pairs, e.g. 1600",
            ),
        )
