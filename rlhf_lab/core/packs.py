"""Packs: the extension interface, and where rlhf_lab finds extensions.

A `Pack` object describes everything that a package adds. The core has one (`rlhf_lab/lab.py`), as does every directory
of `rlhf_lab/packs/` and every package with an entry point in the group `rlhf_lab.plugins`. References are texts of the
form "module:name" that are imported on first use: looking up commands and settings takes milliseconds, and no command
imports what it does not need.

Packs cannot replace each other's parts: a name that two packs define raises ConfigError when packs are loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from rlhf_lab.core.errors import ConfigError, LabError

ENTRY_POINTS = "rlhf_lab.plugins"
CORE = "rlhf_lab.lab:CORE"
IN_TREE = "rlhf_lab.packs"
"""Package of the packs that ship with rlhf_lab; each defines `PACK`. A pack whose directory was deleted is skipped."""


@dataclass(frozen=True)
class ConfigGroup:
    """Config group, such as `agent`.

    Attributes:
        name: name on the command line: `agent=react`.
        default: option used if a run selects none; empty if conf/config.yaml sets it.
        meaning: one sentence about what the group decides; printed by `explain`.
    """

    name: str
    meaning: str
    default: str = ""


@dataclass(frozen=True)
class Pack:
    """Everything that a package adds to rlhf_lab.

    Modules named `settings.py` or `…_settings.py` are imported when settings are looked up: they register kinds and
    sections and do not import torch. Modules named `metrics.py` declare metrics. The package's directories `conf/` and
    `recipes/` contain options and recipes.

    Attributes:
        name: the pack's name in messages.
        package: dotted name of the package.
        modules: additional modules that register settings. Metrics are read only from files named `metrics.py`.
        groups: config groups that the pack defines.
        commands: sub-command → function of its arguments; the first paragraph of its docstring is the command's help.
        answers: name that settings use as `answer` → function of a run that returns the sentence.
        run_sections, study_sections: functions of a run, or of a study, that return a section of its page
            (`reports.sections.PageSection`) or None; " after ID" behind a reference names the preceding section.
        rules: functions of a config that check several sections together; return one message per problem.
        preflight: functions of a stage's config that return problems which only the machine can reveal.
        code_files: functions of a config that return source files of the user's own code that the stage runs.
        doctor: objects of the class `doctor.findings.Check`.
        families: `model.family` → object of the class `models.families.Family`.
        criteria: functions of a corpus that return the named criteria of its responses
            (`rewards.criteria.sets.CriteriaSet`), or None for responses of another domain.
        gold_sources: role of `needs` that provides the gold reward → function (corpus, run) that returns the corpus
            with an oracle of that gold.
        comparers: value of `reward.audit.labels_from` → function of a run that returns a `core.types.Comparer`.
        reward_files: file that a stage writes → function (directory, run) of the reward in it, for `reward=design`.
    """

    name: str
    package: str
    modules: tuple[str, ...] = ()
    groups: tuple[ConfigGroup, ...] = ()
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
    gold_sources: Mapping[str, str] = field(default_factory=dict)
    comparers: Mapping[str, str] = field(default_factory=dict)
    reward_files: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"pack {self.name} ({self.package})"

    @property
    def directory(self) -> Path:
        """Directory of the package. Raises ConfigError if there is none."""
        try:
            spec = find_spec(self.package)
        except ModuleNotFoundError:  # a parent package is missing
            spec = None
        locations = spec.submodule_search_locations if spec else None
        if not locations:
            raise ConfigError(
                f"pack {self.name}: there is no package {self.package}; set `package` to the dotted name of a "
                "directory with an __init__.py"
            )
        return Path(locations[0])

    def owns(self, module: str) -> bool:
        """Return True if a module belongs to the pack."""
        # The packs in rlhf_lab/packs/ lie inside the core's package, but are packs of their own.
        inner = module.removeprefix(f"{self.package}.")
        is_inside = inner != module and inner.partition(".")[0] != str(_PACKS)
        return module == self.package or is_inside or module in self.modules

    def names(self) -> Iterator[str]:
        """Yield every name that must be unique among packs, such as "command judge"."""
        yield f"pack {self.name}"
        yield from (f"config group {group.name}" for group in self.groups)
        for field_name, meaning in _NAMED.items():
            yield from (f"{meaning} {name}" for name in getattr(self, field_name))
        for field_name, meaning in _SECTIONS.items():
            references = [text.partition(" after ")[0] for text in getattr(self, field_name)]
            yield from (f"{meaning} {reference.rpartition(':')[2]}" for reference in references)

    def modules_called(self, pattern: str) -> list[str]:
        """Return dotted names of the package's modules whose file name matches, at any depth, sorted by path."""
        directory = self.directory
        modules = []
        for file in sorted(directory.rglob(pattern)):
            path = file.relative_to(directory)
            if _PACKS not in path.parents:  # the files of packs inside the core belong to these packs
                modules.append(".".join((self.package, *path.with_suffix("").parts)))
        return modules


_PACKS = Path("packs")
"""Directory inside the core that contains packs. Its modules belong to those packs, not to the core."""


_NAMED = {
    "commands": "command",
    "answers": "answer",
    "families": "model.family",
    "gold_sources": "gold source",
    "comparers": "comparer",
    "reward_files": "reward file",
}
"""Field of `Pack` that maps names to references → word that error messages use for one such name."""
_SECTIONS = {"run_sections": "section of a run's page", "study_sections": "section of a study's page"}
"""Field of `Pack` with references "module:name" → word that error messages use for one such name."""


@cache
def packs() -> tuple[Pack, ...]:
    """Return every pack: the core, the packs that ship with it, then plug-ins, each group in alphabetical order.

    The entry point of a plug-in names a Pack, or a function that registers the plug-in's algorithms, rewards and other
    components itself. Raise one ConfigError that lists every problem: a plug-in that cannot be loaded, a pack whose
    Python package is missing, and names that two packs define.
    """
    # Built-in packs are loaded outside the `try` below: an exception in them is a bug and needs its traceback.
    found: list[Pack] = [load(CORE), *(load(f"{IN_TREE}.{name}:PACK") for name in in_tree())]
    problems = []
    for entry_point in _plug_ins():
        try:
            loaded = _load_plug_in(entry_point)
            if loaded is not None:
                found.append(loaded)
        except ConfigError as error:
            problems += error.problems
    problems += _conflicts(found)
    if problems:
        raise ConfigError(problems)
    return tuple(found)


def _plug_ins() -> list[EntryPoint]:
    return sorted(entry_points(group=ENTRY_POINTS), key=lambda entry_point: entry_point.name)


def _load_plug_in(entry_point: EntryPoint) -> Pack | None:
    """Return the pack of an entry point, or None for a function that registers kinds itself.

    Raise ConfigError for any exception of the plug-in.
    """
    where = _described(entry_point)
    try:
        loaded = entry_point.load()
        if not isinstance(loaded, Pack) and callable(loaded):
            loaded = loaded()
            if not isinstance(loaded, Pack):
                return None
        if isinstance(loaded, Pack):
            _ = loaded.directory  # raises ConfigError if its package is missing
    except LabError as error:
        raise ConfigError(f"{where}: {error}; {_removal(entry_point)}") from error
    except Exception as error:  # the plug-in is third-party code, and importing it can fail in any way
        raise ConfigError(_cannot_be_loaded(where, error, _removal(entry_point))) from error
    if not isinstance(loaded, Pack):
        raise ConfigError(
            f"{where} has the type {type(loaded).__name__}; name a rlhf_lab.Pack or a function, or "
            f"{_removal(entry_point)}"
        )
    return loaded


def _conflicts(found: Sequence[Pack]) -> list[str]:
    """Return one message for each name that two packs define."""
    definers: dict[str, Pack] = {}
    problems = []
    for pack in found:
        names = dict.fromkeys(pack.names())
        twice = [name for name in names if name in definers]
        if f"pack {pack.name}" in twice:  # the pack was found twice, so all its other names collide as well
            twice = [f"pack {pack.name}"]
        problems += [defined_twice(name, definers[name], pack) for name in twice]
        definers = dict.fromkeys(names, pack) | definers
    return problems


def defined_twice(what: str, first: object, second: object) -> str:
    """Return the error message for a name that two packs, modules or files define."""
    return f"{what} is defined twice, by {first} and by {second}; rename one of them, or uninstall one of the packages"


def _described(entry_point: EntryPoint) -> str:
    """Return the description of an entry point for messages, with the distribution that installed it."""
    installed = f", installed by {entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist else ""
    return f"plug-in {entry_point.name} = {entry_point.value}{installed}"


def _removal(entry_point: EntryPoint) -> str:
    """Return the instruction for removing a plug-in."""
    if not entry_point.dist:
        return f"remove the entry point {entry_point.name} of the group {ENTRY_POINTS}"
    return f"remove the plug-in: pip uninstall {entry_point.dist.name}"


def _cannot_be_loaded(where: str, error: Exception, removal: str) -> str:
    return f"{where} cannot be loaded ({type(error).__name__}: {error}); correct the module, or {removal}"


def in_tree() -> list[str]:
    """Return the names of the packs that ship with rlhf_lab, sorted."""
    spec = find_spec(IN_TREE)
    folders = spec.submodule_search_locations if spec else None
    return sorted(module.name for module in iter_modules(folders or []) if module.ispkg)


def _plug_in_of(module: str) -> EntryPoint | None:
    """Return the entry point with the same top-level package as a module."""
    top = module.partition(".")[0]
    for point in _plug_ins():
        plug_in_module = point.value.partition(":")[0]
        if plug_in_module.partition(".")[0] == top:
            return point
    return None


@contextmanager
def _plug_in_named(part: str, module: str) -> Iterator[None]:
    """Convert an exception of a plug-in that is being loaded into a ConfigError that names the plug-in.

    Exceptions of rlhf_lab's own modules pass unchanged: they are bugs, and their traceback is needed.
    """
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        entry_point = _plug_in_of(module)
        if entry_point is None:
            raise
        where = f"{part} of {_described(entry_point)}"
        raise ConfigError(_cannot_be_loaded(where, error, _removal(entry_point))) from error


def import_part(module: str) -> ModuleType:
    """Import a module of a pack. Raise ConfigError naming the plug-in if its module raises."""
    with _plug_in_named(module, module):
        return import_module(module)


def load(reference: str) -> Any:
    """Return the object that "module:name" names. Raise ConfigError if a plug-in's reference cannot be resolved."""
    module, _, name = reference.partition(":")
    with _plug_in_named(reference, module):
        return getattr(import_module(module), name)


def contributed_objects(kind: str) -> list[Any]:
    """Return the objects that all packs contribute of one kind, such as "preflight"."""
    return [load(reference) for pack in packs() for reference in getattr(pack, kind)]


def named(kind: str) -> dict[str, str]:
    """Return name → reference that all packs contribute of one kind, such as "commands"; names are unique."""
    return {name: reference for pack in packs() for name, reference in getattr(pack, kind).items()}
