"""Packs: what a package adds to the lab, and where the lab finds it.

A pack is described by one `Pack`. The core has one (`rlhf_lab/lab.py`), so has every folder of `rlhf_lab/packs/`, and
so has every package behind an entry point of the group `rlhf_lab.plugins`. A reference is text, "module:name", and is
imported when it is first used: looking up commands and settings costs milliseconds, and no command imports what it
does not need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

ENTRY_POINTS = "rlhf_lab.plugins"
CORE = "rlhf_lab.lab:CORE"
IN_TREE = "rlhf_lab.packs"
"""Package of the packs that come with the lab; each has `PACK`. One whose folder is gone is not there, and no error."""


@dataclass(frozen=True)
class Group:
    """A config group, such as `agent`.

    Attributes:
        name: as it stands on the command line: `agent=react`.
        default: the option that a run has where none is chosen; empty if conf/config.yaml names it.
        meaning: what it decides, one sentence; `explain` prints it.
    """

    name: str
    meaning: str
    default: str = ""


@dataclass(frozen=True)
class Pack:
    """What a package adds to the lab.

    Modules called `settings.py` or `…_settings.py` are imported when settings are looked up: they register kinds and
    sections and import no torch. Modules called `metrics.py` declare metrics. Folders `conf/` and `recipes/` within the
    package hold options and recipes.

    Attributes:
        name: the pack's name in messages.
        package: dotted name of the package.
        modules: further modules that register settings or declare metrics under other names.
        groups: config groups that the pack defines.
        commands: sub-command → function of its words; the first paragraph of its docstring is the command's help.
        answers: name that settings give as `answer` → function of a run that returns the sentence.
        run_sections, study_sections: functions of a run, or of a study, that return a section of its page
            (`reports.sections.PageSection`) or None; " after ID" behind a reference says which section it follows.
        rules: functions of a config that return problems between sections, one message each.
        preflight: functions of a stage's config that return problems which only the machine can show.
        code_files: functions of a config that return source files of the user's own code that the stage runs.
        doctor: objects of the class `doctor.findings.Check`.
        families: `model.family` → object of the class `models.families.Family`.
        criteria: functions of a corpus that return the named criteria of its responses
            (`rewards.criteria.sets.CriteriaSet`), or None for responses of another domain.
        reward_files: file that a stage writes → function (folder, run) of the reward in it, for `reward=design`.
    """

    name: str
    package: str
    modules: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    commands: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    run_sections: tuple[str, ...] = ()
    study_sections: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    preflight: tuple[str, ...] = ()
    code_files: tuple[str, ...] = ()
    doctor: tuple[str, ...] = ()
    families: Mapping[str, str] = field(default_factory=dict)
    criteria: tuple[str, ...] = ()
    reward_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the package."""
        spec = find_spec(self.package)
        locations = spec.submodule_search_locations if spec else None
        if not locations:
            raise ModuleNotFoundError(f"pack {self.name}: there is no package {self.package}")
        return Path(locations[0])

    def modules_called(self, pattern: str) -> list[str]:
        """Dotted names of the package's modules whose file name matches, at any depth, in the order of their paths."""
        folder = self.folder
        files = [file for file in sorted(folder.rglob(pattern)) if _PACKS not in file.relative_to(folder).parents]
        return [f"{self.package}.{'.'.join(file.relative_to(folder).with_suffix('').parts)}" for file in files]


_PACKS = Path("packs")
"""Folder of the core in which its packs lie; each of them is a pack of its own."""


@cache
def packs() -> tuple[Pack, ...]:
    """Every pack: the core, those that come with it, then plug-ins, each in the order of the alphabet.

    An entry point names a Pack, or a function that registers kinds by itself.
    """
    found = [load(CORE), *(load(f"{IN_TREE}.{name}:PACK") for name in in_tree())]
    for entry_point in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        loaded = entry_point.load()
        pack = loaded if isinstance(loaded, Pack) else loaded()
        if isinstance(pack, Pack):
            found.append(pack)
    return tuple(found)


def in_tree() -> list[str]:
    """Names of the packs that come with the lab, sorted."""
    spec = find_spec(IN_TREE)
    folders = spec.submodule_search_locations if spec else None
    return sorted(module.name for module in iter_modules(folders or []) if module.ispkg)


def load(reference: str) -> Any:
    """The object that "module:name" names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def contributed(kind: str) -> list[Any]:
    """The objects behind the references that every pack contributes of one kind, such as "preflight"."""
    return [load(reference) for pack in packs() for reference in getattr(pack, kind)]


def named(kind: str) -> dict[str, str]:
    """Name → reference of what every pack contributes of one kind, such as "commands"."""
    return {name: reference for pack in packs() for name, reference in getattr(pack, kind).items()}
