"""Composition of configs with Hydra: the files listed by `inventory.py` become one store, overrides become values.

Users add a directory of their own with `--config-dir DIR` (`DIR/recipe/x.yaml`, first line `# @package _global_`).
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlhf_lab.config import inventory, matching, other_names, registry, root, schema, user_files
from rlhf_lab.config.overrides import ADDED, MISSING, is_choice, set_value, value_at
from rlhf_lab.core.errors import ConfigError


@cache
def register_store() -> None:
    """Fill Hydra's ConfigStore and make it read files within size limits. Runs once per process."""
    user_files.register_source()
    store = ConfigStore.instance()
    for entry in inventory.entries():
        store.store(name=entry.name, group=entry.group, node={}, package=entry.package)
        # `store` would convert the values to a DictConfig, which is slow. It gets an empty node that is replaced here.
        file = f"{entry.name}.yaml"
        stored = store._load(f"{entry.group}/{file}" if entry.group else file)
        stored.node = _Values(entry.node)  # type: ignore[assignment]
    store.repo = _Uncopied(store.repo)


class _Values:
    """Values of a stored file, which become a DictConfig only in a deep copy.

    Hydra copies the files that it loads from its store, and a command loads a tenth of them. Creating a DictConfig for
    every file at the start would take a third of a second.
    """

    def __init__(self, values: dict[str, Any]):
        self.values = values

    @cached_property
    def config(self) -> DictConfig:
        """Values as a DictConfig; created on first use."""
        return OmegaConf.create(self.values)

    def __deepcopy__(self, memo: dict[int, Any]) -> DictConfig:
        return copy.deepcopy(self.config, memo)


class _Uncopied(dict[str, Any]):
    """Store that is not deep-copied.

    Hydra copies the entire store at every composition, which took two thirds of its time. Skipping the copy is safe,
    because every node that the store returns is a copy anyway.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> _Uncopied:
        return self


@contextmanager
def _hydra(config_dir: str | None) -> Iterator[None]:
    """Initialise Hydra for composing: reuse its state inside a job, else create a temporary one."""
    register_store()
    if GlobalHydra.instance().is_initialized():
        yield
    elif config_dir:
        with initialize_config_dir(str(Path(config_dir).resolve()), version_base="1.3"):
            yield
    else:
        # `initialize` would look up its caller by walking the entire stack, and for each frame all modules, which takes
        # as long as composing. All files are in the store, and this package has none of its own.
        with initialize_config_module("rlhf_lab.config", job_name="rlhf_lab", version_base="1.3"):
            yield


def compose(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Any]:
    """Return the composed values for a list of overrides. Raise ConfigError with a message about the user's input."""
    # The cache is only for built-in files: a user's files can change between two calls, and Hydra jobs may use them.
    if config_dir is None and not GlobalHydra.instance().is_initialized():
        values = _compose_from_choices(overrides)
        if values is not None:
            return values
    with _hydra(config_dir):
        try:
            return _compose_with_hydra(overrides)
        except ConfigError:
            raise
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise ConfigError(_explain_hydra_error(error)) from None
        except RecursionError:
            raise ConfigError(
                "the defaults lists of these files name each other in a circle, or values refer to each other too "
                f"deeply: {' '.join(overrides)}; remove one of the references"
            ) from None


@cache
def recipe_values(name: str) -> dict[str, Any]:
    """Return a recipe's values composed without other overrides. Raise KeyError if there is no such recipe.

    The result is cached, because a study plans many jobs over the same few upstream recipes. Do not modify it.
    """
    if name not in inventory.recipes():
        raise KeyError(name)
    return compose([f"+recipe={name}"])


def _compose_with_hydra(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose with Hydra and resolve interpolations."""
    with user_files.bounded_interpolations():
        composed = hydra_compose("config", overrides=list(overrides))
        return OmegaConf.to_container(composed, resolve=True)  # type: ignore[return-value]


def _compose_from_choices(overrides: Sequence[str]) -> dict[str, Any] | None:
    """Return the composed values, or None if only Hydra can compose them or explain an error.

    One Hydra composition takes a tenth of a second. Hydra composes the choices first and then applies the other
    overrides in order. Commands that choose the same options can therefore share one composition; a copy of it receives
    their values.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        choices = [override for override in parsed if is_choice(override.key_or_group)]
        typed_choices = tuple(choice.input_line or "" for choice in choices)
        values = pickle.loads(_pickled_choices(typed_choices))
    except (HydraException, OmegaConfBaseException):
        return None
    if any(isinstance(choice.value(), dict) for choice in choices):
        return None  # `model={hidden: 16}` is not a choice: Hydra applies it in order among the values
    for override in parsed:
        if is_choice(override.key_or_group):
            continue
        if not _is_scalar(override, values):
            return None
        try:
            set_value(values, override.key_or_group, override.value())
        except KeyError:  # below a value that is no mapping
            return None
    return values


@lru_cache(maxsize=1000)
def _pickled_choices(choices: tuple[str, ...]) -> bytes:
    """Return the composed values of choices of options, without other overrides, pickled (about 5 kB).

    Each caller unpickles its own copy.
    """
    with _hydra(None):
        return pickle.dumps(_compose_with_hydra(choices))


def _is_scalar(override: Override, values: dict[str, Any]) -> bool:
    """Return True if `set_value` has the same effect as Hydra.

    The override must replace a value, or add (`++`) a key that starts with an entry of `ADDED`.
    """
    key = override.key_or_group
    if override.type not in (OverrideType.CHANGE, OverrideType.FORCE_ADD) or override.is_sweep_override():
        return False
    # Hydra has to resolve interpolations (${key}) and keys with a package (@) or a group (/).
    is_interpolation = "${" in (override.input_line or "")
    if is_interpolation or not re.fullmatch(r"[\w.]+", key):
        return False
    current = value_at(values, key, MISSING)
    if current is MISSING:
        return override.is_force_add() and key.startswith(ADDED)
    return not isinstance(current, dict)


def _explain_hydra_error(error: Exception) -> str:
    """Return the first line of Hydra's message, with a suggestion if it names a key that does not exist."""
    # Some errors have an empty message; the cause or the type then explains them.
    reason = error.__cause__ or type(error).__name__
    lines = f"{error}\n{reason}".strip().splitlines()
    first_line = lines[0]
    match = re.search(r"Could not override '([\w./]+)'", first_line)
    if match:
        key = match.group(1)
        return f"{key} is not a setting of what was chosen{suggest_key(key, {})}"
    if "'hydra/launcher/submitit_" in first_line:
        return f"{first_line}: its library is not installed. Run: pip install 'rlhf_lab[slurm]'"
    return first_line


def suggest_key(path: str, values: Mapping[str, Any]) -> str:
    """Return a hint for a key that does not exist: the likely intended key, or where the possible keys are listed.

    Args:
        values: composed values of the chosen options; empty if composing failed.
    """
    group, _, leaf = path.partition(".")
    kinds = []
    if group in registry.groups():
        leaf = leaf.rpartition(".")[2]
        for kind in registry.kinds(group):
            field_names = {field.name for field in dataclasses.fields(registry.settings_class(group, kind))}
            if leaf in field_names:
                kinds.append(kind)
    if group == "data":
        kinds.sort(key=lambda kind: not matching.maps_columns(kind))  # kinds that read any file are the likeliest
    # Data and models are often given by path alone, and then the option is missing rather than the key misspelt.
    is_option_missing = group in ("data", "model") and kinds and leaf not in other_names.OTHER_NAMES
    if not is_option_missing and (hint := other_names.hint(path, values)):
        return hint
    if kinds:
        named = ", ".join(kinds[: other_names.MAX_SUGGESTIONS])
        return f"; {leaf} is a setting of another {group} ({named})"
    if group in root.names() and leaf:
        return f"; `explain {group}` lists its settings"
    if not leaf and (full_keys := registry.keys_of_sections(group)):
        return f"; did you mean {' or '.join(full_keys[: other_names.MAX_SUGGESTIONS])}?"
    return schema.did_you_mean(group, {*root.names(), "recipe"})
