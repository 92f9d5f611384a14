"""One table per trainer of TRL 1.16.0: setting → TRL argument. Imports neither torch nor TRL.

A setting is renamed (`renamed_to`), restricted to some values (`fixed_to`), implemented by rlhf_lab before, around or
after the trainer (`handled_by_lab`), or translated by an `Option` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlhf_lab.config.root import Config

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """Translation of one setting. By default it becomes no argument, and all values are supported.

    Attributes:
        arguments: (value, root config) → TRL arguments.
        refusal: why other values are not supported, and the alternative. Empty if every value is supported.
        allowed: (value, root config) → True if this value is supported.
    """

    arguments: Callable[[Any, Config], Arguments] = lambda value, root: {}
    refusal: str = ""
    allowed: Callable[[Any, Config], bool] = lambda value, root: True


@dataclass(frozen=True)
class Trainer:
    """One of TRL's trainers.

    Attributes:
        name: name of its class. The class of its arguments has Config in place of Trainer.
        algorithm: setting of the algorithm → its translation.
        rollout: setting of the rollout → its translation; empty if the trainer does not sample, because rlhf_lab's own
            sampler reads these settings then.
        fixed: arguments that do not depend on settings.
        metrics: TRL's name of a metric → name of the equivalent metric here.
        has_reference: True if the trainer gets pairs of responses and a frozen reference in addition to the policy.
    """

    name: str
    algorithm: Mapping[str, Option]
    rollout: Mapping[str, Option] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    has_reference: bool = False

    @property
    def config(self) -> str:
        return self.name.replace("Trainer", "Config")

    @property
    def samples(self) -> bool:
        """True if the trainer samples responses itself."""
        return bool(self.rollout)

    def sections(self, root: Config) -> list[tuple[str, Any, Mapping[str, Option]]]:
        """Return (name, settings, table) of every section of the config that has a table."""
        sections = [("algorithm", root.algorithm, self.algorithm), ("rollout", root.rollout, self.rollout)]
        return [section for section in sections if section[2]]


def renamed_to(argument: str) -> Option:
    return Option(lambda value, root: {argument: value})


def handled_by_lab(*names: str) -> dict[str, Option]:
    return dict.fromkeys(names, Option())


def fixed_to(value: Any, refusal: str, *alternatives: Any) -> Option:
    """Return the translation of a setting for which TRL has no argument and supports only these values."""
    return Option(refusal=refusal, allowed=lambda configured, root: configured in (value, *alternatives))


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

    return Option(arguments)


def _pair_tokens(root: Config) -> int:
    return 2 * root.algorithm.max_length


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
    "weight_decay": renamed_to("weight_decay"),
    "adam_betas": Option(lambda value, root: {"adam_beta1": value[0], "adam_beta2": value[1]}),
    "adam_eps": renamed_to("adam_epsilon"),
    "max_grad_norm": renamed_to("max_grad_norm"),
    "log_every_steps": renamed_to("logging_steps"),
    # only read by optimizer=muon
    **handled_by_lab("muon_lr"),
    # the number of rows of a forward pass; see `rows_per_pass`
    **handled_by_lab("micro_batch_tokens"),
    # The trainer's schedule is training.optim.lr_scale, and rows are truncated by Encoder.row.
    **handled_by_lab("warmup_fraction", "final_lr_fraction", "max_length"),
    # rlhf_lab's own evaluation is called between steps
    **handled_by_lab("eval_every_steps", "eval_early"),
}

# Trainers on a corpus use exactly the batches of the native engine: training.batching plans the steps in advance.
PLANNED = {**COMMON, **handled_by_lab("epochs", "length_bucket_batches")}

# rlhf_lab selects the rows and the pairs that are trained on.
PAIRS = handled_by_lab("max_pairs", "selection")

SFT_TABLE = {
    **PLANNED,
    "batch_size": _batch_size_option(lambda root: root.algorithm.max_length),
    # rlhf_lab selects and orders the rows, and its masks become the labels of each batch
    **handled_by_lab("assistant_turns", "skip_garbled", "only_correct", "order"),
}

# RewardTrainer trains a single model with a single head, so everything about ensembles and second heads is refused.
REWARD_TABLE = {
    **PLANNED,
    **PAIRS,
    "batch_size": _batch_size_option(_pair_tokens),
    "centering": renamed_to("center_rewards_coefficient"),
    # pairs are sampled, labelled and truncated by rlhf_lab; the margin is a column of each batch
    **handled_by_lab("margin", "on_policy_fraction", "context"),
    "members": fixed_to(1, "RewardTrainer trains one model; use algorithm.members=1, or engine=native"),
    "member_fraction": fixed_to(
        1.0, "it is for ensembles, which RewardTrainer does not support; use algorithm.member_fraction=1"
    ),
    "length_head": fixed_to(False, "RewardTrainer has one head; use algorithm.length_head=false, or engine=native"),
    "confidence_weight": fixed_to(0.0, "RewardTrainer has no such term; use confidence_weight=0, or engine=native"),
    # only read with several members or heads, or with confidence_weight
    **handled_by_lab("head_noise", "length_weight", "orthogonal_weight", "sure", "unsure"),
}

# Settings that DPO and KTO share; the last two belong to simpo and cpo.
PREFERENCE = {
    **PLANNED,
    **PAIRS,
    "batch_size": _batch_size_option(_pair_tokens),
    "beta": renamed_to("beta"),
    **handled_by_lab("gamma_beta_ratio", "nll_weight"),
}

DPO_TABLE = {
    **PREFERENCE,
    "loss": Option(lambda value, root: {"loss_type": [value]}),
    "logps": fixed_to("sum", "each loss of DPOTrainer has a fixed form; use algorithm.logps=sum"),
    "label_smoothing": Option(
        lambda value, root: {"label_smoothing": root.algorithm.coefficients().get("label_smoothing", 0.0)}
    ),
    # only read by loss=kto
    **handled_by_lab("desirable_weight", "undesirable_weight"),
}


def _kto_weight(name: str) -> Option:
    return Option(lambda value, root: {name: root.algorithm.coefficients()[name]})


# KTO estimates a KL divergence with other prompts. TRL does this per forward pass, so a step may not be split.
KTO_TABLE = {
    **PREFERENCE,
    "micro_batch_tokens": fixed_to(
        0, "TRL estimates KTO's KL per forward pass, not per step; use algorithm.micro_batch_tokens=0"
    ),
    "loss": fixed_to("kto", ""),
    "desirable_weight": _kto_weight("desirable_weight"),
    "undesirable_weight": _kto_weight("undesirable_weight"),
    # KTO uses full responses and does not smooth labels
    **handled_by_lab("logps", "label_smoothing"),
}


def _penalised(root: Config) -> bool:
    """Return True if the config has a KL penalty."""
    return root.algorithm.kl_controller != "none" and bool(root.algorithm.beta)


def _if_penalised(value: Any, refusal: str) -> Option:
    """Return an option that must have this value if there is a KL penalty, and may have any value if there is none."""
    return Option(refusal=refusal, allowed=lambda configured, root: configured == value or not _penalised(root))


# Settings that GRPO and RLOO share. TRL samples and updates; reward, shaping and monitoring stay in rlhf_lab.
ON_POLICY = {
    **COMMON,
    "batch_size": _batch_size_option(_response_tokens),
    "epochs": Option(lambda value, root: {"num_iterations": round(value or 1)}),
    "length_bucket_batches": fixed_to(
        1, "TRL shuffles the responses of an iteration; use algorithm.length_bucket_batches=1"
    ),
    "prompts_per_iteration": Option(lambda value, root: {"generation_batch_size": root.algorithm.responses}),
    "group_size": renamed_to("num_generations"),
    "token_budget": fixed_to(0, "TRL counts steps, not generated tokens; set algorithm.iterations"),
    "beta": Option(lambda value, root: {"beta": float(root.algorithm.beta) if _penalised(root) else 0.0}),
    "kl_controller": fixed_to("fixed", "TRL has no controller; use algorithm.kl_controller=fixed or none", "none"),
    "clip_low": renamed_to("epsilon"),
    "clip_high": renamed_to("epsilon_high"),
    "log_ratio_clamp": fixed_to(20.0, "TRL does not clamp log ratios; leave algorithm.log_ratio_clamp at 20"),
    "target_kl": fixed_to(0.0, "TRL never skips an update; use algorithm.target_kl=0 and fewer epochs"),
    "correction": fixed_to(
        "auto", "GRPOTrainer weights samples of vLLM by its own rule; use algorithm.correction=auto", "none"
    ),
    "staleness": fixed_to(0, "GRPOTrainer samples with the current weights; use algorithm.staleness=0"),
    "old_logps": fixed_to(
        "auto", "TRL recomputes old log-probabilities in training's precision; use recompute or auto", "recompute"
    ),
    "ptx_weight": fixed_to(0.0, "TRL has no imitation term; use algorithm.ptx_weight=0, or engine=native"),
    "dynamic_sampling": fixed_to(0, "TRL does not replace groups with equal rewards; use algorithm.dynamic_sampling=0"),
    "rollout_filter": fixed_to(
        "none", "TRL trains on every response; use algorithm.rollout_filter=none, or engine=native"
    ),
    "curriculum": fixed_to(
        "uniform", "TRL samples prompts uniformly; use algorithm.curriculum=uniform, or engine=native"
    ),
    "whiten_advantages": fixed_to(False, "TRL does not whiten over tokens; use algorithm.whiten_advantages=false"),
    # Steps of the run are iterations · updates. The reward function shapes rewards and measures the KL.
    **handled_by_lab("iterations", "log_kl"),
    **handled_by_lab("overlong_tokens", "missing_eos_penalty", "reward_scaling", "reward_clip"),
    # only read by values of other settings that are refused
    **handled_by_lab("kl_target", "kl_horizon", "correction_cap", "inter_weight"),
    **handled_by_lab("filter_pool", "curriculum_explore"),
}


def _one_update(root: Config) -> bool:
    return root.algorithm.batch_size == root.algorithm.responses


def _undivided(root: Config) -> bool:
    return rows_per_pass(root, _response_tokens(root)) == root.algorithm.batch_size


def _aggregation_fits(value: Any, root: Config) -> bool:
    """Return True if a loss of TRL averages as `aggregation=value`.

    For `token_mean`, `bnpo` is exact if steps are not split into passes, `dapo` and `cispo` with one update.
    """
    if root.algorithm.policy_loss == "cispo":
        return value == "token_mean" and _one_update(root)
    return value != "token_mean" or _one_update(root) or _undivided(root)


def _loss_type(root: Config) -> str:
    if root.algorithm.policy_loss == "cispo":
        return "cispo"
    token_mean = "bnpo" if _undivided(root) else "dapo"
    return {"token_mean": token_mean, "sequence_mean": "grpo", "constant": "dr_grpo"}[root.algorithm.aggregation]


def _epsilon_high(value: Any, root: Config) -> Arguments:
    """Return CISPO's upper bound: TRL takes the ratio itself, rlhf_lab its distance from 1."""
    return {"epsilon_high": 1 + value if root.algorithm.policy_loss == "cispo" else value}


# GRPOTrainer only has the k3 penalty in the loss.
GRPO_TABLE = {
    **ON_POLICY,
    "kl_in": _if_penalised("loss", "GRPOTrainer adds the penalty to the loss; use algorithm.kl_in=loss"),
    "kl_estimator": _if_penalised("k3", "GRPOTrainer's penalty is k3; use algorithm.kl_estimator=k3"),
    "advantage": Option(lambda value, root: {"scale_rewards": "group" if value == "grpo" else "none"}),
    "policy_loss": Option(
        lambda value, root: {
            "loss_type": _loss_type(root),
            "importance_sampling_level": "sequence" if value == "gspo" else "token",
        }
    ),
    "clip_low": Option(
        lambda value, root: {"epsilon": value},
        "TRL's cispo has no lower bound; use algorithm.clip_low=1",
        lambda value, root: root.algorithm.policy_loss != "cispo" or value >= 1,
    ),
    "clip_high": Option(_epsilon_high),
    "aggregation": Option(
        refusal="TRL divides by the mean number of tokens over an iteration's updates, not by the update's own; use "
        "algorithm.batch_size=prompts_per_iteration·group_size, or (not for cispo) algorithm.micro_batch_tokens=0",
        allowed=_aggregation_fits,
    ),
    "dual_clip": Option(
        lambda value, root: {"delta": value or None},
        "TRL's delta bounds positive advantages too; use algorithm.dual_clip of at least 1 + clip_high, or 0",
        lambda value, root: value == 0 or value >= 1 + root.algorithm.clip_high,
    ),
}

# RLOOTrainer clips one ratio per response and sums over its tokens. This equals the native loss while the ratio is 1.
RLOO_TABLE = {
    **ON_POLICY,
    "batch_size": Option(
        ON_POLICY["batch_size"].arguments,
        "RLOOTrainer clips one ratio per response, rlhf_lab one per token; both are equal only in a single update per "
        "iteration; use algorithm.batch_size=prompts_per_iteration·group_size and algorithm.epochs=1",
        lambda value, root: root.algorithm.steps_per_iteration == 1,
    ),
    "kl_in": _if_penalised("reward", "RLOOTrainer subtracts the penalty from the reward; use algorithm.kl_in=reward"),
    # only read for a penalty in the loss; in the reward both engines use k1
    **handled_by_lab("kl_estimator"),
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
    "batch_rows": fixed_to(512, "TRL samples all responses of an iteration at once; leave rollout.batch_rows at 512"),
    "top_k": fixed_to(0, f"{WHOLE_DISTRIBUTION}; use rollout.top_k=0"),
    "top_p": fixed_to(1.0, f"{WHOLE_DISTRIBUTION}; use rollout.top_p=1"),
    "allowed_tokens": fixed_to((), f"{WHOLE_DISTRIBUTION}; use rollout.allowed_tokens=[]"),
    "stop": fixed_to((), "TRL ends responses only at EOS; use rollout.stop=[], or engine=native"),
    # Prompts are truncated by Encoder.prompt, and TRL samples single responses.
    **handled_by_lab("max_prompt_tokens", "max_episode_tokens"),
    "dtype": fixed_to(
        "model", "TRL samples in the precision of training; use rollout.dtype=model and set runtime.dtype"
    ),
    "mode": Option(
        lambda value, root: {"use_vllm": True, "vllm_mode": value},
        "TRL starts no server; use rollout.mode=colocate, or rollout.mode=server with trl vllm-serve",
        lambda value, root: value != "spawn",
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
