"""Settings of on-policy optimisation: PPO with a critic, and the critic-free family around GRPO.

Both share one implementation (`on_policy.py`). They differ in how they assign a response's reward to its tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Gt, Le
from rlhf_lab.training.settings import SMALL, SOUP, PolicySettings, TrainingSettings
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Resources, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation

LOSS_DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo_clip": {"clip_low": 0.2, "clip_high": 0.2, "aggregation": "token_mean", "overlong_tokens": 0},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "aggregation": "token_mean", "overlong_tokens": 16},
    # GSPO's ratio is a mean over the response in log space, so it moves far less than a token's.
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence_mean", "overlong_tokens": 0},
    # A ratio is never below 0 = 1 − clip_low, so CISPO has no lower bound.
    "cispo": {"clip_low": 1.0, "clip_high": 0.28, "aggregation": "token_mean", "overlong_tokens": 0},
}
"""Policy loss → setting → the value of the loss's paper, used if the setting is None."""


def closest_divisor(total: int, target: int) -> int:
    """Return the divisor of `total` closest to `target` as a ratio; if two are equally close, the smaller."""
    divisors = [size for size in range(1, total + 1) if total % size == 0]
    return min(divisors, key=lambda size: max(size / target, target / size))


@dataclass(frozen=True)
class OnPolicySettings(PolicySettings):
    """Iterations of rollout, scoring, credit assignment and `epochs` passes of updates over the samples.

    Sampling uses `rollout.temperature` over the full vocabulary, without top-k or top-p, because every ratio and KL
    needs the probabilities that were sampled from. Dropout is off. Responses end with their first EOS, which is part of
    the response. The score is assigned to the last token of a response. Masks are computed from lengths.

    The KL reference is the start policy, `needs.policy`. With `needs.soup`, a second policy fine-tuned from the same
    model, it is the mean of the weights of both (SALSA, arXiv:2411.01798).

    Args:
        iterations: number of rollout iterations.
        prompts_per_iteration, group_size: prompts sampled per iteration, and responses sampled for each prompt (G).
        epochs: passes over an iteration's samples, an integer. Optimiser steps per iteration =
            epochs · prompts_per_iteration · group_size / batch_size.
        batch_size: responses per optimiser step. If it is not set and the model's value does not divide
            prompts_per_iteration · group_size, the closest divisor is used.
        token_budget: the run ends once it has generated this many response tokens; 0 is no limit. The rollout that
            exceeds the budget is still trained on. Rollouts sampled ahead (`staleness`) count only once they are
            trained on.
        beta: coefficient of the KL penalty, per nat. 0 is no penalty.
        log_kl: True to measure KL even without a penalty. This costs a forward pass of the reference per iteration.
        kl_in: `reward` subtracts β·k1 from each token's reward (arXiv:2203.02155, eq. 2); `loss` adds β·estimate to the
            token's loss (arXiv:2402.03300, eq. 3). The same β has different effects in the two places.
        kl_estimator: estimator of the penalty in the loss; see `losses/policy.py`. The penalty in the reward is k1.
        kl_controller: `fixed` keeps β; `adaptive` steers the mean KL per response towards `kl_target`
            (arXiv:1909.08593, section 2.2); `none` sets β to 0.
        kl_target: target of the adaptive controller, nats per response.
        kl_horizon: number of responses over which the controller may multiply β by about e^0.2.
        policy_loss: `ppo_clip` (arXiv:1707.06347), `dapo` (arXiv:2503.14476), `gspo` (arXiv:2507.18071) or `cispo`
            (arXiv:2506.13585). It also sets clip_low, clip_high, aggregation and overlong_tokens to the values of its
            paper if they are None.
        clip_low, clip_high: ratios are kept within [1 − low, 1 + high].
        aggregation: `token_mean`, `sequence_mean` or `constant`; see `losses.policy.token_weights`.
        overlong_tokens: DAPO's soft punishment: over this many tokens before the length limit, the reward falls
            linearly by 1 (arXiv:2503.14476, eq. 13). 0 is off.
        dual_clip: bound c > 1 on the loss of negative advantages (arXiv:1912.09729); 0 is off.
        log_ratio_clamp: bound on |log ratio| before it is exponentiated.
        target_kl: maximum k3 estimate of KL(old ‖ new) per token. Above it, a step and all later steps of the
            iteration are skipped; 0 is off. The KL is known before the step is applied; the first step of an iteration
            is always applied. Costs one device sync per step.
        missing_eos_penalty: subtracted from the score of a response without EOS.
        reward_scaling: `running_sd` divides scores by the running standard deviation of all scores so far (their mean
            is not subtracted). `none` leaves them unchanged: a Bradley-Terry reward is already standardised.
        reward_clip: scores are clipped to ± this; 0 is off.
        old_logps: log-probabilities of the old policy. `recompute` runs the policy over the samples again. `sampler`
            uses the values that the sampler recorded. `auto` uses the sampler's values if it computes with the
            precision and the weights of training. The ratio of an iteration's only update is 1 in all cases, except if
            the sampler's values come from older weights.
        correction: importance weight of the policy loss for samples from older weights (`staleness`), another program
            or another precision (rollout=vllm, or bfloat16 on either side): π_old/μ of each `token` or of the full
            response (`sequence`), where training computes π_old and the sampler μ; see `losses/policy.py`. A KL
            penalty in the loss and the critic's loss are not weighted. `auto` is `token` for older weights and `none`
            otherwise.
        correction_cap: maximum weight of `correction`.
        staleness: number of iterations by which the sampling weights are older than the trained weights. With 1, the
            responses of the next iteration are sampled while this one is trained on; rollout=vllm then samples in
            parallel with the trainer. rollout=local samples before it trains and only simulates stale samples. π_old
            uses the weights at the start of the iteration (arXiv:2505.24298, decoupled objective), unless
            old_logps=sampler.
        ptx_weight: weight of the SFT loss on corpus responses; each update uses as many of them as sampled responses
            (arXiv:2203.02155, eq. 2); 0 is off.
        inter_weight: weight of CANON's comparison between the halves, in [0, 1]; ½ is Dr. GRPO.
        dynamic_sampling: number of rounds that replace prompts whose responses all have the same reward, before
            penalties (arXiv:2503.14476, section 3.2); 0 is off.
        rollout_filter: rule that selects `group_size` of the `filter_pool` responses to a prompt by rank of their
            reward (PF-PPO, arXiv:2409.06957): `best`; `best_worst`, half from each end; `best_random`, the best half
            and a random choice of the others. An odd count gives the best side one more. Selected responses are not
            samples of the policy, so the policy gradient is biased towards them. A group's mean and sd and wasted
            groups refer to the selected responses, and `best` compares good responses with each other. Pairs of
            iterative DPO are already the `best_worst` of a pool.
        filter_pool: responses sampled per prompt if a filter is set; all of them count as generated tokens.
        curriculum: sampling of an iteration's tasks: `uniform`; `easy_to_hard` or `hard_to_easy`, once through all
            tasks by the length of their prompts; or `edge`, at the edge of competence. `edge` prefers tasks that the
            policy solves sometimes, judged by its own recent episodes (`curriculum.py`). Rewards of the samples do
            not measure progress except with `uniform`, because the tasks change during the run.
        curriculum_explore: fraction of `edge`'s tasks that are sampled from tasks never tried, while there are any.
        whiten_advantages: True to give the advantages of an iteration mean 0 and sd 1 over all its tokens.
        max_length: maximum length of corpus rows for `ptx_weight` and evaluation. Rollouts do not use it: `rollout`
            limits their length.
    """

    inputs = Inputs(sections=("model", "rollout", "evaluation", "reward"), needs=("policy",), optional=("reward", SOUP))
    reward_use = RewardUse(trains_policy=True, measures_gold=True)
    resources = Resources(shares_prompts=True)
    evidence = Evidence(answer="reward_and_truth")
    # `staleness` has a maximum at `size=smoke` because it must stay below `iterations`.
    by_size = replace(
        TrainingSettings.by_size,
        tuned_by_model=(*TrainingSettings.by_size.tuned_by_model, "beta"),
        smoke={**TrainingSettings.by_size.smoke, "iterations": 8, "staleness": 1},
        smoke_real={
            **TrainingSettings.by_size.smoke_real,
            "iterations": 2,
            "prompts_per_iteration": 8,
            "batch_size": 8,
        },
    )
    advantages: ClassVar[tuple[str, ...]] = ()
    # Settings that are newer than the first stored results, whose keys must not change.
    keyed_if_set: ClassVar[tuple[str, ...]] = (
        "curriculum",
        "curriculum_explore",
        "correction",
        "correction_cap",
        "staleness",
    )

    # Optimisation, at a constant learning rate by default.
    lr: float = 1e-6
    warmup_fraction: float = 0.0
    final_lr_fraction: float = 1.0
    adam_betas: tuple[float, ...] = (0.9, 0.999)
    adam_eps: float = 1e-5  # as in PPO's original implementation (arXiv:2005.12729)
    length_bucket_batches: int = 1
    # Rollouts.
    iterations: Annotated[int, Ge(1)] = 60
    prompts_per_iteration: Annotated[int, Ge(1)] = 64
    group_size: Annotated[int, Ge(1)] = 1
    token_budget: Annotated[int, Ge(0, hint="0 is no limit")] = 0
    # KL penalty.
    beta: Annotated[float, Ge(0)] = 0.2
    log_kl: bool = True
    kl_in: Literal["reward", "loss"] = "reward"
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    kl_controller: Literal["fixed", "adaptive", "none"] = "fixed"
    kl_target: Annotated[float, Gt(0)] = 6.0
    kl_horizon: Annotated[float, Gt(0)] = 10000.0
    # Policy loss.
    advantage: str = ""
    policy_loss: Literal["ppo_clip", "dapo", "gspo", "cispo"] = "ppo_clip"
    clip_low: Annotated[float, Ge(0)] | None = None
    clip_high: Annotated[float, Ge(0)] | None = None
    aggregation: Literal["token_mean", "sequence_mean", "constant"] | None = None
    overlong_tokens: Annotated[int, Ge(0, hint="0 is off")] | None = None
    dual_clip: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    log_ratio_clamp: Annotated[float, Gt(0)] = 20.0
    target_kl: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    # Reward shaping.
    missing_eos_penalty: Annotated[float, Ge(0, hint="0 is off")] = 1.0
    reward_scaling: Literal["none", "running_sd"] = "none"
    reward_clip: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    # Samples from other weights, another program or another precision.
    old_logps: Literal["auto", "recompute", "sampler"] = "auto"
    correction: Literal["auto", "none", "token", "sequence"] = "auto"
    correction_cap: Annotated[float, Ge(1, hint="ratios are about 1")] = 2.0
    staleness: Annotated[int, Ge(0, hint="0 samples with the current weights")] = 0
    ptx_weight: Annotated[float, Ge(0, hint="0 is off")] = 0.0
    # Selection of samples and tasks.
    inter_weight: Annotated[float, Ge(0), Le(1)] = 0.5
    dynamic_sampling: Annotated[int, Ge(0, hint="0 is off")] = 0
    rollout_filter: Literal["none", "best", "best_random", "best_worst"] = "none"
    filter_pool: int = 0
    curriculum: Literal["uniform", "edge", "easy_to_hard", "hard_to_easy"] = "uniform"
    curriculum_explore: Annotated[float, Ge(0), Le(1)] = 0.5
    whiten_advantages: bool = False

    def __post_init__(self) -> None:
        for name, default in LOSS_DEFAULTS.get(self.policy_loss, {}).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)  # frozen; the config then shows the value that is used
        super().__post_init__()

    @classmethod
    def adapted(cls, values: Mapping[str, Any], unset: Collection[str], sharding: str) -> dict[str, Any]:
        adapted = super().adapted(values, unset, sharding)
        sizes = [values.get(name) for name in ("prompts_per_iteration", "group_size", "batch_size")]
        if "batch_size" in unset and all(isinstance(size, int) and size > 0 for size in sizes):
            prompts, group, batch = (int(str(size)) for size in sizes)
            adapted["batch_size"] = closest_divisor(prompts * group, batch)
        return adapted

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (self.prompts_per_iteration, self.sampled_per_prompt)]

    def contradictions(self, config: Config) -> list[str]:
        monitor, limit = config.reward.monitor, config.rollout.max_new_tokens
        problems = []
        # The monitor compares with a baseline of `warmup` checkpoints, so a short run ends before it can act.
        if monitor.action == "stop" and self.iterations // monitor.every <= monitor.warmup:
            problems.append(
                f"reward.monitor.action=stop never acts: algorithm.iterations={self.iterations} give only "
                f"{self.iterations // monitor.every} checkpoints, and the first reward.monitor.warmup={monitor.warmup} "
                f"are the baseline; set algorithm.iterations={monitor.every * (monitor.warmup + monitor.rising)} or "
                "higher, or lower warmup"
            )
        # With greedy decoding all responses of a group are equal, and their advantages are 0.
        if not config.rollout.temperature:
            problems.append("rollout.temperature=0 always samples the same response; use rollout.temperature=1")
        if self.overlong_tokens is not None and self.overlong_tokens >= limit:
            problems.append(
                f"algorithm.overlong_tokens={self.overlong_tokens} punishes every response; set it below "
                f"rollout.max_new_tokens={limit}"
            )
        if self.correction in ("token", "sequence") and not self._samples_differently(config):
            problems.append(
                f"algorithm.correction={self.correction} has nothing to correct: rollout=local and training both "
                "compute in float32, with the same weights; use algorithm.correction=auto"
            )
        if self.staleness >= self.iterations:
            problems.append(
                f"algorithm.staleness={self.staleness} samples all responses with the initial weights: "
                f"there are {self.iterations} iterations; use algorithm.staleness={min(1, self.iterations - 1)}"
            )
        return problems

    def _samples_differently(self, config: Config) -> bool:
        """Return True if the sampling probabilities differ from those that training computes."""
        is_vllm = registry.kind_of("rollout", config.rollout) == "vllm"
        return is_vllm or self.staleness > 0 or "bfloat16" in (config.rollout.dtype, config.runtime.dtype)

    @property
    def responses(self) -> int:
        """Responses trained on per iteration."""
        return self.prompts_per_iteration * self.group_size

    @property
    def sampled_per_prompt(self) -> int:
        """Responses sampled for each prompt; with a filter, more than are trained on."""
        return self.group_size if self.rollout_filter == "none" else self.filter_pool

    @property
    def correction_used(self) -> str:
        """Value of `correction`, with `auto` resolved."""
        if self.correction != "auto":
            return self.correction
        return "token" if self.staleness and self.old_logps != "sampler" else "none"

    @property
    def steps_per_iteration(self) -> int:
        return max(1, round(self.epochs) * self.responses // self.batch_size)

    @property
    def requirements(self) -> Requirements:
        return (*self.requires, Capability.DEMONSTRATIONS) if self.ptx_weight > 0 else self.requires

    def rules(self) -> tuple[Rule, ...]:
        batch_size = self.batch_size
        advantage = self.advantage
        return (
            *super().rules(),
            (self.epochs % 1 == 0, f"epochs={self.epochs} must be an integer"),
            (
                batch_size < 1 or self.responses % batch_size == 0,
                f"batch_size={batch_size} does not divide prompts_per_iteration · group_size = {self.responses}; set a "
                "divisor",
            ),
            (
                not (self.kl_controller == "adaptive" and self.beta == 0),
                "kl_controller=adaptive multiplies beta and cannot leave beta=0; use e.g. beta=0.2",
            ),
            (
                # the factor is 1 − 0.2·responses/kl_horizon if the KL is far below its target
                self.kl_controller != "adaptive" or self.responses < 5 * self.kl_horizon,
                f"kl_horizon={self.kl_horizon:g} lets beta fall to 0 or below after the {self.responses} responses of "
                f"an iteration; use {self.responses} or more",
            ),
            (
                advantage in self.advantages,
                f"advantage={advantage} is not one of {', '.join(self.advantages)}; "
                "a critic's advantage is algorithm=ppo, group advantages are algorithm=grpo",
            ),
            (
                advantage in ("gae", "remax") or self.group_size >= 2,
                f"group_size={self.group_size} gives every response of advantage={advantage} zero advantage; "
                "use 2 or more",
            ),
            (
                self.policy_loss != "gspo" or self.aggregation == "sequence_mean",
                f"aggregation={self.aggregation} gives long responses more weight; policy_loss=gspo needs "
                "aggregation=sequence_mean",
            ),
            (self.dual_clip == 0 or self.dual_clip > 1, f"dual_clip={self.dual_clip} must be 0 (off) or above 1"),
            (
                self.dual_clip == 0 or self.policy_loss != "cispo",
                "dual_clip has no meaning for policy_loss=cispo; set it to 0",
            ),
            (
                self.correction in ("auto", "none") or self.old_logps != "sampler",
                f"correction={self.correction} compares the sampler with training, but old_logps=sampler uses the "
                "sampler's values for both; use old_logps=auto",
            ),
            (
                not (self.target_kl and self.staleness and self.old_logps == "sampler"),
                "target_kl with old_logps=sampler and staleness compares with an older policy, so an iteration may "
                "start above the limit and learn nothing; use old_logps=auto",
            ),
            (
                self.dynamic_sampling == 0 or advantage not in ("gae", "remax"),
                f"dynamic_sampling compares the responses of a group; advantage={advantage} does not",
            ),
            *self._filter_rules(),
            (
                self.inter_weight > 0 or advantage != "canon" or self.group_size >= 4,
                f"inter_weight=0 compares halves within themselves; group_size={self.group_size} has one response in "
                "each half; use group_size=4 or more",
            ),
        )

    def _filter_rules(self) -> tuple[Rule, ...]:
        how, pool, size = self.rollout_filter, self.filter_pool, self.group_size
        if how == "none":
            return (
                (pool == 0, f"filter_pool={pool} needs a rollout_filter; set one, e.g. best_worst, or filter_pool=0"),
            )
        return (
            (pool > size, f"filter_pool={pool} must be above group_size={size}, or rollout_filter={how} has no effect"),
            (
                how == "best" or size >= 2,
                f"rollout_filter={how} keeps two kinds of responses; use group_size=2 or more",
            ),
        )


@register("algorithm", "ppo")
@dataclass(frozen=True)
class PPO(OnPolicySettings):
    """Proximal policy optimisation with a critic (arXiv:1707.06347, for language arXiv:1909.08593, arXiv:2203.02155).

    Args:
        advantage: `gae`, generalised advantage estimation (arXiv:1506.02438).
        gamma, lam: discount and λ of GAE.
        value_lam: λ of the returns that the critic regresses on. 1 is the full return (decoupled GAE,
            arXiv:2503.01491, section 3.2); `lam` is the usual choice.
        critic: initial critic. `reward_model` starts from the reward model, with its score scale; `zero` starts from
            the policy with a head of zeros; `shared` adds a head of zeros to the policy's own trunk. None is
            `reward_model` if the reward uses one, else `zero`. Under `model.lora` the trunk has a separate adapter.
        critic_lr: peak learning rate of the critic.
        critic_warmup: number of first iterations in which only the critic learns.
        value_weight: weight of the value loss. It matters most if policy and critic share a trunk; for a separate
            critic, Adam cancels most of its effect.
        value_clip: maximum change of the value per iteration before its loss is clipped; 0 is off.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT,)  # the critic is a scalar head on a language model
    by_size = replace(
        OnPolicySettings.by_size,
        tuned_by_model=(*OnPolicySettings.by_size.tuned_by_model, "critic_lr"),
        smoke={**OnPolicySettings.by_size.smoke, "critic_warmup": 1},
        small_scale={
            **SMALL,
            "optimizer": "adamw",
            "lr": 3e-4,
            "epochs": 2.0,
            "batch_size": 32,
            "critic_lr": 1e-3,
            "beta": 0.4,
        },
    )
    advantages: ClassVar[tuple[str, ...]] = ("gae",)
    epochs: float = 4.0
    advantage: str = "gae"
    whiten_advantages: bool = True
    gamma: Annotated[float, Ge(0), Le(1)] = 1.0
    lam: Annotated[float, Ge(0), Le(1)] = 0.95
    value_lam: Annotated[float, Ge(0), Le(1)] = 0.95
    critic: Literal["reward_model", "zero", "shared"] | None = None
    critic_lr: Annotated[float, Gt(0)] = 1e-5
    # A critic from the reward model is poor on states inside a response at first (docs/design/007).
    critic_warmup: Annotated[int, Ge(0)] = 3
    value_weight: Annotated[float, Gt(0)] = 0.1
    value_clip: Annotated[float, Ge(0, hint="0 is off")] = 0.2

    @property
    def trl_refusal(self) -> str:
        return "algorithm=ppo: TRL removed PPO and its value heads in 2026; use engine=native, or algorithm=rloo"

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        models = super().model_copies(adapter=adapter)
        if self.critic == "shared":
            return models
        start: Literal["policy", "reward"] = "reward" if self.critic == "reward_model" else "policy"
        return [*models, ModelCopies("critic", outputs=1, trained=True, starts_from=start)]

    def usual_critic(self, config: Config) -> Literal["reward_model", "zero"]:
        """Return the default critic: the reward model if the reward uses one, else `zero`."""
        return "reward_model" if config.needs.get("reward") and "reward" in config.reward.roles else "zero"

    def one_vocabulary(self, config: Config) -> dict[str, tuple[str, str]]:
        vocabularies = super().one_vocabulary(config)
        if self.critic != "reward_model":
            return vocabularies
        return {
            **vocabularies,
            "reward": (
                "policy",
                "the critic starts from the reward model and reads the policy's tokens; use algorithm.critic=zero",
            ),
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
                "critic=shared has no separate critic to warm up; set critic_warmup=0",
            ),
            (
                self.critic_warmup < self.iterations,
                f"critic_warmup={self.critic_warmup} leaves no iteration to the policy: iterations={self.iterations}; "
                f"set algorithm.critic_warmup={max(0, self.iterations - 1)} or lower, or algorithm.iterations="
                f"{self.critic_warmup + 1} or higher",
            ),
        )


@register("algorithm", "grpo")
@dataclass(frozen=True)
class GRPO(OnPolicySettings):
    """Critic-free policy optimisation: compares a response with the others for the same prompt (arXiv:2402.03300).

    Args:
        advantage: `grpo` (z-score), `rloo` (arXiv:2402.14740), `remax` (arXiv:2310.10505), `dr_grpo`
            (arXiv:2503.20783) or `canon` (arXiv:2509.23962).
    """

    advantages: ClassVar[tuple[str, ...]] = ("grpo", "rloo", "remax", "dr_grpo", "canon")
    by_size = replace(
        OnPolicySettings.by_size, small_scale={**SMALL, "optimizer": "adamw", "lr": 3e-4, "batch_size": 64, "beta": 1.0}
    )
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
            f"algorithm.advantage={self.advantage}: TRL only supports grpo, dr_grpo and rloo; use one "
            "of them, or engine=native"
        )
