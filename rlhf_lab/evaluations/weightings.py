"""Weightings from a command line: the reward graph of a run directory under each `reward.weights=…` that is typed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_lab.config import check, registry, schema
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.evaluations.rescoring import label_of
from rlhf_lab.rewards.settings import RewardGraph

WEIGHTS = "reward.weights"
REWARD = "reward."
ALGORITHM = "algorithm."


def weightings(folder: str | Path, overrides: Sequence[str]) -> tuple[dict[str, RewardGraph], Any]:
    """(label → graph, settings of `algorithm=rescore`) for a run directory.

    Every `reward.weights={term: weight}` is a weighting of its own, in the order typed; without any the saved reward is
    the only one. Other `reward.…` change all of them, `algorithm.…` are settings of the re-scoring.

    Raises:
        ConfigError: with every problem of every weighting.
    """
    path = Path(folder) / "config.yaml"
    if not path.is_file():
        raise ArtifactError(f"{folder} has no config.yaml; name the run directory of an evaluation")
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["study"] = None
    options: dict[str, Any] = {}
    weights: list[Any] = []
    problems: list[str] = []
    for key, value in _parse_overrides(overrides):
        if key == WEIGHTS:
            weights.append(value)
        elif key.startswith(REWARD):
            _set_dotted(values, key, value)
        elif key.startswith(ALGORITHM) and key != "algorithm.weightings":
            options[key.removeprefix(ALGORITHM)] = value
        else:
            problems.append(f"{key} is not a setting of rescore; write {WEIGHTS}={{bt:.7,programmatic:.3}}")
    settings = schema.build(registry.settings_class("algorithm", "rescore"), options, "algorithm", problems)
    graphs: dict[str, RewardGraph] = {}
    for weighting in weights or [values["reward"].get("weights")]:
        reward = {**values["reward"], "weights": weighting}
        try:
            graph = check.check({**values, "reward": reward}).reward
            label = label_of(graph.weighting) if weighting is not None else "as saved"
            graphs[label] = graph
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))  # each once: a problem of the config is one of every weighting
    return graphs, settings


def _parse_overrides(overrides: Sequence[str]) -> list[tuple[str, Any]]:
    """(key, value) of each argument, by Hydra's grammar. Raises ConfigError for a malformed or a swept one."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    swept = [item.key_or_group for item in parsed if item.is_sweep_override()]
    if swept:
        raise ConfigError(f"{', '.join(swept)}: a weighting is an argument of its own; put a space between two")
    return [(item.key_or_group, item.value()) for item in parsed]


def _set_dotted(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested mappings. A missing parent is created; the check that follows refuses unknown keys."""
    *parents, leaf = key.split(".")
    for name in parents:
        values = values.setdefault(name, {})
    values[leaf] = value
