"""Finds, before anything is built, what would fail or silently do nothing after minutes of building.

`config.check` judges settings by themselves. This module looks at what is around them: installed libraries, model
folders, data files, functions of other packages, and the sandbox. It imports no torch, and asks no network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from rlhf_lab.config import registry
from rlhf_lab.config.root import Config
from rlhf_lab.core.errors import OPTIONAL, ConfigError, DataError, MissingDependency
from rlhf_lab.core.packs import contributed
from rlhf_lab.data.file_settings import FileSettings
from rlhf_lab.data.made import made_problem
from rlhf_lab.data.reading import local_files, read_rows
from rlhf_lab.data.roles import missing_columns
from rlhf_lab.data.rows import BadRows
from rlhf_lab.models import families, model_files
from rlhf_lab.models.settings import Scratch
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.sampling.vllm import environment
from rlhf_lab.stages.artifacts import GOLD, External, Stage, model_identity

LARGE_JSON = 2**26
"""Bytes of a .json file above which its first row is not checked: that would take parsing the whole file."""


def check(stages: Iterable[Stage]) -> None:
    """Raise one ConfigError with every problem of the planned runs."""
    all_problems = [problem for stage in stages for problem in problems(stage)]
    if all_problems:
        raise ConfigError(list(dict.fromkeys(all_problems)))


def problems(stage: Stage) -> list[str]:
    """What would make a planned run fail, over all stages still to be built: one line each, no line twice."""
    lines = [line for needed in _all_stages(stage) for line in _data_problems(needed)]
    # Which stages are unbuilt depends on their keys, and a stage whose data cannot be read has none.
    if not lines:
        lines = [line for needed in unbuilt(stage) for line in _stage_problems(needed)]
    return list(dict.fromkeys(lines))


def unbuilt(root: Stage) -> list[Stage]:
    """The stages of a run that have to be built, deepest first."""
    return [stage for stage in root.upstream() if not stage.result() or stage.config.artifacts.refresh]


def _all_stages(stage: Stage) -> Iterator[Stage]:
    """Every stage of a run; unlike `Stage.upstream` it computes no keys."""
    for need in stage.needs.values():
        if isinstance(need, Stage):
            yield from _all_stages(need)
    yield stage


def _stage_problems(stage: Stage) -> list[str]:
    from_packs = [problem for find_problems in contributed("preflight") for problem in find_problems(stage.config)]
    return [
        *_missing_libraries(stage),
        *_vllm_problems(stage),
        *from_packs,
        *_model_problems(stage),
        *_gold_problems(stage),
        *_vocabulary_problems(stage),
    ]


def _vocabulary_problems(stage: Stage) -> list[str]:
    """Roles whose model has to read another role's tokens, and whose tokenizer comes out another one."""
    lines = []
    for role, (other, remedy) in stage.config.algorithm.one_vocabulary(stage.config).items():
        origin, other_origin = (_vocabulary_origin(stage.needs.get(name)) for name in (role, other))
        if origin is None or other_origin is None or _same_vocabulary(origin, other_origin):
            continue
        lines.append(
            f"needs.{role}={stage.config.needs[role]} has another vocabulary than needs.{other}, because their first "
            f"stages train a tokenizer on different data: {remedy}, or the same data settings for both"
        )
    return lines


def _vocabulary_origin(need: Stage | External | None) -> Stage | None:
    """The stage that trains the tokenizer of a need; None where none does, or where its texts are not known yet."""
    while isinstance(need, Stage) and "policy" in need.needs:
        need = need.needs["policy"]
    if not isinstance(need, Stage):
        return None
    model, mixes_made_rows = need.config.model, need.config.corpus_roles and need.config.mixture.vocabulary == "all"
    is_trained = isinstance(model, Scratch) and model.family in families.BUILT_IN
    return need if is_trained and not mixes_made_rows else None


def _same_vocabulary(a: Stage, b: Stage) -> bool:
    """Whether two first stages train the same tokenizer; their data are read only where the settings differ."""
    if (a.config.data, a.config.model.vocabulary) == (b.config.data, b.config.model.vocabulary):
        return True
    # Imported here: reading data and training a tokenizer are seldom needed to check a command.
    from rlhf_lab.models.tokenizer import train_backend, vocabulary_texts

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
    return [_install_line(library) for library, needed in is_needed.items() if needed and find_spec(library) is None]


def _packs_numbers(config: Config) -> bool:
    """Whether weights or moments of the stage are of less than two bytes."""
    model = config.model
    packs_weights = "nf4" in (model.weights, *astuple(model.weights_of))
    return packs_weights or getattr(config.algorithm, "optimizer", "") == "adamw_8bit"


def _vllm_problems(stage: Stage) -> list[str]:
    """An environment of vLLM that is to be started and is not there."""
    config = stage.config
    starts = isinstance(config.rollout, Vllm) and config.engine == "native" and config.rollout.mode == "spawn"
    if not starts or "rollout" not in config.algorithm.uses:
        return []
    device: environment.Device = "cpu" if config.runtime.device == "cpu" else environment.device_here()
    packages = environment.ENVIRONMENTS[device]
    problem = packages.why_not_ready(packages.default_folder())
    return [f"rollout.mode=spawn: {problem}"] if problem else []


def _install_line(library: str) -> str:
    """What the library is for and how to install it."""
    return str(MissingDependency(*OPTIONAL[library]))


def _model_problems(stage: Stage) -> list[str]:
    """Folders and hub ids that are no models, not of the kind that is needed, or with too few positions."""
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
            problem = made_problem(Path(need.source), config.row_roles[role])
            problems += [f"needs.{role}={need.source}: {problem}"] if problem else []
        if config.reads_folder(role):
            continue
        is_reward_model = role in ("reward", "judge", GOLD) or role in config.reward.roles
        role_problems = model_files.problems(need.source, f"needs.{role}", reward=is_reward_model)
        if not role_problems and role == "policy":
            role_problems = _policy_problems(stage, need.source)
        problems += role_problems
    return problems


def _gold_problems(stage: Stage) -> list[str]:
    """A gold that is a model of the reward: the two columns would be one."""
    gold = stage.needs.get(GOLD)
    if gold is None or "reward" not in stage.config.algorithm.uses:
        return []
    same = [role for role in sorted(stage.config.reward.roles) if _same_model(gold, stage.needs.get(role))]
    return [
        f"needs.{GOLD}={stage.config.needs[GOLD]} is the model of needs.{role}: gold would be the reward that it is "
        f"there to check; name another one, or a recipe, which is built with another seed: needs.{GOLD}=reward_model"
        for role in same
    ]


def _same_model(a: Stage | External, b: Stage | External | None) -> bool:
    """Whether two needs are one model: one stage, or folders with the same content."""
    if b is None:
        return False
    are_folders = Path(a.model).is_dir() and Path(b.model).is_dir()
    return a.model == b.model or (are_folders and model_identity(a.model) == model_identity(b.model))


def _policy_problems(stage: Stage, source: str) -> list[str]:
    """A reward model where a policy is needed, or rows longer than the policy's positions."""
    if not stage.config.algorithm.adds_head and model_files.has_head(source):
        return [
            f"needs.policy={source} is a reward model: as a language model it would speak through another head; name "
            "a policy's folder there, and this one in needs.reward"
        ]
    return _length_problems(stage, source)


def _length_problems(stage: Stage, source: str) -> list[str]:
    """Settings whose rows are longer than the model's positions, or so long that its rotary embedding changes."""
    algorithm = stage.config.algorithm
    rollout = stage.config.rollout
    model_config = model_files.config_of(source)
    limit = model_files.positions(model_config)
    rope_limit = model_files.rope_limit(model_config)
    lengths = {"algorithm.max_length": getattr(algorithm, "max_length", None) or 0}
    if "rollout" in algorithm.uses:
        turns = stage.config.data.max_turns
        setting = "max_new_tokens" if turns == 1 else "max_episode_tokens"
        sampled = rollout.max_prompt_tokens + rollout.most_tokens(turns)
        lengths[f"rollout.max_prompt_tokens + rollout.{setting}"] = sampled
    problems = []
    for name, length in lengths.items():
        if rope_limit and length > rope_limit[1]:
            problems.append(model_files.rope_problem(name, length, source, rope_limit))
        elif limit and length > limit:
            problems.append(f"{name}={length} does not fit the {limit} positions of {source}; lower it")
    return problems


def _data_problems(stage: Stage) -> list[str]:
    """Files that are missing, unreadable or empty, or whose first row lacks a column."""
    data = stage.config.data
    problems = []
    parts = {f"data.sources.{name}": part for name, part in data.sources_by_name().items()} or {"data": data}
    for where, part in parts.items():
        if isinstance(part, FileSettings):
            for setting, source in (("path", part.path), ("test_path", part.test_path)):
                if source:
                    problems += _source_problems(source, f"{where}.{setting}", part, part.max_bad_rows)
            if not problems and part.path and part.test_path is None and _is_one_row(part.path):
                problems.append(
                    f"{where}.path={part.path} has one row, and a test split needs another: write a file with "
                    f"more rows, or name held-out rows with {where}.test_path=FILE"
                )
    algorithm = stage.config.algorithm
    path = getattr(algorithm, "path", "")
    try:
        is_read = "path" in algorithm.digested_paths and "path" in algorithm.contents()
    except (DataError, MissingDependency) as error:
        return [*problems, str(error)]
    if path and not is_read:  # what the digest is of has been read row by row
        problems += _source_problems(path, "algorithm.path", None, 0)
    return problems


def _source_problems(source: str, where: str, data: FileSettings | None, max_bad_rows: int) -> list[str]:
    """What is wrong with the files of a source. Columns of the first row are checked where `data` names them."""
    try:
        files = local_files(source)
        if files is None:
            return [] if find_spec("datasets") else [_install_line("datasets")]
        if any(file.suffix == ".parquet" for file in files) and find_spec("pyarrow") is None:
            return [_install_line("pyarrow")]
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
    if max_bad_rows or data is None:  # the first row may be one of the bad rows that are allowed
        return []
    problem = _column_problem(row.values, data)
    return [f"{where}={Path(row.file).name}, row {row.number}: {problem}"] if problem else []


def _is_one_row(source: str) -> bool:
    """Whether a source that can be read is a local file of one row."""
    files = local_files(source)
    if files is None or any(".json" in file.suffixes and file.stat().st_size > LARGE_JSON for file in files):
        return False
    rows = read_rows(source, BadRows(source, limit=1))
    return len(list(islice(rows, 2))) == 1


def _column_problem(values: dict[str, Any], data: FileSettings) -> str | None:
    """What a row lacks for the settings of its data."""
    source = import_module(registry.implementation("data", registry.kind_of("data", data)))
    if hasattr(source, "column_problem"):
        problem: str | None = source.column_problem(values, data)
        return problem
    missing = [name for name in data.fixed_columns if name not in values]
    return missing_columns(missing, values) if missing else None
