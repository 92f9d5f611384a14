"""All available options: conf/ and recipes/ as plain YAML values, without Hydra, which takes 0.25 s to import.

Every file of conf/ is stored with the defaults of its settings class filled in. `algorithm.beta=0.2` therefore
overrides an existing key, and a wrong key is an error. Terms of the reward graph are stored at `reward.terms.<name>`,
so that `reward=[bt,programmatic]` gives both, and agents at `agent.programs.<name>`. Recipes are stored as
`recipe/<name>` with global package, so `+recipe=study/x` works from any directory and from a wheel.
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
from rlhf_lab.config.overrides import merge
from rlhf_lab.config.tuned import values_by_size
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.packs import Pack, defined_twice, packs
from rlhf_lab.core.yaml_files import read_mapping

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Entry:
    """One named piece of configuration.

    Attributes:
        name: name of the file or kind.
        group: "model", "recipe/study", …; None for the root.
        package: dotted key of its values in a composed config; "_global_" and None mean the root.
        node: its values.
    """

    name: str
    group: str | None
    package: str | None
    node: dict[str, Any]


def directory(name: str) -> Path:
    """Return the path of conf/ or recipes/: the wheel copies them into the package, a checkout has them next to it."""
    in_wheel = PACKAGE / name
    return in_wheel if in_wheel.is_dir() else PACKAGE.parent / name


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the settings in a YAML file."""
    return read_mapping(path, "settings, such as seed: 1")


@cache
def recipes() -> dict[str, Path]:
    """Return recipe name → file, e.g. 'study/buffers'. Raise ConfigError if two packs have recipes of the same name."""
    files = _files_by_name("recipes", "", "recipe ")
    names = sorted(files, key=lambda name: name.split("/"))  # by directory, then by name
    return {name: files[name][1] for name in names}


@cache
def option_files(group: str) -> dict[str, Path]:
    """Return option of a config group → its file. Raise ConfigError if two packs have options of the same name."""
    files = _files_by_name("conf", group, f"{group}=")
    plugged_in = set(registry.plugged_in(group))
    for name in set(files) & plugged_in:
        pack, path = files[name]
        module = registry.settings_class(group, name).__module__
        if not pack.owns(module):
            raise ConfigError(defined_twice(f"{group}={name}", path, module))
    return {name: path for name, (_, path) in files.items()}


def user_options(config_dir: str | None, group: str) -> list[str]:
    """Return the names of a group's files in the user's own directory."""
    if not config_dir:
        return []
    directory = Path(config_dir) / group
    files = [path for path in sorted(directory.rglob("*.yaml")) if path.is_file()]
    return [path.relative_to(directory).with_suffix("").as_posix() for path in files]


def wrong_files(config_dir: str | None) -> list[str]:
    """Return a problem for each file of the user's own directory that Hydra would not read as meant.

    It would merge a file with the built-in option or recipe of its name, and stages that are inputs of the run would
    have the built-in recipe. It ignores files with the ending .yml.
    """
    if not config_dir:
        return []
    built_in = {"recipe": recipes(), **{group: options(group) for group in registry.groups()}}
    shadowing = [
        f"{config_dir}/{group}/{name}.yaml has the name of a built-in file; rename it"
        for group, names in built_in.items()
        for name in user_options(config_dir, group)
        if name in names
    ]
    unread = [
        f"{path} is not read; rename it to {path.stem}.yaml"
        for group in built_in
        for path in sorted(Path(config_dir, group).rglob("*.yml"))
    ]
    return shadowing + unread


def _files_by_name(kind: str, group: str, prefix: str) -> dict[str, tuple[Pack, Path]]:
    """Return name → (pack, file) of the YAML files in one directory of every pack.

    Raise ConfigError for a name that two packs use.

    Args:
        kind: the directory, "conf" or "recipes".
        group: subdirectory; "" means the directory itself including everything below it.
        prefix: text before the name in messages.
    """
    found: dict[str, tuple[Pack, Path]] = {}
    problems = []
    for pack in packs():
        # the core's files can be outside the package, see `directory`
        is_core = pack.package == PACKAGE.name
        pack_folder = directory(kind) if is_core else pack.directory / kind
        root_dir = pack_folder / group
        pattern = "*.yaml" if group else "**/*.yaml"
        for path in sorted(root_dir.glob(pattern)):
            name = path.relative_to(root_dir).with_suffix("").as_posix()
            first, first_path = found.setdefault(name, (pack, path))
            if first is not pack:
                problems.append(defined_twice(f"{prefix}{name}", first_path, path))
    if problems:
        raise ConfigError(problems)
    return found


@cache
def options(group: str) -> list[str]:
    """Return the names of a config group's files, and of the kinds that plug-ins registered without a file."""
    return sorted({*option_files(group), *registry.plugged_in(group)})


def entries() -> Iterator[Entry]:
    """Yield every option of every group, the root, and the recipes."""
    for group in registry.groups():
        for name in options(group):
            yield option(group, name)
    yield _root_entry()
    for name, path in recipes().items():
        group, _, leaf = f"recipe/{name}".rpartition("/")
        yield Entry(leaf, group, "_global_", read_yaml(path))


def option(group: str, name: str) -> Entry:
    """Return one option of a group: the values of its file over the defaults of the settings class that it names."""
    values = written_values(group, name)
    cls: Any = registry.settings_class(group, values["kind"])
    # Settings that depend on the model stay None until the model is known; see tuned.with_tuned.
    tuned_by_model = dict.fromkeys(cls.by_size.tuned_by_model)
    defaults = schema.defaults(cls) | tuned_by_model
    if group == "model":
        defaults["tuned"] = values_by_size(cls)
    # A group of which several options can be chosen stores each option under its own name.
    parts = registry.parts_of(group)
    package = f"{group}.{parts}.{name}" if parts else group
    return Entry(name, group, package, {"kind": values["kind"], **merge(defaults, values)})


def written_values(group: str, name: str) -> dict[str, Any]:
    """Return the values in an option's file, or only its kind if a plug-in provides it without a file."""
    file = option_files(group).get(name)
    return read_yaml(file) if file else {"kind": name}


def _root_entry() -> Entry:
    """Return the defaults of every section, overridden by conf/config.yaml, with an option for each group."""
    values = merge(root.defaults(), read_yaml(directory("conf") / "config.yaml"))
    chosen = [{group.name: group.default} for group in registry.groups().values() if group.default]
    # Hydra requires that overrides of its own choices ("override hydra/…") come after all choices.
    own = [choice for choice in values["defaults"] if not _overrides(choice)]
    overriding = [choice for choice in values["defaults"] if _overrides(choice)]
    return Entry("config", None, None, {**values, "defaults": [*own, *chosen, *overriding]})


def _overrides(choice: str | dict[str, str]) -> bool:
    """Return True for an entry of a defaults list that replaces a choice of another list."""
    return isinstance(choice, dict) and next(iter(choice)).startswith("override ")


def overview() -> str:
    """Return the text of `--help` without other arguments: groups with their options, and the default settings.

    Hydra produces the same text from the template in conf/config.yaml if `--help` has other arguments.
    """
    names_by_group: dict[str, list[str]] = {group: options(group) for group in registry.groups()}
    for recipe in recipes():
        group, _, leaf = f"recipe/{recipe}".rpartition("/")
        names_by_group.setdefault(group, []).append(leaf)
    group_lines = [f"{group}: {', '.join(sorted(names))}\n" for group, names in sorted(names_by_group.items())]
    groups = "".join(group_lines)
    values = _root_entry().node
    hydra_settings = values.pop("hydra")
    for choice in values.pop("defaults"):
        # Apart from groups, the list has "_self_" and the choices for Hydra's own logging ("override hydra/…").
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
