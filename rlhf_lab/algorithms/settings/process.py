"""Settings of process and outcome reward models, and of the stage that compares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlhf_lab.algorithms.settings.evaluation import EvaluationSettings
from rlhf_lab.registry import register
from rlhf_lab.train.settings import Rule, TrainingSettings


@dataclass(frozen=True)
class StepSettings(TrainingSettings):
    """A binary head on worked solutions, trained with binary cross-entropy from `needs.policy`.

    The solutions are drawn once, at the start, from the run's seed.

    Args:
        problems: training problems that solutions are taken from.
        trajectories: solutions per problem that `needs.policy` samples, at temperature 1 (with `labels=perturbed`:
            wrong versions made of each right demonstration).
        demonstrations: the data's own solution of each problem is one more.
    """

    uses: ClassVar[tuple[str, ...]] = ("model", "rollout")
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    needs_answers: ClassVar[bool] = True
    smoke: ClassVar[dict[str, float]] = {**TrainingSettings.smoke, "problems": 200, "trajectories": 2}
    smoke_real: ClassVar[dict[str, float]] = {**TrainingSettings.smoke_real, "problems": 8, "trajectories": 1}
    problems: int = 3000
    trajectories: int = 3
    demonstrations: bool = True

    def rules(self) -> tuple[Rule, ...]:
        count = self.trajectories
        return (
            *super().rules(),
            (self.problems >= 1, f"problems={self.problems} must be at least 1"),
            (count >= 0, f"trajectories={count} must be 0 or above"),
            (count > 0 or self.demonstrations, "trajectories=0 and demonstrations=false leave nothing to train on"),
        )


@register("algorithm", "orm", implementation="rlhf_lab.algorithms.step_reward")
@dataclass(frozen=True)
class OutcomeModel(StepSettings):
    """Outcome reward model (arXiv:2110.14168): the head is on the last token; its label says if the answer is right."""


@register("algorithm", "prm", implementation="rlhf_lab.algorithms.step_reward")
@dataclass(frozen=True)
class ProcessModel(StepSettings):
    """Process reward model (arXiv:2305.20050): the head is on the last token of every step (line) of a solution.

    Args:
        labels: who says whether a step is right. `annotated`: the world, which reads every step. `perturbed`: nobody
            has to: one step of a right solution is changed and all that comes from it with it, so what changed is
            wrong. `monte_carlo`: the policy completes the solution from every step (arXiv:2312.08935).
        up_to_first_error: steps after the first wrong one have no label (arXiv:2305.20050, section 2.6), so the model
            learns whether a step is right after right ones. `monte_carlo` labels every step in any case.
        rollouts: completions per step of `monte_carlo`.
        estimate: label of `monte_carlo`: `soft` is the share of completions that reach the right answer, `hard` is 1
            when any does (arXiv:2312.08935, eq. 3 and 4).
    """

    smoke: ClassVar[dict[str, float]] = {**StepSettings.smoke, "rollouts": 2}
    labels: Literal["annotated", "perturbed", "monte_carlo"] = "annotated"
    up_to_first_error: bool = True
    rollouts: int = 4
    estimate: Literal["soft", "hard"] = "soft"

    def rules(self) -> tuple[Rule, ...]:
        perturbed = self.labels == "perturbed"
        return (
            *super().rules(),
            (self.rollouts >= 1, f"rollouts={self.rollouts} must be at least 1"),
            (not perturbed or self.demonstrations, "labels=perturbed starts from demonstrations; leave them in"),
            (not perturbed or self.trajectories > 0, "labels=perturbed with trajectories=0 has no wrong solution"),
        )


@register("algorithm", "step_report")
@dataclass(frozen=True)
class StepReport(EvaluationSettings):
    """What a process or outcome reward model (`needs.judge`) is worth on held-out solutions of `needs.policy`, and on
    held-out demonstrations with a planted mistake.

    Every threshold is chosen on one half of the prompts and measured on the other, and the other way round.

    Args:
        samples: solutions per held-out problem.
        choose_from: n of best-of-n, at most `samples`; its accuracy is over all subsets of n of the samples.
        aggregate: how a process reward model's steps become one number: `min`, `mean`, `prod`, `last`. An outcome
            reward model always gives its probability at the last token.
        vote_draws: subsets of n drawn per problem for the votes.
    """

    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "evaluation")
    required_needs: ClassVar[tuple[str, ...]] = ("policy", "judge")
    needs_answers: ClassVar[bool] = True
    smoke: ClassVar[dict[str, float]] = {"samples": 4, "choose_from": 4}
    samples: int = 8
    choose_from: int = 8
    aggregate: Literal["min", "mean", "prod", "last"] = "min"
    vote_draws: int = 64

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.samples >= 1, f"samples={self.samples} must be at least 1"),
            (
                1 <= self.choose_from <= self.samples,
                f"choose_from={self.choose_from} is outside 1…samples={self.samples}",
            ),
            (self.vote_draws >= 1, f"vote_draws={self.vote_draws} must be at least 1"),
        )
