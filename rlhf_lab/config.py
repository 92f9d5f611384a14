"""The root config: its sections, the rules between sections, and what a resolved config is.

A composed config is plain YAML values. `check` turns it into dataclasses or raises one ConfigError with every problem.
It runs before torch is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from rlhf_lab import registry, schema
from rlhf_lab.errors import ConfigError, require

GROUPS = tuple(registry.PACKAGES)
TRL_OPTIONS = "rlhf_lab.algorithms.trl.options"
"""The module that knows which settings TRL can honour; imported by name, because it lies above this one."""


@dataclass(frozen=True)
class Evaluation:
    """How policies are compared on held-out prompts.

    Args:
        prompts: held-out prompts, the same for every policy.
        samples_per_prompt: replies per prompt and policy; intervals are clustered by prompt.
        pairs: held-out preference pairs for ranking accuracy and chosen-likelihood drift.
        seed: of the sampling noise. Each policy draws from its own stream.
    """

    prompts: int = 384
    samples_per_prompt: int = 4
    pairs: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            (self.prompts >= 2, f"prompts={self.prompts}; an interval over prompts needs at least 2"),
            (self.samples_per_prompt >= 1, f"samples_per_prompt={self.samples_per_prompt} must be at least 1"),
            (self.pairs >= 2, f"pairs={self.pairs} must be at least 2"),
        )


@dataclass(frozen=True)
class Runtime:
    """Where and with what arithmetic a stage computes.

    Args:
        device: `auto` takes a GPU when there is one.
        dtype: arithmetic of training; parameters and optimiser state stay float32. `bfloat16` is autocast.
        threads: CPU threads per process. 0 is one for the small models of `model.kind=scratch`, where a second thread
            costs more than it gives (26 against 33 ms per SFT step), and all cores, shared between the jobs of a
            study, for others.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16"] = "float32"
    threads: int = 0


@dataclass(frozen=True)
class Checkpoint:
    """How often an interrupted stage can be picked up. Has no influence on results.

    Args:
        every_steps: optimiser steps between checkpoints; 0 writes none.
    """

    every_steps: int = 100


@dataclass(frozen=True)
class Artifacts:
    """Args:
    refresh: rebuild every stage of this run even when the store has it.
    """

    refresh: bool = False


@dataclass(frozen=True)
class Study:
    """A sweep that ends in one table and one plot.

    Args:
        question: what the study answers, one sentence.
        hypothesis: what the literature or the issue expects, labelled as published in the table; never a result.
        sweep: override key → values; all combinations run. A command-line value for a key replaces it.
        compare: the key whose levels are compared.
        baseline: the level that the others are compared with.
        metrics: reported metrics; the first is the primary one.
        curves: `overoptimization` adds gold and proxy against √KL along training, a fitted curve per level and where
            it turns (arXiv:2210.10760).
        processes: jobs that run at once on this machine.
    """

    question: str = ""
    hypothesis: str | None = None
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    compare: str = ""
    baseline: Any = None
    metrics: list[str] = field(default_factory=list)
    curves: Literal["overoptimization"] | None = None
    processes: int = 2

    def __post_init__(self) -> None:
        levels = self.sweep.get(self.compare, [])
        require(
            (bool(self.sweep), "sweep is empty; name at least the compared key and seed"),
            (self.compare in self.sweep, f"compare={self.compare} is not a key of sweep: {', '.join(self.sweep)}"),
            (not levels or self.baseline in levels, f"baseline={self.baseline} is not one of {levels}"),
            (bool(self.metrics), "metrics is empty; the first one is the primary metric"),
        )


@dataclass(frozen=True)
class Config:
    """One run, completely described.

    Args:
        engine: what trains: `native` is the lab's own loop, `trl` the trainers of TRL (`pip install 'rlhf_lab[trl]'`).
            Of the named stage alone: one before it follows `stages.RECIPE.engine`.
        seed: of initialisation, sampling and data order.
        needs: what the run starts from, by role: a recipe name (built on demand) or a model folder or hub id.
        stages: recipe → settings that replace that upstream recipe's own, e.g. `stages.sft.algorithm.epochs=1`.
        outputs: folder of runs and studies, relative to the working directory.
        question: what the recipe answers, one sentence; printed when it starts.
    """

    model: Any
    data: Any
    algorithm: Any
    reward: Any
    rollout: Any
    evaluation: Evaluation = field(default_factory=Evaluation)
    runtime: Runtime = field(default_factory=Runtime)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    artifacts: Artifacts = field(default_factory=Artifacts)
    study: Study | None = None
    engine: Literal["native", "trl"] = "native"
    seed: int = 0
    needs: dict[str, str | None] = field(default_factory=dict)
    stages: dict[str, Any] = field(default_factory=dict)
    outputs: str = "outputs"
    question: str = ""


def check(values: Mapping[str, Any]) -> Config:
    """Dataclasses for a composed config. Raises ConfigError with every problem found."""
    problems: list[str] = []
    plain: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    for key, value in values.items():
        if key in GROUPS:
            groups[key] = _build_group(key, value, problems)
        else:
            plain[key] = value
    for group in GROUPS:
        if group not in values:
            problems.append(f"{group} is missing; choose one of {group}={'|'.join(registry.kinds(group))}")
    known = {f.name for f in dataclasses.fields(Config)}
    for key in [key for key in plain if key not in known]:
        problems.append(f"{key} is not a setting{schema.did_you_mean(key, known | {'recipe'})}")
        del plain[key]
    root = schema.build(Config, {**dict.fromkeys(GROUPS), **plain}, "", problems)
    if root is not None and all(groups.get(group) is not None for group in GROUPS):
        root = dataclasses.replace(root, **groups)
        root = _resolve_tuned(root, problems)
        problems.extend(_cross_check(root))
    if problems:
        raise ConfigError(problems)
    return root


def _build_group(group: str, values: Any, problems: list[str]) -> Any:
    if not isinstance(values, Mapping) or "kind" not in values:
        problems.append(f"{group} has no kind; choose one of {group}={'|'.join(registry.kinds(group))}")
        return None
    try:
        cls = registry.settings_class(group, str(values["kind"]))
    except ConfigError as error:
        problems.extend(error.problems)
        return None
    return schema.build(cls, {k: v for k, v in values.items() if k != "kind"}, group, problems)


def _resolve_tuned(root: Config, problems: list[str]) -> Config:
    """Give settings that are None the value the model names for them; see TrainingSettings."""
    sections = {registry.kind_of("algorithm", root.algorithm): "algorithm", "rollout": "rollout"}
    replaced: dict[str, Any] = {}
    for name, section in sections.items():
        target = getattr(root, section)
        tuned = {k: v for k, v in root.model.tuned.get(name, {}).items() if getattr(target, k, v) is None}
        base = {f.name: getattr(target, f.name) for f in dataclasses.fields(target)}
        found = schema.build(type(target), {**base, **tuned}, f"model.tuned.{name}", problems) or target
        lora = getattr(root.model, "lora", None)
        if lora and lora.rank and "lr" in tuned and found.optimizer == "adamw" and found.lr is not None:
            found = dataclasses.replace(found, lr=found.lr * lora.lr_multiple)
        replaced[section] = found
    return dataclasses.replace(root, **replaced)


def _cross_check(root: Config) -> list[str]:
    """Rules between sections."""
    algorithm, kind = root.algorithm, registry.kind_of("algorithm", root.algorithm)
    problems = []
    missing = [f.name for f in dataclasses.fields(algorithm) if f.name in _MUST_RESOLVE and _is_none(algorithm, f.name)]
    problems += [
        f"algorithm.{name} has no value and model.tuned.{kind} names none; set algorithm.{name}" for name in missing
    ]
    if getattr(algorithm, "optimizer", None) == "muon" and algorithm.muon_lr is None:
        problems.append("algorithm.optimizer=muon needs algorithm.muon_lr; try 0.02, or use algorithm.optimizer=adamw")
    for role in algorithm.required_needs:
        if not root.needs.get(role):
            problems.append(f"needs.{role} is not set; algorithm={kind} starts from it, e.g. +needs.{role}=sft")
    allowed = (*algorithm.required_needs, *algorithm.optional_needs)
    for role in root.needs:
        if role not in allowed and not algorithm.any_needs:
            problems.append(f"needs.{role} is not used by algorithm={kind}{schema.did_you_mean(role, allowed)}")
    data_kind, reward_kind = registry.kind_of("data", root.data), registry.kind_of("reward", root.reward)
    if reward_kind == "gold" and data_kind != "mini_hh":
        problems.append("reward=gold needs a world whose true reward is known; use data=mini_hh, or reward=bt")
    if reward_kind == "verifier" and not root.data.answers:
        problems.append("reward=verifier needs data with answers to check; use data=arithmetic or data=gsm8k")
    if algorithm.needs_preferences and not root.data.preferences:
        problems.append(f"algorithm={kind} needs preference pairs; data={data_kind} has demonstrations only")
    starts = "policy" in algorithm.optional_needs and not root.needs.get("policy")
    if starts and registry.kind_of("model", root.model) == "scratch" and root.model.lora.rank:
        problems.append(
            f"model.lora.rank={root.model.lora.rank} trains an adapter on a model that is there already, and a new one "
            "is random: name one in needs.policy, or train all of it with model.lora.rank=0 (in a stage before this "
            "run's: stages.RECIPE.model.lora.rank=0)"
        )
    if root.engine != "native" or registry.kind_of("rollout", root.rollout) == "vllm":
        problems += import_module(TRL_OPTIONS).problems(root)
    positions = getattr(root.model, "max_positions", None)
    if positions:
        needed = {"algorithm.max_length": getattr(algorithm, "max_length", None) or 0}
        if "rollout" in algorithm.uses:
            needed["rollout.max_prompt_tokens + rollout.max_new_tokens"] = _rollout_tokens(root.rollout)
        problems += [
            f"{name}={value} does not fit model.max_positions={positions}; lower it or raise model.max_positions"
            for name, value in needed.items()
            if value > positions
        ]
    return problems


_MUST_RESOLVE = ("optimizer", "lr", "critic_lr", "batch_size", "max_length", "beta")


def _is_none(settings: Any, name: str) -> bool:
    return getattr(settings, name) is None


def _rollout_tokens(rollout: Any) -> int:
    return (rollout.max_prompt_tokens or 0) + (rollout.max_new_tokens or 0)


def to_values(config: Config) -> dict[str, Any]:
    """Plain YAML values of a checked config; `check(to_values(c))` gives `c` again."""
    values = schema.plain(config)
    for group in GROUPS:
        values[group] = {"kind": registry.kind_of(group, getattr(config, group)), **values[group]}
    return values
