"""Settings of reward models: Bradley-Terry, rubric, outcome and process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.algorithms.pair_selection.settings import PairSettings
from rlhf_lab.config.registry import kind_of, register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, Finite, Ge, Gt, Le, Lt, NotEmpty
from rlhf_lab.training.settings import SMALL_REWARD_MODEL, StageSettings, TrainingSettings, unjudged_steps
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Outputs, Resources, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation


OTHER_POLICIES = tuple(f"policy_{k}" for k in range(1, 10))
"""Roles of the policies from which further members of an ensemble start."""


@dataclass(frozen=True)
class StepSettings(TrainingSettings):
    """A binary head on worked solutions, trained with binary cross-entropy from `needs.policy`.

    The solutions are sampled once, at the start, with the run's seed.

    Args:
        problems: number of training problems.
        trajectories: solutions per problem that `needs.policy` samples at temperature 1. With `labels=perturbed`:
            number of wrong versions generated from each correct demonstration.
        demonstrations: True to add the data's own solution of each problem.
        tools: `calculator` lets the model use a calculator while it reads a solution, in training and as a reward
            (arXiv:2310.01045): the result of every equation's left side is appended to its line, as in
            "5 + 3 = 9 [8]". It is not told which equations are right.
    """

    keyed_if_set: ClassVar[tuple[str, ...]] = ("tools",)
    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.ANSWERS, Capability.SINGLE_TURN)
    inputs = Inputs(sections=("model", "rollout"), needs=("policy",))
    resources = Resources(adds_head=True)
    evidence = Evidence(loss_falls=True, chance_metric="auroc/planted", answer="steps")
    by_size = replace(
        TrainingSettings.by_size,
        small_scale={**SMALL_REWARD_MODEL, "epochs": 6.0},
        smoke={**TrainingSettings.by_size.smoke, "problems": 200, "trajectories": 2},
        smoke_real={**TrainingSettings.by_size.smoke_real, "problems": 8, "trajectories": 1},
    )
    problems: Annotated[int, Ge(1)] = 3000
    trajectories: Annotated[int, Ge(0)] = 3
    demonstrations: bool = True
    tools: Literal["none", "calculator"] = "none"

    @property
    def requirements(self) -> Requirements:
        return (*self.requires, Capability.DEMONSTRATIONS) if self.demonstrations else self.requires

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("reward model", outputs=1, trained=True)]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, max(1, self.trajectories))]

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.trajectories > 0 or self.demonstrations,
                "trajectories=0 and demonstrations=false leave nothing to train on; set trajectories above 0",
            ),
        )


@register("algorithm", "orm", implementation="rlhf_lab.algorithms.reward_models.step_reward")
@dataclass(frozen=True)
class OutcomeModel(StepSettings):
    """Outcome reward model (arXiv:2110.14168): the head reads the last token and predicts a correct answer."""


@register("algorithm", "prm", implementation="rlhf_lab.algorithms.reward_models.step_reward")
@dataclass(frozen=True)
class ProcessModel(StepSettings):
    """Process reward model (arXiv:2305.20050): the head reads the last token of every step (line) of a solution.

    Args:
        labels: source of the step labels. `annotated`: the world judges every step. `perturbed`: needs no annotator;
            one step of a correct solution and everything that depends on it are changed, so the changed steps are
            wrong. `monte_carlo`: the policy completes the solution from every step (arXiv:2312.08935). `consensus`:
            as `monte_carlo` with `estimate=hard`, but only solutions are used for which `needs.judge`, a process reward
            model, locates the first wrong step at the same position (arXiv:2501.07301). `auto` follows the data:
            `annotated` if they judge steps, else `perturbed`.
        up_to_first_error: True if steps after the first wrong one have no label (arXiv:2305.20050, section 2.6); the
            model then learns whether a step is right given that all earlier ones are. `monte_carlo` labels every step
            in any case.
        rollouts: completions per step of `monte_carlo` and `consensus`.
        estimate: label of `monte_carlo`: `soft` is the fraction of completions that reach the correct answer, `hard` is
            1 if at least one does (arXiv:2312.08935, eq. 3 and 4).
    """

    inputs = replace(StepSettings.inputs, optional=("judge",))
    by_size = replace(StepSettings.by_size, smoke={**StepSettings.by_size.smoke, "rollouts": 2})
    labels: Literal["auto", "annotated", "perturbed", "monte_carlo", "consensus"] = "auto"
    up_to_first_error: bool = True
    rollouts: Annotated[int, Ge(1)] = 4
    estimate: Literal["soft", "hard"] = "soft"

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        judge = [ModelCopies("judge", outputs=1, role="judge")] if self.labels == "consensus" else []
        return [*super().model_copies(adapter=adapter), *judge]

    def contradictions(self, config: Config) -> list[str]:
        problems = unjudged_steps(self.labels, config, "perturbed or monte_carlo")
        plants = self.labels == "auto" and Capability.STEPS not in config.data.capabilities
        if plants and not (self.demonstrations and self.trajectories):
            problems.append(
                f"data={kind_of('data', config.data)} do not judge steps, so algorithm.labels=auto plants mistakes in "
                "demonstrations; set algorithm.demonstrations=true and algorithm.trajectories to 1 or more, or use "
                "algorithm.labels=monte_carlo"
            )
        has_judge = bool(config.needs.get("judge"))
        if self.labels == "consensus" and not has_judge:
            problems.append(
                "algorithm.labels=consensus needs a second source of labels; set needs.judge to a process reward "
                "model, such as needs.judge=prm_perturbed"
            )
        if self.labels != "consensus" and has_judge:
            problems.append("needs.judge is used only by algorithm.labels=consensus; remove it")
        return problems

    def rules(self) -> tuple[Rule, ...]:
        perturbed = self.labels == "perturbed"
        return (
            *super().rules(),
            (not perturbed or self.demonstrations, "labels=perturbed changes demonstrations; set demonstrations=true"),
            (
                not perturbed or self.trajectories > 0,
                "labels=perturbed with trajectories=0 has no wrong solution; use 1 or more",
            ),
        )


@register("algorithm", "reward_model")
@dataclass(frozen=True)
class RewardModel(PairSettings):
    """Bradley-Terry reward model: −log σ(r_chosen − r_rejected − margin), a scalar head on the last real token.

    It starts from the SFT policy (`needs.policy`). Member k of an ensemble starts from `needs.policy_<k>` if it is set
    (the first member is 0); a recipe named there is built with its own seed, the run's seed plus 1000·k. With
    `needs.attempts` (`algorithm=attempt_pairs`) the model also chooses among an agent's attempts at held-out tasks.
    With `needs.exploits` (`algorithm=attack`) it also trains on the pairs of an attack on another reward model, whose
    rejected responses are exploits of that model.

    Args:
        context: part of a multi-turn prompt that the model reads: the full `conversation`, or only the human's
            `last_turn`. It is stored with the model, so that prompts are cut the same way whenever the model scores.
        centering: weight of (r_chosen + r_rejected)², which keeps scores near zero (arXiv:2312.09244).
        margin: constant by which the chosen reward must exceed the rejected one (arXiv:2307.09288, eq. 2).
        on_policy_fraction: fraction of the training pairs that are sampled from `needs.policy` and labelled by the
            data source's annotator, or by `needs.gold`, so that the model sees errors of this policy. Sources without
            an annotator use only the corpus, and the run notes it.
        members: number of reward models trained in parallel as an ensemble (arXiv:2310.02743). Each has its own head
            and its own data order.
        member_fraction: fraction of the pairs that each member trains on, sampled separately for each.
        head_noise: standard deviation of a head's initial weights times √(hidden size), if there are several heads or
            members. 0 starts all members equally, as needed to average their weights (`reward.terms.bt.ensemble=warm`).
            The head of a single model starts at zero.
        length_head: True to add a second head for the part of preferences that response length explains (ODIN,
            arXiv:2402.07319). The pair loss uses the sum of both heads; later scores use only the first.
        length_weight: weight of |ρ(r_Q, tokens)| − ρ(r_L, tokens), correlations over the responses of a step.
        orthogonal_weight: weight of |cos(w_Q, w_L)|, the overlap of the two heads' weights.
        confidence_weight: weight of PPO-M's calibration loss (arXiv:2410.09724), which is added to the pair loss. A
            chosen response that ends with a `sure` sentence should beat the same response with an `unsure` one, and a
            rejected response vice versa. Triples the rows; 0 is off.
        sure, unsure: sentences that state high and low confidence. Each pair gets a random one of each.
        max_pairs: maximum number of corpus pairs, a random subset; smaller subsets are contained in larger ones. 0 is
            all. Pairs of `needs.exploits` take the place of corpus pairs, so that both together are at most this many.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.PAIRS, Capability.SINGLE_TURN)
    inputs = Inputs(
        sections=("model", "rollout"),
        needs=("policy",),
        optional=("margins", "attempts", "exploits", *OTHER_POLICIES),
        directories=("margins", "attempts", "exploits"),
        reseeded=OTHER_POLICIES,
    )
    reward_use = RewardUse(measures_gold=True)
    resources = Resources(adds_head=True)
    evidence = Evidence(loss_falls=True, chance_metric="accuracy", answer="pair_ranking")
    by_size = replace(
        TrainingSettings.by_size,
        small_scale=SMALL_REWARD_MODEL,
        smoke_real={**TrainingSettings.by_size.smoke_real, "members": 2},
    )
    # Loss on pairs.
    context: Literal["conversation", "last_turn"] = "conversation"
    centering: Annotated[float, Ge(0)] = 0.001
    margin: float = 0.0
    on_policy_fraction: Annotated[float, Ge(0), Lt(1)] = 0.25
    # Ensemble.
    members: Annotated[int, Ge(1)] = 1
    member_fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    head_noise: Annotated[float, Ge(0)] = 1.0
    # Length head (ODIN) and stated confidence (PPO-M).
    length_head: bool = False
    length_weight: Annotated[float, Ge(0)] = 1.0
    orthogonal_weight: Annotated[float, Ge(0)] = 1.0
    confidence_weight: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    sure: Annotated[tuple[str, ...], NotEmpty()] = tuple(f"Confidence: {n}." for n in (8, 9, 10))
    unsure: Annotated[tuple[str, ...], NotEmpty()] = tuple(f"Confidence: {n}." for n in (0, 1, 2))

    # Members share token rows, so the policies that they start from need the same vocabulary.
    def one_vocabulary(self, config: Config) -> dict[str, tuple[str, str]]:
        roles = OTHER_POLICIES[: self.members - 1]
        remedy = "members share token rows; use the same data.seed"
        return {role: ("policy", remedy) for role in roles if config.needs.get(role)}

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        """Return the models in memory: members, each with its own backward pass, and the policy that samples pairs."""
        heads = 2 if self.length_head else 1
        names = [f"member {k}" for k in range(self.members)] if self.members > 1 else ["reward model"]
        # Members run their backward passes one after another (`together`).
        members = [ModelCopies(name, outputs=heads, trained=True, together=k) for k, name in enumerate(names)]
        return [*members, ModelCopies("policy (samples)")]

    @property
    def trl_trainer(self) -> str:
        return "reward_model"

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, 2)]

    @property
    def rows_per_unit(self) -> int:
        # stated confidence adds a `sure` and an `unsure` version of both responses
        return 6 if self.confidence_weight else 2

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.head_noise > 0 or not self.length_head,
                "head_noise=0: equal initial heads on one model stay equal; use a value above 0",
            ),
        )


@register("algorithm", "rubric_rm")
@dataclass(frozen=True)
class RubricRM(PairSettings):
    """Rubric reward model: predicts grades of single responses by least squares, with a head on the last real token.

    It starts from the SFT policy (`needs.policy`) and trains on both responses of each pair and on responses of the
    policy. The grades come from the data, or from the data's judge if the data has a judge but no grades
    (`data=mini_hh`). With `needs.grades` (`algorithm=grade`) they come from any judge and its rubric; the model then
    trains only on corpus pairs whose responses both have grades.

    Args:
        target: `scalar` is one output for the weighted mean of the grades, each as a fraction of its scale. For five
            criteria 1…5 of equal weight it is (sum − 5)/20. `attributes` is one output per attribute
            (arXiv:2406.08673), and the score is their weighted mean.
        weights: attribute → weight in the score, negative if undesired. Attributes without a weight have 0. The weights
            are divided by the sum of their absolute values. None: all equal. HelpSteer2's 70B model: .65 helpfulness,
            .8 correctness, .45 coherence, .55 complexity, −.4 verbosity.
        on_policy_fraction: fraction of the training pairs that are sampled from `needs.policy` and graded by the data's
            judge. Data without a judge uses only the corpus, and the run notes it.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.PAIRS, Capability.SINGLE_TURN)
    inputs = Inputs(
        sections=("model", "rollout"),
        needs=("policy",),
        optional=("margins", "grades"),
        directories=("margins", "grades"),
    )
    resources = Resources(adds_head=True)
    evidence = Evidence(loss_falls=True, chance_metric="accuracy", answer="pair_ranking")
    by_size = replace(TrainingSettings.by_size, small_scale=SMALL_REWARD_MODEL)
    target: Literal["scalar", "attributes"] = "scalar"
    weights: dict[str, Annotated[float, Finite()]] | None = None
    on_policy_fraction: Annotated[float, Ge(0), Lt(1)] = 0.25

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("rubric model", outputs=1, trained=True), ModelCopies("policy (samples)")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, 2)]

    @property
    def trains_on(self) -> Literal[""]:
        return ""  # synthetic pairs have no grades

    def contradictions(self, config: Config) -> list[str]:
        if Capability.GRADES in config.data.capabilities or config.needs.get("grades"):
            return []
        return [
            "algorithm=rubric_rm needs graded responses; use data=mini_hh, data=helpsteer2 or data=graded, or let a "
            "judge grade these pairs: +needs.grades=grade_pairs"
        ]

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.weights is None or any(self.weights.values()),
                f"weights={self.weights} are all 0; set one, or use null for equal weights",
            ),
        )


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
