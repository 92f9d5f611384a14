"""Names of settings in TRL, transformers, verl and torchtune, and a short hint for a key that does not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from rlhf_lab.config.overrides import MISSING, value_at

MAX_SUGGESTIONS = 3
"""Maximum number of keys that a hint names."""

_BATCH = ("algorithm.batch_size",)
_MICRO_BATCH = ("algorithm.micro_batch_tokens",)
_EPOCHS = ("algorithm.epochs",)
_SCHEDULE = ("algorithm.iterations", "algorithm.epochs")
_WARMUP = ("algorithm.warmup_fraction",)
_LENGTH = ("algorithm.max_length", "rollout.max_new_tokens")
_NEW_TOKENS = ("rollout.max_new_tokens",)
_KL = ("algorithm.beta",)
_GROUP = ("algorithm.group_size", "algorithm.samples_per_prompt", "algorithm.samples")
_CLIP = ("algorithm.clip_high", "algorithm.clip_low")
_DTYPE = ("runtime.dtype",)
_PATH = ("model.path",)

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "from": ("reward.audit.labels_from",),  # a keyword of Python cannot be the name of a field
    "learning_rate": ("algorithm.lr",),
    "lr": ("algorithm.lr",),
    "per_device_train_batch_size": _BATCH,
    "train_batch_size": _BATCH,
    "ppo_mini_batch_size": _BATCH,
    "mini_batch_size": _BATCH,
    "gradient_accumulation_steps": _MICRO_BATCH,
    "micro_batch_size": _MICRO_BATCH,
    "ppo_micro_batch_size": _MICRO_BATCH,
    "ppo_micro_batch_size_per_gpu": _MICRO_BATCH,
    "num_train_epochs": _EPOCHS,
    "num_epochs": _EPOCHS,
    "total_epochs": _EPOCHS,
    "ppo_epochs": _EPOCHS,
    "num_ppo_epochs": _EPOCHS,
    "num_iterations": _EPOCHS,
    "max_steps": _SCHEDULE,
    "max_steps_per_epoch": _SCHEDULE,
    "num_training_steps": _SCHEDULE,
    "total_training_steps": _SCHEDULE,
    "warmup_ratio": _WARMUP,
    "warmup_steps": _WARMUP,
    "num_warmup_steps": _WARMUP,
    "lr_warmup_steps": _WARMUP,
    "lr_warmup_steps_ratio": _WARMUP,
    "max_grad_norm": ("algorithm.max_grad_norm",),
    "clip_grad_norm": ("algorithm.max_grad_norm",),
    "clip_grad": ("algorithm.max_grad_norm",),
    "grad_clip": ("algorithm.max_grad_norm",),
    "optim": ("algorithm.optimizer",),
    "adam_beta1": ("algorithm.adam_betas",),
    "adam_beta2": ("algorithm.adam_betas",),
    "betas": ("algorithm.adam_betas",),
    "adam_epsilon": ("algorithm.adam_eps",),
    "max_seq_length": _LENGTH,
    "max_seq_len": _LENGTH,
    "max_length": _LENGTH,
    "model_max_length": _LENGTH,
    "max_prompt_length": ("rollout.max_prompt_tokens",),
    "max_completion_length": _NEW_TOKENS,
    "max_response_length": _NEW_TOKENS,
    "response_length": _NEW_TOKENS,
    "max_generated_tokens": _NEW_TOKENS,
    "max_new_tokens": _NEW_TOKENS,
    "kl_coef": _KL,
    "kl_coeff": _KL,
    "init_kl_coef": _KL,
    "kl_loss_coef": _KL,
    "loss_type": ("algorithm.loss", "algorithm.policy_loss"),
    "num_generations": _GROUP,
    "num_samples_per_prompt": _GROUP,
    "n_samples_per_prompt": _GROUP,
    "num_return_sequences": _GROUP,
    "n": _GROUP,
    "cliprange": _CLIP,
    "clip_range": _CLIP,
    "clip_ratio": _CLIP,
    "eps_clip": _CLIP,
    "epsilon": _CLIP,
    "epsilon_high": ("algorithm.clip_high",),
    "clip_ratio_high": ("algorithm.clip_high",),
    "clip_ratio_low": ("algorithm.clip_low",),
    "cliprange_value": ("algorithm.value_clip",),
    "clip_range_value": ("algorithm.value_clip",),
    "vf_coef": ("algorithm.value_weight",),
    "value_loss_coef": ("algorithm.value_weight",),
    "gae_lambda": ("algorithm.lam",),
    "lambda": (".penalty_weight", "algorithm.lam", "reward.penalty_weight"),
    "simpo_gamma": ("algorithm.gamma_beta_ratio",),
    "cpo_alpha": ("algorithm.nll_weight",),
    "rpo_alpha": ("algorithm.nll_weight",),
    "lora_r": ("model.lora.rank",),
    "lora_rank": ("model.lora.rank",),
    "lora_alpha": ("model.lora.alpha",),
    "target_modules": ("model.lora.targets",),
    "lora_target_modules": ("model.lora.targets",),
    "lora_attn_modules": ("model.lora.targets",),
    "load_in_4bit": ("model.weights",),
    "attn_implementation": ("model.attention",),
    "model_name_or_path": _PATH,
    "pretrained_model_name_or_path": _PATH,
    "model_name": _PATH,
    "dataset_name": ("data.path",),
    "train_files": ("data.path",),
    "val_files": ("data.test_path",),
    "gradient_checkpointing": ("sharding.checkpointing",),
    "enable_gradient_checkpointing": ("sharding.checkpointing",),
    "enable_activation_checkpointing": ("sharding.checkpointing",),
    "nproc_per_node": ("sharding.processes",),
    "n_gpus_per_node": ("sharding.processes",),
    "num_processes": ("sharding.processes",),
    "bf16": _DTYPE,
    "fp16": _DTYPE,
    "mixed_precision": _DTYPE,
    "torch_dtype": _DTYPE,
    "dtype": _DTYPE,
    "temperature": ("rollout.temperature",),
    "logging_steps": ("algorithm.log_every_steps",),
    "log_every_n_steps": ("algorithm.log_every_steps",),
    "eval_steps": ("algorithm.eval_every_steps",),
    "test_freq": ("algorithm.eval_every_steps",),
    "save_steps": ("checkpoint.every_steps",),
    "save_freq": ("checkpoint.every_steps",),
    "output_dir": ("outputs",),
    "default_local_dir": ("outputs",),
    "project_name": ("tracker.project",),
    "wandb_project": ("tracker.project",),
}
"""Name of a setting elsewhere → the corresponding dotted keys here. The first key that the run has is suggested.

A key that starts with a dot is relative to the section of the typed key. If two keys here correspond to one setting
elsewhere (`cliprange`), both are listed and suggested together.
"""
TOGETHER = (_CLIP,)
"""Entries whose keys are suggested together."""


def hint(key: str, values: Mapping[str, Any]) -> str:
    """Return a short clause about the likely intended key for one that does not exist; it starts with a semicolon.

    Args:
        values: composed values of the chosen options; empty if they are not known.
    """
    parent, _, name = key.rpartition(".")
    targets = [parent + target if target.startswith(".") else target for target in OTHER_NAMES.get(name, ())]
    targets = [target for target in targets if target != key]
    existing = [target for target in targets if value_at(values, target, MISSING) is not MISSING]
    if existing:
        return f"; it is called {' and '.join(existing if tuple(targets) in TOGETHER else existing[:1])} here"
    # Next, look for a misspelling in the same section.
    section = value_at(values, parent) if parent else values
    names = map(str, section) if isinstance(section, Mapping) else ()
    close = get_close_matches(name, names, n=MAX_SUGGESTIONS, cutoff=0.6)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    # Then look for the same name in another section: `rollout.beta` for `algorithm.beta`.
    elsewhere = [path for path in _paths(values) if path.rpartition(".")[2] == name]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere[:MAX_SUGGESTIONS])}?"
    if targets:
        missing = ", which the chosen options do not have" if values else ""
        return f"; it is called {targets[0]} here{missing}"
    return ""


def _paths(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of all values, except recommendations in `model.tuned` and settings of earlier stages."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        if path in ("model.tuned", "stages", "study"):
            continue
        yield path
        if isinstance(value, Mapping):
            yield from _paths(value, f"{path}.")
