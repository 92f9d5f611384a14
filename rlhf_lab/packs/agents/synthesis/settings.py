"""Settings of stages that turn attempts into training data. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Requirements
from rlhf_lab.core.ranges import Ge
from rlhf_lab.packs.judging.synthesis.settings import SynthesisSettings
from rlhf_lab.training.settings import ModelCopies

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "trajectories")
@dataclass(frozen=True)
class Trajectories(SynthesisSettings):
    """Stage that records successful episodes as conversations for supervised training. Only the assistant's messages
    are trained on, not the tools' output.

    A task becomes a row with its shortest successful attempt. Only training tasks are attempted.

    Args:
        prompts: number of tasks to attempt, in random order without repetition.
        teacher: source of the attempts. `world` is the environment's own solution, one per task; `policy` is the model
            of `needs.policy` with `attempts` attempts per task (rejection sampling, arXiv:2308.01825).
        attempts: number of attempts of the policy at each task.
        only_successes: true leaves out tasks without a successful attempt; false uses their shortest attempt.
    """

    makes_rows: ClassVar[str] = "demonstrations"
    asks_judge: ClassVar[bool] = False
    requires: ClassVar[Requirements] = ()
    optional_needs: ClassVar[tuple[str, ...]] = ("policy",)
    # A model of this size never succeeds, but later stages of the smoke test need rows.
    smoke: ClassVar[dict[str, float]] = {**SynthesisSettings.smoke, "only_successes": False}
    teacher: Literal["world", "policy"] = "world"
    attempts: Annotated[int, Ge(1)] = 4
    only_successes: bool = True

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("policy (attempts)")] if self.teacher == "policy" else []

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        # Demonstrations need no sampler.
        return [(batch_rows, self.attempts)] if self.teacher == "policy" else []

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        has_policy = bool(config.needs.get("policy"))
        if config.data.max_turns == 1:
            problems.append("algorithm=trajectories needs an environment; use data=tools or another one with turns")
        if self.teacher == "policy" and not has_policy:
            problems.append("algorithm.teacher=policy needs a policy; set one: +needs.policy=sft_tools")
        if self.teacher != "policy" and has_policy:
            problems.append("needs.policy is only used with algorithm.teacher=policy; set that, or needs.policy=null")
        return problems


@register("algorithm", "attempt_pairs")
@dataclass(frozen=True)
class AttemptPairs(SynthesisSettings):
    """Stage that makes preference pairs of attempts at tasks in the environment of the data: a successful attempt is
    preferred to a failed one. The model of `needs.policy` makes the attempts.

    Pairs come from training tasks and are used with `needs.corpus`. Complete attempts at held-out tasks are stored as
    well, and are used with `needs.attempts` of a reward model: its agent accuracy is the success of the attempts that
    it prefers.

    Args:
        prompts: number of training tasks to attempt, in random order without repetition.
        attempts: number of attempts at each task.
        pairs_per_task: maximum number of pairs of one task. Every pair has a different failed attempt; the successful
            ones alternate.
        demonstrate: true uses the environment's own solution as the preferred attempt if all attempts at a training
            task failed. Otherwise a policy that rarely succeeds yields no pairs.
        heldout_tasks: number of held-out tasks to attempt; the first ones are used.
    """

    makes_rows: ClassVar[str] = "pairs"
    asks_judge: ClassVar[bool] = False
    requires: ClassVar[Requirements] = ()
    answer: ClassVar[str] = "attempts_paired"
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    # A model of this size never succeeds, but later stages of the smoke test need pairs.
    smoke: ClassVar[dict[str, float]] = {
        **SynthesisSettings.smoke,
        "attempts": 4,
        "heldout_tasks": 40,
        "demonstrate": True,
    }
    smoke_real: ClassVar[dict[str, float]] = {**SynthesisSettings.smoke_real, "attempts": 2, "heldout_tasks": 8}
    prompts: int = 2400
    attempts: Annotated[int, Ge(2, hint="a pair needs two attempts")] = 8
    pairs_per_task: Annotated[int, Ge(1)] = 3
    demonstrate: bool = False
    heldout_tasks: Annotated[int, Ge(0, hint="0 is none")] = 300

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("policy (attempts)")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, self.attempts)]

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        if config.data.max_turns == 1:
            problems.append("algorithm=attempt_pairs needs an environment; use data=tools or another one with turns")
        return problems
