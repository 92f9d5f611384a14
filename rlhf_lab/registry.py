"""One registry for every config group: the name in YAML is the file, the key and the config file.

`algorithm=dpo` reads `conf/algorithm/dpo.yaml` (`kind: dpo`), is checked against the dataclass registered for
("algorithm", "dpo") in `rlhf_lab/algorithms/settings/`, and is built by `build` in `rlhf_lab/algorithms/dpo.py`.
Settings modules import neither torch nor transformers, so checking a config costs milliseconds; implementations are
imported only when they are built. YAML never names a Python path. Other packages add kinds through the entry-point
group `rlhf_lab.plugins`: an entry point is a function without arguments that calls `register`. Their kinds are options
of the group without a file: `reward=mine`, with the defaults of the settings class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

from rlhf_lab.errors import ConfigError

PACKAGES = {
    "algorithm": "algorithms",
    "data": "data",
    "model": "models",
    "reward": "rewards",
    "rollout": "rollout",
    "sharding": "sharding",
    "tracker": "trackers",
}
Settings = TypeVar("Settings")

_settings: dict[tuple[str, str], type] = {}
_implementations: dict[tuple[str, str], str] = {}


def register(group: str, kind: str, implementation: str | None = None) -> Callable[[type[Settings]], type[Settings]]:
    """Class decorator: this dataclass holds the settings of `kind` in `group`.

    Args:
        implementation: module that has `build(settings, …)`; default `rlhf_lab.<package of the group>.<kind>`.
    """

    def decorate(cls: type[Settings]) -> type[Settings]:
        _settings[group, kind] = cls
        _implementations[group, kind] = implementation or f"rlhf_lab.{PACKAGES[group]}.{kind}"
        return cls

    return decorate


@cache
def _load_settings() -> None:
    for package in PACKAGES.values():
        import_module(f"rlhf_lab.{package}.settings")
    for plugin in entry_points(group="rlhf_lab.plugins"):
        plugin.load()()


def kinds(group: str) -> list[str]:
    """Registered names of a group, sorted."""
    _load_settings()
    return sorted(kind for g, kind in _settings if g == group)


def plugged_in(group: str) -> list[str]:
    """Names of a group that other packages registered, sorted."""
    own = f"rlhf_lab.{PACKAGES[group]}."
    return [kind for kind in kinds(group) if not _implementations[group, kind].startswith(own)]


def settings_class(group: str, kind: str) -> type:
    """The dataclass that describes `kind`. Raises ConfigError when nothing is registered under that name."""
    _load_settings()
    try:
        return _settings[group, kind]
    except KeyError:
        raise ConfigError(f"{group}.kind={kind} is not registered; use one of {', '.join(kinds(group))}") from None


def kind_of(group: str, settings: object) -> str:
    """The registered name of a settings object."""
    return next(kind for (g, kind), cls in _settings.items() if g == group and type(settings) is cls)


def implementation(group: str, kind: str) -> str:
    """The module that builds `kind`."""
    return _implementations[group, kind]


def build(group: str, settings: object, *args: Any, **kwargs: Any) -> Any:
    """Import the implementation behind `settings` and call its `build(settings, …)`."""
    module = import_module(_implementations[group, kind_of(group, settings)])
    return module.build(settings, *args, **kwargs)
