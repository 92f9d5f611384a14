"""Settings of preference optimisation: one pass over a corpus, or rounds on the policy's own replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rlhf_lab.registry import register
from rlhf_lab.train.settings import Rule, TrainingSettings


@dataclass(frozen=True)
class PreferenceSettings(TrainingSettings):
    """Direct preference optimisation (arXiv:2305.18290).

    Args:
        beta: strength of the pull towards the reference, in 1/nats; None takes the model's tuned value.
        loss: which loss on the pair's log-ratio margin. `sigmoid` is DPO.
        label_smoothing: probability that a label is flipped (conservative DPO); only with `loss=sigmoid`.
    """

    needs_preferences: ClassVar[bool] = True
    beta: float | None = None
    loss: Literal["sigmoid"] = "sigmoid"
    label_smoothing: float = 0.0

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.beta is None or self.beta > 0, f"beta={self.beta} must be above 0; try 0.1"),
            (0 <= self.label_smoothing < 0.5, f"label_smoothing={self.label_smoothing} is outside [0, 0.5)"),
        )


@register("algorithm", "dpo")
@dataclass(frozen=True)
class DPO(PreferenceSettings):
    """One pass of DPO over the corpus pairs. The policy starts from `needs.policy`, which is also the reference."""

    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "evaluation", "reward")
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward",)


@register("algorithm", "dpo_iterative")
@dataclass(frozen=True)
class IterativeDPO(PreferenceSettings):
    """Iterative (online) DPO: each round samples from the current policy, ranks by reward, pairs, trains, evaluates.

    Every round takes the same number of optimiser steps whatever the buffer holds, so that buffers differ in which
    pairs are trained on and not in compute.

    The learning rate stays at its peak after warm-up, so that late rounds can still learn.

    Args:
        rounds: rounds of roll out → rank → pair → train → evaluate.
        prompts_per_round: training prompts rolled out each round.
        samples_per_prompt: replies sampled per prompt (G); the best and the worst by reward become the pair.
        buffer: pairs a round trains on: `current` (this round's), `rolling` (the last `window` rounds') or `full`.
        window: rounds kept by `buffer=rolling`.
        corpus_fraction: share of a round's pairs that come from the corpus: the hybrid setting of arXiv:2312.11456,
            where labelled pairs hold the learned reward's mistakes in check. 0 trains on own replies alone.
        updates_per_pair: optimiser steps per round = updates_per_pair × (prompts_per_round + corpus pairs) /
            batch_size.
    """

    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "evaluation", "reward")
    required_needs: ClassVar[tuple[str, ...]] = ("policy", "reward")
    optional_needs: ClassVar[tuple[str, ...]] = ("baseline",)
    final_lr_fraction: float = 1.0
    rounds: int = 3
    prompts_per_round: int = 700
    samples_per_prompt: int = 4
    buffer: Literal["current", "rolling", "full"] = "current"
    window: int = 2
    corpus_fraction: float = 0.75
    updates_per_pair: float = 1.0

    def rules(self) -> tuple[Rule, ...]:
        group = self.samples_per_prompt
        return (
            *super().rules(),
            (self.rounds >= 1, f"rounds={self.rounds} must be at least 1"),
            (self.prompts_per_round >= 1, f"prompts_per_round={self.prompts_per_round} must be at least 1"),
            (group >= 2, f"samples_per_prompt={group} leaves nothing to compare; use 2 or more"),
            (self.window >= 1, f"window={self.window} must be at least 1 round"),
            (0 <= self.corpus_fraction < 1, f"corpus_fraction={self.corpus_fraction} is outside [0, 1)"),
            (self.updates_per_pair > 0, f"updates_per_pair={self.updates_per_pair} must be above 0"),
        )
