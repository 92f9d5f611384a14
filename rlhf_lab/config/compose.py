"""Composition of configs with Hydra: the files listed by `inventory.py` become one store, command lines become configs.

Users add a directory of their own with `--config-dir DIR` (`DIR/recipe/x.yaml`, first line `# @package _global_`).
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

from rlhf_lab.config import (
    inventory,
    matching,
    other_names,
    registry,
    root,
    schema,
    search_space,
    smoke,
    study_levels,
    study_metrics,
    user_files,
    words,
)
from rlhf_lab.config.check import check, effective
from rlhf_lab.config.overrides import ADDED, MISSING, forced, is_choice, literal, set_value, value_at
from rlhf_lab.config.study_settings import StudySettings
from rlhf_lab.config.typed_sweep import typed_study
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
        choices = [override for override in parsed if is_choice(_key(override))]
        typed_choices = tuple(choice.input_line or "" for choice in choices)
        values = pickle.loads(_pickled_choices(typed_choices))
    except (HydraException, OmegaConfBaseException):
        return None
    if any(isinstance(choice.value(), dict) for choice in choices):
        return None  # `model={hidden: 16}` is not a choice: Hydra applies it in order among the values
    for override in parsed:
        if is_choice(_key(override)):
            continue
        if not _is_scalar(override, values):
            return None
        try:
            set_value(values, _key(override), override.value())
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
    key = _key(override)
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
        return f"{key} is not a setting of what was chosen{_suggest_key(key, {})}"
    if "'hydra/launcher/submitit_" in first_line:
        return f"{first_line}: its library is not installed. Run: pip install 'rlhf_lab[slurm]'"
    return first_line


def _suggest_key(path: str, values: Mapping[str, Any]) -> str:
    """Return a hint for a key that does not exist: the likely intended key, or where the possible keys are listed.

    Args:
        values: composed values of the chosen options; empty if composing failed.
    """
    group, _, leaf = path.partition(".")
    kinds = []
    if group in registry.groups():
        parent, _, leaf = leaf.rpartition(".")
        for kind in registry.kinds(group):
            cls = registry.settings_class(group, kind)
            moved = getattr(cls, "moved", {})
            # a setting of an earlier version
            if leaf in moved and parent.endswith(kind):
                return f"; {moved[leaf]}"
            field_names = {field.name for field in dataclasses.fields(cls)}
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


@dataclass(frozen=True)
class Command:
    """Checked command.

    Attributes:
        overrides: overrides of every job as typed, without the swept keys.
        recipe: name of the recipe; None if there is none, or if recipes are swept.
        study: study section if the recipe is a study, or the study equivalent to a typed sweep.
        jobs: swept key → value, for every job.
        configs: checked config of every job.
        names: name of every job's last stage: its recipe, with the algorithm if that replaces the recipe's own.
        typed: True if the sweep was typed instead of written in a recipe.
        note: what differs from the recipe's study for a reason that the user did not type; empty if nothing does.
    """

    overrides: list[str]
    recipe: str | None
    study: StudySettings | None
    jobs: list[dict[str, Any]]
    configs: list[root.Config]
    names: list[str]
    typed: bool = False
    note: str = ""


def check_command(overrides: Sequence[str], config_dir: str | None = None) -> Command:
    """Compose and check every job of a command line. Raise ConfigError with all problems of all jobs."""
    problems: list[str] = []
    command = read_command(overrides, config_dir, problems)
    if problems or command is None:
        raise ConfigError(list(dict.fromkeys(problems)))
    return command


def read_command(overrides: Sequence[str], config_dir: str | None, problems: list[str]) -> Command | None:
    """Compose and check every job of a command line; append all problems to `problems`.

    If there are problems, return the command without the wrong settings, so that a caller can look for more problems.
    Return None if nothing could be composed.
    """
    if wrong := inventory.wrong_files(config_dir):
        problems.extend(wrong)
        return None
    overrides = [forced(override) for override in overrides]
    usable, rejected = _existing_overrides(overrides, problems, config_dir)
    usable = _last_levels(usable)
    swept = {_key(override): _sweep_values(override) for override in usable if override.is_sweep_override()}
    fixed = [override.input_line or "" for override in usable if not override.is_sweep_override()]
    named_recipes = (str(o.value()) for o in usable if _key(o) == "recipe" and not o.is_sweep_override())
    recipe = next(named_recipes, None)
    # A sweep over options is composed first with the first option of each.
    first_levels = {key: levels[0] for key, levels in swept.items()}
    first_choices = _choice_words(first_levels)
    study: StudySettings | None = None
    jobs: list[dict[str, Any]] = []
    configs: list[root.Config] = []
    names: list[str] = []
    typed = False
    note = ""
    try:
        _refuse_swept_studies(swept.get("recipe", ()), config_dir)
        base = compose([*fixed, *first_choices], config_dir)
        written_study = base["study"] or {}
        if not isinstance(written_study, dict):
            raise ConfigError(f"study={written_study} is no mapping; expected metrics, compare, sweep, … below study")
        # The study of a recipe has its own sweep; without one, `study.…` describes the sweep typed here.
        is_search = bool(written_study.get("search"))
        typed = "sweep" not in written_study and not is_search and bool(swept or written_study)
        if typed:
            study = typed_study(recipe, swept, written_study, problems)
        elif written_study:
            if not written_study.get("predicts") and "study.until" not in map(_key, usable):
                written_study = {**written_study, "until": None}  # `study.predicts=[]` leaves nothing to decide
            study = schema.build(StudySettings, written_study, "study", problems)
        if is_search and swept:
            problems.append(f"{', '.join(swept)}: with study.search the search chooses the values; remove the sweep")
            swept = {}
        named = {_key(override) for override in usable}
        until = study.until if study else None
        if study:
            study = dataclasses.replace(study, until=None)  # until its levels are known
        if study and not typed:
            study, quick_overrides = _at_size(study, base["size"], named)
            if quick_overrides:
                fixed += quick_overrides
                base = compose([*fixed, *first_choices], config_dir)
            # A value typed for the study's `by` key restricts the study to that value.
            typed_by = [override for override in usable if _key(override) == study.by]
            fixed_by = [override.value() for override in typed_by if not override.is_sweep_override()]
            if fixed_by:
                study = study_levels.with_levels(study, {study.by: fixed_by})
            from_study = {key: levels for key, levels in study.sweep.items() if key not in named}
            swept = {**from_study, **swept}
        problems.extend(study_levels.repeated_values(swept))
        # Without claims, with one level and at smoke size nothing is decided: the jobs are those of the listed seeds.
        decides = bool(study and study.predicts and study.compare in swept and base["size"] != "smoke")
        if until and decides and "study.until" not in named and study_levels.shares_test_prompts(base):
            note = (
                f"data={base['data']['kind']} has the same test prompts for every seed: the study runs its list of "
                "seeds, because it cannot stop when its claims are decided"
            )
        elif study and until and decides:
            study = dataclasses.replace(study, until=until)
            # Seeds vary slowest, so that all levels of a seed run before the next seed.
            seeds = study_levels.planned_seeds(swept.pop("seed", [base["seed"]]), study.max_seeds)
            swept = {"seed": seeds, **swept}
        # Composed values by the choices of a job: jobs that choose the same options share one composition.
        composed = {first_choices: base}
        jobs += (dict(zip(swept, levels, strict=True)) for levels in itertools.product(*swept.values()))
        for job in jobs:
            config = _check_job(fixed, job, composed, rejected, problems, config_dir)
            if config is not None:
                name, question = _name_and_question(fixed, job, config_dir)
                configs.append(config.replace(question=question) if question else config)
                names.append(name)
        # A trial with a wrong value would fail much later, so all ends of ranges and all choices are checked now.
        for key, written in study.search.items() if study else ():
            for value in search_space.dimension(written).values():
                _check_job(fixed, {key: value}, composed, rejected, problems, config_dir)
    except ConfigError as error:
        problems.extend(error.problems)
    if study:
        problems.extend(study_metrics.published_problems(study))
    if study and study.goal:
        # The goal is the primary metric; the other metrics are further columns.
        metrics = [study.goal.metric, *(name for name in study.metrics if name != study.goal.metric)]
        study = dataclasses.replace(study, metrics=metrics)
    if study and not typed:
        problems.extend(study_metrics.problems(study, recipe, configs))
    if not configs:
        return None
    return Command(fixed, recipe, study, jobs, configs, names, typed, note)


def _at_size(study: StudySettings, size: str, named: set[str]) -> tuple[StudySettings, list[str]]:
    """Return the study with the levels of its size, and the overrides that a quick study adds to each job.

    Args:
        size: size of the stages. At `smoke` the study has the first levels of its quick size, because that size
            reduces all other settings further.
        named: keys of the command line, which keep their values.
    """
    if size == "smoke":
        quick, _ = study_levels.quick_study(study, named)
        return smoke.short_search(study_levels.with_levels(quick, smoke.first_levels(quick, named)), named), []
    return study_levels.quick_study(study, named) if study.size == "quick" else (study, [])


def config_of(overrides: Sequence[str], problems: list[str]) -> root.Config:
    """Return a config for a command that reads only a few of its sections. Raise ConfigError with all problems."""
    usable = usable_overrides([forced(override) for override in overrides], problems)
    if problems:
        raise ConfigError(problems)
    # Any choice of the sections is allowed; the recipe only completes the config.
    values = compose([*(override.input_line or "" for override in usable), "+recipe=sft"])
    return effective({**values, "study": None})


def usable_overrides(overrides: Sequence[str], problems: list[str], config_dir: str | None = None) -> list[Override]:
    """Return the overrides that parse and choose existing options; explain each of the others in `problems`."""
    return _drop_wrong_choices(_parsed(overrides, problems, config_dir), problems, config_dir)


def _parsed(overrides: Sequence[str], problems: list[str], config_dir: str | None) -> list[Override]:
    """Return the overrides that parse; explain each of the others in `problems`."""
    return words.parse(overrides, [*inventory.recipes(), *inventory.user_options(config_dir, "recipe")], problems)


def _existing_overrides(
    overrides: Sequence[str], problems: list[str], config_dir: str | None
) -> tuple[list[Override], set[str]]:
    """Return (usable overrides whose keys exist, keys of all others); append all problems to `problems`.

    Hydra stops at the first key that does not exist. Keys below a wrong choice are dropped without a message of their
    own, because whether they exist depends on the choice that was intended.
    """
    parsed = _parsed(overrides, problems, config_dir)
    usable = _drop_wrong_choices(parsed, problems, config_dir)
    rejected = {_key(override) for override in parsed} - {_key(override) for override in usable}
    swept = [override for override in usable if override.is_sweep_override()]
    not_swept = [override for override in usable if not override.is_sweep_override()]
    # Composing only the choices, without values, shows which keys exist.
    first = {_key(override): _sweep_values(override)[0] for override in swept}
    fixed = [override.input_line or "" for override in not_swept if is_choice(_key(override))]
    try:
        values = compose([*fixed, *_choice_words(first)], config_dir)
    except ConfigError:
        return usable, rejected  # composing the full command reports the same error
    for override in usable:
        problem = _kind_problem(override, values)
        if problem:
            problems.append(problem)
            rejected |= {_key(override), _key(override).partition(".")[0]}
    existing = []
    for override in usable:
        key = _key(override)
        if key in rejected or key.partition(".")[0] in rejected:
            rejected.add(key)
        elif override.type == OverrideType.CHANGE and not is_choice(key) and _is_unknown(key, values):
            problems.append(f"{key} is not a setting of what was chosen{_suggest_key(key, values)}")
            rejected.add(key)
        else:
            existing.append(override)
    return existing, rejected


def _is_unknown(key: str, values: Mapping[str, Any]) -> bool:
    """Return True for a dotted key that composed values do not have. Keys of Hydra are not looked up."""
    is_dotted = re.fullmatch(r"[\w.]+", key) is not None
    return is_dotted and not key.startswith("hydra.") and value_at(values, key, MISSING) is MISSING


def _kind_problem(override: Override, values: Mapping[str, Any]) -> str | None:
    """Return what to write instead of an override such as `model.kind=hf`; None for other overrides.

    Setting only the kind would keep the settings of another kind.
    """
    key = _key(override)
    group, _, rest = key.partition(".")
    parts = registry.parts_of(group) if group in registry.groups() else ""
    pattern = rf"{parts}\.[^.]+\.kind" if parts else "kind"
    if group not in registry.groups() or not re.fullmatch(pattern, rest) or override.is_sweep_override():
        return None
    present, kind = value_at(values, key), str(override.value())
    if present in (None, kind):
        return None
    kind_by_option = {name: inventory.written_values(group, name)["kind"] for name in inventory.options(group)}
    options = [name for name, option_kind in kind_by_option.items() if option_kind == kind]
    if not options:
        return f"{key}={kind} is not registered{schema.did_you_mean(kind, registry.kinds(group))}"
    return (
        f"{key}={kind} would keep the settings of kind {present}; choose an option, which brings its own: "
        f"{group}={'|'.join(options)}"
    )


def _choice_words(job: Mapping[str, Any]) -> tuple[str, ...]:
    """Return overrides for the options and the recipe that a job of a sweep chooses."""
    return tuple(f"{forced(key)}={literal(value)}" for key, value in job.items() if is_choice(key))


def _refuse_swept_studies(recipes: Iterable[Any], config_dir: str | None) -> None:
    """Raise ConfigError if one of several swept recipes is a study."""
    studies = [str(name) for name in recipes if compose([f"+recipe={name}"], config_dir)["study"]]
    if studies:
        raise ConfigError(
            f"+recipe={','.join(map(str, recipes))}: {', '.join(studies)} is a sweep of its own; run one at a time"
        )


def _name_and_question(fixed: Sequence[str], job: Mapping[str, Any], config_dir: str | None) -> tuple[str, str]:
    """Return (name of a job's last stage, its question); the question is empty if the recipe's own question fits."""
    swept_words = [f"{forced(key)}={literal(value)}" for key, value in job.items()]
    written = {key_of(word): word.partition("=")[2] for word in (*fixed, *swept_words)}
    recipe = written.get("recipe", "")
    algorithm = written.get("algorithm", "")
    if not recipe or not algorithm:
        return recipe or "sweep", ""
    own = compose([f"+recipe={recipe}"], config_dir)["algorithm"]
    chosen = compose([f"+recipe={recipe}", f"algorithm={algorithm}"], config_dir)["algorithm"]
    if own == chosen:
        return recipe, ""
    # The recipe's question is about its own algorithm, so another algorithm gets a question of its own.
    name = f"{recipe} algorithm={algorithm}"
    if "question" in written:
        return name, ""
    return name, f"What does algorithm={algorithm} do where the recipe {recipe} has algorithm={own['kind']}?"


def key_of(word: str) -> str:
    """Return the key of an override given as text."""
    return word.lstrip("+~").partition("=")[0]


def _concerns(problem: str, key: str) -> bool:
    """Return True if a problem names a key, or a setting of the group whose option the key chooses."""
    # For a choice, `group.setting` and `group=option` belong to it; otherwise the key must match exactly.
    after = r"[.=]" if is_choice(key) else r"(?![\w.])"
    return re.search(rf"(?<![\w.]){re.escape(key)}{after}", problem) is not None


MAX_CHECKS = 4
"""Maximum number of times that a job is checked without the settings found to be wrong."""


def _check_job(
    fixed: list[str],
    job: dict[str, Any],
    composed: dict[tuple[str, ...], dict[str, Any]],
    rejected: Collection[str],
    problems: list[str],
    config_dir: str | None,
) -> root.Config | None:
    """Return the checked config of one job without its wrong settings, or None; explain each in `problems`.

    A check stops early if later problems would follow from an earlier one. The job is therefore checked again without
    the settings that a problem names.

    Args:
        composed: composed values by the choices of a job; see `_composed_job`.
        rejected: keys that were dropped; problems about them are consequences and are not reported.
    """
    left_out = set(rejected)
    config = None
    for _ in range(MAX_CHECKS):
        found: list[str] = []
        config = _composed_job(fixed, job, composed, found, config_dir)
        for line in found:
            is_consequence = any(_concerns(line, key) for key in left_out)
            if not is_consequence:
                problems.append(line)
        value_keys = {key for key in (*map(key_of, fixed), *job) if not is_choice(key)}
        wrong = {key for key in value_keys if any(_concerns(line, key) for line in found)}
        if not wrong:
            return config
        left_out |= wrong
        fixed = [word for word in fixed if key_of(word) not in wrong]
        job = {key: value for key, value in job.items() if key not in wrong}
        composed = {}
    return config


def _composed_job(
    fixed: Sequence[str],
    job: Mapping[str, Any],
    composed: dict[tuple[str, ...], dict[str, Any]],
    problems: list[str],
    config_dir: str | None,
) -> root.Config | None:
    """Return the checked config of one job, or None with all problems in `problems`.

    Composing is slow, so jobs that choose the same options share one entry of `composed`. A job's scalar values are set
    in a copy of it.
    """
    choices = _choice_words(job)
    written = {*map(key_of, fixed), *job}
    try:
        if choices not in composed:
            composed[choices] = compose([*fixed, *choices], config_dir)
        values = copy.deepcopy(composed[choices])
        for key, value in job.items():
            if not is_choice(key):
                # Parse with Hydra's grammar, so that a swept value means the same as the typed override.
                override = OverridesParser.create().parse_override(f"{key}={literal(value)}")
                set_value(values, key, override.value())
        return check(job_values(values, written))
    except ConfigError as error:
        problems.extend(error.problems)
    except KeyError as error:
        missing_key = error.args[0]
        suggestion = _suggest_key(missing_key, composed.get(choices, {}))
        problems.append(f"{missing_key} is not a setting of what was chosen{suggestion}")
    return None


def job_values(values: dict[str, Any], written: Collection[str]) -> dict[str, Any]:
    """Return the values of one job, without the study.

    The settings of the job's arm and the limits of `size` are applied.

    Args:
        values: composed values of the entire config, a copy of its own for the job: its mappings are changed.
        written: keys of the command line and of the sweep, whose values are not reduced by `size=smoke`.

    Raises:
        ConfigError: there is no such arm.
        KeyError: a setting of the arm does not exist.
    """
    study = values["study"] or {}
    arms, name = study.get("arms") or {}, study.get("arm")
    arms = arms if isinstance(arms, dict) else {}  # the check of the study explains it
    if name is not None and name not in arms:
        raise ConfigError(f"study.arm={name} is not one of study.arms: {', '.join(arms) or 'none'}")
    arm = arms.get(name) or {}
    result = {**values, "study": None}
    for key, value in arm.items():
        set_value(result, key, value)
    return smoke.sized(result, {*written, *arm}, recipe_values)


@cache
def recipe_values(name: str) -> dict[str, Any]:
    """Return a recipe's values composed without other overrides. Raise KeyError if there is no such recipe.

    The result is cached, because a study plans many jobs over the same few upstream recipes. Do not modify it.
    """
    if name not in inventory.recipes():
        raise KeyError(name)
    return compose([f"+recipe={name}"])


def _drop_wrong_choices(parsed: list[Override], problems: list[str], config_dir: str | None) -> list[Override]:
    """Drop overrides that name an option or top-level key that does not exist, and explain each in `problems`."""
    root_keys = {*root.names(), "recipe", "hydra"}
    usable = []
    for override in parsed:
        key = _key(override)
        if key == "recipe" or key in registry.groups():
            lab_options = inventory.recipes() if key == "recipe" else inventory.options(key)
            existing = [*lab_options, *inventory.user_options(config_dir, key)]
            levels = _sweep_values(override)
            # a level is one option, or a list of them: reward=[bt,length]
            chosen = [str(name) for level in levels for name in (level if isinstance(level, list) else [level])]
            if key == "recipe" and chosen != list(map(str, levels)):
                names = ",".join(chosen)
                problems.append(f"+recipe=[{names}] is a list; write +recipe={names}")
                continue
            wrong = [name for name in chosen if name not in existing]
            for name in wrong:
                suggestion = _as_path(key, name) or schema.did_you_mean(name, existing)
                problems.append(f"{key}={name} does not exist{suggestion}")
            if wrong:
                continue
        elif re.split(r"[./@]", key)[0] not in root_keys:
            problems.append(f"{key} is not a setting{_suggest_key(key, {})}")
            continue
        usable.append(override)
    return usable


def _as_path(group: str, name: str) -> str:
    """Return a hint for a path or hub id that was given as an option of a group: how to write it.

    Empty for other names.
    """
    # a name without a slash may be a mistyped option, unless such a file exists
    if group not in ("model", "data") or not ("/" in name or Path(name).exists()):
        return ""
    if group == "model":
        return f"; a directory or hub id is written model=hf model.path={name}"
    kinds = "pairs, sft, prompts, unpaired or verifiable"
    return f"; a file or hub id is written data=KIND data.path={name}, where KIND is {kinds}"


def _last_levels(overrides: Sequence[Override]) -> list[Override]:
    """Return the overrides with only the last one of each key that has a sweep. Hydra does so for plain values."""
    last = {_key(override): override for override in overrides}
    swept = {_key(override) for override in overrides if override.is_sweep_override()}
    return [override for override in overrides if override is last[_key(override)] or _key(override) not in swept]


def _key(override: Override) -> str:
    """Return the key or config group that an override names."""
    return override.key_or_group


def _sweep_values(override: Override) -> list[Any]:
    """Return the values of an override: all levels of a sweep, or its only value."""
    if override.value_type == ValueType.SIMPLE_CHOICE_SWEEP or override.is_sweep_override():
        return list(override.sweep_iterator())
    return [override.value()]
