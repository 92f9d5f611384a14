"""Settings that all data sources share, and of `data=mix`. Imports no torch; see `rlhf_lab/config/registry.py`.

Those of the core's embedded worlds are in world_settings.py, those of files in file_settings.py, those of other
environments in environment_settings.py; packs have those of their own worlds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from rlhf_lab.config import registry, schema
from rlhf_lab.config.registry import register
from rlhf_lab.config.section import Section
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.ranges import Ge

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@dataclass(frozen=True)
class DataSettings(Section):
    """Common to every source.

    Class attributes:
        provides: capabilities of every source of this kind; `capabilities` adds those that depend on the settings.
        drawn: True if the data are sampled from an embedded world, so that every seed can have data of its own.
        max_turns: maximum number of turns of an episode; above 1 where an environment answers the policy.
        world: module whose `VERSION` is part of what the data are; empty where nothing but settings and files decides.
    """

    inherited: ClassVar[bool] = True
    provides: ClassVar[Capability] = Capability.TEXT | Capability.PAIRS | Capability.DEMONSTRATIONS
    drawn: ClassVar[bool] = False
    max_turns: ClassVar[int] = 1
    world: ClassVar[str] = ""

    @property
    def capabilities(self) -> Capability:
        """What algorithms, rewards and judges can rely on with these settings."""
        return self.provides | (Capability.TURNS if self.max_turns > 1 else Capability.SINGLE_TURN)

    def of_run(self, seed: int) -> Self:
        """These settings in a run with this seed: every seed of the data that is None has its value."""
        return self

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        return [("data", self)]

    def sources_by_name(self) -> dict[str, DataSettings]:
        """The sources that a mix is made of, by name; none for a source by itself."""
        return {}


@dataclass(frozen=True)
class WorldSettings(DataSettings):
    """Data that are drawn from an embedded world.

    By default everything is drawn anew for every seed of a run, so that a study over seeds repeats the whole
    experiment and not training alone. A seed that is written stays the same in all runs, and the study says so.

    Args:
        seed: draws the training split: prompts, replies and what the annotator says of them. None is the run's seed.
        test_seed: draws the held-out split, in the world that `seed` (or, where there is one, `facts_seed`) draws: only
            together with that one does it keep the test prompts. None is `seed`.
    """

    drawn: ClassVar[bool] = True
    seed: Annotated[int, Ge(0)] | None = None
    test_seed: Annotated[int, Ge(0)] | None = None

    def split_seeds(self) -> tuple[int, int]:
        """The seeds of the training and of the held-out split; those of seed 0 outside a run."""
        train = self.seed or 0
        return train, train if self.test_seed is None else self.test_seed

    def of_run(self, seed: int) -> Self:
        train, test = replace(self, seed=seed if self.seed is None else self.seed).split_seeds()
        return replace(self, seed=train, test_seed=test)


MIXABLE = Capability.PAIRS | Capability.ANSWERS | Capability.DEMONSTRATIONS
"""Capabilities that a mix has if all of its sources have them; its rows are of no single world."""


@register("data", "mix")
@dataclass(frozen=True)
class Mix(DataSettings):
    """Several sources as one, in fixed proportions.

    Args:
        sources: name → the settings of a source (`kind`, `path`, …) and its `weight`. With weights, given to all or to
            none, a split takes as many rows as the proportions allow without any row twice; without, all rows.
        max_pairs: at most this many rows per split, in the same proportions; 0 is no limit.
        seed: draws which rows are taken and their order.
    """

    smoke: ClassVar[dict[str, int]] = {"max_pairs": 2000}
    smoke_real: ClassVar[dict[str, int]] = {"max_pairs": 16}
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
                    f"sources.{name}.verifier={part.verifier}: the sources of a mix are measured together, by the "
                    "verifier of the run's reward; leave it out"
                )
        weights = [source.get("weight") for source in self.sources.values() if isinstance(source, Mapping)]
        if any(weights) and not all(isinstance(weight, (int, float)) and weight > 0 for weight in weights):
            problems.append(f"sources: the weights are {weights}; give every source one above 0, or none of them")
        if problems:
            raise ConfigError(problems)
        parts = [part for part in built.values() if part is not None]
        object.__setattr__(self, "_parts", built)
        object.__setattr__(self, "drawn", any(part.drawn for part in parts))

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
        settings = {key: value for key, value in values.items() if key not in ("kind", "weight")}
        return schema.build(cls, settings, where, problems)

    @property
    def capabilities(self) -> Capability:
        """What every source provides."""
        provided = [part.capabilities for part in self.sources_by_name().values()]
        common = reduce(and_, provided) & MIXABLE
        # Both responses of a pair are examples of their own to an algorithm that reads unpaired data.
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
            sources[name] = {**kept, **schema.plain(part.of_run(seed))}
        return replace(self, sources=sources)
