"""`sweep`: write a study or typed sweep as a file for W&B's sweep agents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from rlhf_lab.config import command_line
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import write_text
from rlhf_lab.sweeps.wandb_file import METHODS, sweep_config

OPTIONS = ("method", "continuous", "runs", "to")


def sweep_command(arguments: Sequence[str]) -> None:
    """`sweep +recipe=… [override …] [method=grid to=FILE.yaml …]`: write a study or sweep as a file for W&B's agents.

    `method` is grid, random or bayes, over the study's factors or the swept values; its metric is the study's first.
    `continuous=KEY,…` searches between the minimum and maximum value of a key; `runs=N` stops the search after N runs.
    `wandb sweep FILE.yaml` registers it, and `wandb agent` runs its jobs as rlhf_lab commands. docs/tracking.md.
    """
    options = {}
    overrides = []
    # Everything that is not an option of this command is an override for Hydra.
    for word in arguments:
        name, separator, value = word.partition("=")
        if separator and name in OPTIONS:
            options[name] = value
        else:
            overrides.append(word)
    written = options.get("method", "grid")
    method = next((known for known in METHODS if known == written), None)
    if method is None:
        raise ConfigError(f"method={written} is not known; write one of {', '.join(METHODS)}")
    runs = options.get("runs")
    if runs is not None and not (runs.isdigit() and int(runs)):
        raise ConfigError(f"runs={runs} must be a whole number of 1 or above")
    command = command_line.check_command(overrides)
    if not command.recipe:
        raise ConfigError("sweep needs a recipe: sweep +recipe=study/buffers, or +recipe=dpo algorithm.beta=0.1,0.3")
    continuous = [key for key in options.get("continuous", "").split(",") if key]
    config = sweep_config(command, method, continuous=continuous, runs=int(runs) if runs else None)
    path = Path(options.get("to", f"{config['name']}-sweep.yaml"))
    write_text(path, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    console.print(f"sweep: {path}; next: wandb sweep {path}, then the wandb agent line that it prints")
