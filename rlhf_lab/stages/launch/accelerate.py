"""Environment of `accelerate launch`: its settings become overrides of the command, or are refused.

accelerate passes the settings of its config file and of its options to the processes that it starts in environment
variables. `overrides` reads what rlhf_lab has a setting for:

    distributed_type: FSDP        sharding=fsdp_full or fsdp_grad_op, sharding.checkpointing
    distributed_type: DEEPSPEED   sharding=zero1, zero2 or zero3 (ddp for stage 0), algorithm.max_grad_norm
    distributed_type: MULTI_GPU   sharding=ddp, unless the command or its recipe shards in another way
    mixed_precision: bf16         runtime.dtype=bfloat16
    use_cpu: true                 runtime.device=cpu

`problems` refuses everything that would change the results or the memory of a run and has no such setting. Details of
how FSDP and DeepSpeed wrap, prefetch, load and save are rlhf_lab's own. Imports no torch. Names and defaults of the
variables are those of accelerate 1.15 (`accelerate.utils.launch`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import parse_json

PREFIX = "ACCELERATE_"
"""Prefix of accelerate's environment variables."""
NO = ("", "no", "none", "false", "0", "auto")
"""Values, in lower case, with which an option of accelerate is off, or is left to the program (`auto`)."""
FSDP_STRATEGIES = {
    **dict.fromkeys(("FULL_SHARD", "1"), "fsdp_full"),
    **dict.fromkeys(("SHARD_GRAD_OP", "2"), "fsdp_grad_op"),
    **dict.fromkeys(("NO_SHARD", "3"), "ddp"),
}
"""`fsdp_sharding_strategy` of FSDP 1, as a name or number → option of `sharding`."""
ZERO_STAGES = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}
"""`zero_stage` of DeepSpeed → option of `sharding`."""
COPIES = "PARALLELISM_CONFIG_DP_REPLICATE_SIZE"
"""Number of copies of the sharded model in accelerate's parallelism config."""
PARALLELISM = {"TP": "tensor parallelism", "CP": "context parallelism", "SP": "sequence parallelism"}
"""Dimension of accelerate's parallelism config that rlhf_lab does not have → its meaning."""


@dataclass(frozen=True)
class LaunchSetting:
    """One setting of rlhf_lab, and the setting of accelerate that determines it (`source`)."""

    key: str
    value: str
    source: str

    @property
    def override(self) -> str:
        return f"{self.key}={self.value}"


def started(environment: Mapping[str, str]) -> bool:
    return any(name.startswith(PREFIX) for name in environment)


def read_settings(environment: Mapping[str, str]) -> list[LaunchSetting]:
    """Return the settings that the environment determines. Raises ConfigError if DeepSpeed's file is unreadable."""
    settings = []
    deepspeed_file = _deepspeed_file(environment)
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision == "bf16":
        settings.append(LaunchSetting("runtime.dtype", "bfloat16", "mixed_precision=bf16"))
    elif _is_enabled(deepspeed_file, "bf16"):
        settings.append(LaunchSetting("runtime.dtype", "bfloat16", "bf16 of the DeepSpeed file"))
    if _on(environment, "ACCELERATE_USE_CPU"):
        settings.append(LaunchSetting("runtime.device", "cpu", "use_cpu=true"))
    if _on(environment, "ACCELERATE_USE_FSDP"):
        settings += _fsdp_settings(environment)
    elif _on(environment, "ACCELERATE_USE_DEEPSPEED"):
        settings += _deepspeed_settings(environment, deepspeed_file)
    return settings


def overrides(
    environment: Mapping[str, str], typed: Sequence[str], strategy_of: Callable[[list[str]], str]
) -> list[LaunchSetting]:
    """Return the settings that accelerate adds to a command. Like typed settings, they replace those of the recipe.

    `strategy_of` returns the kind of `sharding` of a composed command. Raises ConfigError with one message for each
    typed setting that contradicts accelerate's.
    """
    if not started(environment):
        return []
    typed_values = {word.lstrip("+~").partition("=")[0]: word.partition("=")[2] for word in typed}
    contradictions, added = [], []
    for setting in read_settings(environment):
        value = typed_values.get(setting.key)
        if value is None:
            added.append(setting)
        elif not _equal(value, setting.value):
            contradictions.append(
                f"{setting.key}={value}, but accelerate launch was told {setting.source}, which is {setting.override} "
                "here; remove one of the two"
            )
    if contradictions:
        raise ConfigError(contradictions)
    has_strategy = "sharding" in typed_values or any(setting.key == "sharding" for setting in added)
    if _launched(environment) > 1 and not has_strategy:
        words = [*typed, *(setting.override for setting in added)]
        if strategy_of(words) == "none":
            added.append(LaunchSetting("sharding", "ddp", f"{_launched(environment)} processes"))
    return added


def note(added: Sequence[LaunchSetting]) -> str:
    named = ", ".join(f"{setting.override} ({setting.source})" for setting in added)
    return f"accelerate launch: {named}" if added else ""


def problems(environment: Mapping[str, str]) -> list[str]:
    """Return one message for each setting of accelerate that a run would ignore."""
    if not started(environment):
        return []
    lines = []
    precision = environment.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if precision not in ("no", "bf16"):
        lines.append(_refusal("mixed_precision", precision, "training is in float32 or bfloat16", "bf16 or no"))
    dynamo = environment.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if dynamo not in NO:
        lines.append(_refusal("dynamo_backend", dynamo, "models are not compiled here", "no"))
    steps = environment.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1").lower()
    if steps not in (*NO, "1"):
        remedy = "1, and set algorithm.batch_size, which is per optimizer step, and algorithm.micro_batch_tokens"
        lines.append(_refusal("gradient_accumulation_steps", steps, "a step has a fixed size", remedy))
    if _on(environment, "ACCELERATE_USE_MEGATRON_LM"):
        lines.append(
            "accelerate launch: distributed_type=MEGATRON_LM, but there is no tensor or pipeline parallelism here; use "
            "distributed_type FSDP, or launch with --multi_gpu and set sharding=fsdp_full"
        )
    if _on(environment, "ACCELERATE_USE_PARALLELISM_CONFIG"):
        for name, meaning in PARALLELISM.items():
            size = environment.get(f"PARALLELISM_CONFIG_{name}_SIZE", "1")
            if size not in ("1", "None"):
                setting = f"parallelism_config_{name.lower()}_size"
                lines.append(_refusal(setting, size, f"{meaning} does not exist here", "1"))
    if _on(environment, "ACCELERATE_USE_FSDP"):
        lines += _fsdp_problems(environment)
    if _on(environment, "ACCELERATE_USE_DEEPSPEED"):
        lines += _deepspeed_problems(environment)
    # the launcher for CPUs sets this address if it was asked for several processes, but starts one
    if "ACCELERATE_USE_CPU" in environment and "MASTER_ADDR" in environment and "RANK" not in environment:
        lines.append(
            "accelerate launch was asked for several processes but started one, as it does on CPUs; use sharding=ddp "
            "sharding.processes=N without accelerate, or torchrun, or unset MASTER_ADDR if one process is right"
        )
    return lines


def _fsdp_settings(environment: Mapping[str, str]) -> list[LaunchSetting]:
    settings = []
    if environment.get("FSDP_VERSION", "1") == "2":
        reshards = environment.get("FSDP_RESHARD_AFTER_FORWARD", "true").lower()
        option = "fsdp_grad_op" if reshards == "false" else "fsdp_full"
        settings.append(LaunchSetting("sharding", option, f"fsdp_reshard_after_forward={reshards}"))
    else:
        strategy = environment.get("FSDP_SHARDING_STRATEGY", "FULL_SHARD")
        if strategy in FSDP_STRATEGIES:
            source = f"fsdp_sharding_strategy={strategy}"
            settings.append(LaunchSetting("sharding", FSDP_STRATEGIES[strategy], source))
    copies = environment.get(COPIES, "1")
    if _on(environment, "ACCELERATE_USE_PARALLELISM_CONFIG") and copies != "1":
        settings.append(LaunchSetting("sharding.replicas", copies, f"dp_replicate_size={copies}"))
    if _on(environment, "FSDP_ACTIVATION_CHECKPOINTING"):
        source = "fsdp_activation_checkpointing=true"
        settings.append(LaunchSetting("sharding.checkpointing", "true", source))
    return settings


def _fsdp_problems(environment: Mapping[str, str]) -> list[str]:
    lines = []
    strategy = environment.get("FSDP_SHARDING_STRATEGY", "FULL_SHARD")
    if environment.get("FSDP_VERSION", "1") != "2" and strategy not in FSDP_STRATEGIES:
        reason = "FSDP 1 does not say how many copies of the shards there are"
        remedy = "FULL_SHARD, with sharding.replicas=N for N copies"
        lines.append(_refusal("fsdp_sharding_strategy", strategy, reason, remedy))
    if _on(environment, "FSDP_OFFLOAD_PARAMS"):
        remedy = "false (sharding.reference=offload keeps the reference off the device)"
        lines.append(_refusal("fsdp_offload_params", "true", "trained parameters stay on the device", remedy))
    if _on(environment, "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"):
        reason = "inputs of recomputed blocks stay on the device"
        lines.append(_refusal("fsdp_activation_checkpointing_offload", "true", reason, "false"))
    policy = environment.get("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP")
    if policy != "TRANSFORMER_BASED_WRAP":
        reason = "a model is sharded by its transformer blocks"
        lines.append(_refusal("fsdp_auto_wrap_policy", policy, reason, "TRANSFORMER_BASED_WRAP"))
    if ignored := environment.get("FSDP_IGNORED_MODULES", ""):
        lines.append(_refusal("fsdp_ignored_modules", ignored, "all trained modules are sharded", "nothing"))
    return lines


def _deepspeed_settings(environment: Mapping[str, str], file: Mapping[str, Any]) -> list[LaunchSetting]:
    # without the variable, accelerate uses its default stage 2
    stage = str(_inner(file, "zero_optimization").get("stage", "auto"))
    if stage in NO and stage != "0":
        stage = environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2")
    settings = [LaunchSetting("sharding", ZERO_STAGES[stage], f"zero_stage={stage}")] if stage in ZERO_STAGES else []
    clipping = str(file.get("gradient_clipping", "auto"))
    if clipping in NO:
        clipping = environment.get("ACCELERATE_GRADIENT_CLIPPING", "none")
    if clipping not in NO:
        settings.append(LaunchSetting("algorithm.max_grad_norm", clipping, f"gradient_clipping={clipping}"))
    return settings


def _deepspeed_problems(environment: Mapping[str, str]) -> list[str]:
    lines = []
    try:
        file = _deepspeed_file(environment)
    except ConfigError as error:
        return error.problems
    zero = _inner(file, "zero_optimization")
    for part in ("optimizer", "param"):
        device = str(_inner(zero, f"offload_{part}").get("device", "none"))
        if device in NO:
            device = environment.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{part.upper()}_DEVICE", "none")
        if device not in NO:
            remedy = "none (algorithm.optimizer=adamw_8bit and more processes also save memory)"
            reason = "optimizer state and trained parameters stay on the device"
            lines.append(_refusal(f"offload_{part}_device", device, reason, remedy))
    if _is_enabled(file, "fp16"):
        lines.append(_refusal("fp16 of the DeepSpeed file", "true", "training is in float32 or bfloat16", "bf16"))
    remedies = {"optimizer": "algorithm.optimizer, algorithm.lr", "scheduler": "algorithm.warmup_fraction"}
    for name, remedy in remedies.items():
        if name in file:
            lines.append(
                f"accelerate launch: the DeepSpeed file has {name}, which rlhf_lab makes itself; remove it and set "
                f"{remedy}"
            )
    steps = str(file.get("gradient_accumulation_steps", "auto"))
    if steps not in (*NO, "1"):
        remedy = "auto, and set algorithm.batch_size and algorithm.micro_batch_tokens"
        lines.append(_refusal("gradient_accumulation_steps", steps, "a step has a fixed size", remedy))
    return lines


def _refusal(setting: str, value: str, reason: str, remedy: str) -> str:
    return f"accelerate launch: {setting}={value}, but {reason}; set it to {remedy}"


def _equal(typed: str, value: str) -> bool:
    typed = typed.strip("'\"").lower()
    try:
        return float(typed) == float(value)
    except ValueError:
        return typed == value


def _launched(environment: Mapping[str, str]) -> int:
    return int(environment.get("WORLD_SIZE", "1")) if "RANK" in environment else 1


def _on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "false").lower() in ("true", "1")


def _deepspeed_file(environment: Mapping[str, str]) -> dict[str, Any]:
    name = environment.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "")
    if name.lower() in NO:
        return {}
    try:
        content = parse_json(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"accelerate launch: deepspeed_config_file={name} cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise ConfigError(f"accelerate launch: deepspeed_config_file={name} contains no JSON object")
    return content


def _inner(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = values.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _is_enabled(file: Mapping[str, Any], name: str) -> bool:
    return _inner(file, name).get("enabled") is True
