"""Settings of reward models: Bradley-Terry, rubric, outcome and process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.algorithms.pair_selection.settings import Selection, selection_rules
from rlhf_lab.config.registry import kind_of, register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Finite, Ge, Gt, Le, Lt, NotEmpty
from rlhf_lab.training.settings import SMALL, Held, TrainingSettings

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation

OTHER_POLICIES = tuple(f"policy_{k}" for k in range(1, 10))
"""Roles of the policies that further members of an ensemble start from."""


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
    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.ANSWERS, Capability.SINGLE_TURN)
    adds_head: ClassVar[bool] = True
    loss_falls: ClassVar[bool] = True
    chance_metric: ClassVar[str] = "auroc/planted"
    answer: ClassVar[str] = "steps"
    at_small_scale: ClassVar[dict[str, Any]] = {
        **SMALL,
        "lr": 1e-2,
        "muon_lr": 5e-3,
        "epochs": 6.0,
        "batch_size": 32,
    }
    smoke: ClassVar[dict[str, float]] = {**TrainingSettings.smoke, "problems": 200, "trajectories": 2}
    smoke_real: ClassVar[dict[str, float]] = {**TrainingSettings.smoke_real, "problems": 8, "trajectories": 1}
    problems: Annotated[int, Ge(1)] = 3000
    trajectories: Annotated[int, Ge(0)] = 3
    demonstrations: bool = True

    @property
    def requirements(self) -> Requirements:
        return (*self.requires, Capability.DEMONSTRATIONS) if self.demonstrations else self.requires

    def held(self, *, adapter: bool) -> list[Held]:
        return [Held("reward model", outputs=1, trained=True)]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, max(1, self.trajectories))]

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.trajectories > 0 or self.demonstrations,
                "trajectories=0 and demonstrations=false leave nothing to train on",
            ),
        )


@register("algorithm", "orm", implementation="rlhf_lab.algorithms.reward_models.step_reward")
@dataclass(frozen=True)
class OutcomeModel(StepSettings):
    """Outcome reward model (arXiv:2110.14168): the head is on the last token; its label says if the answer is right."""


@register("algorithm", "prm", implementation="rlhf_lab.algorithms.reward_models.step_reward")
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
    rollouts: Annotated[int, Ge(1)] = 4
    estimate: Literal["soft", "hard"] = "soft"

    def contradictions(self, config: Config) -> list[str]:
        if self.labels != "annotated" or Capability.STEPS in config.data.capabilities:
            return []
        return [
            "algorithm.labels=annotated needs a world that judges steps, and "
            f"data={kind_of('data', config.data)} does not; use algorithm.labels=perturbed or monte_carlo"
        ]

    def rules(self) -> tuple[Rule, ...]:
        perturbed = self.labels == "perturbed"
        return (
            *super().rules(),
            (not perturbed or self.demonstrations, "labels=perturbed starts from demonstrations; leave them in"),
            (not perturbed or self.trajectories > 0, "labels=perturbed with trajectories=0 has no wrong solution"),
        )


@register("algorithm", "reward_model")
@dataclass(frozen=True)
class RewardModel(TrainingSettings):
    """Bradley-Terry reward model: −log σ(r_chosen − r_rejected − margin), a scalar head on the last real token.

    Starts from the SFT policy (`needs.policy`). Member k of an ensemble starts from `needs.policy_<k>` where that is
    named (the first member is 0); a recipe there is built with a seed of its own, 1000·k above the run's. With
    `needs.attempts` (`algorithm=attempt_pairs`) it is also asked to choose among an agent's attempts at held-out tasks.

    Args:
        context: what it reads of a prompt of several turns: the whole `conversation`, or the `last_turn` of the human
            alone. Part of the saved model: whoever scores with it later cuts prompts the same way.
        centering: weight of (r_chosen + r_rejected)², which keeps scores near zero (arXiv:2312.09244).
        margin: constant the chosen reply must win by, in reward units (arXiv:2307.09288, eq. 2).
        on_policy_fraction: share of training pairs that are sampled from `needs.policy` and labelled by the data
            source's annotator, or by `needs.gold`, so that the model sees the policy's own mistakes. Sources without
            an annotator use the corpus alone, and the run says so.
        members: reward models that are trained side by side, an ensemble (arXiv:2310.02743): each has its own head
            and its own order of the data.
        member_fraction: share of the pairs that each member trains on, drawn for each anew.
        shared_trunk: the members are heads of one model: one forward pass for all, the pairs in the same order, the
            loss the mean over heads. Each head still has its own start and its own share of the pairs.
        head_noise: standard deviation of a head's weights at the start times √(hidden size), where there are several
            heads or members. 0 starts all members alike, as averaging their weights wants
            (`reward.terms.bt.ensemble=warm`). The head of a single model starts at zero.
        length_head: a second head that takes the share of preferences that reply length explains (ODIN,
            arXiv:2402.07319): the pair loss sees the sum of both heads, whoever scores later only the first.
        length_weight: weight of |ρ(r_Q, tokens)| − ρ(r_L, tokens), correlations over the replies of a step.
        orthogonal_weight: weight of |cos(w_Q, w_L)|, the overlap of the two heads' weights.
        confidence_weight: weight of PPO-M's calibration loss (arXiv:2410.09724) beside the pair loss: a chosen reply
            that ends in a `sure` sentence beats itself with an `unsure` one, a rejected reply the other way round.
            Tripled rows; 0 is off.
        sure, unsure: sentences that state high and low confidence; each pair gets one of each, drawn by the seed.
        max_pairs: most corpus pairs, drawn at random; a smaller draw lies within a larger one. 0 is all.
        selection: which of them are trained on; margins come from `needs.margins`.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.PAIRS, Capability.SINGLE_TURN)
    uses: ClassVar[tuple[str, ...]] = ("model", "rollout")
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("margins", "attempts", *OTHER_POLICIES)
    data_roles: ClassVar[tuple[str, ...]] = ("margins", "attempts")
    reseeded_roles: ClassVar[tuple[str, ...]] = OTHER_POLICIES
    measures_gold: ClassVar[bool] = True
    adds_head: ClassVar[bool] = True
    loss_falls: ClassVar[bool] = True
    chance_metric: ClassVar[str] = "accuracy"
    answer: ClassVar[str] = "pair_ranking"
    at_small_scale: ClassVar[dict[str, Any]] = {
        **SMALL,
        "lr": 1e-2,
        "muon_lr": 5e-3,
        "batch_size": 32,
    }
    smoke_real: ClassVar[dict[str, float]] = {**TrainingSettings.smoke_real, "members": 2}
    context: Literal["conversation", "last_turn"] = "conversation"
    centering: Annotated[float, Ge(0)] = 0.001
    margin: float = 0.0
    on_policy_fraction: Annotated[float, Ge(0), Lt(1)] = 0.25
    members: Annotated[int, Ge(1)] = 1
    member_fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    shared_trunk: bool = False
    head_noise: Annotated[float, Ge(0)] = 1.0
    length_head: bool = False
    length_weight: Annotated[float, Ge(0)] = 1.0
    orthogonal_weight: Annotated[float, Ge(0)] = 1.0
    confidence_weight: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    sure: Annotated[tuple[str, ...], NotEmpty()] = tuple(f"Confidence: {n}." for n in (8, 9, 10))
    unsure: Annotated[tuple[str, ...], NotEmpty()] = tuple(f"Confidence: {n}." for n in (0, 1, 2))
    max_pairs: Annotated[int, Ge(0, hint="0 is all")] = 0
    selection: Selection = field(default_factory=Selection)

    def one_vocabulary(self, config: Config) -> dict[str, tuple[str, str]]:
        roles = () if self.shared_trunk else OTHER_POLICIES[: self.members - 1]
        remedy = "members share rows; write one data.seed"
        return {role: ("policy", remedy) for role in roles if config.needs.get(role)}

    def held(self, *, adapter: bool) -> list[Held]:
        """The policy that samples pairs stays; members are trained side by side, one backward pass each."""
        heads = 2 if self.length_head else 1
        if self.shared_trunk:
            members = [Held("reward model", outputs=heads * self.members, trained=True)]
        else:
            names = [f"member {k}" for k in range(self.members)] if self.members > 1 else ["reward model"]
            members = [Held(name, outputs=heads, trained=True, together=k) for k, name in enumerate(names)]
        return [*members, Held("policy (samples)")]

    @property
    def trl_trainer(self) -> str:
        return "reward_model"

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, 2)]

    @property
    def rows_per_unit(self) -> int:
        return 6 if self.confidence_weight else 2

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (not self.shared_trunk or self.members > 1, "shared_trunk=true is for an ensemble; set members=3"),
            (
                self.head_noise > 0 or not (self.length_head or self.shared_trunk),
                "head_noise=0: heads on one trunk that start alike stay alike; use a value above 0",
            ),
            *selection_rules(self.selection, beta=False),
        )


@register("algorithm", "rubric_rm")
@dataclass(frozen=True)
class RubricRM(TrainingSettings):
    """Rubric reward model: predicts the grades of single replies by least squares, from a head on the last real token.

    Starts from the SFT policy (`needs.policy`) and trains on both replies of each pair, and on the policy's own. The
    grades are the data's; where the data have a judge and no grades (`data=mini_hh`), the judge's; and with
    `needs.grades` (`algorithm=grade`) those that any judge gave, on its rubric: then on the corpus alone, and on the
    pairs both of whose replies have grades.

    Args:
        target: `scalar` is one output for the weighted mean of the grades, each as a share of its scale: for five
            criteria 1…5 of equal weight, (sum − 5)/20; `attributes` is an output for each (arXiv:2406.08673), the
            weighted mean of which is the score.
        weights: attribute → weight in the score, negative for what is unwanted; an attribute that is not named has 0.
            They are divided by the sum of their absolute values. None: all equal. HelpSteer2's 70B model: .65
            helpfulness, .8 correctness, .45 coherence, .55 complexity, −.4 verbosity.
        on_policy_fraction: share of training pairs that are sampled from `needs.policy` and graded by the data's judge.
            Data without a judge use the corpus alone, and the run says so.
        max_pairs: most corpus pairs, drawn at random; a smaller draw lies within a larger one. 0 is all.
        selection: which of them are trained on; margins come from `needs.margins`.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.PAIRS, Capability.SINGLE_TURN)
    uses: ClassVar[tuple[str, ...]] = ("model", "rollout")
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("margins", "grades")
    data_roles: ClassVar[tuple[str, ...]] = ("margins", "grades")
    adds_head: ClassVar[bool] = True
    loss_falls: ClassVar[bool] = True
    chance_metric: ClassVar[str] = "accuracy"
    answer: ClassVar[str] = "pair_ranking"
    at_small_scale: ClassVar[dict[str, Any]] = {**SMALL, "lr": 1e-2, "muon_lr": 5e-3, "batch_size": 32}
    target: Literal["scalar", "attributes"] = "scalar"
    weights: dict[str, Annotated[float, Finite()]] | None = None
    on_policy_fraction: Annotated[float, Ge(0), Lt(1)] = 0.25
    max_pairs: Annotated[int, Ge(0, hint="0 is all")] = 0
    selection: Selection = field(default_factory=Selection)

    def held(self, *, adapter: bool) -> list[Held]:
        return [Held("rubric model", outputs=1, trained=True), Held("policy (samples)")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, 2)]

    @property
    def trains_on(self) -> Literal[""]:
        return ""  # made pairs have no grades

    def contradictions(self, config: Config) -> list[str]:
        if Capability.GRADES in config.data.capabilities or config.needs.get("grades"):
            return []
        return [
            "algorithm=rubric_rm needs graded replies; use data=mini_hh, data=helpsteer2 or data=graded, or have a "
            "judge grade these pairs: +needs.grades=grade_pairs"
        ]

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.weights is None or any(self.weights.values()),
                f"weights={self.weights} are all 0; null weighs all equally",
            ),
            *selection_rules(self.selection, beta=False),
        )
