"""Settings of supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Finite, Ge, Gt, NotEmpty
from rlhf_lab.core.types import Pair
from rlhf_lab.training.settings import SMALL, PolicySettings, TrainingSettings, only_after_rounds
from rlhf_lab.training.stage_spec import Evidence, Inputs, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "sft")
@dataclass(frozen=True)
class SFT(TrainingSettings):
    """Supervised fine-tuning on the chosen responses: causal LM loss on response tokens only.

    Args:
        assistant_turns: assistant turns that are learned: `last`, the response of a row, or `all` turns of its
            conversation. null is `all` if the data consists of conversations (`data=sft`), else `last`.
        skip_garbled: exclude responses that the data source marks as corrupted.
        only_correct: exclude responses that the data source marks as wrong.
        order: index of the random order of the rows. Runs from one policy in different orders are independent
            fine-tunings, whose weights can be averaged (`needs.soup`).
    """

    requires: ClassVar[Requirements] = (Capability.DEMONSTRATIONS,)
    inputs = Inputs(optional=("policy",))
    evidence = Evidence(loss_falls=True, answer="heldout_loss")
    by_size = replace(
        TrainingSettings.by_size, small_scale={**SMALL, "lr": 2e-2, "muon_lr": 1e-2, "epochs": 2.0, "batch_size": 16}
    )
    keyed_if_set: ClassVar[tuple[str, ...]] = ("only_correct", "order")
    lr: float = 2e-5
    epochs: float = 3.0
    assistant_turns: Literal["last", "all"] | None = None
    skip_garbled: bool = True
    only_correct: bool = False
    order: Annotated[int, Ge(0)] = 0

    @property
    def trl_trainer(self) -> str:
        return "sft"

    def uses_row(self, pair: Pair) -> bool:
        if self.only_correct and not pair.meta.get("correct_chosen", True):
            return False
        if self.skip_garbled and pair.meta.get("garble_chosen"):
            return False
        return super().uses_row(pair)

    def learn_from(self, pair: Pair) -> int | None:
        """Return the index of the message from which on assistant turns are trained on; None for the response alone."""
        # The data may mark where its conversation starts; `all` also applies to data without such a mark.
        if self.assistant_turns == "last":
            return None
        come_as_conversation: int | None = pair.meta.get("learn_from")
        return 0 if self.assistant_turns == "all" and come_as_conversation is None else come_as_conversation


@register("algorithm", "self_training")
@dataclass(frozen=True)
class SelfTraining(PolicySettings):
    """Rejection-sampling self-training (STaR, arXiv:2203.14465) with a monitored balance (B-STaR, arXiv:2412.17256).

    Each round samples solutions from the current policy, accepts those whose reward reaches a threshold, and trains on
    the distinct accepted ones with the SFT loss. Temperature and threshold of a round are the pair with the highest
    balance score (`statistics/repeated_samples.py`) on samples of some training prompts, whose right answers are known.

    Args:
        rounds: number of rounds of sampling, selection and training.
        prompts_per_round: training prompts sampled for in each round.
        samples_per_prompt: solutions sampled per prompt.
        steps_per_round: optimiser steps per round, whatever the number of accepted solutions; `epochs` is not used.
        temperatures, thresholds: candidates. A solution is accepted if its reward is at least the threshold.
        probe_prompts: prompts for which every temperature is tried before a round. With a single temperature and
            threshold there is nothing to choose.
        target: number of distinct right solutions per prompt that the balance score counts as enough.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.ANSWERS, Capability.SINGLE_TURN)
    # recipes name the role `reward`, but the reward may need no model
    inputs = Inputs(
        sections=("model", "rollout", "evaluation", "reward"), needs=("policy",), optional=("reward", "prm")
    )
    reward_use = RewardUse(scores=True)
    evidence = Evidence(answer="reward_and_truth")
    by_size = replace(
        TrainingSettings.by_size,
        small_scale={**SMALL, "lr": 2e-3, "muon_lr": 1e-3, "batch_size": 16},
        smoke={"rounds": 2, "prompts_per_round": 96, "probe_prompts": 32, "steps_per_round": 10},
        smoke_real={
            **TrainingSettings.by_size.smoke_real,
            "prompts_per_round": 4,
            "probe_prompts": 2,
            "steps_per_round": 2,
        },
    )
    final_lr_fraction: float = 1.0  # late rounds can still learn
    rounds: Annotated[int, Ge(1)] = 3
    prompts_per_round: Annotated[int, Ge(1)] = 1000
    samples_per_prompt: Annotated[int, Ge(1)] = 8
    steps_per_round: Annotated[int, Ge(1)] = 60
    temperatures: Annotated[tuple[Annotated[float, Gt(0)], ...], NotEmpty()] = (0.6, 0.8, 1.0, 1.2)
    thresholds: Annotated[tuple[Annotated[float, Finite()], ...], NotEmpty()] = (0.25, 0.5, 0.75)
    probe_prompts: Annotated[int, Ge(1)] = 128
    target: Annotated[int, Ge(1)] = 1

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (self.prompts_per_round, self.samples_per_prompt)]

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), only_after_rounds(self))

    def contradictions(self, config: Config) -> list[str]:
        if config.reward.monitor.action == "log" and not config.reward.audit.on:
            return []
        return [
            "algorithm=self_training has no reward.monitor and no reward.audit: it reports accuracy after every round; "
            "leave both out"
        ]
