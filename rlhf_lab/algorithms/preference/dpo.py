"""One pass of preference optimisation over the corpus: policy and reference start as the same model.

`algorithm.loss` picks the objective (`losses/objective.py`); what it needs is computed and nothing else. The
reference's log-probabilities are computed once, before the first step, and kept on disk for the next run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_lab.algorithms.pair_selection.selection import selection_metrics, training_pairs
from rlhf_lab.algorithms.preference.reference_cache import reference_logps
from rlhf_lab.algorithms.preference.settings import DPO, PreferenceSettings
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.transfer import to_device
from rlhf_lab.evaluations.evaluator import REFERENCE_NAME, Evaluator
from rlhf_lab.losses.objective import PREFERENCE_LOSSES, Objective, PairInputs
from rlhf_lab.losses.preference import PairLogps, PreferenceLoss, kto_unpaired
from rlhf_lab.models.divided import undivided
from rlhf_lab.models.encoding import Row, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.pair_rows import (
    PairRows,
    mismatched_kl,
    pair_batch,
    pair_length,
    pair_rows,
    pair_tokens,
    positive_kl,
    reply_logps,
    shifted_rows,
)
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.training.batching import epoch_steps, micro_batches
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, load_policy_twice, model_size


@dataclass(frozen=True)
class Given:
    """Quantities of pairs that are computed before the step's forward pass, each (B,); None if the loss needs none.

    Attributes:
        ref, previous: log-probabilities under the reference, and under the policy as the round began.
        z_ref: KL estimate of the whole step, scalar.
        consistency_B: CREAM's C of each pair.
    """

    ref: PairLogps | None = None
    previous: PairLogps | None = None
    z_ref: Tensor | None = None
    consistency_B: Tensor | None = None


PairMicro = tuple[list[PairRows], Given]


def preference_step(
    model: nn.Module,
    pairs: list[PairRows],
    ref: PairLogps | None,
    settings: PreferenceSettings,
    device: str,
    given: Given | None = None,
) -> LossOutput:
    """Loss of each pair from one forward pass over chosen and rejected rows together.

    Args:
        ref: log-probabilities under the reference; None for a loss without one.
        given: the further inputs of the loss (previous policy, KL estimate, consistency).
    """
    given = given or Given()
    codebooks = codebooks_apart(model, settings)
    logps_2B = reply_logps(model, pair_batch(pairs, device), codebooks)
    policy = PairLogps(*logps_2B.chunk(2))
    inputs = PairInputs(policy, pair_tokens(pairs, device), ref, given.previous, given.z_ref)
    consistency_B = given.consistency_B
    if codebooks:
        inputs = inputs.of_codebooks(codebooks)
        consistency_B = None if consistency_B is None else consistency_B.repeat_interleave(codebooks)
    loss = objective_of(settings)(inputs, settings.coefficients(), consistency_B)
    if codebooks:
        loss = PreferenceLoss(*(values.view(-1, codebooks).mean(1) for values in loss))
        policy = PairLogps(*(values.sum(1) for values in policy))
        ref = None if ref is None else PairLogps(*(values.sum(1) for values in ref))
    metrics = {
        "accuracy": (loss.margin_B > 0).float(),
        "margin": loss.margin_B,
        "chosen_logp": policy.chosen,
        "rejected_logp": policy.rejected,
    }
    if ref is not None:
        metrics["chosen_drift"] = policy.chosen - ref.chosen
    if given.z_ref is not None:
        metrics["z_ref"] = given.z_ref.expand(len(pairs))
    return LossOutput(loss.per_pair_B, metrics)


def objective_of(settings: PreferenceSettings) -> Objective:
    """The loss that the settings name, on log-probabilities as they want them."""
    objective = PREFERENCE_LOSSES[settings.loss]
    if settings.logps == "sum":
        return objective
    # the optimum of DPO is that of whole replies
    return replace(objective, per_token=objective.per_token or settings.logps == "mean", dpo_optimum=False)


def codebooks_apart(model: nn.Module, settings: PreferenceSettings) -> int:
    """Number of codebooks that the loss takes apart; 0 takes replies whole. Raises ConfigError for a model of text."""
    if settings.logps != "per_codebook":
        return 0
    sizes = getattr(undivided(model).config, "sizes", None)
    if not sizes:
        raise ConfigError("algorithm.logps=per_codebook: the model has no codebooks; use algorithm.logps=sum")
    return len(sizes)


class PairTable:
    """Tokenised pairs with their precomputed quantities, cut into micro-batches."""

    def __init__(self, pairs: list[PairRows], given: Given, device: str):
        self.pairs = pairs
        self.given = given
        self.device = device
        self.lengths = [pair_length(pair) for pair in pairs]

    def batch(self, indices: list[int], micro_batch_tokens: int, z_ref: Tensor | None = None) -> StepBatch:
        # A pair is two rows, so half the budget; rounded up, because 0 means "undivided" and 1 must not become 0.
        max_pair_tokens = (micro_batch_tokens + 1) // 2
        splits = micro_batches(indices, self.lengths, max_pair_tokens)
        return StepBatch([self._make_micro_batch(split, z_ref) for split in splits], units=len(indices))

    def _make_micro_batch(self, indices: list[int], z_ref: Tensor | None) -> PairMicro:
        index = torch.tensor(indices)

        def select(logps: PairLogps | None) -> PairLogps | None:
            if logps is None:
                return None
            return PairLogps(*(to_device(values[index], self.device) for values in logps))

        consistency_B = self.given.consistency_B
        if consistency_B is not None:
            consistency_B = to_device(consistency_B[index], self.device)
        given = Given(select(self.given.ref), select(self.given.previous), z_ref, consistency_B)
        return [self.pairs[i] for i in indices], given


class PreferenceAlgorithm(Algorithm):
    """Policy, frozen reference, objective and evaluator, shared by one-pass and iterative training on pairs."""

    settings: PreferenceSettings

    def __init__(self, settings: PreferenceSettings, run: Run):
        self.settings, self.run = settings, run
        self.objective = objective_of(settings)
        self.model, self.reference, self.encoder = load_policy_twice(run)
        self.codebooks = codebooks_apart(self.model, settings)
        self.max_length = settings.max_length
        # The evaluator compares with DPO's optimum at this beta; other losses have another optimum.
        beta = settings.beta if self.objective.dpo_optimum else None
        # One-pass DPO trains while its reward model is still being built, and loads it at the first evaluation.
        reward = None if "reward" in settings.late_needs else build_reward(run)
        self.evaluator = Evaluator(run, self.reference, self.encoder, reward, beta, self.max_length)

    def frozen(self) -> list[nn.Module]:
        return [self.reference]

    def batch(self, table: PairTable, indices: list[int]) -> StepBatch:
        """One step on pairs of the table."""
        z_ref = None
        if self.objective.needs("z_ref"):
            # Estimated once per step: an estimate per micro-batch would make the gradient depend on how it is cut.
            pairs = [table.pairs[i] for i in indices]
            with self.run.autocast():
                z_ref = mismatched_kl(self.model, self.reference, pairs, self.max_length, self.run.device)
        return table.batch(indices, self.settings.micro_batch_tokens, z_ref)

    def loss(self, micro: PairMicro) -> LossOutput:
        pairs, given = micro
        return preference_step(self.model, pairs, given.ref, self.settings, self.run.device, given)


class OnePassDPO(PreferenceAlgorithm):
    """Preference optimisation on the corpus pairs, evaluated next to its starting point."""

    settings: DPO

    def __init__(self, settings: DPO, run: Run):
        super().__init__(settings, run)
        self._prepare()

    def _prepare(self) -> None:
        """Tokenise what is trained on and plan the steps."""
        settings, run = self.settings, self.run
        pairs = [pair_rows(self.encoder, pair, self.max_length) for pair in training_pairs(settings, run)]
        self.table = PairTable(pairs, Given(), run.device)
        self.steps = epoch_steps(self.table.lengths, settings, run.seed("dpo/order"))
        self.total_steps = len(self.steps)

    def begin(self) -> None:
        """Compute or load the reference's log-probabilities, in the arithmetic that the policy trains in."""
        if self.objective.needs("ref"):
            self.table.given = Given(reference_logps(self.run, self.reference, self.table.pairs, self.codebooks))

    def collect(self, step: int) -> StepBatch:
        return self.batch(self.table, self.steps[step])

    def evaluate(self, step: int) -> None:
        self._load_reward()
        self.evaluator.evaluate(REFERENCE_NAME, self.reference)
        self.evaluator.evaluate(f"step {step + 1}", self.model)

    def _load_reward(self) -> None:
        """Wait for the reward model and load it: training reads no reward, so it may begin before that is trained."""
        if self.evaluator.reward is None:
            self.run.await_need("reward")
            self.evaluator.reward = build_reward(self.run)

    def finish(self) -> Result:
        self._load_reward()
        self.evaluator.evaluate(REFERENCE_NAME, self.reference)
        self.evaluator.evaluate(f"one-pass {self.objective.title}", self.model)
        metrics = {
            **self._data_metrics(),
            **model_size(self.model),
            **corpus_report(self.run.corpus, self.encoder),
        }
        return Result(self.evaluator.policies, metrics)

    def _data_metrics(self) -> dict[str, Any]:
        return selection_metrics(self.settings, self.run)


ExampleMicro = tuple[list[int], Tensor]
"""Positions of examples, and the KL estimate of their step."""


class UnpairedKTO(OnePassDPO):
    """KTO on single replies that were liked or disliked (`data=unpaired`); a step has `batch_size` of them.

    Of a pair in a mix both replies are examples. The KL estimate of a step is over its own prompts, each with the reply
    of the example before it (arXiv:2402.01306, section 4.1), whether that one was liked or not.
    """

    def _prepare(self) -> None:
        self.rows: list[Row] = []
        self.liked: list[bool] = []
        for pair in training_pairs(self.settings, self.run):
            for reply, liked in ((pair.chosen, True), (pair.rejected, False)):
                if reply:
                    self.rows.append(self.encoder.row(pair.prompt, reply, self.max_length))
                    self.liked.append(liked)
        self.lengths = [len(prompt) + len(reply) for prompt, reply in self.rows]
        # Rows are not sorted by length: where one label's replies are longer, a step would have that label alone, and
        # the policy would swing between making all replies likelier and less likely.
        settings = replace(self.settings, length_bucket_batches=1)
        self.steps = epoch_steps(self.lengths, settings, self.run.seed("dpo/order"))
        self.total_steps = len(self.steps)
        self.ref_N = torch.zeros(len(self.rows))

    def begin(self) -> None:
        """Compute or load the reference's log-probabilities, two examples to a pair of the cache."""
        rows = self.rows if len(self.rows) % 2 == 0 else [*self.rows, self.rows[-1]]
        ref = reference_logps(self.run, self.reference, list(zip(rows[0::2], rows[1::2], strict=True)))
        self.ref_N = torch.stack([ref.chosen, ref.rejected], dim=1).flatten()[: len(self.rows)]

    def collect(self, step: int) -> StepBatch:
        indices = self.steps[step]
        z_ref = torch.zeros((), device=self.run.device)
        if len(indices) > 1:
            # Once per step: an estimate per micro-batch would make the gradient depend on how it is cut.
            shifted = shifted_rows([self.rows[i] for i in indices], self.max_length)
            with self.run.autocast():
                z_ref = positive_kl(self.model, self.reference, shifted, self.run.device)
        splits = micro_batches(indices, self.lengths, self.settings.micro_batch_tokens)
        return StepBatch([(split, z_ref) for split in splits], units=len(indices))

    def loss(self, micro: ExampleMicro) -> LossOutput:  # type: ignore[override]
        indices, z_ref = micro
        device = self.run.device
        batch = TokenBatch.from_rows([self.rows[i] for i in indices], device)
        liked_B = to_device([self.liked[i] for i in indices], device)
        loss = kto_unpaired(
            token_logps(self.model, batch).sum_B(),
            to_device(self.ref_N[torch.tensor(indices)], device),
            liked_B,
            z_ref,
            **self.settings.coefficients(),
        )
        metrics = {
            "accuracy": (loss.margin_B > 0).float(),
            "margin": loss.margin_B,
            "z_ref": z_ref.expand(len(indices)),
        }
        return LossOutput(loss.per_pair_B, metrics)

    def _data_metrics(self) -> dict[str, Any]:
        return {"examples/liked": sum(self.liked), "examples/disliked": len(self.liked) - sum(self.liked)}


def build(settings: DPO, run: Run) -> OnePassDPO:
    if Capability.UNPAIRED in run.config.data.capabilities:
        return UnpairedKTO(settings, run)
    return OnePassDPO(settings, run)
