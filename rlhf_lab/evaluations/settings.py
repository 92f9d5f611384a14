"""Settings of stages that train nothing: they sample from trained policies and measure them, or audit rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.ranges import BySize, Finite, Ge, NotEmpty
from rlhf_lab.training.settings import StageSettings
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Outputs, Resources, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


@dataclass(frozen=True)
class EvaluationSettings(StageSettings):
    """Settings of a stage that only evaluates. It trains no model, so no other stage can start from it."""

    inputs = Inputs(sections=("model", "rollout", "evaluation", "reward"))
    outputs = Outputs(model=False)
    reward_use = RewardUse(measures_gold=True)
    evidence = Evidence(compares_policies=False, one_path=False)


def content_digest(path: str, setting: str) -> str:
    """Return the digest of a file for a stage's key. Raise ConfigError that names the setting if there is no file."""
    if not Path(path).is_file():
        raise ConfigError(f"algorithm.{setting}={path}: there is no such file; write the path of an existing one")
    return file_digest(Path(path))


def further_roles(config: Config, own: Sequence[str]) -> list[str]:
    """Return the roles of `needs` that are neither the stage's own nor those of rewards, gold and judges, in order."""
    others = {*own, "gold", "judge", *config.reward.roles}
    return [role for role, source in config.needs.items() if source and role not in others]


@register("algorithm", "best_of_n")
@dataclass(frozen=True)
class BestOfN(EvaluationSettings):
    """Best-of-n sampling from `needs.policy`: for n = 2, 4, 8, …, N, the response of n with the highest reward.

    Args:
        samples: number of responses per test prompt, N. Every n is estimated from the same N, over all subsets.
    """

    # recipes name the role `reward`, but the reward may need no model
    inputs = replace(EvaluationSettings.inputs, needs=("policy",), optional=("reward",))
    reward_use = replace(EvaluationSettings.reward_use, scores=True)
    # the shape of gold against KL is that of best-of-n (arXiv:2210.10760)
    evidence = replace(EvaluationSettings.evidence, answer="against_reference", gain_curve="bon", one_path=True)
    by_size = BySize(smoke={"samples": 8}, smoke_real={"samples": 4})
    samples: Annotated[int, Ge(2, hint="one sample leaves nothing to choose from")] = 64

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (evaluation.prompts, self.samples)]


@register("algorithm", "test_time")
@dataclass(frozen=True)
class AtTestTime(EvaluationSettings):
    """Accuracy of `needs.policy` against generated tokens: one greedy response, or a selection among k samples.

    Args:
        strategy: method of selection. `greedy`: one response without randomness, for every k. `majority`: the most
            frequent answer (arXiv:2203.11171). `best_of_n`: the sample with the highest reward, such as reward=orm
            (arXiv:2110.14168). `any`: right if one sample is right, which is pass@k and the result of a perfect
            verifier. `beam`: beam search over steps with k beams (arXiv:2408.03314), guided by the reward of the
            solution so far, such as reward=prm.
        sizes: values of k, in ascending order.
        samples: number of samples per test prompt, N. Every k is estimated from the same N, over all subsets; `beam`
            searches once for every k instead.
        beam_width: for `beam`, number of next steps that are sampled for each beam that is kept, of which there are
            k / beam_width.
    """

    requires: ClassVar[Requirements] = (Capability.ANSWERS, Capability.SINGLE_TURN)
    inputs = replace(EvaluationSettings.inputs, needs=("policy",), optional=("reward",))
    # the stage measures whether answers are right
    reward_use = replace(EvaluationSettings.reward_use, scores=True, measures_gold=False)
    evidence = replace(EvaluationSettings.evidence, answer="chosen_among_samples")
    strategy: Literal["greedy", "majority", "best_of_n", "any", "beam"] = "majority"
    # powers of two: equal distances on the logarithmic axis of the figures
    sizes: Annotated[tuple[Annotated[int, Ge(1)], ...], NotEmpty()] = (1, 2, 4, 8, 16)
    samples: int = 32
    beam_width: Annotated[int, Ge(1)] = 4

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (evaluation.prompts, self.samples)]

    def rules(self) -> tuple[Rule, ...]:
        sizes = self.sizes
        return (
            *super().rules(),
            (
                all(a < b for a, b in pairwise(sizes)),
                f"sizes={list(sizes)} are not in ascending order; write ascending values of k",
            ),
            (
                max(sizes, default=0) <= self.samples,
                f"samples={self.samples} is below the largest of sizes={list(sizes)}; raise samples",
            ),
        )


@register("algorithm", "compare")
@dataclass(frozen=True)
class Compare(EvaluationSettings):
    """Comparison of policies on the same held-out prompts: `needs.reference` and every other role except `reward`,
    `gold` and `judge`."""

    inputs = replace(EvaluationSettings.inputs, any_policies=True, needs=("reference",), optional=("reward",))
    evidence = replace(EvaluationSettings.evidence, compares_policies=True, answer="best_policy")

    def compared_roles(self, config: Config) -> list[str]:
        """Return the roles of the policies that are compared with the reference, in the order written."""
        return further_roles(config, ("reference", "reward"))

    def one_vocabulary(self, config: Config) -> dict[str, tuple[str, str]]:
        remedy = (
            "there is no KL between them; compare policies that descend from the same model, or write one data.seed "
            "for all seeds"
        )
        return dict.fromkeys(self.compared_roles(config), ("reference", remedy))

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        """Return the models in memory: one policy at a time in addition to the reference."""
        return [ModelCopies("reference"), ModelCopies("compared policy")]


def choice_rule(choose_from: int, samples: int) -> Rule:
    """Return the rule that a stage chooses among at most as many responses as it samples."""
    problem = f"choose_from={choose_from} is above samples={samples}; lower it or raise samples"
    return choose_from <= samples, problem


@register("algorithm", "step_report")
@dataclass(frozen=True)
class StepReport(EvaluationSettings):
    """Evaluation of a process or outcome reward model (`needs.judge`) on held-out solutions of `needs.policy`, and on
    held-out demonstrations with a planted mistake.

    Every threshold is chosen on one half of the prompts and evaluated on the other, and vice versa.

    Args:
        samples: number of solutions per test problem.
        choose_from: n of best-of-n, up to `samples`. Its accuracy is over all subsets of n samples.
        aggregate: aggregation of a process reward model's steps into one score: `min`, `mean`, `prod`, `last`. An
            outcome reward model always uses its probability at the last token.
        vote_draws: number of random subsets of n per problem for the votes.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.ANSWERS, Capability.SINGLE_TURN)
    inputs = replace(EvaluationSettings.inputs, sections=("model", "rollout", "evaluation"), needs=("policy", "judge"))
    # the stage measures whether steps are right
    reward_use = replace(EvaluationSettings.reward_use, measures_gold=False)
    evidence = replace(EvaluationSettings.evidence, answer="step_judge")
    by_size = BySize(smoke={"samples": 4, "choose_from": 4})
    samples: Annotated[int, Ge(1)] = 8
    choose_from: Annotated[int, Ge(1)] = 8
    aggregate: Literal["min", "mean", "prod", "last"] = "min"
    vote_draws: Annotated[int, Ge(1)] = 64

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        # a judge has one output, the logit of its label
        return [ModelCopies("policy"), ModelCopies("judge", outputs=1, role="judge")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (evaluation.prompts, self.samples)]

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), choice_rule(self.choose_from, self.samples))


@register("algorithm", "design_report")
@dataclass(frozen=True)
class DesignReport(EvaluationSettings):
    """Evaluation of a reward on held-out pairs (`evaluation.pairs`) and for selecting among responses of
    `needs.policy`, in units that are comparable between domains.

    Args:
        samples: number of responses per test prompt.
        choose_from: n of best-of-n, up to `samples`. The mean is over all subsets of n.
    """

    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    inputs = replace(EvaluationSettings.inputs, needs=("policy",), optional=("design",))
    reward_use = replace(EvaluationSettings.reward_use, scores=True)
    evidence = replace(EvaluationSettings.evidence, chance_metric="accuracy", answer="report_card")
    by_size = BySize(smoke={"samples": 8, "choose_from": 4}, smoke_real={"samples": 4, "choose_from": 2})
    samples: int = 16
    choose_from: Annotated[int, Ge(2)] = 16

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(evaluation.prompts, self.samples)]

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), choice_rule(self.choose_from, self.samples))


Benchmark = Literal["reward_bench", "reward_bench_2", "reward_math", "process_bench"]


@register("algorithm", "rm_report")
@dataclass(frozen=True)
class RewardReport(EvaluationSettings):
    """Report card of a reward on held-out pairs (`evaluation.pairs`) and on responses of `needs.policy`.

    Args:
        bins: number of bins of the reliability diagram, with equally many pairs each. The minimum is 8 pairs per bin.
    """

    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    inputs = replace(EvaluationSettings.inputs, needs=("policy",), optional=("reward",))
    reward_use = replace(EvaluationSettings.reward_use, scores=True)
    evidence = replace(EvaluationSettings.evidence, chance_metric="accuracy", answer="report_card")
    bins: Annotated[int, Ge(1)] = 10


@register("algorithm", "rm_probe")
@dataclass(frozen=True)
class RewardProbe(EvaluationSettings):
    """Linear probes of a reward model (`needs.reward`): which attributes of a response its last hidden state
    represents, compared with the policy it was trained from (`needs.policy`), and which ones its score pays for.

    The responses are those of held-out pairs (`evaluation.pairs`).

    Args:
        folds: number of groups of prompts. The attributes of a group are predicted by probes fitted on the others.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.PAIRS)
    inputs = replace(EvaluationSettings.inputs, sections=("model", "evaluation"), needs=("policy", "reward"))
    # gold is one of the attributes
    reward_use = replace(EvaluationSettings.reward_use, measures_gold=False)
    evidence = replace(EvaluationSettings.evidence, answer="probed")
    folds: Annotated[int, Ge(2)] = 5

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("reward", outputs=1, role="reward"), ModelCopies("policy", outputs=1)]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return []


@register("algorithm", "rm_bench")
@dataclass(frozen=True)
class RewardBenchmark(EvaluationSettings):
    """Public benchmark of reward models, scored by its own rule (`statistics/reward_bench.py`).

    Args:
        benchmark: `reward_bench` (arXiv:2403.13787), `reward_bench_2` (arXiv:2506.01937), `reward_math`
            (arXiv:2410.01729) or `process_bench` (arXiv:2412.06559).
        path: rows of the benchmark in its original columns: a local file, directory or glob, or a hub data set as for
            `data.path`. If it is empty (only for `reward_bench`), the held-out pairs of `data` are used, in the order
            of the gold reward if it is known. That exercises the rule, but it is not the benchmark.
        max_rows: maximum number of rows to read (RewardMATH: problems); 0 reads all.
        threshold: for `process_bench`, the first step counts as wrong at which the reward of the solution so far is
            below this. 0.5 is suitable for a reward that is a probability.
    """

    inputs = replace(EvaluationSettings.inputs, optional=("reward",))
    reward_use = replace(EvaluationSettings.reward_use, scores=True, measures_gold=False)
    evidence = replace(EvaluationSettings.evidence, answer="benchmark")
    by_size = BySize(smoke={"max_rows": 100}, smoke_real={"max_rows": 16})
    benchmark: Benchmark = "reward_bench"
    path: str = ""
    max_rows: Annotated[int, Ge(0, hint="0 is all")] = 0
    threshold: float = 0.5

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                bool(self.path) or self.benchmark == "reward_bench",
                f"path is not set; benchmark={self.benchmark} needs its rows: write a file or a hub data set",
            ),
        )


@register("algorithm", "rescore")
@dataclass(frozen=True)
class Rescore(EvaluationSettings):
    """Re-scoring of responses saved by another stage (`needs.rollouts`) with other weightings of the reward.

    No model is called. The terms of `reward` must be among those that the responses were scored with.

    Args:
        weightings: mappings of term → weight, as in `reward.weights`; empty takes the reward as it is configured.
        choose_from: number of responses per prompt that a weighting selects from, n; 0 is half of the saved ones.
        policy: name of the policy whose responses are used; empty takes the first policy that the stage evaluated.
    """

    inputs = replace(EvaluationSettings.inputs, sections=("reward",), needs=("rollouts",), directories=("rollouts",))
    # gold is a column of the saved responses
    reward_use = replace(EvaluationSettings.reward_use, measures_gold=False, loads_models=False)
    resources = Resources(distributed=False)
    evidence = replace(EvaluationSettings.evidence, answer="best_policy")
    by_size = BySize(smoke={"choose_from": 4}, smoke_real={"choose_from": 2})
    weightings: tuple[dict[str, Annotated[float, Finite()]], ...] = ()
    choose_from: Annotated[int, Ge(0, hint="0 is half of the saved ones")] = 0
    policy: str = ""
