"""Environment of `accelerate launch`: the variables that are read here, and those that are ignored.

rlhf_lab reads the variables that accelerate shares with torchrun: the number of processes, their ranks and their
rendezvous. Everything else in accelerate's config file is a setting of rlhf_lab. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "ACCELERATE_"
"""Prefix of its environment variables."""
OFF = ("", "0", "no", "NO", "false", "1")
"""Values without effect; 1 is the default of ACCELERATE_GRADIENT_ACCUMULATION_STEPS."""
UNREAD = {
    "ACCELERATE_MIXED_PRECISION": "runtime.dtype=bfloat16 for bf16",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "algorithm.batch_size, which is per optimizer step, and "
    "algorithm.micro_batch_tokens",
    "ACCELERATE_DYNAMO_BACKEND": "nothing: models are not compiled here",
}
"""Ignored variable → the setting to use instead."""


def problems(environment: Mapping[str, str]) -> list[str]:
    """Return one message for each sharding method that accelerate is told to use and that would be ignored."""
    # without the variable, accelerate uses its default stage 2
    stage = environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    replacements = {
        "FSDP": "sharding=fsdp_full (FULL_SHARD) or sharding=fsdp_grad_op (SHARD_GRAD_OP)",
        "DEEPSPEED": f"sharding=zero{stage if stage in ('1', '2', '3') else 2}",
        "MEGATRON_LM": "sharding=fsdp_full; there is no tensor or pipeline parallelism here",
        "PARALLELISM_CONFIG": "sharding=ddp, fsdp_grad_op or fsdp_full",
    }
    return [
        f"accelerate launch was told to use {plugin} (ACCELERATE_USE_{plugin}), but its settings are not read here; "
        f"use {instead}, and launch with only --multi_gpu or with torchrun"
        for plugin, instead in replacements.items()
        if environment.get(f"ACCELERATE_USE_{plugin}", "false").lower() in ("true", "1")
    ]


def notes(environment: Mapping[str, str]) -> list[str]:
    """Return a note on what is read of the environment of `accelerate launch`; empty without accelerate."""
    if not any(name.startswith(PREFIX) for name in environment):
        return []
    unread = [
        f"{name}={environment[name]} (use {instead})"
        for name, instead in UNREAD.items()
        if environment.get(name, "") not in OFF
    ]
    ignored = f"; not read: {', '.join(unread)}" if unread else ""
    return [f"accelerate launch: the number of processes and their ranks are read, and no other setting{ignored}"]
