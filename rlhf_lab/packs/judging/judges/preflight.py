"""Checks before a run that uses a judge: missing library, key, model, price or rubric."""

from __future__ import annotations

from importlib.util import find_spec

from rlhf_lab.config.root import Config
from rlhf_lab.core.errors import OPTIONAL, ConfigError, MissingDependency
from rlhf_lab.models import model_files
from rlhf_lab.packs.judging.judges.access import missing_key, missing_model
from rlhf_lab.packs.judging.judges.backends.settings import (
    JudgeSettings,
    LocalModel,
    Service,
    is_requested,
    rubric_files,
)
from rlhf_lab.packs.judging.judges.pricing import price_of
from rlhf_lab.packs.judging.judges.rubric import load_rubric


def problems(config: Config) -> list[str]:
    """Return why the judge of a stage cannot answer from this machine; empty for a stage without a judge."""
    lines = judge_problems(config.judge) if is_requested(config) else []
    for setting, file in rubric_files(config).items():
        try:
            load_rubric(file)
        except ConfigError as error:
            lines += [f"{setting}: {problem}" for problem in error.problems]
    return lines


def judge_problems(judge: JudgeSettings) -> list[str]:
    """Return what one judge lacks on this machine."""
    if isinstance(judge, LocalModel):
        return model_files.problems(judge.path, "judge.path")
    lines: list[str] = []
    # look for the library without importing it: an SDK takes seconds to import
    if judge.library and find_spec(judge.library) is None:
        lines.append(str(MissingDependency(*OPTIONAL[judge.library])))
    if not isinstance(judge, Service):
        return lines
    lines += filter(None, [missing_key(judge)])
    if problem := missing_model(judge):  # the price depends on the name, so it cannot be checked either
        return [*lines, problem]
    try:
        price_of(judge)
    except ConfigError as error:
        lines += error.problems
    return lines
