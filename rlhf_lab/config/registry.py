"""Registry of all config groups: the name in YAML is also the name of the file, the key and the config file.

`algorithm=dpo` reads `conf/algorithm/dpo.yaml` (`kind: dpo`). It is checked against the dataclass registered for
("algorithm", "dpo") in `rlhf_lab/algorithms/preference/settings.py`, and built by `build` in `dpo.py` next to it.
Settings modules import neither torch nor transformers, so checking a config takes milliseconds. Implementations are
imported only when they are built. YAML never contains Python paths. Packs (`core/packs.py`) add kinds, sections and
groups in the same way. A kind of a plug-in is an option without a file: `reward=mine` uses the defaults of its settings
class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import ConfigGroup, defined_twice, import_part, packs

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class RegisteredSection:
    """Section of the config with its class.

    Attributes:
        cls: class of the section.
        parts: field that maps names to settings of kinds of the group of the same name; empty if there is none.
    """

    cls: type
    parts: str = ""


_settings: dict[tuple[str, str], type] = {}
_implementations: dict[tuple[str, str], str] = {}
_sections: dict[str, RegisteredSection] = {}


def register(group: str, kind: str, implementation: str | None = None) -> Callable[[type[Settings]], type[Settings]]:
    """Return a class decorator that registers a dataclass as the settings of `kind` in `group`.

    Args:
        implementation: module that defines `build(settings, …)`. The default is `<kind>.py` next to the class's
            `settings.py` (in rlhf_lab also `…_settings.py`), or the class's own module if that has another name.
    """

    def decorate(cls: type[Settings]) -> type[Settings]:
        _refuse_other_class(f"{group}={kind}", _settings.get((group, kind)), cls)
        _settings[group, kind] = cls
        # By convention the implementation of a kind is a module with the name of the kind.
        package, _, module = cls.__module__.rpartition(".")
        is_settings = module == "settings" or (package.startswith("rlhf_lab.") and module.endswith("_settings"))
        siblings = f"{package}.{kind}" if is_settings else cls.__module__
        _implementations[group, kind] = implementation or siblings
        return cls

    return decorate


def _refuse_other_class(what: str, known: type | None, cls: type) -> None:
    """Raise ConfigError if another class is registered under a name.

    The same class may be registered again: a module is reloaded, or a notebook cell runs twice.
    """
    if known is None or known.__module__ == cls.__module__ == "__main__":
        return
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        first, second = (f"{each.__module__}.{each.__qualname__}" for each in (known, cls))
        raise ConfigError(defined_twice(what, first, second))


def add_section(name: str, cls: type, parts: str = "") -> None:
    """Register the class of a section; see `config.section.section`."""
    _refuse_other_class(f"section {name}", _sections[name].cls if name in _sections else None, cls)
    _sections[name] = RegisteredSection(cls, parts)


@cache
def _load_settings() -> None:
    """Import every settings module once, which registers its classes."""
    for module in settings_modules():
        import_part(module)
    refuse_sections_named_like_groups()


def refuse_sections_named_like_groups() -> None:
    """Raise ConfigError for a section of one pack that has the name of another pack's group."""
    problems = [
        defined_twice(f"section and config group {group.name}", _sections[group.name].cls.__module__, pack)
        for pack in packs()
        for group in pack.groups
        if group.name in _sections and not pack.owns(_sections[group.name].cls.__module__)
    ]
    if problems:
        raise ConfigError(problems)


def settings_modules() -> list[str]:
    """Return every module of a pack that registers settings."""
    return [module for pack in packs() for module in (*pack.modules_called("*settings.py"), *pack.modules)]


@cache
def groups() -> dict[str, ConfigGroup]:
    """Return every config group by name, in alphabetical order."""
    found = {group.name: group for pack in packs() for group in pack.groups}
    return dict(sorted(found.items()))


def sections() -> dict[str, RegisteredSection]:
    """Return every section with a class of its own, by name."""
    _load_settings()
    return dict(_sections)


def parts_of(group: str) -> str:
    """Return the field in which a group keeps several chosen options by name, such as `terms`; "" for one option."""
    _load_settings()
    return _sections[group].parts if group in _sections else ""


def kinds(group: str) -> list[str]:
    """Return the registered names of a group, sorted."""
    _load_settings()
    names = [kind for registered_group, kind in _settings if registered_group == group]
    return sorted(names)


def plugged_in(group: str) -> list[str]:
    """Return the names of a group that other packages registered, sorted."""
    return [kind for kind in kinds(group) if not _implementations[group, kind].startswith("rlhf_lab.")]


def settings_class(group: str, kind: str) -> type:
    """Return the settings class of `kind`. Raise ConfigError if nothing is registered under this name."""
    _load_settings()
    try:
        return _settings[group, kind]
    except KeyError:
        raise ConfigError(f"{group}.kind={kind} is not registered; use one of {', '.join(kinds(group))}") from None


def keys_of_sections(name: str) -> list[str]:
    """Return the keys SECTION.NAME of the settings with a name that was typed without its section."""
    classes = [(section, found.cls) for section, found in sections().items()]
    classes += [(group, settings_class(group, kind)) for group in groups() for kind in kinds(group)]
    having = {section for section, cls in classes if name in {field.name for field in dataclasses.fields(cls)}}
    # Keys of a group with several chosen options contain the name of the option.
    return sorted(f"{section}.{name}" for section in having if not parts_of(section))


def kind_of(group: str, settings: object) -> str:
    """Return the registered name of a settings object."""
    return next(
        kind
        for (registered_group, kind), cls in _settings.items()
        if registered_group == group and type(settings) is cls
    )


def implementation(group: str, kind: str) -> str:
    """Return the module that builds `kind`."""
    _load_settings()
    return _implementations[group, kind]


def build(group: str, settings: object, *args: Any, **kwargs: Any) -> Any:
    """Import the implementation of `settings` and call its `build(settings, …)`."""
    module = import_module(_implementations[group, kind_of(group, settings)])
    return module.build(settings, *args, **kwargs)
