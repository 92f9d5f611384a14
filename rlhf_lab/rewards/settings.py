"""Settings of the reward graph: its terms, and how they become one number. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Finite, Ge, Gt, Le, Lt, NotEmpty
from rlhf_lab.monitoring.settings import Monitor

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@section("reward", parts="terms")
@dataclass(frozen=True)
class RewardGraph(Section):
    """Terms → standardise → transform → aggregate → gates → calibrate → clip. Every node's value is kept per reply.

    Args:
        terms: name → settings of the term.
        weights: name → weight, all at once, in place of the terms' own: `reward.weights={bt:.7,programmatic:.3}`. A
            term that is not named weighs 0.
        aggregate: `weighted_sum` of the terms; `mean` divides it by the sum of the weights. Without weights, each term
            with the sign of a reward: `worst` is the smallest term, `uwo` their mean − penalty_weight · spread
            (arXiv:2310.02743, eq. 5). A reply that a term leaves unscored is unscored, unless the term weighs 0.
        penalty_weight: λ of `uwo`.
        penalty: spread of the terms' values: `var`, their variance, or `sd`.
        ddof: 0 divides the variance by the number of terms, 1 by one less.
        temperature: the aggregate is divided by it.
        ceiling: bounds the reward smoothly, ceiling · tanh(r/ceiling), before stated confidence; 0 is off.
        max_confidence: the same bound as a confidence: with a ceiling of logit(max_confidence)/2 no margin Δ between
            two replies claims a preference probability σ(Δ) above this. In (0.5, 1); 0 is off.
        confidence_weight: w of PPO-C (arXiv:2410.09724): a reply that states its confidence c, see
            `rewards/confidence.py`, gets r + w·(r − r̄)·(c − ½), r̄ the mean reward of training so far, and the terms
            see it without that statement; a reply that states none is left as it is. 0 is off.
        confidence_decay: α of the running mean of training batches, r̄ ← (1 − α)·r̄ + α·(mean of the batch), from 0.
        clip: bounds the reward hard to ± this; 0 is off.
        monitor: watches what training on this reward does to the replies.
    """

    terms: Annotated[dict[str, Any], NotEmpty(hint="choose at least one, e.g. reward=bt")] = field(default_factory=dict)
    weights: dict[str, Annotated[float, Finite()]] | None = None
    aggregate: Literal["weighted_sum", "mean", "worst", "uwo"] = "weighted_sum"
    penalty_weight: Annotated[float, Ge(0)] = 0.5
    penalty: Literal["var", "sd"] = "var"
    ddof: Annotated[int, Ge(0), Le(1)] = 0
    temperature: Annotated[float, Gt(0)] = 1.0
    ceiling: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    max_confidence: Annotated[float, Ge(0, hint="0 is off"), Lt(1)] = 0.0
    confidence_weight: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    confidence_decay: Annotated[float, Ge(0), Le(1)] = 0.1
    clip: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    monitor: Monitor = field(default_factory=Monitor)

    def rules(self) -> tuple[Rule, ...]:
        weighed, total = self.aggregate in ("weighted_sum", "mean"), sum(self.weighting.values())
        unknown = [name for name in self.weights or {} if name not in self.terms]
        reserved = [name for name in ("aggregate", "confidence") if name in self.terms]
        return (
            *super().rules(),
            (not reserved, f"terms: {', '.join(reserved)} is the name of another node"),
            (not unknown, f"weights: {', '.join(unknown)} is not one of the terms {', '.join(self.terms)}"),
            (self.weights is None or weighed, f"weights are not read by aggregate={self.aggregate}"),
            (
                not (self.terms and weighed) or any(self.weighting.values()),
                "weights are all 0; give one term a weight",
            ),
            (self.aggregate != "mean" or total != 0, f"aggregate=mean divides by the sum of weights, {total}"),
            (self.aggregate != "uwo" or len(self.terms) > 1, "aggregate=uwo needs two terms or more"),
            (
                self.max_confidence == 0 or self.max_confidence > 0.5,
                f"max_confidence={self.max_confidence} must be 0 (off) or above 0.5",
            ),
            (not (self.ceiling and self.max_confidence), "ceiling and max_confidence are two ways to say one thing"),
        )

    @property
    def weighting(self) -> dict[str, float]:
        """Term → its weight."""
        if self.weights is None:
            return {name: getattr(term, "weight", 1.0) for name, term in self.terms.items()}
        return {name: self.weights.get(name, 0.0) for name in self.terms}

    @property
    def calibrates(self) -> bool:
        """Whether the reward is something else than the aggregate."""
        return self.temperature != 1 or any((self.ceiling, self.max_confidence, self.confidence_weight, self.clip))

    @property
    def roles(self) -> set[str]:
        """Entries of `needs` that the terms read."""
        return {term.needs_role for term in self.terms.values() if term.needs_role}

    @property
    def folder_roles(self) -> set[str]:
        """Those of them that hold what a stage wrote into its directory, and no language model with a head."""
        return {term.needs_role for term in self.terms.values() if term.needs_role and term.reads_folder}

    @property
    def gates(self) -> dict[str, Any]:
        """Terms that can refuse a reply, whatever else it earned: name → settings with `floor` and `below`."""
        return {name: term for name, term in self.terms.items() if getattr(term, "floor", None) is not None}

    @classmethod
    def prepared(cls, values: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any]:
        """Composed values as the class takes them."""
        return values

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        return [("reward", term) for term in self.terms.values()] if "reward" in config.algorithm.uses else []

    def roles_read(self, config: Config) -> set[str]:
        roles = {"gold"} if config.algorithm.measures_gold else set()
        return roles | self.roles | set(optional_roles()) if "reward" in config.algorithm.uses else roles

    def leaves_out(self, role: str, config: Config) -> bool:
        return role in ("reward", *optional_roles()) and role not in self.roles

    def contradictions(self, config: Config) -> list[str]:
        problems = [*_verifier_problems(self, config), *_gold_problems(config)]
        if "reward" in config.algorithm.uses:
            problems += _standardisation_problems(self, config)
        if config.algorithm.trains_on_reward or config.algorithm.reads_reward:
            problems += [
                f"needs.{role} is not set; the chosen reward reads it (or choose another: reward=gold)"
                for role in sorted(self.roles)
                if not config.needs.get(role)
            ]
        return problems


def optional_roles() -> list[str]:
    """Roles of reward terms that a recipe may name for some of its rewards only: those that read a folder."""
    terms: list[Any] = [registry.settings_class("reward", kind) for kind in registry.kinds("reward")]
    return sorted({term.needs_role for term in terms if term.needs_role and term.reads_folder})


def _standardisation_problems(graph: RewardGraph, config: Config) -> list[str]:
    """Terms that measure the responses of data which have none."""
    if Capability.DEMONSTRATIONS in config.data.capabilities:
        return []
    data = registry.kind_of("data", config.data)
    return [
        f"reward.terms.{name}.standardise=corpus measures the replies of the data, and data={data} has none; use "
        f"reward.terms.{name}.standardise=fixed with mean and sd"
        for name, term in graph.terms.items()
        if term.standardise == "corpus"
    ]


def _verifier_problems(graph: RewardGraph, config: Config) -> list[str]:
    """A `data.verifier` that is none, and several verifiers of which none is chosen to measure."""
    kind = getattr(config.data, "verifier", None)
    classes: dict[str, Any] = {name: registry.settings_class("reward", name) for name in registry.kinds("reward")}
    verifier_kinds = [name for name, cls in classes.items() if cls.verifies]
    if kind is not None:
        if kind in verifier_kinds:
            return []
        return [f"data.verifier={kind} is no verifier; use one of {', '.join(verifier_kinds)}, or null"]
    terms = graph.terms.items() if "reward" in config.algorithm.uses else ()
    names = [name for name, term in terms if term.verifies]
    if len(names) < 2 or not hasattr(config.data, "verifier"):
        return []
    choice = "|".join(registry.kind_of("reward", graph.terms[name]) for name in names)
    return [f"reward={','.join(names)}: several verifiers; say which one measures: data.verifier={choice}"]


def _gold_problems(config: Config) -> list[str]:
    """Why what `needs` names cannot say what responses are worth in this run."""
    roles = ["gold", *(section.gold_role for section in config.sections().values() if section.gold_role)]
    named = [role for role in roles if config.needs.get(role)] if config.algorithm.measures_gold else []
    if not named:
        return []
    written = " and ".join(f"needs.{role}" for role in named)
    data = registry.kind_of("data", config.data)
    problems = []
    if len(named) > 1:
        problems.append(f"{written} are two golds; leave one of them out")
    if Capability.TRUE_REWARD in config.data.capabilities:
        problems.append(
            f"{written}: data={data} has gold of its own, the true reward of its world; leave {written} out, or use "
            "other data, such as data=hh_rlhf"
        )
    if config.data.max_turns > 1:
        problems.append(f"{written} scores single replies, and data={data} answers them; leave it out")
    return problems
