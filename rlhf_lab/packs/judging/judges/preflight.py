"""What is found before a run that asks a judge: a missing library, key, model, price or rubric."""

from __future__ import annotations

from importlib.util import find_spec

from rlhf_lab.config.root import Config
from rlhf_lab.core.errors import OPTIONAL, ConfigError, MissingDependency
from rlhf_lab.models import model_files
from rlhf_lab.packs.judging.judges.backends.settings import JudgeSettings, LocalModel, Service, is_asked, rubric_files
from rlhf_lab.packs.judging.judges.keys import missing_key
from rlhf_lab.packs.judging.judges.model_name import missing_model
from rlhf_lab.packs.judging.judges.pricing import price_of
from rlhf_lab.packs.judging.judges.rubric import load_rubric


def problems(config: Config) -> list[str]:
    """Why the judge of a stage cannot answer from this machine; none for a stage that asks no judge."""
    lines = judge_problems(config.judge) if is_asked(config) else []
    for setting, file in rubric_files(config).items():
        try:
            load_rubric(file)
        except ConfigError as error:
            lines += [f"{setting}: {problem}" for problem in error.problems]
    return lines


def judge_problems(judge: JudgeSettings) -> list[str]:
    """What one judge lacks on this machine."""
    if isinstance(judge, LocalModel):
        return model_files.problems(judge.path, "judge.path")
    lines = []
    if judge.library and find_spec(judge.library) is None:
        lines.append(str(MissingDependency(*OPTIONAL[judge.library])))
    return [*lines, *_service_problems(judge)] if isinstance(judge, Service) else lines


def _service_problems(service: Service) -> list[str]:
    """A service without a key, the name of a model, or a known price."""
    lines = [problem] if (problem := missing_key(service)) else []
    if problem := missing_model(service):  # without a name there is no price either
        return [*lines, problem]
    try:
        price_of(service)
    except ConfigError as error:
        lines += error.problems
    return lines
