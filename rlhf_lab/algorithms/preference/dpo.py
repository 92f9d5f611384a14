"""One pass of preference optimisation over the corpus. Policy and reference start as the same model.

`algorithm.loss` selects the objective (`losses/preference.py`), and only the inputs that it needs are computed. The
reference's log-probabilities are computed once, before the first step, and cached on disk for later runs.

The cache is `outputs/cache/reference_logps/<key>.safetensors`, shared by all runs with the same `outputs`. A resumed
run and all runs of a sweep over β or the loss read the values that the first run computed. The key hashes everything
that determines the values, so a file is never stale. Deleting the directory costs one forward pass.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rlhf_lab import __version__
from rlhf_lab.algorithms.pair_selection.selection import selection_metrics, training_pairs
from rlhf_lab.algorithms.preference.settings import DPO, PreferenceSettings
from rlhf_lab.core import ranks
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import replacing
from rlhf_lab.core.transfer import to_device
from rlhf_lab.core.types import Pair
from rlhf_lab.evaluations.evaluator import Evaluator
from rlhf_lab.losses.preference import PREFERENCE_LOSSES, Objective, PairInputs, PairLogps, PreferenceLoss, kto_unpaired
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.pair_rows import (
    PairRows,
    mismatched_kl,
    pair_batch,
    pair_length,
    pair_logps,
    pair_rows,
    pair_tokens,
    positive_kl,
    response_logps,
    sequence_logps,
    shifted_rows,
)
from rlhf_lab.models.sharded import blocks_dtype, full_tensors, undivided
from rlhf_lab.models.weights import stored_as
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.statistics.inference import clustered_rate
from rlhf_lab.training.batching import epoch_steps, micro_batches
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, load_policy_twice, model_size


def reference_logps(run: Run, reference: nn.Module, pairs: Sequence[PairRows], codebooks: int = 0) -> PairLogps:
    """Return the log-probabilities of both responses of each pair under the reference, from the cache if possible.

    They are computed in the precision of training (`runtime.dtype`), so that margins start at 0.

    Args:
        codebooks: number of codebooks with separate log-probabilities; see `models.pair_rows.response_logps`.
    """
    name = _cache_key(run, reference, pairs) + (f"-{codebooks}" if codebooks else "")
    path = Path(run.config.outputs) / "cache" / "reference_logps" / f"{name}.safetensors"
    shape = (len(pairs), codebooks) if codebooks else (len(pairs),)
    # Only the main process reads, so that all processes agree on whether to compute.
    stored, problem = ranks.on_main(lambda: _read_logps(path, shape))
    if stored is not None:
        run.note(f"reference log-probabilities of {len(pairs)} pairs reused from {path}")
        return stored
    with run.autocast():
        computed = pair_logps(reference, pairs, run.device, codebooks)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        # The two sides are interleaved views of one tensor, and safetensors refuses to store those.
        tensors = {"chosen": computed.chosen.contiguous(), "rejected": computed.rejected.contiguous()}
        save_file(tensors, temporary, metadata={"sha256": _logps_digest(computed)})
    run.note(f"reference log-probabilities of {len(pairs)} pairs computed{problem}; saved to {path}")
    return computed


def _read_logps(path: Path, shape: tuple[int, ...]) -> tuple[PairLogps | None, str]:
    """Return (stored values, ""), or (None, reason why an existing file is unusable)."""
    if not path.exists():
        return None, ""
    try:
        with safe_open(path, framework="pt") as file:
            stored = PairLogps(file.get_tensor("chosen"), file.get_tensor("rejected"))
            metadata = file.metadata() or {}
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        return None, f" again: the stored file is damaged ({str(error).splitlines()[0][:100]})"
    has_wrong_shape = any(logps_B.shape != shape for logps_B in stored)
    if has_wrong_shape or metadata.get("sha256") != _logps_digest(stored):
        return None, " again: the stored file is damaged (wrong shape or values)"
    return stored, ""


def _logps_digest(logps: PairLogps) -> str:
    """Return the SHA-256 of the numbers, because safetensors has no checksum."""
    content = b"".join(values.cpu().contiguous().numpy().tobytes() for values in logps)
    return sha256(content).hexdigest()


def _cache_key(run: Run, reference: nn.Module, pairs: Sequence[PairRows]) -> str:
    """Return a hash of the reference's weights and config, the token rows, the precision and the library versions."""
    digest = sha256()
    config = getattr(reference, "config", None)
    # Keys that start with an underscore describe where the model was loaded from. The weights are hashed instead: a
    # model that was moved keeps its key, and a hub model that was updated under the same name gets a new one.
    values = {} if config is None else config.to_dict()
    settings = {name: value for name, value in values.items() if not name.startswith("_")}
    device = torch.device(run.device).type
    arithmetic = [run.config.runtime.dtype, str(blocks_dtype(reference)), stored_as(reference)]
    header = [type(reference).__name__, settings, *arithmetic, device, __version__, torch.__version__]
    digest.update(json.dumps(header, sort_keys=True, default=str).encode())
    for name, tensor in full_tensors(reference):
        digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        # as bytes, because numpy has no bfloat16
        content = tensor.cpu().contiguous().view(-1).view(torch.uint8)
        digest.update(content.numpy().data)
    for pair in pairs:
        for prompt, response in pair:
            for ids in (prompt, response):
                # The length prefix distinguishes the same tokens split differently between prompt and response.
                digest.update(len(ids).to_bytes(4, "little"))
                digest.update(np.array(ids, dtype=np.int64).tobytes())
    return digest.hexdigest()[:24]


@dataclass(frozen=True)
class PairContext:
    """Inputs of the loss that are computed before the forward pass of a step, each (B,); None if the loss has no use.

    Attributes:
        ref: log-probabilities under the reference.
        previous: log-probabilities under the policy at the start of the round.
        z_ref: KL estimate over the full step, scalar.
        consistency_B: CREAM's C of each pair.
    """

    ref: PairLogps | None = None
    previous: PairLogps | None = None
    z_ref: Tensor | None = None
    consistency_B: Tensor | None = None


PairMicro = tuple[list[PairRows], PairContext]


def preference_step(
    model: nn.Module,
    pairs: list[PairRows],
    ref: PairLogps | None,
    settings: PreferenceSettings,
    device: str,
    context: PairContext | None = None,
) -> LossOutput:
    """Return the loss of each pair from one forward pass over chosen and rejected rows together.

    Args:
        ref: log-probabilities under the reference; None for a loss without a reference.
        context: other inputs of the loss (previous policy, KL estimate, consistency).
    """
    context = context or PairContext()
    codebooks = codebooks_separately(model, settings)
    logps_2B = response_logps(model, pair_batch(pairs, device), codebooks)
    # all chosen rows come first, then all rejected rows
    policy = PairLogps(*logps_2B.chunk(2))
    inputs = PairInputs(policy, pair_tokens(pairs, device), ref, context.previous, context.z_ref)
    consistency_B = context.consistency_B
    # With separate codebooks every codebook is a pair, (B·codebooks,). Afterwards, losses are averaged over codebooks
    # and log-probabilities summed, so that metrics refer to full responses again.
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
    if context.z_ref is not None:
        metrics["z_ref"] = context.z_ref.expand(len(pairs))
    return LossOutput(loss.per_pair_B, metrics)


def objective_of(settings: PreferenceSettings) -> Objective:
    """Return the loss that the settings name; `logps` decides whether it is applied per response or per token."""
    objective = PREFERENCE_LOSSES[settings.loss]
    if settings.logps == "sum":
        return objective
    # The optimum of DPO holds only for log-probabilities of full responses.
    return replace(objective, per_token=objective.per_token or settings.logps == "mean", dpo_optimum=False)


def codebooks_separately(model: nn.Module, settings: PreferenceSettings) -> int:
    """Return the number of codebooks with a separate loss; 0 for one loss. Raise ConfigError for a text model."""
    if settings.logps != "per_codebook":
        return 0
    sizes = getattr(undivided(model).config, "sizes", None)
    if not sizes:
        raise ConfigError("algorithm.logps=per_codebook: the model has no codebooks; set algorithm.logps=sum")
    return len(sizes)


class PairTable:
    """Tokenised pairs with their precomputed loss inputs, split into micro-batches on request."""

    def __init__(self, pairs: list[PairRows], context: PairContext, device: str):
        self.pairs = pairs
        self.context = context
        self.device = device
        self.lengths = [pair_length(pair) for pair in pairs]

    def batch(self, indices: list[int], micro_batch_tokens: int, z_ref: Tensor | None = None) -> StepBatch:
        splits = micro_batches(indices, self.lengths, micro_batch_tokens, rows=2)
        return StepBatch([self._make_micro_batch(split, z_ref) for split in splits], units=len(indices))

    def _make_micro_batch(self, indices: list[int], z_ref: Tensor | None) -> PairMicro:
        index = torch.tensor(indices)

        def select(values: Tensor) -> Tensor:
            return to_device(values[index], self.device)

        def select_both(logps: PairLogps | None) -> PairLogps | None:
            return logps and PairLogps(*map(select, logps))

        consistency_B = self.context.consistency_B
        context = PairContext(
            select_both(self.context.ref),
            select_both(self.context.previous),
            z_ref,
            None if consistency_B is None else select(consistency_B),
        )
        return [self.pairs[i] for i in indices], context


class PreferenceAlgorithm(Algorithm):
    """Policy, frozen reference, objective and evaluator. Base class of one-pass and iterative training on pairs."""

    settings: PreferenceSettings

    def __init__(self, settings: PreferenceSettings, run: Run):
        self.settings, self.run = settings, run
        self.objective = objective_of(settings)
        self.model, self.reference, self.encoder = load_policy_twice(run)
        self.codebooks = codebooks_separately(self.model, settings)
        self.max_length = settings.max_length
        # The evaluator compares with DPO's optimum at this beta; other losses have a different optimum.
        beta = settings.beta if self.objective.dpo_optimum else None
        # One-pass DPO may train while another process still builds its reward model, which is loaded when evaluating.
        reward = None if "reward" in settings.inputs.late else build_reward(run)
        self.evaluator = Evaluator(run, self.reference, self.encoder, reward, beta, self.max_length)

    def frozen_modules(self) -> list[nn.Module]:
        return [self.reference]

    def batch(self, table: PairTable, indices: list[int]) -> StepBatch:
        """Return the batch of one step: the pairs of the table at these positions, split into micro-batches."""
        z_ref = None
        if self.objective.needs("z_ref"):
            # Estimated once per step: an estimate per micro-batch would make the gradient depend on the split.
            pairs = [table.pairs[i] for i in indices]
            with self.run.autocast():
                z_ref = mismatched_kl(self.model, self.reference, pairs, self.max_length, self.run.device)
        return table.batch(indices, self.settings.micro_batch_tokens, z_ref)

    def loss(self, micro: PairMicro) -> LossOutput:
        pairs, context = micro
        return preference_step(self.model, pairs, context.ref, self.settings, self.run.device, context)


class OnePassDPO(PreferenceAlgorithm):
    """Preference optimisation on the corpus pairs, evaluated against its starting point."""

    settings: DPO

    def __init__(self, settings: DPO, run: Run):
        super().__init__(settings, run)
        self._prepare()

    def _prepare(self) -> None:
        """Tokenise the training pairs and plan the steps."""
        settings, run = self.settings, self.run
        pairs = [pair_rows(self.encoder, pair, self.max_length) for pair in training_pairs(settings, run)]
        self.table = PairTable(pairs, PairContext(), run.device)
        self.steps = epoch_steps(self.table.lengths, settings, run.seed("dpo/order"))
        self.total_steps = len(self.steps)

    def start(self) -> None:
        """Compute or load the reference's log-probabilities in the precision that the policy trains in."""
        if self.objective.needs("ref"):
            ref = reference_logps(self.run, self.reference, self.table.pairs, self.codebooks)
            self.table.context = PairContext(ref)

    def collect(self, step: int) -> StepBatch:
        return self.batch(self.table, self.steps[step])

    def evaluate(self, step: int) -> None:
        self._load_reward()
        self.evaluator.evaluate_reference()
        self.evaluator.evaluate(f"step {step + 1}", self.model)

    def _load_reward(self) -> None:
        """Wait for the reward model and load it. Only evaluation needs it, so training may start before it exists."""
        if self.evaluator.reward is None:
            self.run.await_need("reward")
            self.evaluator.reward = build_reward(self.run)

    def finish(self) -> Result:
        self._load_reward()
        self.evaluator.evaluate_reference()
        self.evaluator.evaluate(f"one-pass {self.objective.title}", self.model)
        metrics = {
            **self._data_metrics(),
            **self._heldout_metrics(),
            **model_size(self.model),
            **corpus_report(self.run.corpus, self.encoder),
        }
        return Result(self.evaluator.policies, metrics)

    def _data_metrics(self) -> dict[str, Any]:
        return selection_metrics(training_pairs(self.settings, self.run))

    def _heldout_metrics(self) -> dict[str, Any]:
        """Return further metrics of held-out data, which the evaluator does not measure; empty for pairs."""
        return {}


ExampleMicro = tuple[list[int], Tensor]
"""Positions of the examples of a micro-batch, and the KL estimate of the full step."""


class UnpairedKTO(OnePassDPO):
    """KTO on single responses that were liked or disliked (`data=unpaired`); a step has `batch_size` examples.

    In a mix with pairs, both responses of a pair are examples. The KL estimate of a step combines each of its prompts
    with the response of the previous example (arXiv:2402.01306, section 4.1), liked or not.
    """

    def _prepare(self) -> None:
        examples = labelled_responses(training_pairs(self.settings, self.run))
        self.rows = [self.encoder.row(prompt, response, self.max_length) for prompt, response, _ in examples]
        self.liked = [liked for _, _, liked in examples]
        self.lengths = [len(prompt) + len(response) for prompt, response in self.rows]
        # Rows are not sorted by length. If one label has longer responses, sorted steps would contain only that label,
        # and the policy would oscillate between making all responses likelier and less likely.
        settings = replace(self.settings, length_bucket_batches=1)
        self.steps = epoch_steps(self.lengths, settings, self.run.seed("dpo/order"))
        self.total_steps = len(self.steps)
        self.ref_N = torch.zeros(len(self.rows))

    def start(self) -> None:
        """Compute or load the reference's log-probabilities; the cache stores two examples as one pair."""
        # An odd number of examples is padded with a copy of the last, which is removed afterwards.
        rows = self.rows
        if len(rows) % 2:
            rows = [*rows, rows[-1]]
        pairs = list(zip(rows[0::2], rows[1::2], strict=True))
        ref = reference_logps(self.run, self.reference, pairs)
        interleaved_N = torch.stack([ref.chosen, ref.rejected], dim=1).flatten()
        self.ref_N = interleaved_N[: len(self.rows)]

    def collect(self, step: int) -> StepBatch:
        indices = self.steps[step]
        z_ref = torch.zeros((), device=self.run.device)
        # With a single example no other response exists, and the estimate stays 0.
        if len(indices) > 1:
            # Estimated once per step: an estimate per micro-batch would make the gradient depend on the split.
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

    def _heldout_metrics(self) -> dict[str, Any]:
        """Return how often the implicit reward β·(log π − log π_ref) of held-out responses has the sign of their label.

        The accuracies of liked and of disliked responses are separate, because a policy that makes every response
        likelier is right on all liked ones. A response with the same probability as before is wrong.
        """
        examples = labelled_responses(self.run.corpus.test[: self.run.config.evaluation.pairs])
        if not examples:
            return {}
        rows = [self.encoder.row(prompt, response, self.max_length) for prompt, response, _ in examples]
        device = self.run.device
        log_ratio_N = sequence_logps(self.model, rows, device) - sequence_logps(self.reference, rows, device)
        liked_N = np.array([liked for _, _, liked in examples])
        right_N = np.where(liked_N, log_ratio_N.numpy() > 0, log_ratio_N.numpy() < 0)
        prompt_N = np.array([prompt for prompt, _, _ in examples])
        metrics = {"heldout_accuracy": clustered_rate(right_N, prompt_N)}
        for name, mask_N in (("liked", liked_N), ("disliked", ~liked_N)):
            if mask_N.any():
                metrics[f"heldout_accuracy/{name}"] = clustered_rate(right_N[mask_N], prompt_N[mask_N])
        return metrics


def labelled_responses(pairs: Sequence[Pair]) -> list[tuple[str, str, bool]]:
    """Return (prompt, response, liked) of every response; unpaired data have one in each row, pairs have two."""
    return [
        (pair.prompt, response, liked)
        for pair in pairs
        for response, liked in ((pair.chosen, True), (pair.rejected, False))
        if response
    ]


def build(settings: DPO, run: Run) -> OnePassDPO:
    if Capability.UNPAIRED in run.config.data.capabilities:
        return UnpairedKTO(settings, run)
    return OnePassDPO(settings, run)
