"""Composes configs with Hydra: what `inventory.py` finds becomes one store, command lines become checked configs.

A user's own folder joins with `--config-dir FOLDER` (`FOLDER/recipe/x.yaml`, first line `# @package _global_`).
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlhf_lab.config import inventory, registry, root, schema, smoke, words
from rlhf_lab.config.check import check
from rlhf_lab.config.overrides import ADDED, forced, is_choice, literal, put
from rlhf_lab.config.study_settings import Study
from rlhf_lab.config.typed_sweep import typed_study
from rlhf_lab.core.errors import ConfigError


@cache
def register_store() -> None:
    """Fill Hydra's ConfigStore; called once per process."""
    store = ConfigStore.instance()
    for entry in inventory.entries():
        store.store(name=entry.name, group=entry.group, node={}, package=entry.package)
        stored = store._load("/".join(filter(None, (entry.group, f"{entry.name}.yaml"))))
        stored.node = _Values(entry.node)  # type: ignore[assignment]
    store.repo = _Uncopied(store.repo)


class _Values:
    """The values of a stored file, of which every deep copy is a DictConfig.

    Hydra copies what it loads from its store, and a command loads a tenth of the files. Making a DictConfig of each of
    them at the start would take a third of a second.
    """

    def __init__(self, values: dict[str, Any]):
        self.values = values

    @cached_property
    def config(self) -> DictConfig:
        return OmegaConf.create(self.values)

    def __deepcopy__(self, memo: dict[int, Any]) -> DictConfig:
        return copy.deepcopy(self.config, memo)


class _Uncopied(dict[str, Any]):
    """The store without deep copies.

    Hydra copies the whole store at every composition, which took two thirds of its time. Skipping that is safe: each
    node that the store hands out is a copy anyway.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> _Uncopied:
        return self


@contextmanager
def _hydra(config_dir: str | None) -> Iterator[None]:
    """Hydra ready to compose: its own job's state when inside one, else a temporary one."""
    register_store()
    if GlobalHydra.instance().is_initialized():
        yield
    elif config_dir:
        with initialize_config_dir(str(Path(config_dir).resolve()), version_base="1.3"):
            yield
    else:
        # Not `initialize`, which looks its caller up: a walk of the whole stack, for each frame through all modules,
        # that takes as long as composing. All files are known to the store, and this package has none of its own.
        with initialize_config_module("rlhf_lab.config", job_name="rlhf_lab", version_base="1.3"):
            yield


def compose(overrides: Sequence[str], config_dir: str | None = None) -> dict[str, Any]:
    """The composed values for a list of overrides. Raises ConfigError in the user's terms."""
    # Files of a user's own folder can change between two calls, and a job that Hydra runs can have such a folder.
    if config_dir is None and not GlobalHydra.instance().is_initialized():
        values = _compose_from_choices(overrides)
        if values is not None:
            return values
    with _hydra(config_dir):
        try:
            return _compose_with_hydra(overrides)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(_explain_hydra_error(str(error))) from None


def _compose_with_hydra(overrides: Sequence[str]) -> dict[str, Any]:
    composed = hydra_compose("config", overrides=list(overrides))
    return OmegaConf.to_container(composed, resolve=True)  # type: ignore[return-value]


def _compose_from_choices(overrides: Sequence[str]) -> dict[str, Any] | None:
    """The composed values, or None where only Hydra can compose them or say what is wrong.

    Hydra needs a tenth of a second each time. It composes the choices first and then applies the other overrides in
    their order, so commands that choose the same options share one composition, and a copy of it gets their values.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        choices = [override for override in parsed if is_choice(_key(override))]
        values = pickle.loads(_pickled_choices(tuple(choice.input_line or "" for choice in choices)))
    except (HydraException, OmegaConfBaseException):
        return None
    if any(isinstance(choice.value(), dict) for choice in choices):
        return None  # `model={hidden: 16}` is no choice: Hydra applies it in its place among the values
    for override in parsed:
        if is_choice(_key(override)):
            continue
        if not _is_plain(override, values):
            return None
        put(values, _key(override), override.value())
    return values


@lru_cache(maxsize=1000)
def _pickled_choices(choices: tuple[str, ...]) -> bytes:
    """The composed values of choices alone, some 5 kB, from which each caller loads a copy of its own."""
    with _hydra(None):
        return pickle.dumps(_compose_with_hydra(choices))


def _is_plain(override: Override, values: dict[str, Any]) -> bool:
    """Whether `put` does to composed values what Hydra does: it replaces a value, or `++` adds one below `ADDED`."""
    key = _key(override)
    if override.type not in (OverrideType.CHANGE, OverrideType.FORCE_ADD) or override.is_sweep_override():
        return False
    if "${" in (override.input_line or "") or not re.fullmatch(r"[\w.]+", key):
        return False
    node: Any = values
    for name in key.split("."):
        if not isinstance(node, dict):
            return False
        if name not in node:
            return override.is_force_add() and key.startswith(ADDED)
        node = node[name]
    return not isinstance(node, dict)


def _explain_hydra_error(message: str) -> str:
    """Hydra's own message, first line, with the lab's suggestion for a key that does not exist."""
    first_line = " ".join(message.strip().splitlines()[:1])
    match = re.search(r"Could not override '([\w./]+)'", first_line)
    if match:
        key = match.group(1)
        return f"{key} is not a setting of what was chosen{_suggest_key(key)}"
    if "'hydra/launcher/submitit_" in first_line:
        return f"{first_line}: its library is not installed. Run: pip install 'rlhf_lab[slurm]'"
    return first_line


def _suggest_key(path: str) -> str:
    """What may be meant by the last part of a dotted key whose first part is a group or section."""
    group, _, leaf = path.partition(".")
    names: set[str] = set()
    if group in registry.groups():
        parent, _, leaf = leaf.rpartition(".")
        for kind in registry.kinds(group):
            cls = registry.settings_class(group, kind)
            moved = getattr(cls, "moved", {})
            if leaf in moved and parent.endswith(kind):  # a setting of an earlier version
                return f"; {moved[leaf]}"
            names |= {field.name for field in dataclasses.fields(cls)}
        if group in registry.sections():
            names |= {field.name for field in dataclasses.fields(registry.sections()[group].cls)}
    else:
        names = set(root.names())
    if leaf in names:
        return f"; {leaf} is a setting of another {group}"
    return schema.did_you_mean(leaf or group, names)


@dataclass(frozen=True)
class Command:
    """What a command line asks for, checked.

    Attributes:
        overrides: overrides of every job, as typed, without the swept keys.
        recipe: the recipe's name, or None.
        study: the study section when the recipe is a study, or the study that a typed sweep amounts to.
        jobs: one list of overrides per job: what the job differs in.
        configs: the checked config of every job.
        typed: whether the sweep was typed instead of written in a recipe.
    """

    overrides: list[str]
    recipe: str | None
    study: Study | None
    jobs: list[dict[str, Any]]
    configs: list[root.Config]
    typed: bool = False


def check_command(overrides: Sequence[str], config_dir: str | None = None) -> Command:
    """Compose and check every job of a command line. Raises ConfigError with all problems of all jobs."""
    # The composed root has `study: null`, so a key below it exists only once it is added with `++`.
    overrides = [re.sub(r"^study\.", "++study.", forced(override)) for override in overrides]
    problems: list[str] = []
    usable = usable_overrides(overrides, problems, config_dir)
    swept = {_key(override): _sweep_values(override) for override in usable if override.is_sweep_override()}
    fixed = [override.input_line or "" for override in usable if not override.is_sweep_override()]
    recipe = next((str(override.value()) for override in usable if _key(override) == "recipe"), None)
    study: Study | None = None
    jobs: list[dict[str, Any]] = []
    configs: list[root.Config | None] = []
    typed = False
    try:
        base = compose(fixed, config_dir)
        written_study = base["study"] or {}
        # A recipe's study has a sweep of its own; without one, `study.…` describes the sweep typed here.
        typed = "sweep" not in written_study and bool(swept or written_study)
        if typed:
            study = typed_study(recipe, swept, written_study, problems)
        elif written_study:
            study = schema.build(Study, written_study, "study", problems)
        if study and not typed:
            named = {_key(override) for override in usable}
            if base["size"] == "smoke":
                # Of the quick size take its levels only: smoke lowers all other settings further.
                quick, _ = _quick_study(study, named)
                study = _with_levels(quick, smoke.first_levels(quick, named))
            elif study.size == "quick":
                study, quick_overrides = _quick_study(study, named)
                fixed += quick_overrides
                base = compose(fixed, config_dir)
            fixed_by = [
                override.value()
                for override in usable
                if _key(override) == study.by and not override.is_sweep_override()
            ]
            if fixed_by:
                study = _with_levels(study, {study.by: fixed_by})
            from_study = {key: levels for key, levels in study.sweep.items() if key not in named}
            swept = {**from_study, **swept}
        parsed = OverridesParser.create().parse_overrides(fixed)
        written = {_key(override) for override in parsed} | set(swept)
        composed: dict[tuple[str, ...], dict[str, Any]] = {(): base}
        for levels in itertools.product(*swept.values()):
            job = dict(zip(swept, levels, strict=True))
            configs.append(_check_job(fixed, job, composed, written, problems, config_dir))
            jobs.append(job)
    except ConfigError as error:
        problems.extend(error.problems)
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    checked = [config for config in configs if config is not None]
    return Command(fixed, recipe, study, jobs, checked, typed)


def usable_overrides(overrides: Sequence[str], problems: list[str], config_dir: str | None = None) -> list[Override]:
    """The overrides that parse and choose what exists; each of the others is explained in `problems`."""
    recipe_names = [*inventory.recipes(), *_user_options(config_dir, "recipe")]
    parsed = words.parse(overrides, recipe_names, problems)
    return _drop_wrong_choices(parsed, problems, config_dir)


def _check_job(
    fixed: list[str],
    job: dict[str, Any],
    composed: dict[tuple[str, ...], dict[str, Any]],
    written: set[str],
    problems: list[str],
    config_dir: str | None,
) -> root.Config | None:
    """The checked config of one job, or None with what is wrong in `problems`.

    Composing is slow, so jobs that choose the same options share one entry of `composed`; a job's plain values are put
    into a copy of it.
    """
    choices = tuple(f"{key}={literal(value)}" for key, value in job.items() if is_choice(key))
    try:
        if choices not in composed:
            composed[choices] = compose([*fixed, *choices], config_dir)
        values = {**copy.deepcopy(composed[choices]), "study": None}
        for key, value in job.items():
            if not is_choice(key):
                # through Hydra's grammar, so that a swept value means what the same override typed would
                override = OverridesParser.create().parse_override(f"{key}={literal(value)}")
                put(values, key, override.value())
        return check(sized(values, written))
    except ConfigError as error:
        problems.extend(error.problems)
    except KeyError as error:
        missing_key = error.args[0]
        problems.append(f"{missing_key} is not a setting of what was chosen{_suggest_key(missing_key)}")
    return None


def sized(values: dict[str, Any], written: Collection[str]) -> dict[str, Any]:
    """Composed values at the size they name; `written` are the keys of the command line and of the sweep."""
    return smoke.sized(values, written, recipe_values)


@cache
def recipe_values(name: str) -> dict[str, Any]:
    """A recipe's values as composed by itself. Raises KeyError when there is none of this name.

    They are composed once, since a study plans many jobs over the same few upstream recipes; do not change them.
    """
    if name not in inventory.recipes():
        raise KeyError(name)
    return compose([f"+recipe={name}"])


def _quick_study(study: Study, named: set[str]) -> tuple[Study, list[str]]:
    """The study at its quick size, and the overrides that make it quick. Keys `named` on the command line stay.

    A list for a swept key replaces its levels.
    """
    quick = {key: value for key, value in study.quick.items() if key not in named}
    levels = {key: value for key, value in quick.items() if key in study.sweep and isinstance(value, list)}
    overrides = [f"{forced(key)}={literal(value)}" for key, value in quick.items() if key not in levels]
    return _with_levels(study, levels), overrides


def _with_levels(study: Study, levels: dict[str, list[Any]]) -> Study:
    """The study with other levels of some swept keys. Claims about levels that it no longer has are dropped."""
    sweep = {**study.sweep, **levels}
    compared = sweep.get(study.compare, [])
    groups = sweep.get(study.by, [])
    claims = [
        claim
        for claim in study.predicts
        if claim.level in compared and claim.versus in (None, *compared) and claim.by in (None, *groups)
    ]
    return dataclasses.replace(study, sweep=sweep, predicts=claims)


def _drop_wrong_choices(parsed: list[Override], problems: list[str], config_dir: str | None) -> list[Override]:
    """Drop overrides that name an option or top-level key that does not exist, noting each."""
    root_keys = {*root.names(), "recipe", "hydra"}
    usable = []
    for override in parsed:
        key = _key(override)
        if key == "recipe" or key in registry.groups():
            lab_options = inventory.recipes() if key == "recipe" else inventory.options(key)
            existing = [*lab_options, *_user_options(config_dir, key)]
            levels = _sweep_values(override) if override.is_sweep_override() else [override._value]
            # a level is one option, or a list of them: reward=[bt,length]
            chosen = [str(name) for level in levels for name in (level if isinstance(level, list) else [level])]
            wrong = [name for name in chosen if name not in existing]
            problems.extend(f"{key}={name} does not exist{schema.did_you_mean(name, existing)}" for name in wrong)
            if wrong:
                continue
        elif re.split(r"[./@]", key)[0] not in root_keys:
            problems.append(f"{key} is not a setting{schema.did_you_mean(key, root_keys - {'hydra'})}")
            continue
        usable.append(override)
    return usable


def _user_options(config_dir: str | None, group: str) -> list[str]:
    """Names of a group's files in the user's own folder."""
    if not config_dir:
        return []
    root = Path(config_dir) / group
    return [path.relative_to(root).with_suffix("").as_posix() for path in sorted(root.rglob("*.yaml"))]


def _key(override: Override) -> str:
    return override.key_or_group


def _sweep_values(override: Override) -> list[Any]:
    if override.value_type == ValueType.SIMPLE_CHOICE_SWEEP or override.is_sweep_override():
        return list(override.sweep_iterator())
    return [override.value()]
