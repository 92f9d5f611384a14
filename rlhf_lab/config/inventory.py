"""What can be chosen: conf/ and recipes/ as plain YAML values, without Hydra, which takes a quarter second to import.

Every file of conf/ is stored with the defaults of its settings class filled in, so `algorithm.beta=0.2` overrides a key
that exists and a wrong key is an error. Terms of the reward graph are stored at `reward.terms.<name>`, so that
`reward=[bt,programmatic]` gives both, and agents at `agent.programs.<name>`. Recipes are stored as `recipe/<name>` with
global package: `+recipe=study/x` works from any directory and from a wheel.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from rlhf_lab.config import registry, root, schema
from rlhf_lab.config.files import PACKAGE
from rlhf_lab.config.files import folder as folder
from rlhf_lab.config.files import read_yaml as read_yaml
from rlhf_lab.config.overrides import merge
from rlhf_lab.config.tuned import values_by_size
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import packs


@dataclass(frozen=True)
class Entry:
    """One named piece of configuration.

    Attributes:
        group: "model", "recipe/study", …; None for the root.
        package: the dotted key at which its values stand in a composed config; "_global_" and None are the root.
        node: its values.
    """

    name: str
    group: str | None
    package: str | None
    node: dict[str, Any]


@cache
def folders(name: str) -> list[Path]:
    """conf/ or recipes/ of the lab, and those of every other pack that has one."""
    others = [pack.folder / name for pack in packs() if pack.package != PACKAGE.name]
    return [folder(name), *(path for path in others if path.is_dir())]


@cache
def recipes() -> dict[str, Path]:
    """Recipe name → file, e.g. 'study/buffers'. Raises ConfigError if two packs have recipes of one name."""
    found: dict[str, Path] = {}
    for root_folder in folders("recipes"):
        for path in sorted(root_folder.rglob("*.yaml")):
            name = path.relative_to(root_folder).with_suffix("").as_posix()
            if name in found:
                raise ConfigError(f"recipe {name} stands in {found[name]} and in {path}; rename one of the files")
            found[name] = path
    return dict(sorted(found.items(), key=lambda item: item[0].split("/")))


@cache
def option_files(group: str) -> dict[str, Path]:
    """Option of a config group → its file. Raises ConfigError if two packs have options of one name."""
    found: dict[str, Path] = {}
    for root_folder in folders("conf"):
        for path in sorted((root_folder / group).glob("*.yaml")):
            if path.stem in found:
                raise ConfigError(f"{group}={path.stem} stands in {found[path.stem]} and in {path}; rename one of them")
            found[path.stem] = path
    return found


@cache
def options(group: str) -> list[str]:
    """Names of a config group's files, and of the kinds that plug-ins registered without a file."""
    return sorted({*option_files(group), *registry.plugged_in(group)})


def entries() -> Iterator[Entry]:
    """Every option of every group, the root, and the recipes."""
    for group in registry.groups():
        for name in options(group):
            yield option(group, name)
    yield _root_entry()
    for name, path in recipes().items():
        group, _, leaf = f"recipe/{name}".rpartition("/")
        yield Entry(leaf, group, "_global_", read_yaml(path))


def option(group: str, name: str) -> Entry:
    """One option of a group: its file over the defaults of the settings class that the file names."""
    values = written_values(group, name)
    cls = registry.settings_class(group, values["kind"])
    # Settings left to the model stay None until the model is known; see tuned.with_tuned.
    tuned_by_model = dict.fromkeys(getattr(cls, "tuned_by_model", ()))
    defaults = schema.defaults(cls) | tuned_by_model
    if group == "model":
        defaults["tuned"] = values_by_size(cls)
    parts = registry.parts_of(group)
    package = f"{group}.{parts}.{name}" if parts else group
    return Entry(name, group, package, {"kind": values["kind"], **merge(defaults, values)})


def written_values(group: str, name: str) -> dict[str, Any]:
    """An option's values in its file, or only its kind where a plug-in brings it without a file."""
    file = option_files(group).get(name)
    return read_yaml(file) if file else {"kind": name}


def _root_entry() -> Entry:
    """The defaults of every section under conf/config.yaml, which also chooses an option of each group."""
    values = merge(root.defaults(), read_yaml(folder("conf") / "config.yaml"))
    chosen = [{group.name: group.default} for group in registry.groups().values() if group.default]
    # Hydra wants what overrides a choice of its own ("override hydra/…") behind every choice
    own = [choice for choice in values["defaults"] if not _overrides(choice)]
    overriding = [choice for choice in values["defaults"] if _overrides(choice)]
    return Entry("config", None, None, {**values, "defaults": [*own, *chosen, *overriding]})


def _overrides(choice: str | dict[str, str]) -> bool:
    """Return True for an entry of a defaults list that replaces the choice of another list."""
    return isinstance(choice, dict) and next(iter(choice)).startswith("override ")


def overview() -> str:
    """What `--help` by itself prints: the groups with their options, and the settings of a run without overrides.

    The same text as Hydra makes of the template in conf/config.yaml, as it does for `--help` beside other words.
    """
    names_by_group: dict[str, list[str]] = {group: options(group) for group in registry.groups()}
    for recipe in recipes():
        group, _, leaf = f"recipe/{recipe}".rpartition("/")
        names_by_group.setdefault(group, []).append(leaf)
    groups = "".join(f"{group}: {', '.join(sorted(names))}\n" for group, names in sorted(names_by_group.items()))
    values = _root_entry().node
    hydra_settings = values.pop("hydra")
    for choice in values.pop("defaults"):
        # beside groups, the list has "_self_" and the choices for Hydra's own logging ("override hydra/…")
        if isinstance(choice, dict) and next(iter(choice)) in registry.groups():
            ((group, name),) = choice.items()
            entry = option(group, name)
            node = entry.node
            for key in reversed((entry.package or "").split(".")):
                node = {key: node}
            values = merge(values, node)
    config = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    template = string.Template(hydra_settings["help"]["template"])
    return template.substitute(APP_CONFIG_GROUPS=groups, CONFIG=config)
