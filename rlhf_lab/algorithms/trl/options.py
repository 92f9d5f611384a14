"""Translation of a config into TRL's arguments, checked before anything is loaded. Imports neither torch nor TRL.

Every setting of an algorithm is in the table of its trainer: as TRL arguments, as something rlhf_lab does around the
trainer, or with its allowed values. A value that TRL does not support is an error and is never ignored. A test fails if
a new setting is in no table.
"""

from __future__ import annotations

from rlhf_lab.algorithms.trl.tables import TRAINERS, Arguments, Trainer
from rlhf_lab.config import matching, registry
from rlhf_lab.config.root import Config
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.models.families import families

ALWAYS: Arguments = {
    "report_to": [],
    "disable_tqdm": True,
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "remove_unused_columns": False,
    "logging_nan_inf_filter": False,
    "save_total_limit": 1,
}
"""Arguments of every trainer. By default TRL turns gradient checkpointing on, even on a CPU."""


def trainer(root: Config) -> Trainer:
    """Return the translation table of the TRL trainer that a checked config uses."""
    return TRAINERS[root.algorithm.trl_trainer]


def problems(root: Config) -> list[str]:
    """Return everything in a config with engine=trl that TRL does not support: setting, reason and alternative."""
    if root.engine != "trl":
        return []
    sampled_by_vllm = registry.kind_of("rollout", root.rollout) == "vllm"
    if not root.algorithm.trl_trainer:
        kind = registry.kind_of("algorithm", root.algorithm)
        return [root.algorithm.trl_refusal or f"algorithm={kind}: TRL has no trainer for it; use engine=native"]
    spec = trainer(root)
    # TRL's trainers have no episodes of several turns.
    single_turn = matching.RunPart("engine=trl", (Capability.SINGLE_TURN,))
    lines = list(filter(None, [matching.describe_missing(single_turn, root)]))
    for section, settings, table in spec.sections(root):
        for name, option in table.items():
            # The rollout table serves local and vLLM sampling, which have different settings.
            if hasattr(settings, name) and not option.allowed(getattr(settings, name), root):
                setting = f"{section}.{name}={getattr(settings, name)}"
                lines.append(f"{setting} is not supported by engine=trl ({spec.name}): {option.refusal}")
    if spec.samples and getattr(root.model, "family", "") == "gpt2":
        lines.append(
            f"model.family=gpt2: {spec.name} pads prompts on the left without passing positions, so learned positions "
            "would differ between training and sampling; use model.family=llama, or engine=native"
        )
    family = families().get(getattr(root.model, "family", ""))
    if family is not None:
        lines.append(f"model.family={root.model.family}: {spec.name} {family.without_trl}; use engine=native")
    if spec.samples and root.reward.monitor.action in ("stop", "pause"):
        lines.append(
            f"reward.monitor.action={root.reward.monitor.action}: {spec.name} controls the end of training; "
            "use reward.monitor.action=log, or engine=native"
        )
    if spec.samples and root.reward.audit.on:
        lines.append(
            f"reward.audit.labels_per_iteration={root.reward.audit.labels_per_iteration}: {spec.name} controls when "
            "samples are drawn; use engine=native, or reward.audit.labels_per_iteration=0"
        )
    if any(root.model.stored(role) != "float32" for role in ("policy", "reference")):
        lines.append(
            "model.weights: TRL's trainers need policy and reference in float32; use model.weights=float32 (only "
            "reward models: model.weights_of={reward: bfloat16}), or engine=native"
        )
    if sampled_by_vllm and not spec.samples:
        lines.append(f"rollout=vllm: {spec.name} does not sample; use rollout=local, which samples for the evaluation")
    if sampled_by_vllm and root.model.lora.rank:
        lines.append(
            f"model.lora.rank={root.model.lora.rank} with rollout=vllm: rlhf_lab's adapter is inside the model, but "
            "TRL sends vLLM only full models or peft's own wrapper; use rollout=local"
        )
    return lines


def arguments(root: Config, *, device: str, directory: str, seed: int, steps: int) -> Arguments:
    """Return all arguments of the trainer's config class.

    Args:
        device: `cpu` or `cuda`, the resolved `runtime.device`.
        directory: directory that TRL may write to.
        seed: seed of all of TRL's random numbers.
        steps: optimiser steps of the entire run.
    """
    spec = trainer(root)
    save_every = root.checkpoint.every_steps
    values: Arguments = {
        **ALWAYS,
        **spec.fixed,
        "output_dir": directory,
        "max_steps": steps,
        "seed": seed,
        "use_cpu": device == "cpu",
        "bf16": root.runtime.dtype == "bfloat16",
        "save_strategy": "steps" if save_every else "no",
    }
    if save_every:
        values["save_steps"] = save_every
    for _, settings, table in spec.sections(root):
        for name, option in table.items():
            if hasattr(settings, name):
                values |= option.arguments(getattr(settings, name), root)
    return values


def passes(root: Config) -> int:
    """Return the number of forward passes per optimiser step."""
    values = trainer(root).algorithm["batch_size"].arguments(root.algorithm.batch_size, root)
    return values["gradient_accumulation_steps"]


def metrics(root: Config) -> dict[str, str]:
    """Return TRL's name of a metric → rlhf_lab's name of the equivalent metric."""
    lab_names = {"loss": "loss", "grad_norm": "grad_norm", **trainer(root).metrics}
    if getattr(root.algorithm, "loss", "") == "ipo":  # the margin here is per token, TRL's is per response
        del lab_names["rewards/margins"]
    return lab_names
