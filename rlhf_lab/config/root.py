"""Config of one run: its sections and groups, and properties that follow from several of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from rlhf_lab.config import registry, schema
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import named

RESERVED = ("defaults", "hydra", "recipe")
"""Keys of a command line or of a YAML file that have a special meaning."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Complete description of one run.

    The sections and groups that packs register (`config.section`, `core.packs`) are attributes as well: `config.data`,
    `config.evaluation`, `config.sandbox`; see `run_class`.

    Args:
        engine: training loop: `native` is the built-in one, `trl` uses the trainers of TRL (`pip install
            'rlhf_lab[trl]'`). It applies to the named stage only; `stages.RECIPE.engine` sets it for an earlier stage.
        seed: random seed of initialisation, sampling and data order.
        needs: role → starting point of the run: a recipe name (built on demand), a model directory or a hub id. `gold`
            names a reward model that provides the gold reward; `judge` makes the judge the gold, on a rubric:
            `assistant` or a YAML file.
        stages: recipe → settings that override those of that upstream recipe, e.g. `stages.sft.algorithm.epochs=1`;
            `stages.gold` applies only to the recipe in `needs.gold`.
        outputs: directory of runs and studies, relative to the working directory.
        question: question that the recipe answers, one sentence; printed at the start.
        size: `full` runs the recipe as written. `smoke` takes minutes with any model, but its numbers mean nothing: see
            `config/smoke.py`. Settings on the command line are never reduced.
    """

    engine: Literal["native", "trl"] = "native"
    seed: int = 0
    needs: dict[str, str | None] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    outputs: str = "outputs"
    question: str = ""
    size: Literal["full", "smoke"] = "full"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def replace(self, **sections: Any) -> Config:
        """Return a copy of the config with other values of some sections."""
        return dataclasses.replace(self, **sections)

    def sections(self) -> dict[str, Any]:
        """Return name → section (`config.section.Section`) of the run without `study`, groups first."""
        sections = dict.fromkeys((*registry.groups(), *registry.sections()))
        return {name: getattr(self, name) for name in sections if name != "study"}

    def parts(self) -> list[tuple[str, Any]]:
        """Return (group, settings) of every component that the stage uses."""
        return [part for section in self.sections().values() for part in section.parts(self)]

    @property
    def gold_role(self) -> str:
        """Role of `needs` that provides the gold reward in this run (`Pack.gold_sources`); empty if none does."""
        if not self.algorithm.reward_use.measures_gold:
            return ""
        named_roles = (role for role in named("gold_sources") if self.needs.get(role))
        return next(named_roles, "")

    @property
    def verifier(self) -> Any:
        """Settings of the verifier that measures responses; None if the data's own oracle does.

        `data.verifier` names its kind; the settings are those of the reward term of that kind if there is one. Without
        `data.verifier`, the only verifier of the reward also measures.
        """
        terms = self.reward.terms.values() if "reward" in self.algorithm.inputs.sections else ()
        verifiers = [term for term in terms if term.verifies]
        # Only data read from files have the setting; worlds know the right answers themselves.
        kind = getattr(self.data, "verifier", None)
        if kind is None:
            return verifiers[0] if len(verifiers) == 1 else None
        same_kind = [term for term in verifiers if registry.kind_of("reward", term) == kind]
        default: Any = registry.settings_class("reward", kind)
        return same_kind[0] if same_kind else default()

    @property
    def fits_itself(self) -> bool:
        """True if stages adapt to the device's memory by settings that change no result; see `Runtime.fit`."""
        if self.engine != "native":
            return False
        return self.runtime.fit == "auto" or (self.runtime.fit is None and not self.model.small_scale)

    @property
    def checkpoints_in_background(self) -> bool:
        """Value of `checkpoint.background`, or its default: only large models checkpoint in the background."""
        background = self.checkpoint.background
        return not self.model.small_scale if background is None else background

    @property
    def corpus_roles(self) -> tuple[str, ...]:
        """Roles of `needs` whose rows are trained on, in the order in which they are written."""
        return tuple(role for role, source in self.needs.items() if source and is_corpus_role(role))

    @property
    def row_roles(self) -> dict[str, str]:
        """Role → kind of rows that its synthetic corpus must contain, see `data.made.KINDS`."""
        return {**self.algorithm.inputs.rows, **dict.fromkeys(self.corpus_roles, self.algorithm.trains_on)}

    def reads_run_dir(self, role: str) -> bool:
        """Return True if a role refers to the directory of a stage instead of the model that the stage trained."""
        return role in self.algorithm.inputs.directories or role in self.row_roles or role in self.reward.dir_roles

    def leaves_out(self, role: str) -> bool:
        """Return True if this run does not use a role of `needs`, so that nothing is built for it."""
        return any(section.leaves_out(role, self) for section in self.sections().values())


@cache
def run_class() -> type[Config]:
    """Return `Config` with a field for each registered group and section; a section has its own defaults."""
    own_names = [item.name for item in dataclasses.fields(Config)]
    registered = {*registry.groups(), *registry.sections()}
    taken = sorted(registered & {*RESERVED, *own_names})
    if taken:
        raise ConfigError(f"{', '.join(taken)}: the config has a key of this name; rename the pack's group or section")
    # Groups have no default, because a run has to choose an option of each; sections do.
    fields: list[Any] = [(name, Any) for name in registry.groups()]
    for name, section in registry.sections().items():
        if name == "study":
            fields.append((name, section.cls | None, field(default=None)))
        elif name not in registry.groups():
            fields.append((name, section.cls, field(default_factory=section.cls)))
    return dataclasses.make_dataclass("RunConfig", fields, bases=(Config,), frozen=True, kw_only=True)


def names() -> list[str]:
    """Return every top-level key of a config."""
    return [item.name for item in dataclasses.fields(run_class())]


def defaults() -> dict[str, Any]:
    """Return the defaults of every section, and the common defaults of every group, as plain values."""
    values = schema.defaults(run_class())
    for name, item in registry.sections().items():
        if name != "study":  # a run has no study unless a recipe or the command line adds one
            values[name] = schema.defaults(item.cls)
    return values


def is_corpus_role(role: str) -> bool:
    """Return True if a role of `needs` provides rows to train on: `corpus`, `corpus_agents`, …"""
    return role == "corpus" or role.startswith("corpus_")


def to_values(config: Config) -> dict[str, Any]:
    """Return plain YAML values of a checked config; `check.check(to_values(c))` gives `c` again."""
    values = schema.to_plain_values(config)
    for group in registry.groups():
        parts = registry.parts_of(group)
        settings = getattr(config, group)
        if parts:
            chosen = getattr(settings, parts)
            values[group][parts] = {name: _with_kind(group, part) for name, part in chosen.items()}
        else:
            values[group] = _with_kind(group, settings)
    return values


def _with_kind(group: str, settings: object) -> dict[str, Any]:
    """Return the YAML values of settings with their kind."""
    values: Mapping[str, Any] = schema.to_plain_values(settings)
    return {"kind": registry.kind_of(group, settings), **values}
