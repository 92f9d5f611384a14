"""Weightings from a command line: the reward graph of a run directory with each `reward.weights=…` argument."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_lab.config import check, registry, schema
from rlhf_lab.config.overrides import set_value
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.yaml_files import read_mapping
from rlhf_lab.evaluations.rescoring import label_of
from rlhf_lab.rewards.settings import RewardGraph

WEIGHTS = "reward.weights"
REWARD = "reward."
ALGORITHM = "algorithm."


def weightings(directory: str | Path, overrides: Sequence[str]) -> tuple[dict[str, RewardGraph], Any]:
    """Return (label → graph, settings of `algorithm=rescore`) for a run directory.

    Every `reward.weights={term: weight}` is a separate weighting, in the order of the arguments. Without any, the saved
    weights are the only ones. Other `reward.…` arguments change all of them, and `algorithm.…` are settings of the
    re-scoring.

    Raises:
        ArtifactError: the directory has no config.yaml.
        ConfigError: lists every problem of every weighting.
    """
    path = Path(directory) / "config.yaml"
    if not path.is_file():
        raise ArtifactError(f"{directory} has no config.yaml; name the run directory of an evaluation")
    values = read_mapping(path, "the settings of a run")
    values["study"] = None  # the run is re-scored by itself, without the study it belonged to
    options: dict[str, Any] = {}
    weights: list[Any] = []
    changes: list[str] = []
    problems: list[str] = []
    for key, value in _parse_overrides(overrides):
        if key == WEIGHTS:
            weights.append(value)
        elif key.startswith(REWARD):
            changes.append(f"{key.removeprefix(REWARD)}={value}")
            try:
                set_value(values, key, value, adds=True)  # the check of the config knows which keys exist
            except KeyError:
                problems.append(f"{key} is not a setting: {key.rpartition('.')[0]} has no settings")
        elif key.startswith(ALGORITHM) and key != "algorithm.weightings":
            options[key.removeprefix(ALGORITHM)] = value
        else:
            problems.append(f"{key} is not a setting of rescore; write {WEIGHTS}={{bt:.7,programmatic:.3}}")
    settings = schema.build(registry.settings_class("algorithm", "rescore"), options, "algorithm", problems)
    graphs: dict[str, RewardGraph] = {}
    as_saved = f"as saved, but {', '.join(changes)}" if changes else "as saved"
    # null keeps the weights of the run
    for weighting in weights or [values["reward"].get("weights")]:
        reward = {**values["reward"], "weights": weighting}
        try:
            config = check.check({**values, "reward": reward})
            graph = config.reward
            label = label_of(graph.weighting) if weights else as_saved
            graphs[label] = graph
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return graphs, settings


def _parse_overrides(overrides: Sequence[str]) -> list[tuple[str, Any]]:
    """Parse each argument into (key, value) by Hydra's grammar. Raise ConfigError for a malformed or a swept one."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(str(error).splitlines()[0]) from None
    swept = [item.key_or_group for item in parsed if item.is_sweep_override()]
    if swept:
        raise ConfigError(
            f"{', '.join(swept)}: several weightings are separate arguments; put a space between two of them"
        )
    return [(item.key_or_group, item.value()) for item in parsed]
