"""Which settings TRL can honour, and as what: checked before anything loads. Imports neither torch nor TRL.

Every setting of an algorithm that a trainer runs stands in that trainer's table: as TRL arguments, as something the lab
does around the trainer, or with the values it may have. A value that TRL cannot honour is an error, never ignored; a
test fails when a new setting stands in no table.
"""

from __future__ import annotations

from rlhf_lab.algorithms.trl.tables import TRAINERS
from rlhf_lab.algorithms.trl.translation import Arguments, Trainer
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
"""Arguments of every trainer. TRL's own defaults have gradient checkpointing on, on a CPU too."""


def trainer(root: Config) -> Trainer:
    """The trainer of a checked config."""
    return TRAINERS[root.algorithm.trl_trainer]


def problems(root: Config) -> list[str]:
    """Everything in a config with engine=trl that TRL cannot honour: what, why, what to write instead."""
    if root.engine != "trl":
        return []
    sampled_by_vllm = registry.kind_of("rollout", root.rollout) == "vllm"
    if not root.algorithm.trl_trainer:
        kind = registry.kind_of("algorithm", root.algorithm)
        return [root.algorithm.trl_refusal or f"algorithm={kind}: TRL has no trainer for it; use engine=native"]
    spec = trainer(root)
    single_turn = matching.Part("engine=trl", (Capability.SINGLE_TURN,))
    lines = list(filter(None, [matching.describe_missing(single_turn, root)]))
    for section, settings, table in spec.sections(root):
        for name, option in table.items():
            # the rollout table serves local and vLLM sampling, whose settings differ
            if hasattr(settings, name) and not option.allowed(getattr(settings, name), root):
                setting = f"{section}.{name}={getattr(settings, name)}"
                lines.append(f"{setting} cannot be honoured by engine=trl ({spec.name}): {option.refusal}")
    if spec.samples and getattr(root.model, "family", "") == "gpt2":
        lines.append(
            f"model.family=gpt2: {spec.name} pads prompts on the left and does not say where they begin, so learned "
            "positions would be others in training than in sampling; use model.family=llama, or engine=native"
        )
    family = families().get(getattr(root.model, "family", ""))
    if family is not None:
        lines.append(f"model.family={root.model.family}: {spec.name} {family.without_trl}; use engine=native")
    if spec.samples and root.reward.monitor.action in ("raise_kl", "stop", "pause"):
        lines.append(
            f"reward.monitor.action={root.reward.monitor.action}: {spec.name} keeps its own beta and its own end; use "
            "log, or engine=native"
        )
    if any(root.model.stored(role) != "float32" for role in ("policy", "reference")):
        lines.append(
            "model.weights: TRL's trainers get a policy and a reference in float32; use model.weights=float32 (reward "
            "models alone: model.weights_of={reward: bfloat16}), or engine=native"
        )
    if sampled_by_vllm and not spec.samples:
        lines.append(
            f"rollout=vllm: {spec.name} samples nothing; use rollout=local (its sampler serves the evaluation)"
        )
    if sampled_by_vllm and root.model.lora.rank:
        lines.append(
            f"model.lora.rank={root.model.lora.rank} with rollout=vllm: the lab's adapter lives inside the model, and "
            "TRL hands vLLM only whole models or peft's own wrapper; use rollout=local"
        )
    return lines


def arguments(root: Config, *, device: str, folder: str, seed: int, steps: int) -> Arguments:
    """All arguments of the trainer's config class.

    Args:
        device: `cpu` or `cuda`, `runtime.device` resolved.
        folder: where TRL may write.
        seed: of everything that TRL draws.
        steps: optimiser steps of the whole run.
    """
    spec = trainer(root)
    save_every = root.checkpoint.every_steps
    values: Arguments = {
        **ALWAYS,
        **spec.fixed,
        "output_dir": folder,
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
    """Forward passes of an optimiser step."""
    values = trainer(root).algorithm["batch_size"].arguments(root.algorithm.batch_size, root)
    return values["gradient_accumulation_steps"]


def metrics(root: Config) -> dict[str, str]:
    """TRL's name of a metric → the lab's name of one that means the same."""
    lab_names = {"loss": "loss", "grad_norm": "grad_norm", **trainer(root).metrics}
    if getattr(root.algorithm, "loss", "") == "ipo":  # the lab's margin is per token, TRL's per reply
        del lab_names["rewards/margins"]
    return lab_names
