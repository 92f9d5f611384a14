"""One registry for every config group: the name in YAML is the file, the key and the config file.

`algorithm=dpo` reads `conf/algorithm/dpo.yaml` (`kind: dpo`), is checked against the dataclass registered for
("algorithm", "dpo") in `rlhf_lab/algorithms/preference/settings.py`, and is built by `build` in `dpo.py` beside it.
Settings modules import neither torch nor transformers, so checking a config costs milliseconds; implementations are
imported only when they are built. YAML never names a Python path. Packs (`core/packs.py`) add kinds, sections and
groups in the same way. A kind of a plug-in is an option of its group without a file: `reward=mine`, with the defaults
of the settings class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import Group, packs

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class RegisteredSection:
    """A section of the config and its class.

    Attributes:
        parts: field that maps names to settings of kinds of the group of the same name; empty if there is none.
    """

    cls: type
    parts: str = ""


OLD_NAMES = {
    "data": (
        *("preferences", "answers", "graded", "demonstrations", "unpaired"),
        *("steps", "audio", "phones", "true_reward"),
    ),
    "algorithm": ("needs_preferences", "needs_demonstrations", "needs_audio", "needs_answers", "takes_turns"),
    "reward": ("reads",),
}
"""Class attributes that `provides` and `requires` have replaced."""

_settings: dict[tuple[str, str], type] = {}
_implementations: dict[tuple[str, str], str] = {}
_sections: dict[str, RegisteredSection] = {}


def register(group: str, kind: str, implementation: str | None = None) -> Callable[[type[Settings]], type[Settings]]:
    """Class decorator: this dataclass holds the settings of `kind` in `group`.

    Args:
        implementation: module that has `build(settings, …)`; default: `<kind>.py` beside the class's `settings.py` (in
            the lab also `…_settings.py`), or the class's own module where that has another name.
    """

    def decorate(cls: type[Settings]) -> type[Settings]:
        _refuse_old_names(group, kind, cls)
        _settings[group, kind] = cls
        package, _, module = cls.__module__.rpartition(".")
        is_settings = module == "settings" or (package.startswith("rlhf_lab.") and module.endswith("_settings"))
        beside = f"{package}.{kind}" if is_settings else cls.__module__
        _implementations[group, kind] = implementation or beside
        return cls

    return decorate


def _refuse_old_names(group: str, kind: str, cls: type) -> None:
    """Raise ConfigError for class attributes that were read up to version 0.15 and would be ignored now."""
    fields = {item.name for item in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    old = [name for name in OLD_NAMES.get(group, ()) if name in vars(cls) and name not in fields]
    if old:
        new = "provides" if group == "data" else "requires"
        raise ConfigError(
            f"{group}={kind}: {cls.__name__}.{', '.join(old)} is not read any more; write {new}: ClassVar with "
            "flags of rlhf_lab.Capability"
        )


def add_section(name: str, cls: type, parts: str = "") -> None:
    """Register the class of a section; see `config.section.section`."""
    _sections[name] = RegisteredSection(cls, parts)


@cache
def _load_settings() -> None:
    """Import every settings module once; importing one registers its classes."""
    for module in settings_modules():
        import_module(module)


def settings_modules() -> list[str]:
    """Every module of a pack that registers settings."""
    return [module for pack in packs() for module in (*pack.modules_called("*settings.py"), *pack.modules)]


@cache
def groups() -> dict[str, Group]:
    """Every config group by name, in alphabetical order."""
    found = {group.name: group for pack in packs() for group in pack.groups}
    return dict(sorted(found.items()))


def sections() -> dict[str, RegisteredSection]:
    """Every section that has a class of its own, by name."""
    _load_settings()
    return dict(_sections)


def parts_of(group: str) -> str:
    """Field of a group's section below which each chosen option stands by its name; empty for a group of one option."""
    _load_settings()
    return _sections[group].parts if group in _sections else ""


def kinds(group: str) -> list[str]:
    """Registered names of a group, sorted."""
    _load_settings()
    return sorted(kind for registered_group, kind in _settings if registered_group == group)


def plugged_in(group: str) -> list[str]:
    """Names of a group that other packages registered, sorted."""
    return [kind for kind in kinds(group) if not _implementations[group, kind].startswith("rlhf_lab.")]


def settings_class(group: str, kind: str) -> type:
    """The dataclass that describes `kind`. Raises ConfigError when nothing is registered under that name."""
    _load_settings()
    try:
        return _settings[group, kind]
    except KeyError:
        raise ConfigError(f"{group}.kind={kind} is not registered; use one of {', '.join(kinds(group))}") from None


def kind_of(group: str, settings: object) -> str:
    """The registered name of a settings object."""
    return next(
        kind
        for (registered_group, kind), cls in _settings.items()
        if registered_group == group and type(settings) is cls
    )


def implementation(group: str, kind: str) -> str:
    """The module that builds `kind`."""
    _load_settings()
    return _implementations[group, kind]


def build(group: str, settings: object, *args: Any, **kwargs: Any) -> Any:
    """Import the implementation behind `settings` and call its `build(settings, …)`."""
    module = import_module(_implementations[group, kind_of(group, settings)])
    return module.build(settings, *args, **kwargs)
