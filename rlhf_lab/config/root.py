"""The config of one run: what every section of it is called, and what follows from several of them together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from rlhf_lab.config import registry, schema


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run, completely described.

    The sections and groups that packs register (`config.section`, `core.packs`) are attributes as well: `config.data`,
    `config.evaluation`, `config.sandbox`; see `run_class`.

    Args:
        engine: what trains: `native` is the lab's own loop, `trl` the trainers of TRL (`pip install 'rlhf_lab[trl]'`).
            Of the named stage alone: one before it follows `stages.RECIPE.engine`.
        seed: of initialisation, sampling and data order.
        needs: what the run starts from, by role: a recipe name (built on demand) or a model folder or hub id. `gold`
            is the reward model that says what responses are worth; `judge` makes that the judge, by a rubric:
            `assistant` or a YAML file.
        stages: recipe → settings that replace that upstream recipe's own, e.g. `stages.sft.algorithm.epochs=1`;
            `stages.gold` is for the recipe in `needs.gold` alone.
        outputs: folder of runs and studies, relative to the working directory.
        question: what the recipe answers, one sentence; printed when it starts.
        size: `full` is the recipe as written; `smoke` takes minutes, whatever the model, and its numbers mean nothing:
            see `config/smoke.py`. What the command line writes stays as written.
    """

    engine: Literal["native", "trl"] = "native"
    seed: int = 0
    needs: dict[str, str | None] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)
    outputs: str = "outputs"
    question: str = ""
    size: Literal["full", "smoke"] = "full"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def replace(self, **sections: Any) -> Config:
        """A copy of the config with other values of some sections."""
        return dataclasses.replace(self, **sections)

    def sections(self) -> dict[str, Any]:
        """Name → section (`config.section.Section`) of the run, those of groups first; a study is none of them."""
        sections = dict.fromkeys((*registry.groups(), *registry.sections()))
        return {name: getattr(self, name) for name in sections if name != "study"}

    def parts(self) -> list[tuple[str, Any]]:
        """(group, settings) of every component that the stage uses."""
        return [part for section in self.sections().values() for part in section.parts(self)]

    @property
    def gold_section(self) -> str:
        """Name of the section that says what responses are worth in this run (`Section.gold_role`); empty if none."""
        if not self.algorithm.measures_gold:
            return ""
        named = (name for name, section in self.sections().items() if self.needs.get(section.gold_role))
        return next(named, "")

    @property
    def verifier(self) -> Any:
        """Settings of the verifier that measures responses; None where the data's own oracle does.

        `data.verifier` names its kind, with the settings of the reward's term of that kind where there is one. Where it
        names none, the only verifier of the reward measures too.
        """
        terms = self.reward.terms.values() if "reward" in self.algorithm.uses else ()
        verifiers = [term for term in terms if term.verifies]
        kind = getattr(self.data, "verifier", None)
        if kind is None:
            return verifiers[0] if len(verifiers) == 1 else None
        same_kind = [term for term in verifiers if registry.kind_of("reward", term) == kind]
        default: Any = registry.settings_class("reward", kind)
        return same_kind[0] if same_kind else default()

    @property
    def fits_itself(self) -> bool:
        """Whether stages are made to fit the device by settings that change no result; see `Runtime.fit`."""
        if self.engine != "native":
            return False
        return self.runtime.fit == "auto" or (self.runtime.fit is None and not self.model.small_scale)

    @property
    def checkpoints_in_background(self) -> bool:
        """`checkpoint.background`, with its default."""
        return not self.model.small_scale if self.checkpoint.background is None else self.checkpoint.background

    @property
    def corpus_roles(self) -> tuple[str, ...]:
        """Roles of `needs` whose rows are trained on, in the order in which they are written."""
        return tuple(role for role, source in self.needs.items() if source and is_corpus_role(role))

    @property
    def row_roles(self) -> dict[str, str]:
        """Role → the kind of rows that its made corpus has to have, see `data.made.KINDS`."""
        return {**self.algorithm.reads_rows, **dict.fromkeys(self.corpus_roles, self.algorithm.trains_on)}

    def reads_folder(self, role: str) -> bool:
        """Return True if a role takes what a stage wrote into its directory, not the model it made."""
        return role in self.algorithm.data_roles or role in self.row_roles or role in self.reward.folder_roles

    def leaves_out(self, role: str) -> bool:
        """Return True if a role is named for what this run does not have, so that nothing is built for it."""
        return any(section.leaves_out(role, self) for section in self.sections().values())


@cache
def run_class() -> type[Config]:
    """`Config` with a field for each registered group and section; a section has its own defaults."""
    fields: list[Any] = [(name, Any) for name in registry.groups()]
    for name, section in registry.sections().items():
        if name == "study":
            fields.append((name, section.cls | None, field(default=None)))
        elif name not in registry.groups():
            fields.append((name, section.cls, field(default_factory=section.cls)))
    return dataclasses.make_dataclass("RunConfig", fields, bases=(Config,), frozen=True, kw_only=True)


def names() -> list[str]:
    """Every top-level key of a config."""
    return [item.name for item in dataclasses.fields(run_class())]


def defaults() -> dict[str, Any]:
    """The default of every section, and of what the options of a group have in common, as plain values."""
    values = schema.defaults(run_class())
    return values | {name: schema.defaults(item.cls) for name, item in registry.sections().items() if name != "study"}


def is_corpus_role(role: str) -> bool:
    """Return True if a role of `needs` holds rows to train on: `corpus`, `corpus_agents`, …"""
    return role == "corpus" or role.startswith("corpus_")


def to_values(config: Config) -> dict[str, Any]:
    """Plain YAML values of a checked config; `check.check(to_values(c))` gives `c` again."""
    values = schema.plain(config)
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
    values: Mapping[str, Any] = schema.plain(settings)
    return {"kind": registry.kind_of(group, settings), **values}
