"""Settings of self-training on accepted samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Finite, Ge, Gt, NotEmpty
from rlhf_lab.training.settings import SMALL, TrainingSettings, only_after_rounds, policy_and_reference
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "self_training")
@dataclass(frozen=True)
class SelfTraining(TrainingSettings):
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
        smoke={
            "rounds": 2,
            "prompts_per_round": 96,
            "probe_prompts": 32,
            "steps_per_round": 10,
        },
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

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return policy_and_reference(adapter=adapter)

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
