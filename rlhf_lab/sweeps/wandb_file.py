"""A study or typed sweep as a sweep of W&B: the file that `wandb sweep` reads, and what an agent gave this command.

An agent of W&B starts one command per run. The lab then runs that one job as it would by itself: checks, stages, store.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rlhf_lab.config import compose
from rlhf_lab.config.files import parse_yaml
from rlhf_lab.config.overrides import forced, literal
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.metrics import metric
from rlhf_lab.sweeps.sweep import study_folder

Method = Literal["grid", "random", "bayes"]
METHODS: tuple[Method, ...] = ("grid", "random", "bayes")
GIVEN = "WANDB_SWEEP_PARAM_PATH"
"""Environment variable in which an agent names the file of the values that it chose."""
LOG_SCALE = 10.0
"""A range whose ends are this many times apart is searched on a logarithmic scale."""


def sweep_config(
    command: compose.Command, method: Method, *, continuous: Sequence[str] = (), runs: int | None = None
) -> dict[str, Any]:
    """What the file holds.

    Args:
        command: of a study, or with swept values.
        continuous: swept keys that are searched between their smallest and largest value, not only at them.
        runs: most runs; `random` and `bayes` go on until they are stopped without it.
    Raises:
        ConfigError: nothing is swept, a key cannot be continuous, or nobody knows which direction of the metric is
            better.
    """
    study = command.study
    if study is None:
        raise ConfigError("nothing is swept; name a study, or write values such as algorithm.beta=0.1,0.3 seed=0,1")
    levels: dict[str, list[Any]] = {}
    for job in command.jobs:
        for key, value in job.items():
            if value not in levels.setdefault(key, []):
                levels[key].append(value)
    if unknown := [key for key in continuous if key not in levels]:
        raise ConfigError(f"continuous: {', '.join(unknown)} is not swept; choose from {', '.join(levels)}")
    if method == "grid" and continuous:
        raise ConfigError("continuous values have no grid; use method=random or method=bayes")
    parameters = {}
    for key, values in levels.items():
        parameters[forced(key)] = _range(key, values) if key in continuous else {"values": [_level(v) for v in values]}
    tracker = command.configs[0].tracker
    config: dict[str, Any] = {
        "name": study_folder(command).name,
        "description": study.question,
        "program": "rlhf_lab",
        "method": method,
        "project": getattr(tracker, "project", "rlhf_lab"),
    }
    if entity := getattr(tracker, "entity", ""):
        config["entity"] = entity
    primary = study.metrics[0]
    better = metric(primary).better
    if better:
        config["metric"] = {"name": f"final/{primary}", "goal": "maximize" if better == "higher" else "minimize"}
    elif method == "bayes":
        raise ConfigError(
            f"method=bayes needs to know what is better, and of {primary} no direction is; write "
            "study.metrics=[METRIC] with one that has a direction, such as gold or accuracy"
        )
    if runs is not None:
        config["run_cap"] = runs
    config["parameters"] = parameters
    config["command"] = _words(command)
    return config


def _words(command: compose.Command) -> list[str]:
    """The command of one run, as a list of words that no shell reads."""
    written = [word for word in command.overrides if not word.lstrip("+").startswith(("recipe=", "hydra", "study"))]
    words = ["${env}", "${interpreter}", "-m", "rlhf_lab", f"+recipe={command.recipe}"]
    if not command.typed:
        words.append("study=null")  # one job of the study, not the study
    if not any(word.startswith("tracker=") for word in written):
        words.append("tracker=wandb")
    return [*words, *written, "${args_no_hyphens}"]


def _level(value: Any) -> int | float | str:
    """A swept value as an agent writes it behind `key=`: in Hydra's grammar, numbers as they are."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else literal(value)


def _range(key: str, values: Sequence[Any]) -> dict[str, Any]:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or len(set(numbers)) < 2:
        raise ConfigError(f"continuous: {key} has the values {values}; a range needs two different numbers")
    low, high = min(numbers), max(numbers)
    if all(isinstance(value, int) for value in numbers):
        distribution = "int_uniform"
    elif low > 0 and high / low >= LOG_SCALE:
        distribution = "log_uniform_values"
    else:
        distribution = "uniform"
    return {"distribution": distribution, "min": low, "max": high}


def given_values() -> dict[str, Any]:
    """Key → the value that an agent of W&B chose for this command; {} where no agent started it."""
    path = os.environ.get(GIVEN)
    if not path or not Path(path).is_file():
        return {}
    values = parse_yaml(Path(path).read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        return {}
    # other entries, such as wandb_version, are W&B's own
    chosen = {key: entry["value"] for key, entry in values.items() if isinstance(entry, dict) and "value" in entry}
    return {str(key).lstrip("+"): value for key, value in chosen.items()}
