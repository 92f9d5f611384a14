"""What would fail, or silently do nothing, after minutes of building: looked for before anything is built.

`config.check` judges settings by themselves. This module looks at what is around them: installed libraries, model
folders, data files and functions of other packages. It imports no torch, and asks no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.core.errors import OPTIONAL, ConfigError, DataError, MissingDependency
from rlhf_lab.data import graded, pairs
from rlhf_lab.data.reading import local_files, read_rows
from rlhf_lab.data.roles import missing_columns
from rlhf_lab.data.rows import BadRows
from rlhf_lab.data.settings import Graded, Pairs
from rlhf_lab.models import model_files
from rlhf_lab.rewards.external.functions import load_function
from rlhf_lab.stages.artifacts import External, Stage

LARGE_JSON = 2**26
"""Bytes of a .json file above which its first row is not looked at: the whole file would have to be read for it."""


def check(stages: Iterable[Stage]) -> None:
    """Raise one ConfigError with every problem of the planned runs."""
    found = [problem for stage in stages for problem in problems(stage)]
    if found:
        raise ConfigError(list(dict.fromkeys(found)))


def problems(stage: Stage) -> list[str]:
    """What keeps a planned run from its end, of all stages that are still to be built: one line each, no line twice."""
    found = [problem for part in _all(stage) for problem in _data_problems(part)]
    if not found:  # a stage whose data cannot be read has no key
        found = [problem for part in unbuilt(stage) for problem in _stage_problems(part)]
    return list(dict.fromkeys(found))


def unbuilt(root: Stage) -> list[Stage]:
    """The stages of a run that have to be built, deepest first."""
    return [part for part in root.upstream() if not part.result() or part.config.artifacts.refresh]


def _all(stage: Stage) -> Iterator[Stage]:
    """Every stage of a run, without asking for their keys."""
    for need in stage.needs.values():
        if isinstance(need, Stage):
            yield from _all(need)
    yield stage


def _stage_problems(stage: Stage) -> list[str]:
    return [*_missing_libraries(stage), *_reward_problems(stage), *_model_problems(stage)]


def _missing_libraries(stage: Stage) -> list[str]:
    root = stage.config
    rollout, sharding, tracker = (
        registry.kind_of(group, getattr(root, group)) for group in ("rollout", "sharding", "tracker")
    )
    wanted = {
        "trl": root.engine == "trl",
        "peft": bool(root.model.lora.rank),
        "vllm": rollout == "vllm",
        "deepspeed": sharding == "zero",
        tracker: tracker in OPTIONAL,
    }
    return [_missing(library) for library, needed in wanted.items() if needed and find_spec(library) is None]


def _missing(library: str) -> str:
    return str(MissingDependency(*OPTIONAL[library]))


def _reward_problems(stage: Stage) -> list[str]:
    """Functions of the user that are not there, or are no functions."""
    found = []
    terms = stage.config.reward.terms.values() if "reward" in stage.config.algorithm.uses else ()
    for term in terms:
        if registry.kind_of("reward", term) == "callable":
            try:
                load_function(term)
            except ConfigError as error:
                found += error.problems
    return found


def _model_problems(stage: Stage) -> list[str]:
    """Folders and hub ids that are no models, or not of the kind that is needed, or too short for the rows."""
    root, found = stage.config, []
    path = getattr(root.model, "path", "")
    if path and "policy" not in stage.needs:
        found += model_files.problems(path, "model.path")
    if path:
        found += _length_problems(stage, path)
    if getattr(root.model, "chat_template", None) and model_files.lacks_chat_template(path):
        found.append(
            f"model.chat_template=true: the tokenizer of {path} has no chat template; use model.chat_template=false"
        )
    for role, need in stage.needs.items():
        if not isinstance(need, External) or role in root.algorithm.data_roles:
            continue
        scores = role in ("reward", "judge") or role in root.reward.roles
        wrong = model_files.problems(need.source, f"needs.{role}", reward=scores)
        if not wrong and role == "policy":
            wrong = _policy_problems(stage, need.source)
        found += wrong
    return found


def _policy_problems(stage: Stage, source: str) -> list[str]:
    """A reward model where a policy is needed, and rows that a policy cannot read."""
    if not stage.config.algorithm.adds_head and model_files.has_head(source):
        return [
            f"needs.policy={source} is a reward model: as a language model it would speak through another head; name "
            "a policy's folder there, and this one in needs.reward"
        ]
    return _length_problems(stage, source)


def _length_problems(stage: Stage, source: str) -> list[str]:
    """Settings whose rows are longer than the model's positions, or than those at which it is one model."""
    algorithm, rollout, model_config = stage.config.algorithm, stage.config.rollout, model_files.config_of(source)
    limit, rope_limit = model_files.positions(model_config), model_files.rope_limit(model_config)
    lengths = {"algorithm.max_length": getattr(algorithm, "max_length", None) or 0}
    if "rollout" in algorithm.uses:
        sampled = rollout.max_prompt_tokens + rollout.max_new_tokens
        lengths["rollout.max_prompt_tokens + rollout.max_new_tokens"] = sampled
    found = []
    for name, length in lengths.items():
        if rope_limit and length > rope_limit[1]:
            found.append(model_files.rope_problem(name, length, source, rope_limit))
        elif limit and length > limit:
            found.append(f"{name}={length} does not fit the {limit} positions of {source}; lower it")
    return found


def _data_problems(stage: Stage) -> list[str]:
    """Files that are missing, unreadable or empty, or whose first row lacks a column."""
    data, found = stage.config.data, []
    for setting in ("path", "test_path"):
        source = getattr(data, setting, None)
        if source:
            found += _source_problems(source, f"data.{setting}", data, data.max_bad_rows)
    benchmark = getattr(stage.config.algorithm, "benchmark", None) and stage.config.algorithm.path
    return found + (_source_problems(benchmark, "algorithm.path", None, 0) if benchmark else [])


def _source_problems(source: str, where: str, data: Any, max_bad_rows: int) -> list[str]:
    """What is wrong with the files of a source; of their first row only where `data` says what it should have."""
    try:
        files = local_files(source)
        if files is None:
            return [] if find_spec("datasets") else [_missing("datasets")]
        if any(file.suffix == ".parquet" for file in files) and find_spec("pyarrow") is None:
            return [_missing("pyarrow")]
        if any(".json" in file.suffixes and file.stat().st_size > LARGE_JSON for file in files):
            return []
        bad = BadRows(source, max_bad_rows)
        row = next(read_rows(source, bad), None)
        if row is None:
            bad.finish()
            return [f"{where}={source} has no rows; write a file that has"]
    except (DataError, MissingDependency) as error:
        return [str(error)]
    except OSError as error:
        return [f"{where}={source} cannot be read: {error.strerror or error}"]
    problem = None if max_bad_rows or data is None else _column_problem(row.values, data)
    return [f"{where}={Path(row.file).name}, row {row.number}: {problem}"] if problem else []


def _column_problem(values: dict[str, Any], data: Any) -> str | None:
    """What a row lacks for the settings of its data."""
    if isinstance(data, Pairs):
        return pairs.column_problem(values, data)
    if isinstance(data, Graded):
        return graded.column_problem(values, data)
    missing = [name for name in data.fixed_columns if name not in values]
    return missing_columns(missing, values) if missing else None
