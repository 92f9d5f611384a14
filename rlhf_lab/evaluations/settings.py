"""Settings of stages that train nothing: they sample from trained policies and measure them, or audit rewards."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.ranges import Finite, Ge, NotEmpty
from rlhf_lab.training.settings import Held, StageSettings

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@dataclass(frozen=True)
class EvaluationSettings(StageSettings):
    """A stage that only evaluates. It has no learning rate and no model of its own, so nothing can start from it."""

    makes_model: ClassVar[bool] = False
    compares_policies: ClassVar[bool] = False
    measures_gold: ClassVar[bool] = True
    one_path: ClassVar[bool] = False
    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "evaluation", "reward")


def content_digest(path: str, setting: str) -> str:
    """What stands for a file in a stage's key. Raises ConfigError, with the setting, where there is none."""
    if not Path(path).is_file():
        raise ConfigError(f"algorithm.{setting}={path}: there is no such file")
    return file_digest(Path(path))


@register("algorithm", "best_of_n")
@dataclass(frozen=True)
class BestOfN(EvaluationSettings):
    """Best-of-n sampling from `needs.policy`: for n = 2, 4, 8, …, N the reply of n that the reward likes best.

    Args:
        samples: replies per held-out prompt, N; every n is estimated from the same N, over all subsets.
    """

    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward",)  # recipes name it, and the reward may be another one
    reads_reward: ClassVar[bool] = True
    answer: ClassVar[str] = "against_reference"
    gain_curve: ClassVar[Literal["bon", "rl"]] = "bon"
    one_path: ClassVar[bool] = True
    smoke: ClassVar[dict[str, float]] = {"samples": 8}
    smoke_real: ClassVar[dict[str, float]] = {"samples": 4}
    samples: Annotated[int, Ge(2, hint="one sample leaves nothing to choose from")] = 64

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (evaluation.prompts, self.samples)]


@register("algorithm", "test_time")
@dataclass(frozen=True)
class AtTestTime(EvaluationSettings):
    """Accuracy of `needs.policy` against the tokens it generates: one greedy reply, or a choice among k samples.

    Args:
        strategy: `greedy`, one reply without randomness, whatever k is; `majority`, the most frequent answer
            (arXiv:2203.11171); `best_of_n`, the sample that the reward likes best, such as reward=orm
            (arXiv:2110.14168); `any`, right where one sample is: what a perfect verifier would choose, pass@k.
        sizes: values of k, rising.
        samples: per held-out prompt, N; every k is estimated from the same N, over all subsets.
    """

    reads_reward: ClassVar[bool] = True
    measures_gold: ClassVar[bool] = False  # what it is about is whether answers are right
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward",)
    requires: ClassVar[Requirements] = (Capability.ANSWERS, Capability.SINGLE_TURN)
    answer: ClassVar[str] = "chosen_among_samples"
    strategy: Literal["greedy", "majority", "best_of_n", "any"] = "majority"
    sizes: Annotated[tuple[Annotated[int, Ge(1)], ...], NotEmpty()] = (1, 2, 4, 8, 16)
    samples: int = 32

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (evaluation.prompts, self.samples)]

    def rules(self) -> tuple[Rule, ...]:
        sizes = self.sizes
        return (
            *super().rules(),
            (
                all(a < b for a, b in pairwise(sizes)),
                f"sizes={list(sizes)}; write rising values of k",
            ),
            (
                max(sizes, default=0) <= self.samples,
                f"samples={self.samples} are fewer than the largest of sizes={list(sizes)}; raise samples",
            ),
        )


@register("algorithm", "compare")
@dataclass(frozen=True)
class Compare(EvaluationSettings):
    """Policies side by side on the same held-out prompts: `needs.reference` and every other role but `reward`,
    `gold` and `judge`."""

    any_needs: ClassVar[bool] = True
    compares_policies: ClassVar[bool] = True
    required_needs: ClassVar[tuple[str, ...]] = ("reference",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward",)
    answer: ClassVar[str] = "best_policy"

    def compared_roles(self, config: Config) -> list[str]:
        """The roles of the policies that are compared with the reference, in the order written."""
        others = {"reference", "reward", "gold", "judge", *config.reward.roles}
        return [role for role, source in config.needs.items() if source and role not in others]

    def one_vocabulary(self, config: Config) -> dict[str, tuple[str, str]]:
        remedy = (
            "there is no KL between them; compare policies that descend from the same model, write one data.seed for "
            "all seeds"
        )
        return dict.fromkeys(self.compared_roles(config), ("reference", remedy))

    def held(self, *, adapter: bool) -> list[Held]:
        """One policy at a time beside the reference."""
        return [Held("reference"), Held("compared policy")]


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

    measures_gold: ClassVar[bool] = False  # what it is about is whether steps are right
    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "evaluation")
    required_needs: ClassVar[tuple[str, ...]] = ("policy", "judge")
    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.ANSWERS, Capability.SINGLE_TURN)
    answer: ClassVar[str] = "step_judge"
    smoke: ClassVar[dict[str, float]] = {"samples": 4, "choose_from": 4}
    samples: Annotated[int, Ge(1)] = 8
    choose_from: Annotated[int, Ge(1)] = 8
    aggregate: Literal["min", "mean", "prod", "last"] = "min"
    vote_draws: Annotated[int, Ge(1)] = 64

    def held(self, *, adapter: bool) -> list[Held]:
        return [Held("policy"), Held("judge", outputs=1, role="judge")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (evaluation.prompts, self.samples)]

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.choose_from <= self.samples, f"choose_from={self.choose_from} is above samples={self.samples}"),
        )


@register("algorithm", "design_report")
@dataclass(frozen=True)
class DesignReport(EvaluationSettings):
    """What a reward is worth on held-out pairs (`evaluation.pairs`) and as the choice among replies of `needs.policy`,
    in units that domains have in common.

    Args:
        samples: replies per held-out prompt.
        choose_from: n of best-of-n, at most `samples`; the mean is over all subsets of n.
    """

    reads_reward: ClassVar[bool] = True
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("design",)
    chance_metric: ClassVar[str] = "accuracy"
    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    answer: ClassVar[str] = "report_card"
    smoke: ClassVar[dict[str, float]] = {"samples": 8, "choose_from": 4}
    smoke_real: ClassVar[dict[str, float]] = {"samples": 4, "choose_from": 2}
    samples: int = 16
    choose_from: Annotated[int, Ge(2)] = 16

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(evaluation.prompts, self.samples)]

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.choose_from <= self.samples, f"choose_from={self.choose_from} is above samples={self.samples}"),
        )


Benchmark = Literal["reward_bench", "reward_bench_2", "reward_math", "process_bench"]


@register("algorithm", "rm_report")
@dataclass(frozen=True)
class RewardReport(EvaluationSettings):
    """The report card of a reward: on held-out pairs (`evaluation.pairs`) and on replies of `needs.policy`.

    Args:
        bins: of the reliability diagram, with equally many pairs each; at least 8 pairs stay in a bin.
    """

    reads_reward: ClassVar[bool] = True
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward",)
    chance_metric: ClassVar[str] = "accuracy"
    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    answer: ClassVar[str] = "report_card"
    bins: Annotated[int, Ge(1)] = 10


@register("algorithm", "rm_bench")
@dataclass(frozen=True)
class RewardBenchmark(EvaluationSettings):
    """A public benchmark of reward models, scored by its own rule (`statistics/reward_bench.py`).

    Args:
        benchmark: `reward_bench` (arXiv:2403.13787), `reward_bench_2` (arXiv:2506.01937), `reward_math`
            (arXiv:2410.01729) or `process_bench` (arXiv:2412.06559).
        path: the benchmark's rows in its own columns: a local file, folder or glob, or a hub data set as for
            `data.path`. Empty, for `reward_bench` only: the held-out pairs of `data`, in the order of the true reward
            where it is known; that exercises the rule and is not the benchmark.
        max_rows: rows read at most, of RewardMATH problems; 0 reads all.
        threshold: `process_bench` calls the first step wrong at which the reward of the solution so far is below this.
            ½ suits a reward that is a probability.
    """

    reads_reward: ClassVar[bool] = True
    measures_gold: ClassVar[bool] = False
    optional_needs: ClassVar[tuple[str, ...]] = ("reward",)
    answer: ClassVar[str] = "benchmark"
    smoke: ClassVar[dict[str, float]] = {"max_rows": 100}
    smoke_real: ClassVar[dict[str, float]] = {"max_rows": 16}
    benchmark: Benchmark = "reward_bench"
    path: str = ""
    max_rows: Annotated[int, Ge(0, hint="0 is all")] = 0
    threshold: float = 0.5

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                bool(self.path) or self.benchmark == "reward_bench",
                f"path is not set; benchmark={self.benchmark} needs its rows: a file or a hub data set",
            ),
        )


@register("algorithm", "rescore")
@dataclass(frozen=True)
class Rescore(EvaluationSettings):
    """Replies that another stage saved, in `needs.rollouts`, under other weightings of the reward: no model is called.

    The terms of `reward` must be among those that the replies were scored with.

    Args:
        weightings: each a mapping of term → weight, as in `reward.weights`; empty takes the reward as it is configured.
        choose_from: replies per prompt that a weighting chooses from, n; 0 is half of the saved ones.
        policy: whose replies; empty takes the first policy that the stage evaluated.
    """

    measures_gold: ClassVar[bool] = False  # gold is a column of the saved replies
    uses: ClassVar[tuple[str, ...]] = ("reward",)
    required_needs: ClassVar[tuple[str, ...]] = ("rollouts",)
    data_roles: ClassVar[tuple[str, ...]] = ("rollouts",)
    shares_work: ClassVar[bool] = False
    calls_reward: ClassVar[bool] = False
    answer: ClassVar[str] = "best_policy"
    weightings: tuple[dict[str, Annotated[float, Finite()]], ...] = ()
    choose_from: Annotated[int, Ge(0, hint="0 is half of the saved ones")] = 0
    policy: str = ""
