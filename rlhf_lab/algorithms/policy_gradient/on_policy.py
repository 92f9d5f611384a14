"""The core of PPO and the GRPO family: roll out, score, credit, and `epochs` passes of updates over the samples.

One batch's way: `collect` → `_start_iteration` → `Rollouts.draw` → `_experience` → `credit` (the subclass's part) →
micro-batches → `loss`. Everything drawn follows from (seed, iteration), so an iteration needs no random state; what it
trains on is in the checkpoint, because the policy that sampled it is gone after the first update.
"""

from __future__ import annotations

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
from rlhf_lab.core.errors import ConfigError, NumericError
from rlhf_lab.evaluations.evaluator import REFERENCE_NAME, Evaluator
from rlhf_lab.losses.advantage import whiten
from rlhf_lab.losses.correction import effective_share, importance_weights
from rlhf_lab.losses.kl import KL_ESTIMATORS, adaptive_beta, k1, k3
from rlhf_lab.losses.policy import POLICY_LOSSES, Clip, PolicyTokens, loss_units, token_weights
from rlhf_lab.models.divided import blocks_dtype
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import ReplyStates, reply_states, token_logps
from rlhf_lab.models.passes import over_rows
from rlhf_lab.models.weights import stored_as
from rlhf_lab.monitoring.monitor import Watch
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.sampling.experience import Experience, Group, Imitation, Micro, early_scores, episodes_of
from rlhf_lab.training.batching import micro_batches, plan_steps
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, load_policy_twice

SCORING_TOKENS = 16384
"""Most padded tokens of a pass without gradient."""


class OnPolicy(Algorithm):
    """Iterations of roll out, score, credit and update. A subclass says how scores are credited to tokens."""

    settings: OnPolicySettings
    title: str

    def __init__(self, settings: OnPolicySettings, run: Run):
        self.settings, self.run = settings, run
        self.model, self.reference, self.encoder = load_policy_twice(run)
        reward = build_reward(run)
        if reward is None:
            raise ConfigError("needs.reward is not set; the policy is trained on it (or use reward=gold)")
        self.evaluator = Evaluator(run, self.reference, self.encoder, reward, None, settings.max_length)
        self.max_new_tokens = run.config.rollout.max_new_tokens
        self.temperature = run.config.rollout.temperature
        if not self.temperature:
            raise ConfigError("rollout.temperature=0 samples one reply over and over; use 1 to learn from samples")
        self.shaper = RewardShaper(settings, self.max_new_tokens)
        self.monitor = Watch(run, settings.iterations)
        self.rollouts = Rollouts(settings, run, self.encoder, self.monitor.listen(reward), self.shaper)
        self.sampler = self.rollouts.collector.sampler
        self.truncation = self.sampler.truncation
        turns = run.config.data.max_turns
        self.longest_episode = min(turns * self.max_new_tokens, run.config.rollout.most_tokens(turns))
        self.beta = 0.0 if settings.kl_controller == "none" else settings.beta
        low, high = settings.clip_low or 0.0, settings.clip_high or 0.0
        self.clip = Clip(low, high, settings.dual_clip, settings.log_ratio_clamp)
        self.total_steps = settings.iterations * settings.steps_per_iteration
        self.iteration = -1
        self.generated = 0  # reply tokens in the whole run
        self.stopped = False  # the iteration has reached `target_kl`
        self.checked = False  # policy, reference and sampler were compared before the first update
        self.plan: list[list[int]] = []
        self.experience: Experience | None = None

    def frozen(self) -> list[nn.Module]:
        return [self.reference]

    @abstractmethod
    def credit(self, groups: list[Group], experience: Experience, scores_R: Tensor, penalty_N: Tensor) -> None:
        """Write `advantage` (N,) into the experience's tokens.

        Args:
            scores_R: score of each reply.
            penalty_N: β·k1 of each token when the penalty is part of the reward, else 0.
        """

    def collect(self, step: int) -> StepBatch:
        settings = self.settings
        iteration, update = divmod(step, settings.steps_per_iteration)
        if iteration != self.iteration:
            self._start_iteration(iteration)
        if self.stopped or self.experience is None or update >= len(self.plan):
            return StepBatch([], units=1)  # without a forward pass the loop makes no update
        experience = self.experience
        rows = self.plan[update]
        splits = micro_batches(rows, experience.lengths, settings.micro_batch_tokens)
        micro: list[Any] = [experience.micro(sorted(split), self.weight_N, self.run.device) for split in splits]
        sampled_tokens = sum(experience.sampled_lengths[i] for i in rows)
        units = loss_units(settings.aggregation or "", len(rows), sampled_tokens)
        if settings.ptx_weight and not self.warming:
            micro += self.rollouts.imitation(step, len(rows), units, settings.micro_batch_tokens)
        return StepBatch(micro, units)

    def loss(self, micro: Micro | Imitation) -> LossOutput:
        states = reply_states(self.model, micro.batch)
        if isinstance(micro, Imitation):
            nll_N = -states.logps().logps_N
            return LossOutput(micro.weight * nll_N, {"ptx_nll": nll_N})
        return self.policy_loss(micro, states)

    def policy_loss(self, micro: Micro, states: ReplyStates) -> LossOutput:
        """Clipped policy loss, and the KL penalty when it belongs to the loss, of each token."""
        settings = self.settings
        logp_N = states.logps(self.temperature, self.truncation).logps_N
        old_N = logp_N.detach() if self._ratio_is_one else micro.tokens["old"]
        tokens = PolicyTokens(logp_N, old_N, micro.tokens["advantage"], states.row_N, states.rows)
        clipped_loss = POLICY_LOSSES[settings.policy_loss](tokens, self.clip)
        loss_N = clipped_loss.per_token
        if "correction" in micro.tokens:
            loss_N = loss_N * micro.tokens["correction"]
        metrics = {
            "clip_fraction": clipped_loss.clipped.float(),
            "approx_kl": k3(old_N, logp_N.detach()),
        }
        if settings.kl_in == "loss" and self.beta:
            penalty_N = KL_ESTIMATORS[settings.kl_estimator](logp_N, micro.tokens["ref"])
            loss_N = loss_N + self.beta * penalty_N
            metrics["kl_penalty"] = penalty_N
        return LossOutput(loss_N * micro.weight_N, metrics)

    def evaluate(self, step: int) -> None:
        self.evaluator.evaluate(REFERENCE_NAME, self.reference)
        self.evaluator.evaluate(f"step {step + 1}", self.model)

    def due(self, step: int) -> bool:
        # Without experience the iteration made no update, e.g. after `token_budget`: nothing new to evaluate.
        return super().due(step) and self.experience is not None

    def close(self) -> None:
        self.rollouts.close()

    def finish(self) -> Result:
        self.evaluator.evaluate(REFERENCE_NAME, self.reference)
        self.evaluator.evaluate(self.title, self.model)
        metrics: dict[str, Any] = {
            "generated_tokens": self.generated,
            "beta": self.beta,
            **self.rollouts.totals(),
            **self.monitor.totals(),
            **corpus_report(self.run.corpus, self.encoder),
        }
        return Result(self.evaluator.policies, metrics)

    def _start_iteration(self, iteration: int) -> None:
        """Sample the iteration's replies, credit them and plan its updates."""
        settings = self.settings
        self.iteration = iteration
        self.stopped = False
        self.experience = None
        self.plan = []
        if self.ended or (settings.token_budget and self.generated >= settings.token_budget):
            return
        groups, metrics = self.rollouts.draw(self.model, iteration)
        metrics |= self.monitor.see_groups(groups)
        self.beta *= self.monitor.raised_by  # 1 unless reward.monitor.action=raise_kl has just raised it
        self.generated += int(metrics["generated_tokens"])
        if settings.token_budget:
            metrics["token_budget_left"] = max(0, settings.token_budget - self.generated)
        experience, scores_R = self._experience(groups, metrics)
        if experience.rows and not self.ended:
            metrics |= self._penalise_and_credit(groups, experience, scores_R)
            self.experience = experience
            self._plan_updates()
        elif not self.ended:
            self.run.note("an iteration had no scored reply and made no update")
        self.run.log(iteration * settings.steps_per_iteration, **metrics)

    @property
    def ended(self) -> bool:
        return self.monitor.stopped is not None

    @property
    def pause(self) -> str:
        return self.monitor.pause

    def _plan_updates(self) -> None:
        """Which replies each update trains on, and the weight of each token.

        Both follow from the experience, seed and settings, so a resumed iteration makes them again.
        """
        assert self.experience is not None
        settings = self.settings
        self.weight_N = token_weights(settings.aggregation or "", self.experience.lengths_N(), self.longest_episode)
        # Unscored replies make batches smaller, not fewer: the schedule counts on `steps_per_iteration` updates.
        batches = settings.replies // settings.batch_size
        batch_size = -(-len(self.experience.rows) // batches)
        self.plan = plan_steps(
            self.experience.lengths,
            batch_size=batch_size,
            epochs=round(settings.epochs),
            bucket_batches=settings.length_bucket_batches,
            seed=self.run.seed("on_policy/order", self.iteration),
        )

    def _experience(self, groups: list[Group], metrics: dict[str, float]) -> tuple[Experience, Tensor]:
        """Scored replies with old and reference log-probabilities, and their scores (R,)."""
        scored = [(group, i) for group in groups for i, score in enumerate(group.scores) if np.isfinite(score)]
        episodes = [group.episodes[i] for group, i in scored]
        experience = Experience.of(episodes)
        if not scored:
            return experience, torch.zeros(0)
        sampler_N = torch.tensor([logp for episode in episodes for logp in episode.logps])
        if any(group.early for group in groups):
            experience.tokens["early"] = early_scores(
                episodes, [group.early[i] if group.early else [] for group, i in scored]
            )
        # The first rollout needs all three log-probabilities, whatever the settings say, to compare them once.
        first = not self.checked
        recompute = first or self._recomputes_old_logps()
        experience.tokens["old"] = self._logps(self.model, experience) if recompute else sampler_N
        if self.settings.staleness:
            experience.tokens["drawn"] = sampler_N
        if recompute and not self._sampler_agrees:
            metrics |= self._correct(experience, sampler_N)
        if self.beta or self.settings.log_kl or first:
            experience.tokens["ref"] = self._logps(self.reference, experience)
        if first:  # its replies are of these weights, whatever `staleness` is
            metrics["step0_sampler_gap"] = self._check_start(experience, sampler_N)
            self.checked = True
        metrics["entropy"] = float(-_drawn(experience).mean())
        return experience, torch.tensor([group.scores[i] for group, i in scored])

    def _correct(self, experience: Experience, sampler_N: Tensor) -> dict[str, float]:
        """Write `correction`, the weight of each token for the sampler's distribution, where there is one.

        Returns how far the sampler's log-probabilities (N,) are from training's, whether or not it is corrected for.
        """
        settings, old_N = self.settings, experience.tokens["old"]
        log_ratio_N = old_N - sampler_N
        by_row = settings.correction_used == "sequence"
        log_ratios = experience.row_sums(log_ratio_N) if by_row else log_ratio_N
        metrics = {
            "sampler_log_ratio": float(log_ratio_N.mean()),
            "sampler_log_ratio_max": float(log_ratio_N.abs().max()),
            "sampler_ess": float(effective_share(log_ratios)),
        }
        if settings.correction_used != "none":
            cap = settings.correction_cap
            weights = importance_weights(log_ratios, cap=cap)
            metrics["correction_capped"] = float((log_ratios.exp() > cap).float().mean())
            length_R = torch.tensor(experience.sampled_lengths)
            experience.tokens["correction"] = weights.repeat_interleave(length_R) if by_row else weights
        return metrics

    def _penalise_and_credit(self, groups: list[Group], experience: Experience, scores_R: Tensor) -> dict[str, float]:
        """KL of the samples, its penalty, the controller's step, and the advantages."""
        settings, tokens = self.settings, experience.tokens
        metrics = {"beta": self.beta}
        penalty_N = torch.zeros_like(tokens["old"])
        if "ref" in tokens:
            drawn_N = _drawn(experience)  # the samples are an estimate for no other policy than that which drew them
            metrics["kl"] = float(experience.row_sums(k1(drawn_N, tokens["ref"])).mean())
            metrics["kl_k3"] = float(experience.row_sums(k3(drawn_N, tokens["ref"])).mean())
            if settings.rollout_filter != "none":
                metrics["kl_sampled"] = self._sampled_kl([group.sampled for group in groups])
            if settings.kl_in == "reward":
                penalty_N = self.beta * k1(tokens["old"], tokens["ref"])
        self.credit(groups, experience, scores_R, penalty_N)
        if settings.kl_controller == "adaptive" and not self.warming:
            kl = metrics.get("kl_sampled", metrics["kl"])
            # A monitor that raises β lowers the target as well, or the controller would bring β back down.
            target = settings.kl_target / self.monitor.factor
            self.beta = adaptive_beta(self.beta, kl, target=target, horizon=settings.kl_horizon, samples=len(scores_R))
        metrics["advantage_sd"] = float(tokens["advantage"].std(unbiased=False))
        if settings.whiten_advantages:
            tokens["advantage"] = whiten(tokens["advantage"])
        return metrics

    def _sampled_kl(self, groups: list[Group]) -> float:
        """KL(π ‖ reference) of whole groups, with log π as its ratios take it, nats per reply.

        The replies that a rollout filter keeps are no sample of the policy, so their mean is no estimate of its KL.
        """
        episodes = episodes_of(groups)
        experience = Experience.of(episodes)
        if self._recomputes_old_logps() and not self.settings.staleness:
            old_N = self._logps(self.model, experience)
        else:
            old_N = torch.tensor([logp for episode in episodes for logp in episode.logps])
        return float(experience.row_sums(k1(old_N, self._logps(self.reference, experience))).mean())

    @torch.no_grad()
    def _logps(self, model: nn.Module, experience: Experience) -> Tensor:
        """log π of all reply tokens in the arithmetic of training, (N,) on the CPU."""
        return self.per_token(
            experience,
            lambda batch: token_logps(model, batch, temperature=self.temperature, truncation=self.truncation).logps_N,
        )

    def per_token(self, experience: Experience, values: Callable[[TokenBatch], Tensor]) -> Tensor:
        """`values(TokenBatch)` → (N,) of all rows, computed in batches of similar length."""
        all_values_N = torch.zeros(experience.begin[-1])
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
        """Whether the only update of an iteration is of the policy that π_old is."""
        settings = self.settings
        is_of_older_weights = settings.staleness and settings.old_logps == "sampler"
        return settings.steps_per_iteration == 1 and not is_of_older_weights

    @property
    def _sampler_agrees(self) -> bool:
        """Whether the sampler's log-probabilities are training's at the start of an iteration, but for rounding."""
        return self._both_float32 and not self.settings.staleness

    @property
    def _both_float32(self) -> bool:
        """Whether sampler and trainer compute alike, in float32: their log-probabilities then differ by rounding."""
        trained_in = "bfloat16" if blocks_dtype(self.model) else self.run.config.runtime.dtype
        return self.sampler.exact and trained_in == "float32"

    @property
    def warming(self) -> bool:
        """Whether this iteration leaves the policy unchanged, because only a critic learns."""
        return False

    def _check_start(self, experience: Experience, sampler_N: Tensor) -> float:
        """Raise NumericError unless policy, reference and sampler agree before the first update.

        All three are then the same model. Returns the largest |log π(sampler) − log π(trainer)| of a token, nats.
        """
        old_N = experience.tokens["old"]
        drift = float((old_N - experience.tokens["ref"]).abs().max())
        gap_N = (old_N - sampler_N).abs()
        tolerance = 1e-3 if self._both_float32 else 0.1  # bfloat16 on either side rounds more
        # of a policy that is trained as a whole the embeddings are float32, and the reference's may be stored in less
        alike = stored_as(self.reference) == stored_as(self.model)
        if drift > (1e-3 if alike else 0.1) or float(gap_N.mean()) > tolerance:
            raise NumericError(
                f"before the first update log π and log π_ref differ by up to {drift:.2g} and sampler and trainer by "
                f"{float(gap_N.mean()):.2g} nats per token on average; ratios would not start at 1 nor KL at 0. "
                "Check that model and reference are the same, rollout.dtype and model.weights"
            )
        return float(gap_N.max())

    def accept_step(self, outputs: list[LossOutput]) -> bool:
        """False once the policy has moved `target_kl` from that of the iteration's start; the iteration then ends."""
        if self.settings.target_kl:
            # Passes over corpus replies and of critic warm-up have no `approx_kl`.
            kl_per_pass = [out.metrics["approx_kl"] for out in outputs if "approx_kl" in out.metrics]
            local_sums = [(float(kl_N.sum()), len(kl_N)) for kl_N in kl_per_pass]
            # Every process has some passes of the step, and all of them must decide alike.
            sums = [kl_and_tokens for process_sums in ranks.exchange(local_sums) for kl_and_tokens in process_sums]
            total_kl = sum(kl for kl, _ in sums)
            tokens = sum(count for _, count in sums)
            self.stopped = tokens > 0 and total_kl / tokens > self.settings.target_kl
        return not self.stopped

    def state_dict(self) -> dict[str, Any]:
        return {
            "iteration": self.iteration,
            "generated": self.generated,
            "stopped": self.stopped,
            "checked": self.checked,
            "beta": self.beta,
            "shaper": self.shaper.state_dict(),
            "rollouts": self.rollouts.state_dict(),
            "monitor": self.monitor.state_dict(),
            "experience": self.experience.state_dict() if self.experience else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.iteration = int(state["iteration"])
        self.generated = int(state["generated"])
        self.stopped = bool(state["stopped"])
        self.checked = bool(state["checked"])
        self.beta = float(state["beta"])
        self.shaper.load_state_dict(state["shaper"])
        self.rollouts.load_state_dict(state["rollouts"])
        self.monitor.load_state_dict(state["monitor"])
        self.experience = Experience.from_state(state["experience"]) if state["experience"] else None
        if self.experience:
            self._plan_updates()


def _drawn(experience: Experience) -> Tensor:
    """log π of the policy that drew the replies, (N,), nats."""
    return experience.tokens.get("drawn", experience.tokens["old"])
