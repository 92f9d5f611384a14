"""Settings of stages that make training data of attempts. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Requirements
from rlhf_lab.core.ranges import Ge
from rlhf_lab.packs.judging.synthesis.settings import SynthesisSettings
from rlhf_lab.training.settings import Held

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@register("algorithm", "trajectories")
@dataclass(frozen=True)
class Trajectories(SynthesisSettings):
    """Whole episodes in the environment of the data, as conversations to imitate: what the assistant says is learned,
    what the tools say is not.

    A task becomes a row by its shortest successful attempt. Training tasks alone are attempted.

    Args:
        prompts: how many tasks are attempted, in random order; none twice.
        teacher: who attempts them: `world`, which knows how, once; or `policy`, `needs.policy` (rejection sampling,
            arXiv:2308.01825), `attempts` times.
        attempts: of the policy at each task.
        only_successes: leave out tasks without a successful attempt; if not, the shortest attempt is taken.
    """

    makes_rows: ClassVar[str] = "demonstrations"
    asks_judge: ClassVar[bool] = False
    requires: ClassVar[Requirements] = ()
    optional_needs: ClassVar[tuple[str, ...]] = ("policy",)
    # a policy of that size succeeds at nothing, and stages after this one need rows
    smoke: ClassVar[dict[str, float]] = {**SynthesisSettings.smoke, "only_successes": False}
    teacher: Literal["world", "policy"] = "world"
    attempts: Annotated[int, Ge(1)] = 4
    only_successes: bool = True

    def held(self, *, adapter: bool) -> list[Held]:
        return [Held("policy (attempts)")] if self.teacher == "policy" else []

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, self.attempts)] if self.teacher == "policy" else []

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        has_policy = bool(config.needs.get("policy"))
        if config.data.max_turns == 1:
            problems.append("algorithm=trajectories attempts tasks in an environment; use data=tools or another one")
        if self.teacher == "policy" and not has_policy:
            problems.append("algorithm.teacher=policy attempts tasks with a policy; name it: +needs.policy=sft_tools")
        if self.teacher != "policy" and has_policy:
            problems.append("needs.policy is read with algorithm.teacher=policy only; write that, or needs.policy=null")
        return problems


@register("algorithm", "attempt_pairs")
@dataclass(frozen=True)
class AttemptPairs(SynthesisSettings):
    """Preference pairs of attempts at tasks in the environment of the data: one that ends right over one that ends
    wrong. `needs.policy` attempts them.

    Of training tasks pairs are made, for `needs.corpus`. The attempts at held-out tasks are kept whole, for
    `needs.attempts` of a reward model: what it would choose there is its agent accuracy.

    Args:
        prompts: how many training tasks are attempted, in random order; none twice.
        attempts: at each task.
        pairs_per_task: most pairs of one task. Every pair has another wrong attempt; the right ones take turns.
        demonstrate: where all attempts at a training task failed, the environment's own attempt is the chosen one. A
            policy that seldom succeeds has no pairs otherwise.
        heldout_tasks: how many held-out tasks are attempted, the first ones.
    """

    makes_rows: ClassVar[str] = "pairs"
    asks_judge: ClassVar[bool] = False
    requires: ClassVar[Requirements] = ()
    answer: ClassVar[str] = "attempts_paired"
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    # a policy of that size succeeds at nothing, and stages after this one need pairs
    smoke: ClassVar[dict[str, float]] = {
        **SynthesisSettings.smoke,
        "attempts": 4,
        "heldout_tasks": 40,
        "demonstrate": True,
    }
    smoke_real: ClassVar[dict[str, float]] = {**SynthesisSettings.smoke_real, "attempts": 2, "heldout_tasks": 8}
    prompts: int = 2400
    attempts: Annotated[int, Ge(2, hint="one attempt has nothing to be compared with")] = 8
    pairs_per_task: Annotated[int, Ge(1)] = 3
    demonstrate: bool = False
    heldout_tasks: Annotated[int, Ge(0, hint="0 is none")] = 300

    def held(self, *, adapter: bool) -> list[Held]:
        return [Held("policy (attempts)")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, self.attempts)]

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        if config.data.max_turns == 1:
            problems.append("algorithm=attempt_pairs attempts tasks in an environment; use data=tools or another one")
        return problems
