"""From a command line to the checked configs of its jobs: `read_command`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hydra.core.override_parser.types import Override

from rlhf_lab.config import inventory, root, schema, search_space, smoke, study_levels, study_metrics
from rlhf_lab.config.check import effective
from rlhf_lab.config.compose import compose
from rlhf_lab.config.job_configs import check_job, name_and_question
from rlhf_lab.config.overrides import forced
from rlhf_lab.config.study_settings import StudySettings
from rlhf_lab.config.typed_overrides import (
    choice_words,
    existing_overrides,
    last_levels,
    sweep_values,
    usable_overrides,
)
from rlhf_lab.config.typed_sweep import typed_study
from rlhf_lab.core.errors import ConfigError


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
    usable, rejected = existing_overrides([forced(override) for override in overrides], problems, config_dir)
    configs: list[root.Config] = []
    names: list[str] = []
    try:
        plan = _plan(last_levels(usable), config_dir, problems)
        # Composed values by the choices of a job: jobs that choose the same options share one composition.
        composed = {plan.first_choices: plan.base}
        for job in plan.jobs:
            config = check_job(plan.fixed, job, composed, rejected, problems, config_dir)
            if config is not None:
                name, question = name_and_question(plan.fixed, job, config_dir)
                configs.append(config.replace(question=question) if question else config)
                names.append(name)
        # A trial with a wrong value would fail much later, so all ends of ranges and all choices are checked now.
        for key, written in plan.study.search.items() if plan.study else ():
            for value in search_space.dimension(written).values():
                check_job(plan.fixed, {key: value}, composed, rejected, problems, config_dir)
    except ConfigError as error:
        problems.extend(error.problems)
    if not configs:
        return None
    if plan.study and not plan.typed:
        problems.extend(study_metrics.problems(plan.study, plan.recipe, configs))
    return Command(plan.fixed, plan.recipe, plan.study, plan.jobs, configs, names, plan.typed, plan.note)


@dataclass
class _Plan:
    """Study and jobs of a command line before the jobs are checked.

    Attributes:
        recipe: name of the recipe; None if there is none, or if recipes are swept.
        fixed: overrides of every job.
        swept: swept key → levels.
        first_choices: overrides for the first option of each swept group.
        base: values composed from `fixed` and `first_choices`.
        study: study section; None for a single run.
        typed: True if the sweep was typed instead of written in a recipe.
        note: what differs from the recipe's study for a reason that the user did not type.
    """

    recipe: str | None
    fixed: list[str]
    swept: dict[str, list[Any]]
    first_choices: tuple[str, ...]
    base: dict[str, Any]
    study: StudySettings | None = None
    typed: bool = False
    note: str = ""

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """Swept key → value, for every job. The first key varies slowest."""
        return [dict(zip(self.swept, levels, strict=True)) for levels in itertools.product(*self.swept.values())]


def _plan(usable: Sequence[Override], config_dir: str | None, problems: list[str]) -> _Plan:
    """Return the study and the jobs of a command line, with the levels of the study's size.

    Append problems of the study to `problems`. Raise ConfigError if the values cannot be composed.
    """
    swept = {override.key_or_group: sweep_values(override) for override in usable if override.is_sweep_override()}
    single = [override for override in usable if not override.is_sweep_override()]
    recipe = next((str(override.value()) for override in single if override.key_or_group == "recipe"), None)
    fixed = [override.input_line or "" for override in single]
    _refuse_swept_studies(swept.get("recipe", ()), config_dir)
    # A sweep over options is composed first with the first option of each.
    first_choices = choice_words({key: levels[0] for key, levels in swept.items()})
    plan = _Plan(recipe, fixed, swept, first_choices, compose([*fixed, *first_choices], config_dir))
    named = {override.key_or_group for override in usable}
    _read_study(plan, named, problems)
    if plan.study is None:
        problems.extend(study_levels.repeated_values(plan.swept))
        return plan
    until = plan.study.until
    plan.study = dataclasses.replace(plan.study, until=None)  # until its levels are known
    if not plan.typed:
        plan.study, quick_overrides = _at_size(plan.study, plan.base["size"], named)
        if quick_overrides:
            plan.fixed += quick_overrides
            plan.base = compose([*plan.fixed, *first_choices], config_dir)
        # A value typed for the study's `by` key restricts the study to that value.
        if fixed_by := [override.value() for override in single if override.key_or_group == plan.study.by]:
            plan.study = study_levels.with_levels(plan.study, {plan.study.by: fixed_by})
        from_study = {key: levels for key, levels in plan.study.sweep.items() if key not in named}
        plan.swept = {**from_study, **plan.swept}
    problems.extend(study_levels.repeated_values(plan.swept))
    if until:
        _run_until(plan, until, "study.until" in named)
    if goal := plan.study.goal:
        # The goal is the primary metric; the other metrics are further columns.
        metrics = [goal.metric, *(name for name in plan.study.metrics if name != goal.metric)]
        plan.study = dataclasses.replace(plan.study, metrics=metrics)
    return plan


def _read_study(plan: _Plan, named: set[str], problems: list[str]) -> None:
    """Set the study of a command: that of its recipe, or one equivalent to the typed sweep.

    Args:
        plan: plan without a study; `study`, `typed` and the swept keys of a search change.
        named: keys of the command line.
    """
    written = plan.base["study"] or {}
    if not isinstance(written, dict):
        raise ConfigError(f"study={written} is no mapping; expected metrics, compare, sweep, … below study")
    is_search = bool(written.get("search"))
    # The study of a recipe has its own sweep; without one, `study.…` describes the sweep typed here.
    plan.typed = "sweep" not in written and not is_search and bool(plan.swept or written)
    if plan.typed:
        plan.study = typed_study(plan.recipe, plan.swept, written, problems)
    elif written:
        if not written.get("predicts") and "study.until" not in named:
            written = {**written, "until": None}  # `study.predicts=[]` leaves nothing to decide
        plan.study = schema.build(StudySettings, written, "study", problems)
    if plan.study:
        problems.extend(study_metrics.published_problems(plan.study))
    if is_search and plan.swept:
        problems.append(f"{', '.join(plan.swept)}: with study.search the search chooses the values; remove the sweep")
        plan.swept = {}


def _run_until(plan: _Plan, until: Literal["decided"], is_typed: bool) -> None:
    """Let the study run seed by seed until its claims are decided, if something can be decided.

    Args:
        plan: plan whose study has its levels.
        until: when the study ends.
        is_typed: True if the command line names `study.until`.
    """
    study, base = plan.study, plan.base
    # Without claims, with one level and at smoke size nothing is decided: the jobs are those of the listed seeds.
    if study is None or not study.predicts or study.compare not in plan.swept or base["size"] == "smoke":
        return
    if not is_typed and study_levels.shares_test_prompts(base):
        plan.note = (
            f"data={base['data']['kind']} has the same test prompts for every seed: the study runs its list of "
            "seeds, because it cannot stop when its claims are decided"
        )
        return
    plan.study = dataclasses.replace(study, until=until)
    # Seeds vary slowest, so that all levels of a seed run before the next seed.
    seeds = study_levels.planned_seeds(plan.swept.pop("seed", [base["seed"]]), study.max_seeds)
    plan.swept = {"seed": seeds, **plan.swept}


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


def _refuse_swept_studies(recipes: Iterable[Any], config_dir: str | None) -> None:
    """Raise ConfigError if one of several swept recipes is a study."""
    studies = [str(name) for name in recipes if compose([f"+recipe={name}"], config_dir)["study"]]
    if studies:
        raise ConfigError(
            f"+recipe={','.join(map(str, recipes))}: {', '.join(studies)} is a sweep of its own; run one at a time"
        )


def config_of(overrides: Sequence[str], problems: list[str]) -> root.Config:
    """Return a config for a command that reads only a few of its sections. Raise ConfigError with all problems."""
    usable = usable_overrides([forced(override) for override in overrides], problems)
    if problems:
        raise ConfigError(problems)
    # Any choice of the sections is allowed; the recipe only completes the config.
    values = compose([*(override.input_line or "" for override in usable), "+recipe=sft"])
    return effective({**values, "study": None})
