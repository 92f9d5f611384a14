"""Checks, before anything is built, for what would fail or silently do nothing after minutes of building.

`config.check` validates settings alone. This module checks their environment: installed libraries, model directories,
data files, functions of other packages, and the sandbox. It imports no torch. It only uses the network for what is not
in the hub cache, and only to check that it exists (`core/hub.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.config.command_line import Command
from rlhf_lab.config.root import Config
from rlhf_lab.core import hub, metrics
from rlhf_lab.core.errors import OPTIONAL, ConfigError, DataError, MissingDependency
from rlhf_lab.core.packs import contributed_objects
from rlhf_lab.data.file_settings import FileSettings
from rlhf_lab.data.generated import generated_problem
from rlhf_lab.data.reading import HUB_ID, local_files, read_rows
from rlhf_lab.data.roles import missing_columns
from rlhf_lab.data.rows import BadRows, MissingColumns
from rlhf_lab.models import families, model_files
from rlhf_lab.models.settings import Scratch
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.sampling.vllm import environment
from rlhf_lab.stages.artifacts import GOLD, External, Stage, model_identity, plan
from rlhf_lab.stages.launch import accelerate

LARGE_JSON = 2**26
"""Size in bytes above which the first row of a .json file is not checked, because that would parse the entire file."""


def check(stages: Iterable[Stage]) -> None:
    metrics.of_packages()  # refuse contradictory packs now instead of when a finished run is reported
    all_problems = accelerate.problems(os.environ)
    for stage in stages:
        all_problems += problems(stage)
    if all_problems:
        raise ConfigError(list(dict.fromkeys(all_problems)))


def problems(stage: Stage) -> list[str]:
    """Return what would make a planned run fail, over all stages still to be built: distinct one-line problems."""
    lines = [line for needed in _all_stages(stage) for line in _data_problems(needed)]
    if lines:
        # Which stages are unbuilt depends on their keys, and a stage with unreadable data has no key.
        lines += [line for needed in _all_stages(stage) for line in _stage_problems(needed)]
    else:
        for needed in unbuilt(stage):
            lines += [*_stage_problems(needed), *_vocabulary_problems(needed)]
    return list(dict.fromkeys(lines))


def planned(command: Command) -> list[Stage]:
    """Return the stages of a command's runs. Raise ConfigError with all problems if one of them cannot be planned."""
    try:
        return [plan(config, name) for config, name in zip(command.configs, command.names, strict=True)]
    except ConfigError:
        raise ConfigError(further_problems(command)) from None


def further_problems(command: Command) -> list[str]:
    """Return all problems of a command; a run that cannot be planned is checked without its upstream stages."""
    lines = accelerate.problems(os.environ)
    for config, name in zip(command.configs, command.names, strict=True):
        try:
            stage = plan(config, name)
        except ConfigError as error:
            lines += error.problems
            stage = Stage(name, config, {})
        lines += problems(stage)
    return list(dict.fromkeys(lines))


def unbuilt(root: Stage) -> list[Stage]:
    """Return the stages of a run that have to be built, upstream first."""
    return [stage for stage in root.upstream() if not stage.result() or stage.config.artifacts.refresh]


def _all_stages(stage: Stage) -> Iterator[Stage]:
    """Yield every stage of a run. Unlike `Stage.upstream`, this computes no keys."""
    for need in stage.needs.values():
        if isinstance(need, Stage):
            yield from _all_stages(need)
    yield stage


def _stage_problems(stage: Stage) -> list[str]:
    problems = _missing_libraries(stage) + _vllm_problems(stage)
    for find_problems in contributed_objects("preflight"):
        problems += find_problems(stage.config)
    return problems + _model_problems(stage) + _gold_problems(stage)


def _vocabulary_problems(stage: Stage) -> list[str]:
    """Return problems of models in `needs` that have to read tokens of another model but have another tokenizer."""
    lines = []
    for role, (other, remedy) in stage.config.algorithm.one_vocabulary(stage.config).items():
        origin, other_origin = (_vocabulary_origin(stage.needs.get(name)) for name in (role, other))
        if origin is None or other_origin is None or _same_vocabulary(origin, other_origin):
            continue
        lines.append(
            f"needs.{role}={stage.config.needs[role]} has another vocabulary than needs.{other}, because their first "
            f"stages train tokenizers on different data: {remedy}, or use the same data settings for both"
        )
    return lines


def _vocabulary_origin(need: Stage | External | None) -> Stage | None:
    """Return the stage that trains the tokenizer of a model in `needs`; None if no stage of this run does.

    It is also None if the texts that the tokenizer is trained on are still to be generated.
    """
    while isinstance(need, Stage) and "policy" in need.needs:
        need = need.needs["policy"]
    if not isinstance(need, Stage):
        return None
    model = need.config.model
    mixes_synthetic_rows = need.config.corpus_roles and need.config.mixture.vocabulary == "all"
    is_trained = isinstance(model, Scratch) and model.family in families.BUILT_IN
    return need if is_trained and not mixes_synthetic_rows else None


def _same_vocabulary(a: Stage, b: Stage) -> bool:
    """Return True if two stages train the same tokenizer. Their data are read only if the settings differ."""
    if (a.config.data, a.config.model.vocabulary) == (b.config.data, b.config.model.vocabulary):
        return True
    from rlhf_lab.models.tokenizer import train_backend, vocabulary_texts

    # Different settings may still give the same texts, e.g. if only held-out rows differ.
    vocabularies = []
    for stage in (a, b):
        corpus = registry.build("data", stage.config.data)
        backend = train_backend(vocabulary_texts(corpus.train), stage.config.model.vocabulary)
        vocabularies.append(backend.get_vocab())
    return vocabularies[0] == vocabularies[1]


def _missing_libraries(stage: Stage) -> list[str]:
    config = stage.config
    tracker = registry.kind_of("tracker", config.tracker)
    is_needed = {
        "trl": config.engine == "trl",
        "peft": bool(config.model.lora.rank),
        "bitsandbytes": _packs_numbers(config),
        "vllm": config.engine == "trl" and isinstance(config.rollout, Vllm),
        "lm_eval": getattr(config.algorithm, "asks_harness", False),
        "deepspeed": registry.kind_of("sharding", config.sharding) == "zero",
        tracker: tracker in OPTIONAL,  # a tracker is named as its library
    }
    needed = [library for library, is_used in is_needed.items() if is_used]
    return [_install_line(library) for library in needed if find_spec(library) is None]


def _packs_numbers(config: Config) -> bool:
    """Return True if weights or optimizer state of the stage have fewer than two bytes per element."""
    model = config.model
    packs_weights = "nf4" in (model.weights, *astuple(model.weights_of))
    return packs_weights or getattr(config.algorithm, "optimizer", "") == "adamw_8bit"


def _vllm_problems(stage: Stage) -> list[str]:
    config = stage.config
    starts = isinstance(config.rollout, Vllm) and config.engine == "native" and config.rollout.starts_server
    if not starts or "rollout" not in config.algorithm.inputs.sections:
        return []
    device: environment.Device = "cpu" if config.runtime.device == "cpu" else environment.device_here()
    packages = environment.ENVIRONMENTS[device]
    problem = packages.why_not_ready(packages.default_dir())
    return [f"rollout.mode={config.rollout.mode}: {problem}"] if problem else []


def _install_line(library: str) -> str:
    return str(MissingDependency(*OPTIONAL[library]))


def _model_problems(stage: Stage) -> list[str]:
    """Return problems of model directories and hub ids: not a model, the wrong kind, or too few positions."""
    config = stage.config
    problems = []
    path = getattr(config.model, "path", "")
    if path and not config.needs.get("policy"):
        problems += model_files.problems(path, "model.path")
    if path:
        problems += _length_problems(stage, path)
    if getattr(config.model, "chat_template", None) and model_files.lacks_chat_template(path):
        problems.append(
            f"model.chat_template=true: the tokenizer of {path} has no chat template; use model.chat_template=false"
        )
    for role, need in stage.needs.items():
        if not isinstance(need, External):
            continue
        if role in config.row_roles:
            problem = generated_problem(Path(need.source), config.row_roles[role])
            problems += [f"needs.{role}={need.source}: {problem}"] if problem else []
        if config.reads_run_dir(role):
            continue
        # These models need a scalar head; others need the head of a language model.
        is_reward_model = role in ("reward", "judge", GOLD) or role in config.reward.roles
        role_problems = model_files.problems(need.source, f"needs.{role}", reward=is_reward_model)
        if not role_problems and role == "policy":
            role_problems = _policy_problems(stage, need.source)
        problems += role_problems
    return problems


def _gold_problems(stage: Stage) -> list[str]:
    """Return a problem if gold is also a model of the reward, because both columns would be identical."""
    gold = stage.needs.get(GOLD)
    if gold is None or "reward" not in stage.config.algorithm.inputs.sections:
        return []
    roles = sorted(stage.config.reward.roles)
    same = [role for role in roles if _same_model(gold, stage.needs.get(role))]
    return [
        f"needs.{GOLD}={stage.config.needs[GOLD]} is the model of needs.{role}, so gold would equal the reward that it "
        f"should check; use another model, or a recipe, which is built with another seed: needs.{GOLD}=reward_model"
        for role in same
    ]


def _same_model(a: Stage | External, b: Stage | External | None) -> bool:
    """Return True if two entries of `needs` are the same model: the same stage, or directories of equal content."""
    if b is None:
        return False
    are_folders = Path(a.model).is_dir() and Path(b.model).is_dir()
    return a.model == b.model or (are_folders and model_identity(a.model) == model_identity(b.model))


def _policy_problems(stage: Stage, source: str) -> list[str]:
    """Return a problem if a policy is a reward model, or if rows are longer than its positions."""
    if not stage.config.algorithm.resources.adds_head and model_files.has_head(source):
        return [
            f"needs.policy={source} is a reward model, which lacks the head of a language model; set needs.policy to a "
            "policy's directory, and needs.reward to this one"
        ]
    return _length_problems(stage, source)


def _length_problems(stage: Stage, source: str) -> list[str]:
    """Return problems of rows longer than the model's positions, or so long that its rotary embedding changes."""
    algorithm = stage.config.algorithm
    rollout = stage.config.rollout
    model_config = model_files.config_of(source)
    limit = model_files.positions(model_config)
    rope_limit = model_files.rope_limit(model_config)
    lengths = {"algorithm.max_length": getattr(algorithm, "max_length", None) or 0}
    if "rollout" in algorithm.inputs.sections:
        turns = stage.config.data.max_turns
        setting = "max_new_tokens" if turns == 1 else "max_episode_tokens"
        sampled = rollout.max_prompt_tokens + rollout.max_tokens_left(turns)
        lengths[f"rollout.max_prompt_tokens + rollout.{setting}"] = sampled
    problems = []
    for name, length in lengths.items():
        if rope_limit and length > rope_limit[1]:
            problems.append(model_files.rope_problem(name, length, source, rope_limit))
        elif limit and length > limit:
            problems.append(f"{name}={length} does not fit the {limit} positions of {source}; lower it")
    return problems


def _data_problems(stage: Stage) -> list[str]:
    """Return problems of data files: missing, unreadable or empty, or a column missing in the first row."""
    data = stage.config.data
    problems = []
    parts = {f"data.sources.{name}": part for name, part in data.sources_by_name().items()} or {"data": data}
    for where, part in parts.items():
        if isinstance(part, FileSettings):
            for setting, source in (("path", part.path), ("test_path", part.test_path)):
                if source:
                    problems += _source_problems(source, f"{where}.{setting}", part, part.max_bad_rows)
            splits_itself = bool(part.path) and part.test_path is None and not part.holds_out_all
            if not problems and splits_itself and _is_one_row(part.path, part.max_bad_rows):
                problems.append(
                    f"{where}.path={part.path} has one row, but a test split needs another one; use a file with more "
                    f"rows, or set held-out rows with {where}.test_path=FILE"
                )
    algorithm = stage.config.algorithm
    path = getattr(algorithm, "path", "")
    try:
        is_read = "path" in algorithm.inputs.digested and "path" in algorithm.contents()
    except (DataError, MissingDependency) as error:
        return [*problems, str(error)]
    if path and not is_read:  # computing its digest has already read all rows
        problems += _source_problems(path, "algorithm.path", None, 0)
    return problems


def _source_problems(source: str, where: str, data: FileSettings | None, max_bad_rows: int) -> list[str]:
    """Return problems of the files of a source. The columns of the first row are checked if `data` names them."""
    try:
        files = local_files(source)
        if files is None:
            return _hub_problems(source, where)
        if any(file.suffix == ".parquet" for file in files) and find_spec("pyarrow") is None:
            return [_install_line("pyarrow")]
        if _has_large_json(files):
            return []
        bad = BadRows(source, max_bad_rows)
        row = next(read_rows(source, bad), None)
        if row is None:
            bad.finish()
            return [f"{where}={source} has no rows; use a file with at least one row"]
    except (DataError, MissingDependency) as error:
        return [str(error)]
    except OSError as error:
        return [f"{where}={source} cannot be read: {error.strerror or error}"]
    if max_bad_rows or data is None:  # the first row may be one of the allowed bad rows
        return []
    problem = _column_problem(row.values, data)
    return [f"{where}={Path(row.file).name}, row {row.number}: {problem}"] if problem else []


def _hub_problems(source: str, where: str) -> list[str]:
    if find_spec("datasets") is None:
        return [_install_line("datasets")]
    match = HUB_ID.fullmatch(source)
    hub_id = match["id"] if match else source
    problem = "" if hub.is_cached("datasets", hub_id) else hub.problem("datasets", hub_id)
    return [f"{where}={source}: {problem}"] if problem else []


def _has_large_json(files: Iterable[Path]) -> bool:
    """Return True if a file has to be parsed in full to read its first row, and is too large for that."""
    return any(".json" in file.suffixes and file.stat().st_size > LARGE_JSON for file in files)


def _is_one_row(source: str, max_bad_rows: int) -> bool:
    files = local_files(source)
    if files is None or _has_large_json(files):
        return False
    return len(list(islice(read_rows(source, BadRows(source, max_bad_rows)), 2))) == 1


def _column_problem(values: dict[str, Any], data: FileSettings) -> str | None:
    source = import_module(registry.implementation("data", registry.kind_of("data", data)))
    if hasattr(source, "check_columns"):
        try:
            source.check_columns(values, data)
        except MissingColumns as problem:
            return str(problem)
        return None
    missing = [name for name in data.fixed_columns if name not in values]
    return missing_columns(missing, values) if missing else None
