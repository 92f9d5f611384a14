"""Settings of on-policy optimisation: PPO with a critic, and the critic-free family around GRPO.

Both share one core (`on_policy.py`). They differ in how a reply's reward is credited to its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Gt, Le
from rlhf_lab.training.settings import SMALL, Held, TrainingSettings, policy_and_reference

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation

LOSS_DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo_clip": {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "token_mean", "overlong_tokens": 0},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token_mean", "overlong_tokens": 16},
    # GSPO's ratio is a mean over the reply in log space, so it moves far less than a token's.
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence_mean", "overlong_tokens": 0},
    # A ratio is never below 1 − 1 = 0: CISPO has no lower bound.
    "cispo": {"clip_low": 1.0, "clip_high": 0.28, "aggregation": "token_mean", "overlong_tokens": 0},
}
"""Policy loss → its paper's values of settings that are None."""


@dataclass(frozen=True)
class OnPolicySettings(TrainingSettings):
    """Iterations of roll out → score → credit → `epochs` passes of updates over the samples.

    Sampling is at `rollout.temperature` over the whole vocabulary: no top-k or top-p, because every ratio and KL needs
    the probabilities that were sampled from. Dropout is off. Replies are cut at their first EOS, which belongs to them.
    The score belongs to a reply's last token. Masks come from lengths.

    Args:
        iterations: rounds of rollouts.
        prompts_per_iteration, group_size: prompts drawn per iteration, and replies sampled to each (G).
        epochs: passes over an iteration's samples, whole. Optimiser steps per iteration =
            epochs · prompts_per_iteration · group_size / batch_size.
        batch_size: replies per optimiser step.
        token_budget: the run ends once this many reply tokens were generated; 0 is no limit. The rollout that
            crosses it is still trained on; what was drawn ahead (`staleness`) and is not trained on does not count.
        beta: coefficient of the KL penalty, per nat. 0 is no penalty.
        log_kl: measure KL also where there is no penalty, which costs a forward pass of the reference per iteration.
        kl_in: `reward` subtracts β·k1 from each token's reward (arXiv:2203.02155, eq. 2); `loss` adds β·estimate to the
            token's loss (arXiv:2402.03300, eq. 3). One β does not mean the same in both places.
        kl_estimator: of the penalty in the loss; see `losses/kl.py`. In the reward it is always k1.
        kl_controller: `fixed` keeps β; `adaptive` steers the mean KL per reply towards `kl_target`
            (arXiv:1909.08593, section 2.2); `none` sets β to 0.
        kl_target: nats per reply.
        kl_horizon: replies over which the controller may multiply β by about e^0.2.
        policy_loss: `ppo_clip` (arXiv:1707.06347), `dapo` (arXiv:2503.14476), `gspo` (arXiv:2507.18071) or `cispo`
            (arXiv:2506.13585). It brings the next three, where they are None, from its paper.
        clip_low, clip_high: ratios are kept within [1 − low, 1 + high].
        aggregation: `token_mean`, `sequence_mean` or `constant`; see `losses.policy.token_weights`.
        overlong_tokens: DAPO's soft punishment: over the last tokens before the length limit the reward falls linearly
            by 1 (arXiv:2503.14476, eq. 13). 0 is off.
        dual_clip: bound c > 1 on the loss of negative advantages (arXiv:1912.09729); 0 is off.
        log_ratio_clamp: bound on |log ratio| before it is exponentiated.
        target_kl: k3 estimate of KL(old ‖ new) per token above which a step and the iteration's further ones are
            skipped; 0 is off. It is known before the step is made; an iteration's first is always made. Costs one
            device sync per step.
        missing_eos_penalty: subtracted from the score of a reply that did not end.
        reward_scaling: `running_sd` divides scores by the running standard deviation of all scores so far (their mean
            is not subtracted); `none` uses them as they are: a Bradley-Terry reward is standardised already.
        reward_clip: scores are clipped to ± this; 0 is off.
        old_logps: `recompute` runs the policy once more over the samples, `sampler` takes what the sampler recorded,
            `auto` takes the sampler's when it computes in the arithmetic of training, with the same weights. Unless the
            sampler's are of older weights, the ratio of an iteration's only update is 1 whatever they are.
        correction: weight of the policy loss for samples that older weights (`staleness`), another program or another
            arithmetic has drawn (rollout=vllm, or bfloat16 on either side): π_old/μ of each `token`, or of the whole
            reply (`sequence`), with π_old computed by training and μ by the sampler; see `losses/correction.py`. A
            penalty in the loss and the critic's loss are not weighted. `auto` is `token` for older weights and `none`
            otherwise.
        correction_cap: largest weight of `correction`.
        staleness: iterations by which the weights that draw replies are older than those that learn from them. With 1
            the replies of the next iteration are drawn while this one is trained on, where rollout=vllm samples beside
            the trainer; rollout=local samples before it trains, and shows what old samples do. π_old is of the weights
            at the start of the iteration (arXiv:2505.24298, decoupled objective), unless old_logps=sampler.
        ptx_weight: weight of the SFT loss on corpus replies, per update as many replies as it trains on
            (arXiv:2203.02155, eq. 2); 0 is off.
        condition: metric that `advantage=canon` splits groups by.
        inter_weight: weight of CANON's comparison between the halves, in [0, 1]; ½ is Dr. GRPO.
        dynamic_sampling: rounds of drawing further prompts in place of those whose replies all have the same reward,
            before penalties (arXiv:2503.14476, section 3.2); 0 is off.
        rollout_filter: which `group_size` of the `filter_pool` replies sampled to a prompt are trained on, by rank of
            their reward (PF-PPO, arXiv:2409.06957): `best`; `best_worst`, half from each end; `best_random`, the best
            half and others at random; the odd reply is a best one. What is kept is no sample of the policy: the policy
            gradient is biased towards it, a group's mean and sd and wasted groups are of the kept replies, and `best`
            compares good replies with each other. Iterative DPO's pairs are `best_worst` of a pool already.
        filter_pool: replies sampled per prompt where there is a filter; all of them count as generated tokens.
        curriculum: how an iteration's tasks are drawn: `uniform`, evenly, or `edge`, at the edge of competence: more
            often those that the policy solves sometimes, by its own recent episodes (`curriculum.py` beside this file).
            Rewards of the samples are then no measure of progress: the tasks change with the policy.
        curriculum_explore: share of `edge`'s tasks that are drawn from those never tried, as long as there are any.
        whiten_advantages: advantages of an iteration get mean 0 and sd 1 over all its tokens.
        max_length: unused by rollouts, whose length `rollout` limits; of corpus rows for `ptx_weight` and evaluation.
    """

    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "evaluation", "reward")
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward",)
    trains_on_reward: ClassVar[bool] = True
    measures_gold: ClassVar[bool] = True
    shares_prompts: ClassVar[bool] = True
    answer: ClassVar[str] = "reward_and_truth"
    tuned_by_model: ClassVar[tuple[str, ...]] = (*TrainingSettings.tuned_by_model, "beta")
    smoke: ClassVar[dict[str, float]] = {**TrainingSettings.smoke, "iterations": 8, "staleness": 1}
    smoke_real: ClassVar[dict[str, float]] = {
        **TrainingSettings.smoke_real,
        "iterations": 2,
        "prompts_per_iteration": 8,
        "batch_size": 8,
    }
    advantages: ClassVar[tuple[str, ...]] = ()
    keyed_if_set: ClassVar[tuple[str, ...]] = (
        "curriculum",
        "curriculum_explore",
        "correction",
        "correction_cap",
        "staleness",
    )

    lr: float = 1e-6
    warmup_fraction: float = 0.0
    final_lr_fraction: float = 1.0
    adam_betas: tuple[float, ...] = (0.9, 0.999)
    adam_eps: float = 1e-5
    length_bucket_batches: int = 1
    iterations: Annotated[int, Ge(1)] = 60
    prompts_per_iteration: Annotated[int, Ge(1)] = 64
    group_size: Annotated[int, Ge(1)] = 1
    token_budget: Annotated[int, Ge(0, hint="0 is no limit")] = 0
    beta: Annotated[float, Ge(0)] = 0.2
    log_kl: bool = True
    kl_in: Literal["reward", "loss"] = "reward"
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_controller: Literal["fixed", "adaptive", "none"] = "fixed"
    kl_target: Annotated[float, Gt(0)] = 6.0
    kl_horizon: Annotated[float, Gt(0)] = 10000.0
    advantage: str = ""
    policy_loss: Literal["ppo_clip", "dapo", "gspo", "cispo"] = "ppo_clip"
    clip_low: Annotated[float, Ge(0)] | None = None
    clip_high: Annotated[float, Ge(0)] | None = None
    aggregation: Literal["token_mean", "sequence_mean", "constant"] | None = None
    overlong_tokens: Annotated[int, Ge(0, hint="0 is off")] | None = None
    dual_clip: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    log_ratio_clamp: Annotated[float, Gt(0)] = 20.0
    target_kl: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    missing_eos_penalty: Annotated[float, Ge(0, hint="0 is off")] = 1.0
    reward_scaling: Literal["none", "running_sd"] = "none"
    reward_clip: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    old_logps: Literal["auto", "recompute", "sampler"] = "auto"
    correction: Literal["auto", "none", "token", "sequence"] = "auto"
    correction_cap: Annotated[float, Ge(1, hint="ratios are about 1")] = 2.0
    staleness: Annotated[int, Ge(0, hint="0 samples with the current weights")] = 0
    ptx_weight: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    condition: Literal["tokens", "surprise"] = "tokens"
    inter_weight: Annotated[float, Ge(0), Le(1)] = 0.5
    dynamic_sampling: Annotated[int, Ge(0, hint="0 is off")] = 0
    rollout_filter: Literal["none", "best", "best_random", "best_worst"] = "none"
    filter_pool: int = 0
    curriculum: Literal["uniform", "edge"] = "uniform"
    curriculum_explore: Annotated[float, Ge(0), Le(1)] = 0.5
    whiten_advantages: bool = False

    def __post_init__(self) -> None:
        for name, default in LOSS_DEFAULTS.get(self.policy_loss, {}).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)  # frozen; the config then shows the value that is used
        super().__post_init__()

    def held(self, *, adapter: bool) -> list[Held]:
        return policy_and_reference(adapter=adapter)

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (self.prompts_per_iteration, self.sampled_per_prompt)]

    def contradictions(self, config: Config) -> list[str]:
        monitor, limit = config.reward.monitor, config.rollout.max_new_tokens
        problems = []
        if monitor.action in ("stop", "raise_kl") and self.iterations // monitor.every <= monitor.warmup:
            problems.append(
                f"reward.monitor.action={monitor.action} never acts: algorithm.iterations={self.iterations} make "
                f"{self.iterations // monitor.every} checkpoints, and the first reward.monitor.warmup={monitor.warmup} "
                f"are the baseline; set algorithm.iterations={monitor.every * (monitor.warmup + monitor.rising)} or "
                "higher, or warmup lower"
            )
        if monitor.action == "raise_kl" and (self.kl_controller == "none" or not self.beta):
            problems.append(
                "reward.monitor.action=raise_kl multiplies a KL coefficient of 0; set algorithm.beta above 0"
            )
        if not config.rollout.temperature:
            problems.append("rollout.temperature=0 samples one reply over and over; use 1 to learn from samples")
        if self.overlong_tokens is not None and self.overlong_tokens >= limit:
            problems.append(
                f"algorithm.overlong_tokens={self.overlong_tokens} punishes every reply; rollout.max_new_tokens={limit}"
            )
        if self.correction in ("token", "sequence") and not self._samples_differently(config):
            problems.append(
                f"algorithm.correction={self.correction} has nothing to correct: rollout=local and training both "
                "compute in float32, with the same weights; use algorithm.correction=auto"
            )
        if self.staleness >= self.iterations:
            problems.append(
                f"algorithm.staleness={self.staleness} draws every iteration's replies with the weights of the start: "
                f"there are {self.iterations} iterations; use algorithm.staleness={min(1, self.iterations - 1)}"
            )
        return problems

    def _samples_differently(self, config: Config) -> bool:
        """Whether replies are drawn with other probabilities than training computes."""
        is_vllm = registry.kind_of("rollout", config.rollout) == "vllm"
        return is_vllm or self.staleness > 0 or "bfloat16" in (config.rollout.dtype, config.runtime.dtype)

    @property
    def replies(self) -> int:
        """Replies trained on per iteration."""
        return self.prompts_per_iteration * self.group_size

    @property
    def sampled_per_prompt(self) -> int:
        """Replies sampled to each prompt; more than are trained on where there is a filter."""
        return self.group_size if self.rollout_filter == "none" else self.filter_pool

    @property
    def correction_used(self) -> str:
        """`correction`, with `auto` decided."""
        if self.correction != "auto":
            return self.correction
        return "token" if self.staleness and self.old_logps != "sampler" else "none"

    @property
    def steps_per_iteration(self) -> int:
        return max(1, round(self.epochs) * self.replies // self.batch_size)

    @property
    def requirements(self) -> Requirements:
        return (*self.requires, Capability.DEMONSTRATIONS) if self.ptx_weight > 0 else self.requires

    def rules(self) -> tuple[Rule, ...]:
        batch_size = self.batch_size
        advantage = self.advantage
        return (
            *super().rules(),
            (self.epochs % 1 == 0, f"epochs={self.epochs} must be a whole number"),
            (
                batch_size < 1 or self.replies % batch_size == 0,
                f"batch_size={batch_size} does not divide prompts_per_iteration · group_size = {self.replies}; set a "
                "divisor",
            ),
            (
                not (self.kl_controller == "adaptive" and self.beta == 0),
                "kl_controller=adaptive multiplies beta=0 and never leaves it; start from beta=0.2",
            ),
            (
                advantage in self.advantages,
                f"advantage={advantage} is not one of {', '.join(self.advantages)}; "
                "a critic's advantage is algorithm=ppo, group advantages are algorithm=grpo",
            ),
            (
                advantage in ("gae", "remax") or self.group_size >= 2,
                f"group_size={self.group_size} gives every reply of advantage={advantage} zero advantage; "
                "use 2 or more",
            ),
            (
                self.policy_loss != "gspo" or self.aggregation == "sequence_mean",
                f"aggregation={self.aggregation} weighs long replies' ratio more; policy_loss=gspo needs sequence_mean",
            ),
            (self.dual_clip == 0 or self.dual_clip > 1, f"dual_clip={self.dual_clip} must be 0 (off) or above 1"),
            (
                self.dual_clip == 0 or self.policy_loss != "cispo",
                "dual_clip has no meaning for policy_loss=cispo; set it to 0",
            ),
            (
                self.correction in ("auto", "none") or self.old_logps != "sampler",
                f"correction={self.correction} compares the sampler with training; old_logps=sampler takes the "
                "sampler's for both; use old_logps=auto",
            ),
            (
                not (self.target_kl and self.staleness and self.old_logps == "sampler"),
                "target_kl compares with old_logps=sampler, which with staleness is an older policy: an iteration may "
                "begin beyond it and learn nothing; use old_logps=auto",
            ),
            (
                self.dynamic_sampling == 0 or advantage not in ("gae", "remax"),
                f"dynamic_sampling compares replies of a group; advantage={advantage} does not",
            ),
            *self._filter_rules(),
            (
                self.inter_weight > 0 or advantage != "canon" or self.group_size >= 4,
                f"inter_weight=0 compares halves within themselves; group_size={self.group_size} has one reply in each",
            ),
        )

    def _filter_rules(self) -> tuple[Rule, ...]:
        how, pool, size = self.rollout_filter, self.filter_pool, self.group_size
        if how == "none":
            return ((pool == 0, f"filter_pool={pool} is read by a rollout_filter, e.g. best_worst; set one, or 0"),)
        return (
            (pool > size, f"filter_pool={pool} must be above group_size={size}, or rollout_filter={how} drops nothing"),
            (how == "best" or size >= 2, f"rollout_filter={how} keeps replies of two kinds; use group_size=2 or more"),
        )


@register("algorithm", "ppo")
@dataclass(frozen=True)
class PPO(OnPolicySettings):
    """Proximal policy optimisation with a critic (arXiv:1707.06347, for language arXiv:1909.08593, arXiv:2203.02155).

    Args:
        advantage: `gae`, generalised advantage estimation (arXiv:1506.02438).
        gamma, lam: discount and λ of GAE.
        value_lam: λ of the returns that the critic regresses on; 1 is the whole return (decoupled GAE,
            arXiv:2503.01491, section 3.2), `lam` is the usual choice.
        critic: `reward_model` starts from the reward model, scaled as its scores are; `zero` from the policy with
            a head of zeros; `shared` puts a head of zeros on the policy's own trunk. None is `reward_model` where the
            reward reads one, else `zero`. Under `model.lora` the trunk has an adapter of its own.
        critic_lr: peak learning rate of the critic.
        critic_warmup: first iterations in which only the critic learns.
        value_weight: weight of the value loss. It matters most where policy and critic share a trunk; for a critic of
            its own, Adam undoes most of it.
        value_clip: the value may move this far per iteration before its loss is clipped; 0 is off.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT,)  # the critic is a scalar head on a language model
    tuned_by_model: ClassVar[tuple[str, ...]] = (*OnPolicySettings.tuned_by_model, "critic_lr")
    smoke: ClassVar[dict[str, float]] = {**OnPolicySettings.smoke, "critic_warmup": 1}
    at_small_scale: ClassVar[dict[str, Any]] = {
        **SMALL,
        "optimizer": "adamw",
        "lr": 3e-4,
        "epochs": 2.0,
        "batch_size": 32,
        "critic_lr": 1e-3,
        "beta": 0.4,
    }
    advantages: ClassVar[tuple[str, ...]] = ("gae",)
    epochs: float = 4.0
    advantage: str = "gae"
    whiten_advantages: bool = True
    gamma: Annotated[float, Ge(0), Le(1)] = 1.0
    lam: Annotated[float, Ge(0), Le(1)] = 0.95
    value_lam: Annotated[float, Ge(0), Le(1)] = 0.95
    critic: Literal["reward_model", "zero", "shared"] | None = None
    critic_lr: Annotated[float, Gt(0)] = 1e-5
    critic_warmup: Annotated[int, Ge(0)] = 3
    value_weight: Annotated[float, Gt(0)] = 0.1
    value_clip: Annotated[float, Ge(0, hint="0 is off")] = 0.2

    @property
    def trl_refusal(self) -> str:
        return "algorithm=ppo: TRL removed PPO and its value heads in 2026; use engine=native, or algorithm=rloo"

    def held(self, *, adapter: bool) -> list[Held]:
        models = super().held(adapter=adapter)
        if self.critic == "shared":
            return models
        start: Literal["policy", "reward"] = "reward" if self.critic == "reward_model" else "policy"
        return [*models, Held("critic", outputs=1, trained=True, starts_from=start)]

    def usual_critic(self, config: Config) -> Literal["reward_model", "zero"]:
        """The critic that fits the reward: it starts from the reward model if the reward reads one."""
        return "reward_model" if config.needs.get("reward") and "reward" in config.reward.roles else "zero"

    def one_vocabulary(self, config: Config) -> dict[str, tuple[str, str]]:
        if self.critic != "reward_model":
            return {}
        return {
            "reward": ("policy", "the critic starts from it and reads the policy's tokens; use algorithm.critic=zero")
        }

    def completed(self, config: Config) -> PPO:
        return self if self.critic else replace(self, critic=self.usual_critic(config))

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        if self.critic == "reward_model" and self.usual_critic(config) != "reward_model":
            if "reward" in config.reward.roles:
                why = "needs needs.reward"
            else:
                why = f"has none to start from: reward={','.join(config.reward.terms)} reads none"
            problems.append(f"algorithm.critic=reward_model {why}; use algorithm.critic=zero, or leave it out")
        return problems

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.critic != "shared" or self.critic_warmup == 0,
                "critic=shared has no critic of its own to warm up; set critic_warmup=0",
            ),
            (
                self.critic_warmup < self.iterations,
                f"critic_warmup={self.critic_warmup} leaves none of iterations={self.iterations} to the policy; set "
                f"algorithm.critic_warmup={max(0, self.iterations - 1)} or lower, or algorithm.iterations="
                f"{self.critic_warmup + 1} or higher",
            ),
        )


@register("algorithm", "grpo")
@dataclass(frozen=True)
class GRPO(OnPolicySettings):
    """Critic-free policy optimisation: a reply is compared with the others to its prompt (arXiv:2402.03300).

    Args:
        advantage: `grpo` (z-score), `rloo` (arXiv:2402.14740), `remax` (arXiv:2310.10505), `dr_grpo`
            (arXiv:2503.20783) or `canon` (arXiv:2509.23962).
    """

    advantages: ClassVar[tuple[str, ...]] = ("grpo", "rloo", "remax", "dr_grpo", "canon")
    at_small_scale: ClassVar[dict[str, Any]] = {
        **SMALL,
        "optimizer": "adamw",
        "lr": 3e-4,
        "batch_size": 64,
        "beta": 1.0,
    }
    beta: float = 0.04
    advantage: str = "grpo"
    prompts_per_iteration: int = 16
    group_size: int = 4
    kl_in: Literal["reward", "loss"] = "loss"

    @property
    def trl_trainer(self) -> str:
        return {"grpo": "grpo", "dr_grpo": "grpo", "rloo": "rloo"}.get(self.advantage, "")

    @property
    def trl_refusal(self) -> str:
        return (
            f"algorithm.advantage={self.advantage}: TRL compares replies by grpo, dr_grpo or rloo alone; use one "
            "of them, or engine=native"
        )
