"""Export of a study or typed sweep to a W&B sweep: the file that `wandb sweep` reads, and the values of an agent.

An agent of W&B starts one command per run. rlhf_lab then runs that job like any other: checks, stages, store.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rlhf_lab.config import command_line, root
from rlhf_lab.config.overrides import forced, literal, value_at
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.metrics import metric
from rlhf_lab.core.yaml_files import read_mapping
from rlhf_lab.sweeps.sweep import study_dir, swept_levels

Method = Literal["grid", "random", "bayes"]
METHODS: tuple[Method, ...] = ("grid", "random", "bayes")
GIVEN = "WANDB_SWEEP_PARAM_PATH"
"""Environment variable in which an agent passes the path of the file with its chosen values."""
LOG_SCALE = 10.0
"""Minimum ratio of the ends of a range for a logarithmic search scale."""


def sweep_config(
    command: command_line.Command, method: Method, *, continuous: Sequence[str] = (), runs: int | None = None
) -> dict[str, Any]:
    """Return the content of the sweep file.

    Args:
        continuous: swept keys that are searched between their minimum and maximum, not only at the listed values.
        runs: maximum number of runs; without it `random` and `bayes` continue until they are stopped.
    Raises:
        ConfigError: nothing is swept, a key cannot be continuous, or the metric has no better direction.
    """
    study = command.study
    if study is None:
        raise ConfigError("nothing is swept; name a study, or add values such as algorithm.beta=0.1,0.3 seed=0,1")
    if study.arms:
        raise ConfigError(
            "an agent starts single jobs without the study, so it knows no study.arms; sweep the settings themselves, "
            "or run the study without wandb"
        )
    if study.search:
        raise ConfigError("study.search chooses its values by itself; write a sweep, such as algorithm.beta=0.1,0.3")
    levels = swept_levels(command)
    if unknown := [key for key in continuous if key not in levels]:
        raise ConfigError(f"continuous: {', '.join(unknown)} is not swept; choose from {', '.join(levels)}")
    if method == "grid" and continuous:
        raise ConfigError("continuous values have no grid; use method=random or method=bayes")
    checked = root.to_values(command.configs[0])
    parameters = {}
    for key, values in levels.items():
        listed = {"values": [value if _is_number(value) else literal(value) for value in values]}  # in Hydra's grammar
        parameters[forced(key)] = _range(key, values, checked) if key in continuous else listed
    # Runs of the sweep go to the project of the study's tracker.
    tracker = command.configs[0].tracker
    config: dict[str, Any] = {
        "name": study_dir(command).name,
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
            f"method=bayes needs a metric with a direction, and {primary} has none; set study.metrics=[METRIC] to one "
            "that has, such as gold or accuracy"
        )
    if runs is not None:
        config["run_cap"] = runs
    config["parameters"] = parameters
    config["command"] = _words(command)
    return config


def _words(command: command_line.Command) -> list[str]:
    """Return the command of one run as a list of words that no shell parses."""
    written = [word for word in command.overrides if not word.lstrip("+").startswith(("recipe=", "hydra", "study"))]
    words = ["${env}", "${interpreter}", "-m", "rlhf_lab", f"+recipe={command.recipe}"]
    if not command.typed:
        words.append("study=null")  # one job of the study, not the study
    if not any(word.startswith("tracker=") for word in written):
        words.append("tracker=wandb")
    return [*words, *written, "${args_no_hyphens}"]


def _is_number(value: Any) -> bool:
    """Return True for numbers except booleans, which are integers in Python."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _range(key: str, values: Sequence[Any], checked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the range of a key's values. `checked` are the settings of a job, where 1 is 1.0 if fractions are allowed.

    Raise ConfigError without two different numbers.
    """
    numbers = [value for value in values if _is_number(value)]
    if len(numbers) < len(values) or len(set(numbers)) < 2:
        raise ConfigError(f"continuous: {key} has the values {values}; a range needs two different numbers")
    # W&B's names of distributions; the values of a logarithmic range have to be positive.
    low, high = min(numbers), max(numbers)
    if all(isinstance(value, int) for value in numbers) and not isinstance(value_at(checked, key), float):
        distribution = "int_uniform"
    elif low > 0 and high / low >= LOG_SCALE:
        distribution = "log_uniform_values"
    else:
        distribution = "uniform"
    return {"distribution": distribution, "min": low, "max": high}


def provided_values() -> dict[str, Any]:
    """Return key → value that an agent of W&B chose for this command; {} if no agent started it."""
    path = os.environ.get(GIVEN)
    if not path or not Path(path).is_file():
        return {}
    entries = read_mapping(Path(path), "the values that an agent of W&B chose").items()
    # Other entries, such as wandb_version, are W&B's own.
    return {str(key).lstrip("+"): item["value"] for key, item in entries if isinstance(item, dict) and "value" in item}
