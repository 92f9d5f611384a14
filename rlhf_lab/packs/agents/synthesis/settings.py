"""Settings of stages that turn attempts into training data. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Requirements
from rlhf_lab.core.ranges import Ge
from rlhf_lab.packs.judging.synthesis.settings import SynthesisSettings
from rlhf_lab.training.stage_spec import ModelCopies

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@dataclass(frozen=True)
class AttemptSettings(SynthesisSettings):
    """Base class of the stages that turn attempts at tasks in the environment of the data into training data."""

    requires: ClassVar[Requirements] = ()
    reward_use = replace(SynthesisSettings.reward_use, asks_judge=False)

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        if config.data.max_turns == 1:
            kind = registry.kind_of("algorithm", self)
            problems.append(f"algorithm={kind} needs an environment; use data=tools or another one with turns")
        return problems


@dataclass(frozen=True)
class PolicyAttemptSettings(AttemptSettings):
    """Base class of the stages that compare several attempts of `needs.policy` at the same task.

    Args:
        prompts: number of training tasks to attempt, in random order without repetition.
        attempts: number of attempts at each task.
    """

    inputs = replace(AttemptSettings.inputs, needs=("policy",))
    prompts: int = 2400
    attempts: Annotated[int, Ge(2, hint="one attempt leaves nothing to choose from")] = 8

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("policy (attempts)")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, self.attempts)]


@dataclass(frozen=True)
class TrajectoryChoices(AttemptSettings):
    """Base class of the stages that record successful episodes as conversations for supervised training. Only the
    assistant's messages are trained on, not the tools' output.

    A task becomes a row with its shortest successful attempt. Only training tasks are attempted.

    Args:
        prompts: number of tasks to attempt, in random order without repetition.
        attempts: number of attempts at each task.
        only_successes: true leaves out tasks without a successful attempt; false uses their shortest complete attempt.
    """

    inputs = replace(AttemptSettings.inputs, optional=("policy",))
    outputs = replace(AttemptSettings.outputs, rows="demonstrations")
    # A model of this size never succeeds, but later stages of the smoke test need rows.
    by_size = replace(AttemptSettings.by_size, smoke={**SynthesisSettings.by_size.smoke, "only_successes": False})
    attempts: Annotated[int, Ge(1)] = 4
    only_successes: bool = True


@register("algorithm", "trajectories")
@dataclass(frozen=True)
class Trajectories(TrajectoryChoices):
    """Stage that records successful episodes of the world or of a policy as conversations for supervised training.

    Args:
        teacher: source of the attempts. `world` is the environment's own solution, one per task; `policy` is the model
            of `needs.policy` with `attempts` attempts per task (rejection sampling, arXiv:2308.01825).
    """

    teacher: Literal["world", "policy"] = "world"

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("policy (attempts)")] if self.teacher == "policy" else []

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        # Demonstrations need no sampler.
        return [(batch_rows, self.attempts)] if self.teacher == "policy" else []

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        has_policy = bool(config.needs.get("policy"))
        if self.teacher == "policy" and not has_policy:
            problems.append("algorithm.teacher=policy needs a policy; set one: +needs.policy=sft_tools")
        if self.teacher != "policy" and has_policy:
            problems.append("needs.policy is only used with algorithm.teacher=policy; set that, or needs.policy=null")
        return problems


@register("algorithm", "teacher_trajectories")
@dataclass(frozen=True)
class TeacherTrajectories(TrajectoryChoices):
    """Stage that records the successful attempts of an agent with a language model, the teacher, as conversations for
    supervised training of another model (arXiv:2310.05915).

    The agent is the only one in `agent`, such as agent=react, with any model of `agent.llm`. Its turns are written in
    the form of the world's own demonstrations, with a thought and one call or the answer, whatever form the teacher
    used. Attempts are scored as in agent_bench.
    """

    inputs = replace(TrajectoryChoices.inputs, sections=("model", "rollout", "agent"))
    attempts: Annotated[int, Ge(1)] = 1

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("policy (teacher)")]

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        if registry.kind_of("data", config.data) != "tools":
            problems.append("algorithm=teacher_trajectories: the tasks come from data=tools; use data=tools_catalogue")
        programs = config.agent.programs
        kinds = [registry.kind_of("agent", program) for program in programs.values()]
        if kinds != ["react"]:
            problems.append(
                f"algorithm=teacher_trajectories with agent=[{', '.join(programs)}]: a row is one conversation with "
                "tools, so the teacher is one agent=react"
            )
        return problems


@register("algorithm", "reward_trajectories")
@dataclass(frozen=True)
class RewardTrajectories(PolicyAttemptSettings):
    """Stage that makes conversations for supervised training by best-of-n: of several attempts of a policy at each
    training task, the one with the highest reward is recorded. Success is not considered, so a policy trained on the
    rows shows how useful the reward alone is for training an agent.
    """

    inputs = replace(PolicyAttemptSettings.inputs, sections=("model", "rollout", "reward"), optional=("reward",))
    outputs = replace(PolicyAttemptSettings.outputs, rows="demonstrations")
    reward_use = replace(PolicyAttemptSettings.reward_use, scores=True)
    by_size = replace(PolicyAttemptSettings.by_size, smoke={**SynthesisSettings.by_size.smoke, "attempts": 4})


@register("algorithm", "attempt_pairs")
@dataclass(frozen=True)
class AttemptPairs(PolicyAttemptSettings):
    """Stage that makes preference pairs of attempts at tasks in the environment of the data: a successful attempt is
    preferred to a failed one. The model of `needs.policy` makes the attempts.

    Pairs come from training tasks and are used with `needs.corpus`. Complete attempts at held-out tasks are stored as
    well, and are used with `needs.attempts` of a reward model: its agent accuracy is the success of the attempts that
    it prefers.

    Args:
        pairs_per_task: maximum number of pairs of one task. Every pair has a different failed attempt; the successful
            ones alternate.
        demonstrate: true uses the environment's own solution as the preferred attempt if all attempts at a training
            task failed. Otherwise a policy that rarely succeeds yields no pairs.
        heldout_tasks: number of held-out tasks to attempt; the first ones are used.
    """

    outputs = replace(PolicyAttemptSettings.outputs, rows="pairs")
    evidence = replace(PolicyAttemptSettings.evidence, answer="attempts_paired")
    # A model of this size never succeeds, but later stages of the smoke test need pairs.
    by_size = replace(
        PolicyAttemptSettings.by_size,
        smoke={**SynthesisSettings.by_size.smoke, "attempts": 4, "heldout_tasks": 40, "demonstrate": True},
        smoke_real={**SynthesisSettings.by_size.smoke_real, "attempts": 2, "heldout_tasks": 8},
    )
    attempts: Annotated[int, Ge(2, hint="a pair needs two attempts")] = 8
    pairs_per_task: Annotated[int, Ge(1)] = 3
    demonstrate: bool = False
    heldout_tasks: Annotated[int, Ge(0, hint="0 is none")] = 300
