"""One pass of DPO over the corpus: policy and reference start as the same model.

The reference's log-probabilities are computed once, before the first step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rlhf_lab import registry
from rlhf_lab.algorithms.common import PairRows, corpus_report, pair_batch, pair_length, pair_logps, pair_rows
from rlhf_lab.algorithms.evaluation import Evaluator
from rlhf_lab.algorithms.settings import DPO, PreferenceSettings
from rlhf_lab.losses.preference import PREFERENCE_LOSSES, PairLogps
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.rewards.checked import CheckedReward
from rlhf_lab.train.batching import epoch_steps, micro_batches
from rlhf_lab.train.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.train.run import Result, Run

METRICS = {
    "accuracy": "share of pairs whose implicit reward margin is positive",
    "margin": "mean β·(log-ratio of chosen − log-ratio of rejected)",
    "chosen_logp": "mean log π(chosen), nats per reply",
    "rejected_logp": "mean log π(rejected), nats per reply",
}
REFERENCE_NAME = "SFT"


def preference_step(
    model: nn.Module, pairs: list[PairRows], ref: PairLogps, settings: PreferenceSettings, device: str
) -> LossOutput:
    """Loss of each pair from one forward pass over chosen and rejected rows together."""
    both_2B = token_logps(model, pair_batch(pairs, device)).sum_B()
    policy = PairLogps(*both_2B.chunk(2))
    loss = PREFERENCE_LOSSES[settings.loss](policy, ref, beta=settings.beta, label_smoothing=settings.label_smoothing)
    metrics = {
        "accuracy": (loss.margin_B > 0).float(),
        "margin": loss.margin_B,
        "chosen_logp": policy.chosen,
        "rejected_logp": policy.rejected,
    }
    return LossOutput(loss.per_pair_B, metrics)


class PairTable:
    """Tokenised pairs with their reference log-probabilities, cut into micro-batches."""

    def __init__(self, pairs: list[PairRows], ref: PairLogps, device: str):
        self.pairs, self.ref, self.device = pairs, ref, device
        self.lengths = [pair_length(pair) for pair in pairs]

    def batch(self, indices: list[int], micro_batch_tokens: int) -> StepBatch:
        parts = micro_batches(indices, self.lengths, (micro_batch_tokens + 1) // 2)
        micro = [([self.pairs[i] for i in part], PairLogps(*(self._pick(x, part) for x in self.ref))) for part in parts]
        return StepBatch(micro, units=len(indices))

    def _pick(self, values: Tensor, part: list[int]) -> Tensor:
        return values[torch.tensor(part)].to(self.device)


class OnePassDPO(Algorithm):
    """DPO on the corpus pairs, evaluated next to its starting point."""

    def __init__(self, settings: DPO, run: Run):
        self.settings, self.run = settings, run
        self.model, self.reference, self.encoder = load_policy_twice(run)
        max_length = settings.max_length or 512
        pairs = [pair_rows(self.encoder, pair, max_length) for pair in run.corpus.train]
        self.table = PairTable(pairs, pair_logps(self.reference, pairs, run.device), run.device)
        self.steps = epoch_steps(self.table.lengths, settings, run.seed("dpo/order"))
        self.total_steps = len(self.steps)
        self.evaluator = build_evaluator(run, self.reference, self.encoder, settings)

    def collect(self, step: int) -> StepBatch:
        return self.table.batch(self.steps[step], self.settings.micro_batch_tokens)

    def loss(self, micro: tuple[list[PairRows], PairLogps]) -> LossOutput:
        return preference_step(self.model, *micro, self.settings, self.run.device)

    def evaluate(self, step: int) -> None:
        self.evaluator.evaluate(REFERENCE_NAME, self.reference)
        self.evaluator.evaluate(f"step {step + 1}", self.model)

    def finish(self) -> Result:
        self.evaluator.evaluate(REFERENCE_NAME, self.reference)
        self.evaluator.evaluate("one-pass DPO", self.model)
        return Result(self.evaluator.policies, corpus_report(self.run.corpus, self.encoder))


def load_policy_twice(run: Run) -> tuple[nn.Module, nn.Module, Encoder]:
    """(trainable policy, frozen reference, encoder), both from `needs.policy`."""
    source, settings = run.needs["policy"], run.config.model
    model = load_policy(source, settings, device=run.device)
    reference = load_policy(source, settings, device=run.device).requires_grad_(False)
    return model, reference, load_encoder(source, settings)


def build_reward(run: Run) -> CheckedReward | None:
    """The configured reward, or None when this run names no reward model."""
    kind = registry.kind_of("reward", run.config.reward)
    if kind == "bt" and not run.needs.get("reward"):
        return None
    return CheckedReward(kind, registry.build("reward", run.config.reward, run))


def build_evaluator(run: Run, reference: nn.Module, encoder: Encoder, settings: PreferenceSettings) -> Evaluator:
    return Evaluator(run, reference, encoder, build_reward(run), settings.beta, settings.max_length or 512)


def build(settings: DPO, run: Run) -> OnePassDPO:
    return OnePassDPO(settings, run)
