"""One table per trainer of TRL 1.16.0: our setting → its argument, in the words of `translation.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlhf_lab.algorithms.trl.translation import Arguments, Option, Trainer, only, ours, to
from rlhf_lab.config.root import Config


def rows_per_pass(root: Config, tokens: int) -> int:
    """The largest divisor of `batch_size` whose rows of `tokens` tokens fit in `micro_batch_tokens`; at least 1.

    A divisor, because TRL weighs all forward passes of a step the same.
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


def _reply_tokens(root: Config) -> int:
    return root.rollout.max_prompt_tokens + root.rollout.max_new_tokens


COMMON = {
    "optimizer": only(
        "adamw",
        "transformers' Trainer has no Muon, and the rate that model.tuned names may be meant for it; write "
        "algorithm.optimizer=adamw and a rate for AdamW: algorithm.lr=3e-3 for a model from scratch, 2e-5 for GPT-2",
    ),
    "lr": to("learning_rate"),
    "muon_lr": ours("read by optimizer=muon alone"),
    "weight_decay": to("weight_decay"),
    "adam_betas": Option(
        "adam_beta1, adam_beta2", arguments=lambda value, root: {"adam_beta1": value[0], "adam_beta2": value[1]}
    ),
    "adam_eps": to("adam_epsilon"),
    "micro_batch_tokens": ours("rows of a forward pass: as many as fit at full length; see batch_size"),
    "warmup_fraction": ours("the trainer's schedule is training.optim.lr_scale"),
    "final_lr_fraction": ours("the trainer's schedule is training.optim.lr_scale"),
    "max_grad_norm": to("max_grad_norm"),
    "max_length": ours("rows are cut by Encoder.row"),
    "log_every_steps": to("logging_steps"),
    "eval_every_steps": ours("the lab's own evaluation, called between steps"),
}

PLANNED = {
    **COMMON,
    "epochs": ours("steps are planned by training.batching; max_steps is their number"),
    "length_bucket_batches": ours("steps are planned by training.batching"),
}
"""Trainers on a corpus go through the very batches of the native engine."""

PAIRS = {"max_pairs": ours("pairs are chosen by the lab"), "selection": ours("pairs are chosen by the lab")}

SFT_TABLE = {
    **PLANNED,
    "batch_size": _batch_size_option(_row_tokens),
    "assistant_turns": ours("the lab's masks are the labels of each batch"),
    "skip_garbled": ours("rows are chosen by the lab"),
    "only_correct": ours("rows are chosen by the lab"),
}

REWARD_TABLE = {
    **PLANNED,
    "batch_size": _batch_size_option(_pair_tokens),
    "centering": to("center_rewards_coefficient"),
    "margin": ours("column `margin` of each batch"),
    "on_policy_fraction": ours("pairs are sampled and labelled by the lab"),
    "members": only(1, "RewardTrainer trains one model; write algorithm.members=1, or engine=native"),
    "member_fraction": only(1.0, "it belongs to ensembles, which RewardTrainer has none of; write 1"),
    "context": ours("prompts are cut by the lab"),
    "shared_trunk": ours("it belongs to ensembles; see members"),
    "head_noise": ours("read where there are several heads or members alone"),
    "length_head": only(False, "RewardTrainer has one head; write algorithm.length_head=false, or engine=native"),
    "length_weight": ours("read with length_head alone"),
    "orthogonal_weight": ours("read with length_head alone"),
    "confidence_weight": only(0.0, "RewardTrainer has no such term; write confidence_weight=0, or use engine=native"),
    "sure": ours("read with confidence_weight alone"),
    "unsure": ours("read with confidence_weight alone"),
    **PAIRS,
}

PREFERENCE = {
    **PLANNED,
    **PAIRS,
    "beta": to("beta"),
    "gamma_beta_ratio": ours("read by loss=simpo alone"),
    "nll_weight": ours("read by loss=cpo alone"),
}

DPO_TABLE = {
    **PREFERENCE,
    "batch_size": _batch_size_option(_pair_tokens),
    "loss": Option("loss_type", arguments=lambda value, root: {"loss_type": [value]}),
    "logps": only("sum", "DPOTrainer's losses have each their own form; write algorithm.logps=sum"),
    "label_smoothing": Option(
        "label_smoothing",
        arguments=lambda value, root: {"label_smoothing": root.algorithm.coefficients().get("label_smoothing", 0.0)},
    ),
    "desirable_weight": ours("read by loss=kto alone"),
    "undesirable_weight": ours("read by loss=kto alone"),
}


def _kto_weight(name: str) -> Option:
    return Option(name, arguments=lambda value, root: {name: root.algorithm.coefficients()[name]})


KTO_TABLE = {
    **PREFERENCE,
    "batch_size": _batch_size_option(_pair_tokens),
    "micro_batch_tokens": only(
        0, "TRL estimates KTO's KL from each forward pass, not from the step; write algorithm.micro_batch_tokens=0"
    ),
    "loss": only("kto", ""),
    "logps": ours("loss=kto takes whole replies"),
    "label_smoothing": ours("read by loss=sigmoid and robust alone"),
    "desirable_weight": _kto_weight("desirable_weight"),
    "undesirable_weight": _kto_weight("undesirable_weight"),
}


def _penalised(root: Config) -> bool:
    """Whether there is a KL penalty at all."""
    return root.algorithm.kl_controller != "none" and bool(root.algorithm.beta)


def _if_penalised(value: Any, refusal: str) -> Option:
    """Must have this value where there is a KL penalty; without one it is not read."""
    return Option(f"must be {value}", refusal, lambda configured, root: configured == value or not _penalised(root))


ON_POLICY = {
    **COMMON,
    "batch_size": _batch_size_option(_reply_tokens),
    "epochs": Option("num_iterations", arguments=lambda value, root: {"num_iterations": round(value or 1)}),
    "length_bucket_batches": only(1, "TRL shuffles an iteration's replies; write algorithm.length_bucket_batches=1"),
    "iterations": ours("max_steps = iterations · updates per iteration"),
    "prompts_per_iteration": Option(
        "generation_batch_size",
        arguments=lambda value, root: {"generation_batch_size": root.algorithm.replies},
    ),
    "group_size": to("num_generations"),
    "token_budget": only(0, "TRL counts steps, not generated tokens; set algorithm.iterations"),
    "beta": Option(
        "beta", arguments=lambda value, root: {"beta": float(root.algorithm.beta) if _penalised(root) else 0.0}
    ),
    "log_kl": ours("measured inside the reward function, two forward passes per iteration"),
    "kl_controller": only("fixed", "TRL has no controller; write algorithm.kl_controller=fixed or none", "none"),
    "kl_target": ours("read by kl_controller=adaptive alone"),
    "kl_horizon": ours("read by kl_controller=adaptive alone"),
    "clip_low": to("epsilon"),
    "clip_high": to("epsilon_high"),
    "overlong_tokens": ours("RewardShaper, inside the reward function"),
    "missing_eos_penalty": ours("RewardShaper, inside the reward function"),
    "reward_scaling": ours("RewardShaper, inside the reward function"),
    "reward_clip": ours("RewardShaper, inside the reward function"),
    "log_ratio_clamp": only(20.0, "TRL clamps no log ratio; leave algorithm.log_ratio_clamp at 20"),
    "target_kl": only(0.0, "TRL skips no update; write algorithm.target_kl=0 and fewer epochs"),
    "correction": only(
        "auto", "GRPOTrainer weighs the samples of vLLM by a rule of its own; write algorithm.correction=auto", "none"
    ),
    "staleness": only(0, "GRPOTrainer samples with the weights that it trains; write algorithm.staleness=0"),
    "correction_cap": ours("of algorithm.correction alone"),
    "old_logps": only(
        "auto", "TRL computes old log-probabilities anew in training's arithmetic; write recompute or auto", "recompute"
    ),
    "ptx_weight": only(0.0, "TRL has no imitation term; write algorithm.ptx_weight=0, or use engine=native"),
    "condition": ours("read by advantage=canon alone"),
    "inter_weight": ours("read by advantage=canon alone"),
    "dynamic_sampling": only(
        0, "TRL draws no further prompts for groups without a difference; write algorithm.dynamic_sampling=0"
    ),
    "rollout_filter": only("none", "TRL trains on every reply; write algorithm.rollout_filter=none, or engine=native"),
    "filter_pool": ours("read by a rollout_filter alone"),
    "curriculum": only("uniform", "TRL draws prompts evenly; write algorithm.curriculum=uniform, or engine=native"),
    "curriculum_explore": ours("read by curriculum=edge alone"),
    "whiten_advantages": only(False, "TRL does not whiten over tokens; write algorithm.whiten_advantages=false"),
}


def _one_update(root: Config) -> bool:
    return root.algorithm.batch_size == root.algorithm.replies


def _aggregation_fits(value: Any, root: Config) -> bool:
    """TRL's token means: `bnpo` is exact for undivided steps, `dapo` and `cispo` for one step per pass of samples."""
    settings = root.algorithm
    if settings.policy_loss == "cispo":
        return value == "token_mean" and _one_update(root)
    return value != "token_mean" or _one_update(root) or rows_per_pass(root, _reply_tokens(root)) == settings.batch_size


def _loss_type(root: Config) -> str:
    settings = root.algorithm
    if settings.policy_loss == "cispo":
        return "cispo"
    undivided = rows_per_pass(root, _reply_tokens(root)) == settings.batch_size
    token_mean = "bnpo" if undivided else "dapo"
    return {"token_mean": token_mean, "sequence_mean": "grpo", "constant": "dr_grpo"}[settings.aggregation]


def _epsilon_high(value: Any, root: Config) -> Arguments:
    """CISPO's bound is the ratio itself in TRL, its distance from 1 here."""
    return {"epsilon_high": 1 + value if root.algorithm.policy_loss == "cispo" else value}


GRPO_TABLE = {
    **ON_POLICY,
    "kl_in": _if_penalised("loss", "GRPOTrainer adds the penalty to the loss; write algorithm.kl_in=loss"),
    "kl_estimator": _if_penalised("k3", "GRPOTrainer's penalty is k3; write algorithm.kl_estimator=k3"),
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
        "TRL's cispo has no lower bound; write algorithm.clip_low=1",
        lambda value, root: root.algorithm.policy_loss != "cispo" or value >= 1,
        lambda value, root: {"epsilon": value},
    ),
    "clip_high": Option("epsilon_high", arguments=_epsilon_high),
    "aggregation": Option(
        "loss_type",
        "TRL divides by the mean number of tokens of an iteration's updates, not by the update's; write "
        "algorithm.batch_size=prompts_per_iteration·group_size, or (not for cispo) algorithm.micro_batch_tokens=0",
        _aggregation_fits,
    ),
    "dual_clip": Option(
        "delta",
        "TRL's delta bounds positive advantages too; write algorithm.dual_clip of at least 1 + clip_high, or 0",
        lambda value, root: value == 0 or value >= 1 + root.algorithm.clip_high,
        lambda value, root: {"delta": value or None},
    ),
}

RLOO_TABLE = {
    **ON_POLICY,
    "batch_size": Option(
        "per_device_train_batch_size · gradient_accumulation_steps",
        "RLOOTrainer clips one ratio per reply, the lab one per token: they are the same while it is 1, in a single "
        "update per iteration; write algorithm.batch_size=prompts_per_iteration·group_size and algorithm.epochs=1",
        lambda value, root: root.algorithm.steps_per_iteration == 1,
        ON_POLICY["batch_size"].arguments,
    ),
    "kl_in": _if_penalised("reward", "RLOOTrainer takes the penalty from the reward; write algorithm.kl_in=reward"),
    "kl_estimator": ours("of a penalty in the loss; in the reward it is k1 here and there"),
    "advantage": only("rloo", ""),
    "policy_loss": only("ppo_clip", "RLOOTrainer has one loss; write algorithm.policy_loss=ppo_clip"),
    "aggregation": only(
        "constant",
        "RLOOTrainer adds up the tokens of a reply whatever its length; write algorithm.aggregation=constant",
    ),
    "dual_clip": only(0.0, "RLOOTrainer has no second bound; write algorithm.dual_clip=0"),
}

WHOLE_DISTRIBUTION = "TRL trains on log-probabilities of the whole distribution, not of the truncated one"

SAMPLING = {
    "temperature": to("temperature"),
    "max_new_tokens": to("max_completion_length"),
    "max_prompt_tokens": ours("prompts are cut by Encoder.prompt"),
    "batch_rows": only(512, "TRL samples an iteration's replies at once; leave rollout.batch_rows at 512"),
    "top_k": only(0, f"{WHOLE_DISTRIBUTION}; write rollout.top_k=0"),
    "top_p": only(1.0, f"{WHOLE_DISTRIBUTION}; write rollout.top_p=1"),
    "allowed_tokens": only((), f"{WHOLE_DISTRIBUTION}; write rollout.allowed_tokens=[]"),
    "stop": only((), "TRL ends replies by EOS alone; write rollout.stop=[], or engine=native"),
    "max_episode_tokens": ours("TRL samples single replies"),
    "dtype": only(
        "model", "TRL samples in the arithmetic of training; write rollout.dtype=model and set runtime.dtype"
    ),
    "mode": Option(
        "use_vllm, vllm_mode",
        "TRL starts no server; write rollout.mode=colocate, or server with one started by trl vllm-serve",
        lambda value, root: value != "spawn",
        lambda value, root: {"use_vllm": True, "vllm_mode": value},
    ),
    "gpu_memory_utilization": to("vllm_gpu_memory_utilization"),
    "host": to("vllm_server_host"),
    "port": to("vllm_server_port"),
    "urls": only((), "TRL's server has rollout.host and rollout.port; leave rollout.urls empty"),
    "tensor_parallel": only(1, "TRL's colocated vLLM runs on one GPU; leave rollout.tensor_parallel at 1"),
    "context_tokens": only(0, "TRL's vLLM takes the model's own positions; leave rollout.context_tokens at 0"),
    "weights_folder": only("", "TRL sends weights over NCCL; leave rollout.weights_folder empty"),
    "adapters": only("auto", "TRL sends whole models; leave rollout.adapters at auto"),
    "timeout_s": only(1800.0, "TRL has timeouts of its own; leave rollout.timeout_s at 1800"),
}
"""Settings of `rollout=local` and `rollout=vllm`; those from `mode` on belong to vLLM. `batch_rows` and `dtype` also
rule the lab's sampler in the evaluation."""

UNCUT: Arguments = {"max_length": None}
PLAIN_SAMPLING: Arguments = {"top_k": 0, "top_p": 1.0, "mask_truncated_completions": False}

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
"""Trainer → its table. An algorithm says which of them trains it: `StageSettings.trl_trainer`."""
