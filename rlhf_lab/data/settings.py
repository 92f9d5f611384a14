"""Settings common to all data sources, those of `data=mix`, and the mixture of rows. Imports no torch.

world_settings.py has the settings of embedded synthetic data ("worlds"), file_settings.py those of files and of
user-defined environments. A pack (rlhf_lab/packs/) defines the settings of its worlds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from rlhf_lab.config import registry, schema
from rlhf_lab.config.registry import register
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.ranges import BySize, Ge

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@dataclass(frozen=True)
class DataSettings(Section):
    """Settings common to every source.

    Class attributes:
        provides: capabilities of every source of this kind; `capabilities` adds those that depend on the settings.
        is_generated: True if the data are sampled from an embedded world, so that every seed can have its own data.
        max_turns: maximum number of turns of an episode; above 1 if an environment answers the policy.
        world: module whose `VERSION` is part of the data's identity; empty if only settings and files determine them.
    """

    inherited: ClassVar[bool] = True
    provides: ClassVar[Capability] = Capability.TEXT | Capability.PAIRS | Capability.DEMONSTRATIONS
    is_generated: ClassVar[bool] = False
    max_turns: ClassVar[int] = 1
    world: ClassVar[str] = ""

    @property
    def capabilities(self) -> Capability:
        """Capabilities that algorithms, rewards and judges can rely on with these settings."""
        return self.provides | (Capability.TURNS if self.max_turns > 1 else Capability.SINGLE_TURN)

    def of_run(self, seed: int) -> Self:
        """Return these settings for a run with this seed: every seed setting that is None gets the run's seed."""
        return self

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        return [("data", self)]

    def sources_by_name(self) -> dict[str, DataSettings]:
        """Return the sources of a mix by name; empty for a single source."""
        return {}


@dataclass(frozen=True)
class WorldSettings(DataSettings):
    """Settings of data that a built-in simulated world generates.

    By default all data are sampled anew for every seed of a run, so that a study over seeds repeats the entire
    experiment and not only the training. A seed that is set stays the same in all runs, and the study reports that.

    Args:
        seed: seed of the training split: its prompts, responses and annotator labels. null uses the run's seed.
        test_seed: seed of the test split, in the world that `seed` (or `facts_seed`, if there is one) determines.
            The test prompts stay the same only if both seeds do. null uses `seed`.
    """

    is_generated: ClassVar[bool] = True
    seed: Annotated[int, Ge(0)] | None = None
    test_seed: Annotated[int, Ge(0)] | None = None

    def split_seeds(self) -> tuple[int, int]:
        """Return the seeds of the training and the test split; outside a run, unset seeds are 0."""
        train = self.seed or 0
        return train, train if self.test_seed is None else self.test_seed

    def of_run(self, seed: int) -> Self:
        own_seed = seed if self.seed is None else self.seed
        train, test = replace(self, seed=own_seed).split_seeds()
        return replace(self, seed=train, test_seed=test)


MIXABLE = Capability.PAIRS | Capability.ANSWERS | Capability.DEMONSTRATIONS
"""Capabilities that a mix has if all of its sources have them. A mix lacks all others, which need a single source."""


@register("data", "mix")
@dataclass(frozen=True)
class Mix(DataSettings):
    """Mix of several sources in fixed proportions.

    Args:
        sources: name → settings of a source (`kind`, `path`, …) and its `weight`. Either all sources have a weight or
            none. With weights, a split takes as many rows as the proportions allow without using a row twice. Without
            weights, it takes all rows.
        max_pairs: maximum number of rows per split, in the same proportions; 0 is no limit.
        seed: seed of the selection of rows and of their order.
    """

    by_size = BySize(smoke={"max_pairs": 2000}, smoke_real={"max_pairs": 16})
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    max_pairs: Annotated[int, Ge(0, hint="0 is no limit")] = 0
    seed: int = 0

    def rules(self) -> tuple[Rule, ...]:
        hint = "write data.sources.NAME.kind=KIND data.sources.NAME.path=FILE for each"
        return (*super().rules(), (bool(self.sources), f"sources is not set; {hint}"))

    def __post_init__(self) -> None:
        super().__post_init__()
        problems: list[str] = []
        built = {name: self._build(name, problems) for name in self.sources}
        for name, part in built.items():
            if getattr(part, "verifier", None):
                problems.append(
                    f"sources.{name}.verifier={part.verifier}: the sources of a mix are measured together by the "
                    "verifier of the run's reward; remove the setting"
                )
        # a malformed source has been reported by `_build` already
        weights = [source.get("weight") for source in self.sources.values() if isinstance(source, Mapping)]
        are_positive = [isinstance(weight, (int, float)) and weight > 0 for weight in weights]
        if any(weights) and not all(are_positive):
            problems.append(f"sources: the weights are {weights}; set a weight above 0 for every source, or for none")
        if problems:
            raise ConfigError(problems)
        parts = [part for part in built.values() if part is not None]
        # the dataclass is frozen; the built sources are no fields, so they stay out of its repr
        object.__setattr__(self, "_parts", built)
        object.__setattr__(self, "is_generated", any(part.is_generated for part in parts))

    def _build(self, name: str, problems: list[str]) -> Any:
        where = f"sources.{name}"
        values = self.sources[name]
        if not isinstance(values, Mapping) or "kind" not in values:
            known = ", ".join(kind for kind in registry.kinds("data") if kind != "mix")
            problems.append(f"{where}.kind is not set; write data.{where}.kind=… with one of {known}")
            return None
        try:
            cls = registry.settings_class("data", values["kind"])
        except ConfigError as error:
            problems.extend(f"{where}: {line}" for line in error.problems)
            return None
        # the kind selects the class, and the weight belongs to the mix
        settings = {key: value for key, value in values.items() if key not in ("kind", "weight")}
        return schema.build(cls, settings, where, problems)

    @property
    def capabilities(self) -> Capability:
        """Capabilities that every source provides."""
        provided = [part.capabilities for part in self.sources_by_name().values()]
        common = reduce(and_, provided) & MIXABLE
        # For an algorithm that reads unpaired data, both responses of a pair are separate examples.
        all_labelled = all(item & (Capability.UNPAIRED | Capability.PAIRS) for item in provided)
        if all_labelled and any(Capability.UNPAIRED in item for item in provided):
            common |= Capability.UNPAIRED
        return Capability.TEXT | Capability.SINGLE_TURN | common

    def sources_by_name(self) -> dict[str, DataSettings]:
        return dict(self._parts)  # type: ignore[attr-defined]

    def of_run(self, seed: int) -> Self:
        sources = {}
        for name, part in self.sources_by_name().items():
            kept = {key: value for key, value in self.sources[name].items() if key in ("kind", "weight")}
            sources[name] = {**kept, **schema.to_plain_values(part.of_run(seed))}
        return replace(self, sources=sources)


@section("mixture")
@dataclass(frozen=True)
class Mixture(Section):
    """Selection of training rows if `needs` names corpora generated by stages (`needs.corpus=cai_preferences`).

    It applies only to the named stage. Set `stages.RECIPE.mixture` for an earlier stage.

    Args:
        shares: source → its share of the training rows, in proportion. `data` means the data's own rows; the other
            sources are roles of `needs` that hold a corpus (`corpus`, `corpus_…`). A source that is not named gets no
            rows. null takes all rows of the synthetic corpora and none of the data's own rows.
        rows: total number of training rows, sampled at random; a smaller sample is contained in a larger one. 0 takes
            the largest number that the shares allow without using a row twice.
        vocabulary: rows that provide the vocabulary of a model trained from scratch. `data` uses the data's own rows,
            so that models of different mixtures have the same vocabulary. `all` adds every row of the corpora,
            independent of the shares, for corpora about another world. A loaded model keeps its own vocabulary.
    """

    # the default is left out of a run's key, so that older runs keep theirs
    keyed_if_set: ClassVar[tuple[str, ...]] = ("vocabulary",)
    shares: dict[str, Annotated[float, Ge(0)]] | None = None
    rows: Annotated[int, Ge(0, hint="0 is as many as the shares allow")] = 0
    vocabulary: Literal["data", "all"] = "data"

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.shares is None or any(self.shares.values()),
                f"shares={self.shares} are all 0; set at least one share above 0",
            ),
        )

    def contradictions(self, config: Config) -> list[str]:
        algorithm, roles = config.algorithm, config.corpus_roles
        if not roles:
            # defaults are fine without a corpus; any other value would be ignored silently
            if self == Mixture():
                return []
            return [
                "mixture is only used if needs names a synthetic corpus; name one, e.g. +needs.corpus=cai_preferences"
            ]
        problems = []
        if self.vocabulary == "all" and config.needs.get("policy"):
            problems.append(
                "mixture.vocabulary=all: the model that this stage starts from has a vocabulary already; set it for "
                "the stage that trains a model from scratch, e.g. stages.sft_mixed.mixture.vocabulary=all"
            )
        # every share must belong to a source, or a typo would change the proportions
        sources = ("data", *roles)
        for name in self.shares or {}:
            if name not in sources:
                problems.append(f"mixture.shares.{name} is no source of this run{schema.did_you_mean(name, sources)}")
        if config.data.max_turns > 1 and algorithm.trains_on == "prompts":
            problems.append(
                "needs.corpus: with an environment that answers the policy, tasks can only come from the environment; "
                "remove needs.corpus"
            )
        if algorithm.trains_on == "prompts" and Capability.ANSWERS in config.data.capabilities:
            problems.append(
                "needs.corpus: synthetic prompts have no answer that a verifier could check; use data without answers"
            )
        return problems
