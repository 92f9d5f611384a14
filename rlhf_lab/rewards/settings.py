"""Settings of the reward graph: its terms, and their combination into one number. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from rlhf_lab.config import registry
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.packs import named
from rlhf_lab.core.ranges import Finite, Ge, Gt, Le, Lt, NotEmpty
from rlhf_lab.monitoring.settings import Audit, Monitor, samples_are_watched
from rlhf_lab.training.settings import SOUP

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@section("reward", parts="terms")
@dataclass(frozen=True)
class RewardGraph(Section):
    """Terms → standardise → transform → weighted sum → gates → calibrate. All node values of a response are stored.

    Args:
        terms: name → settings of the term.
        weights: name → weight for all terms at once, instead of the terms' own weights:
            `reward.weights={bt:.7,programmatic:.3}`. Terms that are not named get weight 0. A response that a term
            leaves unscored is unscored, unless the term has weight 0.
        temperature: divisor of the weighted sum.
        max_confidence: smooth bound of the reward, c · tanh(r/c) with c = logit(max_confidence)/2, applied before the
            stated confidence. No margin Δ between two responses claims a preference probability σ(Δ) above it. In
            (0.5, 1); 0 is off.
        confidence_weight: weight w of PPO-C (arXiv:2410.09724). A response that states its confidence c (see
            `rewards/confidence.py`) gets r + w·(r − r̄)·(c − ½), where r̄ is the mean training reward so far; the terms
            score it without the statement. A response that states none keeps r. 0 is off.
        confidence_decay: α of the running mean over training batches, r̄ ← (1 − α)·r̄ + α·(batch mean), from 0.
        monitor: monitor of the effects that training on this reward has on the responses.
        audit: comparisons of the policy with its start while it trains on this reward.
    """

    keyed_if_set: ClassVar[tuple[str, ...]] = ("audit",)  # newer than the first stored results

    terms: Annotated[dict[str, Any], NotEmpty(hint="choose at least one, e.g. reward=bt")] = field(default_factory=dict)
    weights: dict[str, Annotated[float, Finite()]] | None = None
    temperature: Annotated[float, Gt(0)] = 1.0
    max_confidence: Annotated[float, Ge(0, hint="0 is off"), Lt(1)] = 0.0
    confidence_weight: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    confidence_decay: Annotated[float, Ge(0), Le(1)] = 0.1
    monitor: Monitor = field(default_factory=Monitor)
    audit: Audit = field(default_factory=Audit)

    def rules(self) -> tuple[Rule, ...]:
        unknown = [name for name in self.weights or {} if name not in self.terms]
        reserved = [name for name in ("aggregate", "confidence") if name in self.terms]
        return (
            *super().rules(),
            (not reserved, f"terms: {', '.join(reserved)} is the name of another node; rename the term"),
            (not unknown, f"weights: {', '.join(unknown)} is not one of the terms {', '.join(self.terms)}"),
            (not self.terms or any(self.weighting.values()), "weights are all 0; give one term a weight"),
            (
                self.max_confidence == 0 or self.max_confidence > 0.5,
                f"max_confidence={self.max_confidence} must be 0 (off) or above 0.5",
            ),
        )

    @property
    def weighting(self) -> dict[str, float]:
        if self.weights is None:
            return {name: getattr(term, "weight", 1.0) for name, term in self.terms.items()}
        return {name: self.weights.get(name, 0.0) for name in self.terms}

    @property
    def calibrates(self) -> bool:
        """True if the weighted sum of the terms is calibrated, so that the reward differs from it."""
        return self.temperature != 1 or bool(self.max_confidence or self.confidence_weight)  # 0 turns a switch off

    @property
    def roles(self) -> set[str]:
        return {term.needs_role for term in self.terms.values() if term.needs_role}

    @property
    def dir_roles(self) -> set[str]:
        """Entries of `needs` from which a term reads a stage's directory instead of a language model with a head."""
        return {term.needs_role for term in self.terms.values() if term.needs_role and term.reads_run_dir}

    @property
    def gates(self) -> dict[str, Any]:
        """Terms that can reject a response regardless of other terms: name → settings with `floor` and `below`."""
        return {name: term for name, term in self.terms.items() if getattr(term, "floor", None) is not None}

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        """Return (config group, settings) of each reward term; empty if the algorithm uses no reward."""
        if "reward" not in config.algorithm.inputs.sections:
            return []
        return [("reward", term) for term in self.terms.values()]

    def roles_read(self, config: Config) -> set[str]:
        """Return the entries of `needs` that the reward and the gold of this run may read."""
        gold_roles = set(named("gold_sources")) if config.algorithm.reward_use.measures_gold else set()
        if "reward" not in config.algorithm.inputs.sections:
            return gold_roles
        return gold_roles | self.roles | set(optional_roles())

    def leaves_out(self, role: str, config: Config) -> bool:
        """Return True if this entry of `needs` belongs to a reward term that is not configured."""
        return role in ("reward", *optional_roles()) and role not in self.roles

    def contradictions(self, config: Config) -> list[str]:
        problems = [*_verifier_problems(self, config), *_gold_problems(config), *_audit_problems(self, config)]
        if "reward" in config.algorithm.inputs.sections:
            problems += _standardisation_problems(self, config)
        if config.algorithm.reward_use.trains_policy or config.algorithm.reward_use.scores:
            problems += [
                f"needs.{role} is not set; the chosen reward reads it (or choose another: reward=gold)"
                for role in sorted(self.roles)
                if not config.needs.get(role)
            ]
        return problems


def optional_roles() -> list[str]:
    """Return the entries of `needs` for terms that read a stage's directory. Rewards without such terms ignore them."""
    terms: list[Any] = [registry.settings_class("reward", kind) for kind in registry.kinds("reward")]
    roles = {term.needs_role for term in terms if term.needs_role and term.reads_run_dir}
    return sorted(roles)


def _standardisation_problems(graph: RewardGraph, config: Config) -> list[str]:
    """Return messages about terms that must be standardised on responses of the data if the data have none."""
    if Capability.DEMONSTRATIONS in config.data.capabilities:
        return []
    data = registry.kind_of("data", config.data)
    return [
        f"reward.terms.{name}.standardise=corpus measures responses of the data, but data={data} has none; use "
        f"reward.terms.{name}.standardise=fixed with mean and sd"
        for name, term in graph.terms.items()
        if term.standardise == "corpus"
    ]


def _verifier_problems(graph: RewardGraph, config: Config) -> list[str]:
    """Return messages about an invalid `data.verifier`, or about several verifiers without a choice."""
    kind = getattr(config.data, "verifier", None)
    classes: dict[str, Any] = {name: registry.settings_class("reward", name) for name in registry.kinds("reward")}
    verifier_kinds = [name for name, cls in classes.items() if cls.verifies]
    if kind is not None:
        if kind in verifier_kinds:
            return []
        return [f"data.verifier={kind} is not a verifier; use one of {', '.join(verifier_kinds)}, or null"]
    terms = graph.terms.items() if "reward" in config.algorithm.inputs.sections else ()
    names = [name for name, term in terms if term.verifies]
    if len(names) < 2 or not hasattr(config.data, "verifier"):
        return []
    # The verifier also defines the metric `correct`, so exactly one must be chosen.
    kinds = [registry.kind_of("reward", graph.terms[name]) for name in names]
    choice = "|".join(kinds)
    return [f"reward={','.join(names)}: several verifiers; choose the one that measures: data.verifier={choice}"]


def _audit_problems(graph: RewardGraph, config: Config) -> list[str]:
    """Return the reasons why the policy of this run cannot be audited."""
    audit = graph.audit
    # Stages that use no reward have the section with its values, but nothing reads it.
    if not audit.on or "reward" not in config.algorithm.inputs.sections:
        return []
    written = f"reward.audit.labels_per_iteration={audit.labels_per_iteration}"
    if not samples_are_watched(config):
        kind = registry.kind_of("algorithm", config.algorithm)
        return [f"{written}: algorithm={kind} trains no policy on its own samples; use algorithm=ppo, grpo, …"]
    problems = []
    if config.needs.get(SOUP):
        problems.append(
            f"{written} compares the policy with its start, but needs.soup makes the reference another model; leave "
            "one of them out"
        )
    if audit.labels_from == "gold" and not config.gold_role and Capability.TRUE_REWARD not in config.data.capabilities:
        data = registry.kind_of("data", config.data)
        problems.append(
            f"reward.audit.labels_from=gold: data={data} has no true reward; name a reward model, needs.gold=DIR, or "
            "ask a judge: reward.audit.labels_from=judge judge=anthropic"
        )
    if audit.labels_from != "gold" and config.data.max_turns > 1:
        problems.append(
            f"reward.audit.labels_from={audit.labels_from} compares single responses, but the data have episodes of "
            "several turns; use reward.audit.labels_from=gold"
        )
    sharding = registry.kind_of("sharding", config.sharding)
    if audit.action == "stop" and sharding in ("fsdp", "zero"):
        problems.append(
            f"reward.audit.action=stop keeps a copy of the last certified policy, which sharding={sharding} divides "
            "between processes; use reward.audit.action=pause, or sharding=ddp"
        )
    return problems


def _gold_problems(config: Config) -> list[str]:
    """Return the reasons why the entries of `needs` cannot provide the gold of this run."""
    if not config.gold_role:
        return []
    roles = [role for role in named("gold_sources") if config.needs.get(role)]
    written = " and ".join(f"needs.{role}" for role in roles)
    data = registry.kind_of("data", config.data)
    problems = []
    if len(roles) > 1:
        problems.append(f"{written} name two golds; remove one of them")
    if Capability.TRUE_REWARD in config.data.capabilities:
        problems.append(
            f"{written}: data={data} has its own gold, the true reward of its world; remove {written}, or use "
            "other data, such as data=hh_rlhf"
        )
    if config.data.max_turns > 1:
        problems.append(f"{written} scores single responses, but data={data} has several turns; remove it")
    return problems
