"""Overrides that make any recipe and everything it starts from take seconds, for commands run from end to end."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from rlhf_lab.config import command_line, compose, registry
from rlhf_lab.stages import artifacts

EVALUATION = {"prompts": 4, "samples_per_prompt": 2, "pairs": 8}
DATA = {
    "mini_hh": ["data=mini_hh_small", "data.train_pairs=96", "data.test_pairs=16"],
    "arithmetic": ["data=arithmetic_small", "data.train_problems=96", "data.test_problems=16"],
    # a full frame takes four columns of four words, and a clip has six frames or more
    "speech": ["data=speech_small", "data.train_pairs=96", "data.test_pairs=16", "rollout.max_new_tokens=48"],
    "tools": ["data.train_tasks=96", "data.test_tasks=16"],
    "repairs": ["data.train_tasks=96", "data.test_tasks=16"],
    "reviews": ["data.train_pairs=96", "data.test_pairs=16"],
}
COMMON = [
    *(f"evaluation.{key}={value}" for key, value in EVALUATION.items()),
    "rollout.max_new_tokens=12",
    "runtime.threads=1",
    "model.hidden=16",
    "model.layers=1",
    "model.heads=2",
    "checkpoint.every_steps=1",
]
MIXTURE_ROWS = 16
"""Rows of a mixture of synthetic rows and the data's own: fewer than are generated at this size."""
SMALL: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 8,
    "on_policy_fraction": 0,
    "prompts_per_round": 12,
    "samples_per_prompt": 2,
    "rounds": 2,
    "iterations": 5,
    "prompts_per_iteration": 8,
    "group_size": 2,
    "samples": 4,
    "problems": 12,
    "trajectories": 1,
    "rollouts": 2,
    "choose_from": 2,
    "critic_warmup": 1,
    "folds": 2,
    "prompts": 64,
    "limit": 2,
    "siblings": 1,
    "log_every_steps": 1,
}
"""Setting → size, for those of them that an algorithm has."""


@cache
def overrides(recipe: str) -> list[str]:
    """Overrides that make a recipe and everything it starts from small."""
    compose.register_store()
    command = command_line.check_command([f"+recipe={recipe}"])
    jobs, swept = command.configs, {key for values in command.jobs for key in values}
    upstream = {stage.recipe for job in jobs for stage in artifacts.plan(job, recipe).upstream()} - {recipe}
    found = [f"algorithm.{key}={value}" for key, value in _fitting(*jobs).items()]
    if jobs[0].mixture.rows or "mixture.rows" in swept:
        found.append(f"mixture.rows={MIXTURE_ROWS}")
    if "intelligibility" in jobs[0].reward.terms:
        found.append("reward.terms.intelligibility.floor=null")  # a model of this size says nothing that passes a gate
    data = DATA[registry.kind_of("data", jobs[0].data)]
    for name in sorted(stage for stage, values in jobs[0].stages.items() if "train_pairs" in values.get("data", {})):
        found += [f"stages.{name}.{override}" for override in data if override.startswith("data.train_")]
    for name in sorted(upstream):
        if kind := jobs[0].stages.get(name, {}).get("data", {}).get("kind"):  # it has data of its own
            # The data of a stage are chosen by their kind, which the recipe has set.
            found += [f"stages.{name}.{override}" for override in DATA[kind] if not override.startswith("data=")]
        found += [override for override in _stage_overrides(name) if override.partition("=")[0] not in swept]
    return [*COMMON, *data, *found]


@cache
def _stage_overrides(name: str) -> list[str]:
    """Overrides that make one stage small where another recipe starts from it."""
    config = command_line.check_command([f"+recipe={name}"]).configs[0]
    found = [f"stages.{name}.mixture.rows={MIXTURE_ROWS}"] if config.corpus_roles else []
    found += [f"stages.{name}.algorithm.{key}={value}" for key, value in _fitting(config).items()]
    if "evaluation" in config.algorithm.inputs.sections:
        found += [f"stages.{name}.evaluation.{key}={value}" for key, value in EVALUATION.items()]
    return found


def _fitting(*jobs: Any) -> dict[str, Any]:
    """The sizes that the algorithms of all jobs have a setting for."""
    names = [{field.name for field in dataclasses.fields(job.algorithm)} for job in jobs]
    found = {key: value for key, value in SMALL.items() if all(key in fields for fields in names)}
    if all("only_successes" in fields for fields in names):
        found["only_successes"] = "false"  # a model of this size has none
    if all("demonstrate" in fields for fields in names):
        found |= {"demonstrate": "true", "attempts": 2, "heldout_tasks": 4}
    if all("sizes" in fields and "samples" in fields for fields in names):
        found["sizes"] = "[1,2]"  # not more than the samples
    return found
