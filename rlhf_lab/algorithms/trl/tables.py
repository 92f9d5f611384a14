"""One table per trainer of TRL 1.16.0: setting → TRL argument, in the vocabulary of `translation.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlhf_lab.algorithms.trl.translation import Arguments, Option, Trainer, fixed_to, handled_by_lab, renamed_to
from rlhf_lab.config.root import Config


def rows_per_pass(root: Config, tokens: int) -> int:
    """Return the largest divisor of `batch_size` whose rows of `tokens` tokens fit `micro_batch_tokens`; minimum 1.

    It has to be a divisor because TRL gives all forward passes of a step the same weight.
    """
    batch_size, max_tokens = root.algorithm.batch_size, root.algorithm.micro_batch_tokens
    if not max_tokens:
        return batch_size
    divisors = [rows for rows in range(1, batch_size + 1) if batch_size % rows == 0]
    return max(rows for rows in divisors if rows == 1 or rows * tokens <= max_tokens)


def _batch_size_option(tokens_per_row: Callable[[Config], int]) -> Option:
    def arguments(size: int, root: Config) -> Arguments:
        rows = rows_per_pass(root, tokens_per_row(root))
        return {"per_device_train_batch_size": rows, "gradient_accumulation_steps": (size or 1) // rows}

    return Option("per_device_train_batch_size · gradient_accumulation_steps", arguments=arguments)


def _row_tokens(root: Config) -> int:
    return root.algorithm.max_length


def _pair_tokens(root: Config) -> int:
    return 2 * _row_tokens(root)


def _response_tokens(root: Config) -> int:
    return root.rollout.max_prompt_tokens + root.rollout.max_new_tokens


# Settings of every trainer.
COMMON = {
    "optimizer": fixed_to(
        "adamw",
        "transformers' Trainer has no Muon, and the learning rate in model.tuned may be meant for Muon; set "
        "algorithm.optimizer=adamw and a rate for AdamW: algorithm.lr=3e-3 for a model from scratch, 2e-5 for GPT-2",
    ),
    "lr": renamed_to("learning_rate"),
    "muon_lr": handled_by_lab("only read by optimizer=muon"),
    "weight_decay": renamed_to("weight_decay"),
    "adam_betas": Option(
        "adam_beta1, adam_beta2", arguments=lambda value, root: {"adam_beta1": value[0], "adam_beta2": value[1]}
    ),
    "adam_eps": renamed_to("adam_epsilon"),
    "micro_batch_tokens": handled_by_lab(
        "rows of a forward pass: the maximum that fits at full length; see batch_size"
    ),
    "warmup_fraction": handled_by_lab("the trainer's schedule is training.optim.lr_scale"),
    "final_lr_fraction": handled_by_lab("the trainer's schedule is training.optim.lr_scale"),
    "max_grad_norm": renamed_to("max_grad_norm"),
    "max_length": handled_by_lab("rows are truncated by Encoder.row"),
    "log_every_steps": renamed_to("logging_steps"),
    "eval_every_steps": handled_by_lab("rlhf_lab's own evaluation, called between steps"),
    "eval_early": handled_by_lab("rlhf_lab's own evaluation, called between steps"),
}

# Settings of trainers on a corpus, whose steps rlhf_lab plans in advance.
PLANNED = {
    **COMMON,
    "epochs": handled_by_lab("steps are planned by training.batching; max_steps is their number"),
    "length_bucket_batches": handled_by_lab("steps are planned by training.batching"),
}
"""Trainers on a corpus use exactly the batches of the native engine."""

# Settings that select pairs of a corpus.
PAIRS = {
    "max_pairs": handled_by_lab("pairs are selected by rlhf_lab"),
    "selection": handled_by_lab("pairs are selected by rlhf_lab"),
}

SFT_TABLE = {
    **PLANNED,
    "batch_size": _batch_size_option(_row_tokens),
    "assistant_turns": handled_by_lab("rlhf_lab's masks become the labels of each batch"),
    "skip_garbled": handled_by_lab("rows are selected by rlhf_lab"),
    "only_correct": handled_by_lab("rows are selected by rlhf_lab"),
    "order": handled_by_lab("rows are ordered by rlhf_lab"),
}

# RewardTrainer trains a single model with a single head, so everything about ensembles and second heads is refused.
REWARD_TABLE = {
    **PLANNED,
    "batch_size": _batch_size_option(_pair_tokens),
    "centering": renamed_to("center_rewards_coefficient"),
    "margin": handled_by_lab("column `margin` of each batch"),
    "on_policy_fraction": handled_by_lab("pairs are sampled and labelled by rlhf_lab"),
    "members": fixed_to(1, "RewardTrainer trains one model; use algorithm.members=1, or engine=native"),
    "member_fraction": fixed_to(
        1.0, "it is for ensembles, which RewardTrainer does not support; use algorithm.member_fraction=1"
    ),
    "context": handled_by_lab("prompts are truncated by rlhf_lab"),
    "shared_trunk": handled_by_lab("it is for ensembles; see members"),
    "head_noise": handled_by_lab("only read with several heads or members"),
    "length_head": fixed_to(False, "RewardTrainer has one head; use algorithm.length_head=false, or engine=native"),
    "length_weight": handled_by_lab("only read with length_head"),
    "orthogonal_weight": handled_by_lab("only read with length_head"),
    "confidence_weight": fixed_to(0.0, "RewardTrainer has no such term; use confidence_weight=0, or engine=native"),
    "sure": handled_by_lab("only read with confidence_weight"),
    "unsure": handled_by_lab("only read with confidence_weight"),
    **PAIRS,
}

# Settings that DPO and KTO share.
PREFERENCE = {
    **PLANNED,
    **PAIRS,
    "beta": renamed_to("beta"),
    "gamma_beta_ratio": handled_by_lab("only read by loss=simpo"),
    "nll_weight": handled_by_lab("only read by loss=cpo"),
}

DPO_TABLE = {
    **PREFERENCE,
    "batch_size": _batch_size_option(_pair_tokens),
    "loss": Option("loss_type", arguments=lambda value, root: {"loss_type": [value]}),
    "logps": fixed_to("sum", "each loss of DPOTrainer has a fixed form; use algorithm.logps=sum"),
    "label_smoothing": Option(
        "label_smoothing",
        arguments=lambda value, root: {"label_smoothing": root.algorithm.coefficients().get("label_smoothing", 0.0)},
    ),
    "desirable_weight": handled_by_lab("only read by loss=kto"),
    "undesirable_weight": handled_by_lab("only read by loss=kto"),
}


def _kto_weight(name: str) -> Option:
    return Option(name, arguments=lambda value, root: {name: root.algorithm.coefficients()[name]})


# KTO estimates a KL divergence with other prompts. TRL does this per forward pass, so a step may not be split.
KTO_TABLE = {
    **PREFERENCE,
    "batch_size": _batch_size_option(_pair_tokens),
    "micro_batch_tokens": fixed_to(
        0, "TRL estimates KTO's KL per forward pass, not per step; use algorithm.micro_batch_tokens=0"
    ),
    "loss": fixed_to("kto", ""),
    "logps": handled_by_lab("loss=kto uses full responses"),
    "label_smoothing": handled_by_lab("only read by loss=sigmoid and robust"),
    "desirable_weight": _kto_weight("desirable_weight"),
    "undesirable_weight": _kto_weight("undesirable_weight"),
}


def _penalised(root: Config) -> bool:
    """Return True if the config has a KL penalty."""
    return root.algorithm.kl_controller != "none" and bool(root.algorithm.beta)


def _if_penalised(value: Any, refusal: str) -> Option:
    """Return an option that must have this value if there is a KL penalty, and may have any value if there is none."""
    return Option(f"must be {value}", refusal, lambda configured, root: configured == value or not _penalised(root))


# Settings that GRPO and RLOO share. TRL samples and updates; reward, shaping and monitoring stay in rlhf_lab.
ON_POLICY = {
    **COMMON,
    "batch_size": _batch_size_option(_response_tokens),
    "epochs": Option("num_iterations", arguments=lambda value, root: {"num_iterations": round(value or 1)}),
    "length_bucket_batches": fixed_to(
        1, "TRL shuffles the responses of an iteration; use algorithm.length_bucket_batches=1"
    ),
    "iterations": handled_by_lab("max_steps = iterations · updates per iteration"),
    "prompts_per_iteration": Option(
        "generation_batch_size",
        arguments=lambda value, root: {"generation_batch_size": root.algorithm.responses},
    ),
    "group_size": renamed_to("num_generations"),
    "token_budget": fixed_to(0, "TRL counts steps, not generated tokens; set algorithm.iterations"),
    "beta": Option(
        "beta", arguments=lambda value, root: {"beta": float(root.algorithm.beta) if _penalised(root) else 0.0}
    ),
    "log_kl": handled_by_lab("measured inside the reward function, two forward passes per iteration"),
    "kl_controller": fixed_to("fixed", "TRL has no controller; use algorithm.kl_controller=fixed or none", "none"),
    "kl_target": handled_by_lab("only read by kl_controller=adaptive"),
    "kl_horizon": handled_by_lab("only read by kl_controller=adaptive"),
    "clip_low": renamed_to("epsilon"),
    "clip_high": renamed_to("epsilon_high"),
    "overlong_tokens": handled_by_lab("RewardShaper, inside the reward function"),
    "missing_eos_penalty": handled_by_lab("RewardShaper, inside the reward function"),
    "reward_scaling": handled_by_lab("RewardShaper, inside the reward function"),
    "reward_clip": handled_by_lab("RewardShaper, inside the reward function"),
    "log_ratio_clamp": fixed_to(20.0, "TRL does not clamp log ratios; leave algorithm.log_ratio_clamp at 20"),
    "target_kl": fixed_to(0.0, "TRL never skips an update; use algorithm.target_kl=0 and fewer epochs"),
    "correction": fixed_to(
        "auto", "GRPOTrainer weights samples of vLLM by its own rule; use algorithm.correction=auto", "none"
    ),
    "staleness": fixed_to(0, "GRPOTrainer samples with the current weights; use algorithm.staleness=0"),
    "correction_cap": handled_by_lab("only read by algorithm.correction"),
    "old_logps": fixed_to(
        "auto", "TRL recomputes old log-probabilities in training's precision; use recompute or auto", "recompute"
    ),
    "ptx_weight": fixed_to(0.0, "TRL has no imitation term; use algorithm.ptx_weight=0, or engine=native"),
    "condition": handled_by_lab("only read by advantage=canon"),
    "inter_weight": handled_by_lab("only read by advantage=canon"),
    "dynamic_sampling": fixed_to(0, "TRL does not replace groups with equal rewards; use algorithm.dynamic_sampling=0"),
    "rollout_filter": fixed_to(
        "none", "TRL trains on every response; use algorithm.rollout_filter=none, or engine=native"
    ),
    "filter_pool": handled_by_lab("only read by a rollout_filter"),
    "curriculum": fixed_to(
        "uniform", "TRL samples prompts uniformly; use algorithm.curriculum=uniform, or engine=native"
    ),
    "curriculum_explore": handled_by_lab("only read by curriculum=edge"),
    "whiten_advantages": fixed_to(False, "TRL does not whiten over tokens; use algorithm.whiten_advantages=false"),
}


def _one_update(root: Config) -> bool:
    return root.algorithm.batch_size == root.algorithm.responses


def _aggregation_fits(value: Any, root: Config) -> bool:
    """Return True if a loss of TRL averages as `aggregation=value`.

    For `token_mean`, `bnpo` is exact if steps are not split into passes, `dapo` and `cispo` with one update.
    """
    settings = root.algorithm
    if settings.policy_loss == "cispo":
        return value == "token_mean" and _one_update(root)
    return (
        value != "token_mean" or _one_update(root) or rows_per_pass(root, _response_tokens(root)) == settings.batch_size
    )


def _loss_type(root: Config) -> str:
    settings = root.algorithm
    if settings.policy_loss == "cispo":
        return "cispo"
    undivided = rows_per_pass(root, _response_tokens(root)) == settings.batch_size
    token_mean = "bnpo" if undivided else "dapo"
    return {"token_mean": token_mean, "sequence_mean": "grpo", "constant": "dr_grpo"}[settings.aggregation]


def _epsilon_high(value: Any, root: Config) -> Arguments:
    """Return CISPO's upper bound: TRL takes the ratio itself, rlhf_lab its distance from 1."""
    return {"epsilon_high": 1 + value if root.algorithm.policy_loss == "cispo" else value}


# GRPOTrainer only has the k3 penalty in the loss.
GRPO_TABLE = {
    **ON_POLICY,
    "kl_in": _if_penalised("loss", "GRPOTrainer adds the penalty to the loss; use algorithm.kl_in=loss"),
    "kl_estimator": _if_penalised("k3", "GRPOTrainer's penalty is k3; use algorithm.kl_estimator=k3"),
    "advantage": Option(
        "scale_rewards",
        arguments=lambda value, root: {"scale_rewards": "group" if value == "grpo" else "none"},
    ),
    "policy_loss": Option(
        "loss_type, importance_sampling_level",
        arguments=lambda value, root: {
            "loss_type": _loss_type(root),
            "importance_sampling_level": "sequence" if value == "gspo" else "token",
        },
    ),
    "clip_low": Option(
        "epsilon",
        "TRL's cispo has no lower bound; use algorithm.clip_low=1",
        lambda value, root: root.algorithm.policy_loss != "cispo" or value >= 1,
        lambda value, root: {"epsilon": value},
    ),
    "clip_high": Option("epsilon_high", arguments=_epsilon_high),
    "aggregation": Option(
        "loss_type",
        "TRL divides by the mean number of tokens over an iteration's updates, not by the update's own; use "
        "algorithm.batch_size=prompts_per_iteration·group_size, or (not for cispo) algorithm.micro_batch_tokens=0",
        _aggregation_fits,
    ),
    "dual_clip": Option(
        "delta",
        "TRL's delta bounds positive advantages too; use algorithm.dual_clip of at least 1 + clip_high, or 0",
        lambda value, root: value == 0 or value >= 1 + root.algorithm.clip_high,
        lambda value, root: {"delta": value or None},
    ),
}

# RLOOTrainer clips one ratio per response and sums over its tokens. This equals the native loss while the ratio is 1.
RLOO_TABLE = {
    **ON_POLICY,
    "batch_size": Option(
        "per_device_train_batch_size · gradient_accumulation_steps",
        "RLOOTrainer clips one ratio per response, rlhf_lab one per token; both are equal only in a single update per "
        "iteration; use algorithm.batch_size=prompts_per_iteration·group_size and algorithm.epochs=1",
        lambda value, root: root.algorithm.steps_per_iteration == 1,
        ON_POLICY["batch_size"].arguments,
    ),
    "kl_in": _if_penalised("reward", "RLOOTrainer subtracts the penalty from the reward; use algorithm.kl_in=reward"),
    "kl_estimator": handled_by_lab("only read for a penalty in the loss; in the reward both engines use k1"),
    "advantage": fixed_to("rloo", ""),
    "policy_loss": fixed_to("ppo_clip", "RLOOTrainer has one loss; use algorithm.policy_loss=ppo_clip"),
    "aggregation": fixed_to(
        "constant",
        "RLOOTrainer sums over the tokens of a response whatever its length; use algorithm.aggregation=constant",
    ),
    "dual_clip": fixed_to(0.0, "RLOOTrainer has no second bound; use algorithm.dual_clip=0"),
}

WHOLE_DISTRIBUTION = "TRL trains on log-probabilities of the full distribution, not of the truncated one"

# TRL computes log-probabilities over the full distribution, so truncated sampling (top-k, top-p) would not match them.
SAMPLING = {
    "temperature": renamed_to("temperature"),
    "max_new_tokens": renamed_to("max_completion_length"),
    "max_prompt_tokens": handled_by_lab("prompts are truncated by Encoder.prompt"),
    "batch_rows": fixed_to(512, "TRL samples all responses of an iteration at once; leave rollout.batch_rows at 512"),
    "top_k": fixed_to(0, f"{WHOLE_DISTRIBUTION}; use rollout.top_k=0"),
    "top_p": fixed_to(1.0, f"{WHOLE_DISTRIBUTION}; use rollout.top_p=1"),
    "allowed_tokens": fixed_to((), f"{WHOLE_DISTRIBUTION}; use rollout.allowed_tokens=[]"),
    "stop": fixed_to((), "TRL ends responses only at EOS; use rollout.stop=[], or engine=native"),
    "max_episode_tokens": handled_by_lab("TRL samples single responses"),
    "dtype": fixed_to(
        "model", "TRL samples in the precision of training; use rollout.dtype=model and set runtime.dtype"
    ),
    "mode": Option(
        "use_vllm, vllm_mode",
        "TRL starts no server; use rollout.mode=colocate, or rollout.mode=server with trl vllm-serve",
        lambda value, root: value != "spawn",
        lambda value, root: {"use_vllm": True, "vllm_mode": value},
    ),
    "gpu_memory_utilization": renamed_to("vllm_gpu_memory_utilization"),
    "host": renamed_to("vllm_server_host"),
    "port": renamed_to("vllm_server_port"),
    "urls": fixed_to((), "TRL's server uses rollout.host and rollout.port; leave rollout.urls empty"),
    "tensor_parallel": fixed_to(1, "TRL's colocated vLLM runs on one GPU; leave rollout.tensor_parallel at 1"),
    "context_tokens": fixed_to(0, "TRL's vLLM uses the model's own context length; leave rollout.context_tokens at 0"),
    "weights_folder": fixed_to("", "TRL sends weights over NCCL; leave rollout.weights_folder empty"),
    "adapters": fixed_to("auto", "TRL sends full models; leave rollout.adapters at auto"),
    "timeout_s": fixed_to(1800.0, "TRL has its own timeouts; leave rollout.timeout_s at 1800"),
}
"""Settings of `rollout=local` and `rollout=vllm`; those from `mode` on are only for vLLM. `batch_rows` and `dtype` also
apply to rlhf_lab's sampler in the evaluation."""

# Rows are already truncated by the encoder, so TRL must not truncate them again.
UNCUT: Arguments = {"max_length": None}
PLAIN_SAMPLING: Arguments = {"top_k": 0, "top_p": 1.0, "mask_truncated_completions": False}

# TRL's name of a metric → name of the equivalent metric here.
LIKELIHOODS = {"logps/chosen": "chosen_logp", "logps/rejected": "rejected_logp"}
MARGINS = {"rewards/accuracies": "accuracy", "rewards/margins": "margin"}

TRAINERS = {
    "sft": Trainer("SFTTrainer", SFT_TABLE, fixed=UNCUT),
    "reward_model": Trainer(
        "RewardTrainer", REWARD_TABLE, fixed=UNCUT, metrics={"accuracy": "accuracy", "margin": "margin"}
    ),
    "dpo": Trainer("DPOTrainer", DPO_TABLE, fixed=UNCUT, metrics={**LIKELIHOODS, **MARGINS}, has_reference=True),
    "kto": Trainer(
        "KTOTrainer",
        KTO_TABLE,
        fixed={**UNCUT, "train_sampling_strategy": "sequential"},
        metrics={**LIKELIHOODS, "rewards/margins": "margin", "kl": "z_ref"},
        has_reference=True,
    ),
    "grpo": Trainer("GRPOTrainer", GRPO_TABLE, SAMPLING, {**PLAIN_SAMPLING, "use_bias_correction_kl": False}),
    "rloo": Trainer("RLOOTrainer", RLOO_TABLE, SAMPLING, PLAIN_SAMPLING),
}
"""Trainer → translation of its settings into TRL's. `StageSettings.trl_trainer` names an algorithm's trainer."""
