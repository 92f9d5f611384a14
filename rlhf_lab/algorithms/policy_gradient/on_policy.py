"""Shared implementation of PPO and the GRPO family: rollout, scoring, credit assignment, `epochs` passes of updates.

Path of a batch: `collect` → `_start_iteration` → `Rollouts.draw` → `_experience` → `credit` (in the subclass) →
micro-batches → `loss`. All random numbers derive from (seed, iteration), so no random state is saved. The checkpoint
contains the samples of the current iteration, because the policy that sampled them changes with the first update.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_lab.algorithms.policy_gradient.rollouts import Rollouts
from rlhf_lab.algorithms.policy_gradient.settings import OnPolicySettings
from rlhf_lab.algorithms.policy_gradient.shaping import RewardShaper
from rlhf_lab.core import ranks
from rlhf_lab.core.errors import NumericError
from rlhf_lab.evaluations.evaluator import Evaluator
from rlhf_lab.losses.advantage import whiten
from rlhf_lab.losses.policy import (
    KL_ESTIMATORS,
    POLICY_LOSSES,
    ClipRange,
    PolicyTokens,
    adaptive_beta,
    effective_fraction,
    importance_weights,
    k1,
    k3,
    loss_units,
    token_weights,
)
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import ResponseStates, response_states, token_logps
from rlhf_lab.models.passes import over_rows
from rlhf_lab.models.sharded import blocks_dtype
from rlhf_lab.models.weights import stored_as
from rlhf_lab.monitoring.audit import Auditor
from rlhf_lab.monitoring.monitor import Watch
from rlhf_lab.rewards.graph import build_graph
from rlhf_lab.sampling.experience import EpisodeGroup, Experience, Imitation, Micro, early_scores, episodes_of
from rlhf_lab.training.batching import micro_batches, plan_steps
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.settings import SOUP
from rlhf_lab.training.start import corpus_report, load_policy_twice

SCORING_TOKENS = 16384
"""Maximum number of padded tokens in a pass without gradient."""
SAVED_VALUES = ("iteration", "sampled_iterations", "generated", "stopped", "checked", "beta")
SAVED_PARTS = ("shaper", "rollouts", "monitor", "audit")
"""Attributes of `OnPolicy` in its state: values, and objects with a state of their own."""


class OnPolicy(Algorithm):
    """Iterations of rollout, scoring, credit assignment and updates. Subclasses implement `credit`."""

    settings: OnPolicySettings
    title: str

    def __init__(self, settings: OnPolicySettings, run: Run):
        self.settings, self.run = settings, run
        self.model, self.reference, self.encoder = load_policy_twice(run)
        reward = build_graph(run.config.reward, run)
        self.evaluator = Evaluator(run, self.reference, self.encoder, reward, None, settings.max_length)
        self.max_new_tokens = run.config.rollout.max_new_tokens
        self.temperature = run.config.rollout.temperature
        self.shaper = RewardShaper(settings, self.max_new_tokens)
        self.monitor = Watch(run, settings.iterations)
        self.rollouts = Rollouts(settings, run, self.encoder, self.monitor.listen(reward), self.shaper)
        self.audit = Auditor(run, self.model, self.reference, self.rollouts.collector, settings.iterations)
        self.sampler = self.rollouts.collector.sampler
        self.truncation = self.sampler.truncation
        turns = run.config.data.max_turns
        self.longest_episode = min(turns * self.max_new_tokens, run.config.rollout.max_tokens_left(turns))
        self.beta = 0.0 if settings.kl_controller == "none" else settings.beta
        low, high = settings.clip_low or 0.0, settings.clip_high or 0.0
        self.clip = ClipRange(low, high, settings.dual_clip, settings.log_ratio_clamp)
        self.total_steps = settings.iterations * settings.steps_per_iteration
        self.iteration = -1
        self.sampled_iterations = 0  # without those that `token_budget` left out
        self.generated = 0  # response tokens of the entire run
        self.stopped = False  # True once the iteration has reached `target_kl`
        self.checked = False  # True after the comparison before the first update
        self.plan: list[list[int]] = []
        self.experience: Experience | None = None

    def frozen_modules(self) -> list[nn.Module]:
        return [self.reference]

    @abstractmethod
    def credit(self, groups: list[EpisodeGroup], experience: Experience, scores_R: Tensor, penalty_N: Tensor) -> None:
        """Write `advantage` (N,) into the experience's tokens.

        Args:
            scores_R: score of each response.
            penalty_N: β·k1 of each token if the penalty is part of the reward, else 0.
        """

    def collect(self, step: int) -> StepBatch:
        settings = self.settings
        iteration, update = divmod(step, settings.steps_per_iteration)
        if iteration != self.iteration:
            self._start_iteration(iteration)
        if self.stopped or self.experience is None or update >= len(self.plan):
            return StepBatch([], units=1)  # the loop makes no update if there is no micro-batch
        experience = self.experience
        rows = self.plan[update]
        splits = micro_batches(rows, experience.lengths, settings.micro_batch_tokens)
        micro: list[Any] = [experience.micro(sorted(split), self.weight_N, self.run.device) for split in splits]
        sampled_tokens = sum(experience.sampled_lengths[i] for i in rows)
        units = loss_units(settings.aggregation or "", len(rows), sampled_tokens)
        # While only the critic learns, an SFT loss would change the policy.
        if settings.ptx_weight and not self.warming:
            micro += self.rollouts.imitation(step, len(rows), units, settings.micro_batch_tokens)
        return StepBatch(micro, units)

    def loss(self, micro: Micro | Imitation) -> LossOutput:
        states = response_states(self.model, micro.batch)
        if isinstance(micro, Imitation):
            nll_N = -states.logps().logps_N
            return LossOutput(micro.weight * nll_N, {"ptx_nll": nll_N})
        return self.policy_loss(micro, states)

    def policy_loss(self, micro: Micro, states: ResponseStates) -> LossOutput:
        """Return the clipped policy loss of each token, plus the KL penalty if it belongs to the loss."""
        settings = self.settings
        logp_N = states.logps(self.temperature, self.truncation).logps_N
        # In the only update of an iteration the policy equals π_old, so its own log-probabilities are exact.
        old_N = logp_N.detach() if self._ratio_is_one else micro.tokens["old"]
        tokens = PolicyTokens(logp_N, old_N, micro.tokens["advantage"], states.row_N, states.rows)
        clipped_loss = POLICY_LOSSES[settings.policy_loss](tokens, self.clip)
        loss_N = clipped_loss.per_token
        if "correction" in micro.tokens:
            loss_N = loss_N * micro.tokens["correction"]
        metrics = {"clip_fraction": clipped_loss.clipped.float(), "approx_kl": k3(old_N, logp_N.detach())}
        if settings.kl_in == "loss" and self.beta:
            penalty_N = KL_ESTIMATORS[settings.kl_estimator](logp_N, micro.tokens["ref"])
            loss_N = loss_N + self.beta * penalty_N
            metrics["kl_penalty"] = penalty_N
        return LossOutput(loss_N * micro.weight_N, metrics)

    def evaluate(self, step: int) -> None:
        self.evaluator.evaluate_reference()
        self.evaluator.evaluate(f"step {step + 1}", self.model)

    def evaluation_due(self, step: int) -> bool:
        # Without experience the iteration made no update, e.g. after `token_budget`: nothing new to evaluate.
        return super().evaluation_due(step) and self.experience is not None

    def close(self) -> None:
        self.rollouts.close()

    def finish(self) -> Result:
        if self.audit.on and not self.finished:  # the last update is only audited here
            self.run.log(self.total_steps, **self.audit.check(self.sampled_iterations, final=True))
        if self.audit.stopped is not None:
            if self.monitor.on:  # its alarms are judged by the policy that it watched, not by the certified one
                self.evaluate(self.audit.stopped * self.settings.steps_per_iteration - 1)
            self.audit.restore_certified()
        self.evaluator.evaluate_reference()
        self.evaluator.evaluate(self.title, self.model)
        metrics: dict[str, Any] = {
            "generated_tokens": self.generated,
            "beta": self.beta,
            **self.rollouts.totals(),
            **self.monitor.totals(self.evaluator.gold_truth(self._evaluated_iterations())),
            **self.audit.totals(),
            **corpus_report(self.run.corpus, self.encoder),
        }
        return Result(self.evaluator.policies, metrics)

    def _evaluated_iterations(self) -> dict[str, int]:
        """Return name of each evaluated policy → number of iterations that it was trained on, in ascending order.

        If the audit has stopped the run and restored an earlier policy, the final policy is left out.
        """
        per_iteration = self.settings.steps_per_iteration
        names = [policy["name"] for policy in self.evaluator.policies if policy["name"].startswith("step ")]
        iterations = {name: math.ceil(int(name.removeprefix("step ")) / per_iteration) for name in names}
        if self.audit.stopped is None:
            # the responses that ended training were not trained on
            iterations[self.title] = self.monitor.detector.iteration - int(self.finished)
        return iterations

    def _start_iteration(self, iteration: int) -> None:
        """Sample the iteration's responses, compute their advantages and plan the updates."""
        settings = self.settings
        self.iteration = iteration
        self.stopped = False
        self.experience = None
        self.plan = []
        if self.finished or (settings.token_budget and self.generated >= settings.token_budget):
            return
        self.sampled_iterations = iteration + 1
        # 1. Sample and score.
        groups, metrics = self.rollouts.draw(self.model, iteration)
        metrics |= self.monitor.see_groups(groups)
        if iteration > self.warmup_iterations and not self.finished:  # before, the policy is the start policy
            metrics |= self.audit.check(iteration)
        self.generated += int(metrics["generated_tokens"])
        if settings.token_budget:
            metrics["token_budget_left"] = max(0, settings.token_budget - self.generated)
        # 2. Compute log-probabilities, advantages and the plan of updates.
        experience, scores_R = self._experience(groups, metrics)
        if experience.rows and not self.finished:
            metrics |= self._penalise_and_credit(groups, experience, scores_R)
            self.experience = experience
            self._plan_updates()
        elif not self.finished:
            self.run.note("an iteration had no scored response and made no update")
        self.run.log(iteration * settings.steps_per_iteration, **metrics)

    @property
    def finished(self) -> bool:
        return self.monitor.stopped is not None or self.audit.stopped is not None

    @property
    def pause(self) -> str:
        return self.monitor.pause or self.audit.pause

    def _plan_updates(self) -> None:
        """Plan the responses of each update and the weight of each token.

        Both depend only on experience, seed and settings, so a resumed iteration computes the same plan.
        """
        assert self.experience is not None
        settings = self.settings
        self.weight_N = token_weights(settings.aggregation or "", self.experience.lengths_N(), self.longest_episode)
        # Unscored responses reduce the batch size, not the number of batches, because the learning rate schedule
        # assumes `steps_per_iteration` updates. The division rounds up.
        batches = settings.responses // settings.batch_size
        batch_size = -(-len(self.experience.rows) // batches)
        self.plan = plan_steps(
            self.experience.lengths,
            batch_size=batch_size,
            epochs=settings.epochs,
            bucket_batches=settings.length_bucket_batches,
            seed=self.run.seed("on_policy/order", self.iteration),
        )

    def _experience(self, groups: list[EpisodeGroup], metrics: dict[str, float]) -> tuple[Experience, Tensor]:
        """Return scored responses with old and reference log-probabilities, and their scores (R,)."""
        scored = [(group, i) for group in groups for i, score in enumerate(group.scores) if np.isfinite(score)]
        episodes = [group.episodes[i] for group, i in scored]
        experience = Experience.of(episodes)
        if not scored:
            return experience, torch.zeros(0)
        sampler_N = torch.tensor([logp for episode in episodes for logp in episode.logps])
        if any(group.early for group in groups):
            early = [group.early[i] if group.early else [] for group, i in scored]
            experience.tokens["early"] = early_scores(episodes, early)
        # The first rollout computes sampler, trainer and reference log-probabilities in any case, to compare them once.
        first = not self.checked
        recompute = first or self._recomputes_old_logps()
        experience.tokens["old"] = self._logps(self.model, experience) if recompute else sampler_N
        if self.settings.staleness:
            experience.tokens["drawn"] = sampler_N
        # Without recomputed values there is nothing to compare the sampler with.
        if recompute and not self._sampler_agrees:
            metrics |= self._correct(experience, sampler_N)
        if self.beta or self.settings.log_kl or first:
            experience.tokens["ref"] = self._logps(self.reference, experience)
        if first:  # its responses come from the current weights, even with `staleness`
            metrics["step0_sampler_gap"] = self._check_start(experience, sampler_N)
            self.checked = True
        metrics["entropy"] = float(-_sampled_logps(experience).mean())
        return experience, torch.tensor([group.scores[i] for group, i in scored])

    def _correct(self, experience: Experience, sampler_N: Tensor) -> dict[str, float]:
        """Write `correction`, the importance weight of each token, if correction is on.

        Returns:
            Metrics of the difference between the log-probabilities of the sampler (N,) and of training. They are
            computed even if nothing is corrected.
        """
        settings, old_N = self.settings, experience.tokens["old"]
        log_ratio_N = old_N - sampler_N
        by_row = settings.correction_used == "sequence"
        log_ratios = experience.row_sums(log_ratio_N) if by_row else log_ratio_N
        metrics = {
            "sampler_log_ratio": float(log_ratio_N.mean()),
            "sampler_log_ratio_max": float(log_ratio_N.abs().max()),
            "sampler_ess": float(effective_fraction(log_ratios)),
        }
        if settings.correction_used != "none":
            cap = settings.correction_cap
            weights = importance_weights(log_ratios, cap=cap)
            metrics["correction_capped"] = float((log_ratios.exp() > cap).float().mean())
            length_R = torch.tensor(experience.sampled_lengths)
            experience.tokens["correction"] = weights.repeat_interleave(length_R) if by_row else weights
        return metrics

    def _penalise_and_credit(
        self, groups: list[EpisodeGroup], experience: Experience, scores_R: Tensor
    ) -> dict[str, float]:
        """Compute the KL of the samples and its penalty, update the KL controller, and compute the advantages."""
        settings, tokens = self.settings, experience.tokens
        metrics = {"beta": self.beta}
        penalty_N = torch.zeros_like(tokens["old"])
        if "ref" in tokens:
            # The samples estimate the KL only of the policy that sampled them.
            sampled_N = _sampled_logps(experience)
            metrics["kl"] = float(experience.row_sums(k1(sampled_N, tokens["ref"])).mean())
            metrics["kl_k3"] = float(experience.row_sums(k3(sampled_N, tokens["ref"])).mean())
            if settings.rollout_filter != "none":
                metrics["kl_sampled"] = self._sampled_kl([group.sampled for group in groups])
            if settings.kl_in == "reward":
                penalty_N = self.beta * k1(tokens["old"], tokens["ref"])
        self.credit(groups, experience, scores_R, penalty_N)
        if settings.kl_controller == "adaptive" and not self.warming:
            kl = metrics.get("kl_sampled", metrics["kl"])
            self.beta = adaptive_beta(
                self.beta, kl, target=settings.kl_target, horizon=settings.kl_horizon, samples=len(scores_R)
            )
        metrics["advantage_sd"] = float(tokens["advantage"].std(unbiased=False))
        if settings.whiten_advantages:
            tokens["advantage"] = whiten(tokens["advantage"])
        return metrics

    def _sampled_kl(self, groups: list[EpisodeGroup]) -> float:
        """Return KL(π ‖ reference) over groups before filtering, from the log π of the policy ratio, nats per response.

        Responses that a rollout filter selects are not a sample of the policy, so their mean does not estimate its KL.
        """
        episodes = episodes_of(groups)
        experience = Experience.of(episodes)
        if self._recomputes_old_logps() and not self.settings.staleness:
            old_N = self._logps(self.model, experience)
        else:
            old_N = torch.tensor([logp for episode in episodes for logp in episode.logps])
        ref_N = self._logps(self.reference, experience)
        return float(experience.row_sums(k1(old_N, ref_N)).mean())

    @torch.no_grad()
    def _logps(self, model: nn.Module, experience: Experience) -> Tensor:
        """Return log π of all response tokens in the precision of training, (N,) on the CPU."""
        options: dict[str, Any] = {"temperature": self.temperature, "truncation": self.truncation}
        return self.per_token(experience, lambda batch: token_logps(model, batch, **options).logps_N)

    def per_token(self, experience: Experience, values: Callable[[TokenBatch], Tensor]) -> Tensor:
        """Apply `values` to all rows, in batches of similar length, and return its value for each token, (N,)."""
        all_values_N = torch.zeros(experience.start[-1])
        max_tokens = min(self.settings.micro_batch_tokens or SCORING_TOKENS, SCORING_TOKENS)

        def compute(batch: TokenBatch) -> Tensor:
            with self.run.autocast():
                return values(batch).float().cpu()

        for rows, values_N in over_rows(
            experience.rows, compute, max_tokens, self.run.device, [self.reference], experience.masks
        ):
            all_values_N[experience.index(rows)] = values_N
        return all_values_N

    def _recomputes_old_logps(self) -> bool:
        return {"recompute": True, "sampler": False, "auto": not self._sampler_agrees}[self.settings.old_logps]

    @property
    def _ratio_is_one(self) -> bool:
        """True if the iteration has one update and π_old is the current policy."""
        settings = self.settings
        is_of_older_weights = settings.staleness and settings.old_logps == "sampler"
        return settings.steps_per_iteration == 1 and not is_of_older_weights

    @property
    def _sampler_agrees(self) -> bool:
        """True if, at the start of an iteration, sampler and training have equal log-probabilities up to rounding."""
        return self._both_float32 and not self.settings.staleness

    @property
    def _both_float32(self) -> bool:
        """True if sampler and trainer both compute in float32, so that log-probabilities differ only by rounding."""
        trained_in = "bfloat16" if blocks_dtype(self.model) else self.run.config.runtime.dtype
        return self.sampler.exact and trained_in == "float32"

    @property
    def warmup_iterations(self) -> int:
        """Number of iterations at the start that leave the policy unchanged because only a critic learns."""
        return 0

    @property
    def warming(self) -> bool:
        """True if this iteration leaves the policy unchanged because only a critic learns."""
        return self.iteration < self.warmup_iterations

    def _check_start(self, experience: Experience, sampler_N: Tensor) -> float:
        """Raise NumericError if policy, reference and sampler disagree before the first update.

        All three are then the same model, unless the reference is an average of two policies (`needs.soup`).

        Returns:
            Maximum |log π(sampler) − log π(trainer)| over tokens, nats.
        """
        old_N = experience.tokens["old"]
        drift = float((old_N - experience.tokens["ref"]).abs().max())
        gap_N = (old_N - sampler_N).abs()
        tolerance = 1e-3 if self._both_float32 else 0.1  # bfloat16 on either side rounds more
        # A fully trained policy has float32 embeddings; the reference may store them with fewer bits.
        equal = stored_as(self.reference) == stored_as(self.model)
        if SOUP in self.run.needs:
            drift = 0.0  # a soup is another model than the policy
        if drift > (1e-3 if equal else 0.1) or float(gap_N.mean()) > tolerance:
            raise NumericError(
                f"before the first update, log π and log π_ref differ by up to {drift:.2g} nats per token, and sampler "
                f"and trainer by {float(gap_N.mean()):.2g} on average; ratios would not start at 1 nor KL at 0. "
                "Check that policy and reference are the same model, and check rollout.dtype and model.weights"
            )
        return float(gap_N.max())

    def accept_step(self, outputs: list[LossOutput]) -> bool:
        """Return False once KL(old ‖ new) exceeds `target_kl`; no further update of the iteration is then made."""
        if self.settings.target_kl:
            # Passes over corpus responses (`ptx_weight`) and of critic warm-up have no `approx_kl`.
            kl_per_pass = [out.metrics["approx_kl"] for out in outputs if "approx_kl" in out.metrics]
            local_sums = [(float(kl_N.sum()), len(kl_N)) for kl_N in kl_per_pass]
            # Each process has only some passes of the step, and all processes have to take the same decision.
            sums = [kl_and_tokens for process_sums in ranks.exchange(local_sums) for kl_and_tokens in process_sums]
            total_kl = sum(kl for kl, _ in sums)
            tokens = sum(count for _, count in sums)
            self.stopped = tokens > 0 and total_kl / tokens > self.settings.target_kl
        return not self.stopped

    def state_dict(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in SAVED_VALUES},
            **{name: getattr(self, name).state_dict() for name in SAVED_PARTS},
            "experience": self.experience.state_dict() if self.experience else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in SAVED_VALUES:
            setattr(self, name, state[name])
        for name in SAVED_PARTS:
            getattr(self, name).load_state_dict(state[name])
        self.experience = Experience.from_state(state["experience"]) if state["experience"] else None
        if self.experience:
            self._plan_updates()


def _sampled_logps(experience: Experience) -> Tensor:
    """Return log π under the policy that sampled the responses, (N,), nats."""
    return experience.tokens.get("drawn", experience.tokens["old"])
