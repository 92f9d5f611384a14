"""Names of settings in TRL, transformers, verl and torchtune, and a short hint for a key that does not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from rlhf_lab.config.overrides import MISSING, value_at

MAX_SUGGESTIONS = 3
"""Maximum number of keys that a hint names."""

CLIP = ("algorithm.clip_high", "algorithm.clip_low")
"""Keys that correspond to one setting elsewhere and are suggested together."""
_BY_KEY: dict[tuple[str, ...], str] = {
    # "from" is a keyword of Python, so it cannot be the name of a field.
    ("reward.audit.labels_from",): "from",
    ("algorithm.lr",): "learning_rate lr",
    ("algorithm.batch_size",): "per_device_train_batch_size train_batch_size ppo_mini_batch_size mini_batch_size",
    ("algorithm.micro_batch_tokens",): (
        "gradient_accumulation_steps micro_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu"
    ),
    ("algorithm.epochs",): "num_train_epochs num_epochs total_epochs ppo_epochs num_ppo_epochs num_iterations",
    ("algorithm.iterations", "algorithm.epochs"): (
        "max_steps max_steps_per_epoch num_training_steps total_training_steps"
    ),
    ("algorithm.warmup_fraction",): "warmup_ratio warmup_steps num_warmup_steps lr_warmup_steps lr_warmup_steps_ratio",
    ("algorithm.max_grad_norm",): "max_grad_norm clip_grad_norm clip_grad grad_clip",
    ("algorithm.optimizer",): "optim",
    ("algorithm.adam_betas",): "adam_beta1 adam_beta2 betas",
    ("algorithm.adam_eps",): "adam_epsilon",
    ("algorithm.max_length", "rollout.max_new_tokens"): "max_seq_length max_seq_len max_length model_max_length",
    ("rollout.max_prompt_tokens",): "max_prompt_length",
    ("rollout.max_new_tokens",): (
        "max_completion_length max_response_length response_length max_generated_tokens max_new_tokens"
    ),
    ("algorithm.beta",): "kl_coef kl_coeff init_kl_coef kl_loss_coef",
    ("algorithm.loss", "algorithm.policy_loss"): "loss_type",
    ("algorithm.group_size", "algorithm.samples_per_prompt", "algorithm.samples"): (
        "num_generations num_samples_per_prompt n_samples_per_prompt num_return_sequences n"
    ),
    CLIP: "cliprange clip_range clip_ratio eps_clip epsilon",
    ("algorithm.clip_high",): "epsilon_high clip_ratio_high",
    ("algorithm.clip_low",): "clip_ratio_low",
    ("algorithm.value_clip",): "cliprange_value clip_range_value",
    ("algorithm.value_weight",): "vf_coef value_loss_coef",
    ("algorithm.lam",): "gae_lambda",
    (".penalty_weight", "algorithm.lam"): "lambda",
    ("algorithm.gamma_beta_ratio",): "simpo_gamma",
    ("algorithm.nll_weight",): "cpo_alpha rpo_alpha",
    ("model.lora.rank",): "lora_r lora_rank",
    ("model.lora.alpha",): "lora_alpha",
    ("model.lora.targets",): "target_modules lora_target_modules lora_attn_modules",
    ("model.weights",): "load_in_4bit",
    ("model.attention",): "attn_implementation",
    ("model.path",): "model_name_or_path pretrained_model_name_or_path model_name",
    ("data.path",): "dataset_name train_files",
    ("data.test_path",): "val_files",
    ("sharding.checkpointing",): "gradient_checkpointing enable_gradient_checkpointing enable_activation_checkpointing",
    ("sharding.processes",): "nproc_per_node n_gpus_per_node num_processes",
    ("runtime.dtype",): "bf16 fp16 mixed_precision torch_dtype dtype",
    ("rollout.temperature",): "temperature",
    ("algorithm.log_every_steps",): "logging_steps log_every_n_steps",
    ("algorithm.eval_every_steps",): "eval_steps test_freq",
    ("checkpoint.every_steps",): "save_steps save_freq",
    ("outputs",): "output_dir default_local_dir",
    ("tracker.project",): "project_name wandb_project",
}
"""Dotted keys here → names of the setting elsewhere. The first key that the run has is suggested.

A key that starts with a dot is relative to the section of the typed key.
"""
OTHER_NAMES = {name: keys for keys, names in _BY_KEY.items() for name in names.split()}


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
        return f"; it is called {' and '.join(existing if tuple(targets) == CLIP else existing[:1])} here"
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
