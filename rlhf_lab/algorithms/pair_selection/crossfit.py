"""Cross-fitting: a margin for every training pair from a reward model trained on neither the pair nor its prompt.

A model is more confident in the label of a pair that it was trained on than the text justifies. Filtering by its
margins therefore selects on the label, noise included. Cross-fitting splits the prompts into K folds; the model that
scores a fold was trained on the others. As a control, the result also has the in-sample margin of each pair, under a
model of the same size, trained on as many pairs including this one.

The policy is not cross-fitted. Every fold's model starts from `needs.policy`. A policy fine-tuned on the chosen
responses of the same corpus remembers some of them, so `ref_gap` = log π(chosen) − log π(rejected) is biased upwards:
on 320 pairs with random labels it is above 0 for 55 % after 2 epochs of SFT and for 66 % after 6. A policy trained on
other data avoids this.

A further cycle trains the models again, on pairs that the margins m of the cycle before selected. This selection is not
cross-fitted: models that saw a fold selected the pairs from which the fold's next model learns. Pairs are selected by
|m|, which does not depend on the label of the selected pair. On labels of pure noise, margins of the second cycle then
agree with labels slightly less often than chance. Selection by m would bring them far above chance
(`tests/numeric/test_pair_selection.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_lab.algorithms.pair_selection.selection import (
    Margins,
    label_right,
    prompt_folds,
    read_margins,
    select,
    top_fraction,
    write_margins,
)
from rlhf_lab.algorithms.pair_selection.settings import CrossFit
from rlhf_lab.core.errors import ArtifactError, DataError
from rlhf_lab.core.types import FloatArray
from rlhf_lab.evaluations.reward_audit import prompt_ids
from rlhf_lab.losses.reward_model import bradley_terry
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model, reward_scores
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.pair_rows import PairRows, pair_batch, pair_length, pair_logps, pair_rows
from rlhf_lab.models.passes import over_rows
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.training.batching import epoch_steps, micro_batches
from rlhf_lab.training.loop import Algorithm, LossOutput, StepBatch
from rlhf_lab.training.optim import TrainedPart
from rlhf_lab.training.run import Result, Run
from rlhf_lab.training.start import corpus_report, model_size

SCORING_TOKENS = 16384
"""Padded tokens per forward pass when pairs are scored."""


class CrossFitting(Algorithm):
    """K reward models trained in parallel, each without one fold."""

    settings: CrossFit

    def __init__(self, settings: CrossFit, run: Run):
        self.settings, self.run = settings, run
        self.encoder = load_encoder(run.needs["policy"], run.config.model)
        self.max_length = settings.max_length
        self.pairs = run.corpus.train
        self.rows = [pair_rows(self.encoder, pair, self.max_length) for pair in self.pairs]
        self.lengths = [pair_length(pair) for pair in self.rows]
        self.fold_N = prompt_folds([p.prompt for p in self.pairs], settings.folds, run.seed("crossfit/folds"))
        self.earlier = self._read_earlier_margins()
        self.pool = select(settings.selection, run, np.arange(len(self.pairs)))
        self.models = [self._load_model(fold) for fold in range(settings.folds)]
        self.model = self.models[0]
        self.plans = [self._plan_steps(fold) for fold in range(settings.folds)]
        self.total_steps = max(len(plan) for plan in self.plans)

    def _read_earlier_margins(self) -> Margins | None:
        if "margins" not in self.run.needs:
            return None
        earlier = read_margins(self.run)
        if not np.array_equal(earlier.fold_N, self.fold_N):
            raise ArtifactError(
                "needs.margins was cross-fitted with other folds, so pairs selected by it depend on the fold to be "
                "scored; use the same algorithm.folds and seed"
            )
        return earlier

    def _load_model(self, fold: int) -> nn.Module:
        settings, run = self.run.config.model, self.run
        model = load_reward_model(run.needs["policy"], settings, device=run.load_device, trained=True)
        return trainable(model, settings.lora, run.seed("lora", fold))

    def _plan_steps(self, fold: int) -> list[list[int]]:
        """Return the pair indices of every step of a fold's model: selected pairs outside the fold, shuffled."""
        # A fold without pairs has nothing to score; a model without pairs has nothing to learn.
        outside = self.pool[self.fold_N[self.pool] != fold].tolist()
        if not outside or not (self.fold_N == fold).any():
            raise DataError(
                f"{len(self.pairs)} pairs of few prompts leave fold {fold} without pairs; lower algorithm.folds"
            )
        seed = self.run.seed("crossfit/order", fold)
        steps = epoch_steps([self.lengths[i] for i in outside], self.settings, seed)
        return [[outside[i] for i in step] for step in steps]

    def parts(self) -> dict[str, TrainedPart]:
        muon = self.settings.muon_lr if self.settings.optimizer == "muon" else None
        names = ["model", *(f"fold_{fold}" for fold in range(1, self.settings.folds))]
        named_models = zip(names, self.models, strict=True)
        return {name: TrainedPart(model, self.settings.lr, muon) for name, model in named_models}

    def collect(self, step: int) -> StepBatch:
        """Return one batch per fold. Each model's gradient is averaged over its own batch."""
        # folds differ in size, so some plans are shorter
        batches = [(fold, plan[step]) for fold, plan in enumerate(self.plans) if step < len(plan)]
        units = max(len(indices) for _, indices in batches)
        micro = []
        for fold, indices in batches:
            # The loop divides by `units`, the size of the largest batch. The weight corrects this to the own batch.
            weight = units / len(indices)
            for split in micro_batches(indices, self.lengths, self.settings.micro_batch_tokens, rows=2):
                batch = pair_batch([self.rows[i] for i in split], self.run.device)
                micro.append((fold, batch, weight))
        return StepBatch(micro, units)

    def loss(self, micro: tuple[int, TokenBatch, float]) -> LossOutput:
        fold, batch, weight = micro
        chosen_B, rejected_B = reward_scores(self.models[fold], batch).chunk(2)
        loss_B = bradley_terry(chosen_B, rejected_B, centering=self.settings.centering)
        margin_B = (chosen_B - rejected_B).detach()
        return LossOutput(loss_B * weight, {"accuracy": (margin_B > 0).float(), "margin": margin_B})

    def program(self, micro: tuple[int, TokenBatch, float]) -> Hashable:
        return micro[0]  # each fold has its own model

    def finish(self) -> Result:
        """Score every pair with its fold's model and with the next fold's model, and write the margins."""
        folds = self.settings.folds
        crossfit_N = np.zeros(len(self.pairs))
        in_sample_N = np.zeros(len(self.pairs))
        for fold, model in enumerate(self.models):
            # This model has not seen its own fold, but was trained on the previous fold: cross-fit and in-sample.
            for values_N, scored_fold in ((crossfit_N, fold), (in_sample_N, (fold - 1) % folds)):
                index = np.flatnonzero(self.fold_N == scored_fold)
                values_N[index] = self._score_margins(model, [self.rows[i] for i in index])
        # The log-ratios of the policy, for `selection.by=difficulty`.
        policy = load_policy(self.run.needs["policy"], self.run.config.model, device=self.run.device)
        with self.run.autocast():
            ref = pair_logps(policy, self.rows, self.run.device)
        gap_N = (ref.chosen - ref.rejected).double().numpy()
        # Margins of this cycle are appended to those of earlier cycles.
        earlier = [self.earlier] if self.earlier else []
        crossfit_CN = np.vstack([*(margins.crossfit_CN for margins in earlier), crossfit_N])
        in_sample_CN = np.vstack([*(margins.in_sample_CN for margins in earlier), in_sample_N])
        margins = Margins(self.fold_N, crossfit_CN, in_sample_CN, gap_N, self.run.needs["policy"])
        write_margins(self.run.directory, self.pairs, margins)
        metrics = {
            **self._audit_margins(crossfit_N, in_sample_N),
            "cycle": len(crossfit_CN),
            "trained_pairs": len(self.pool),
            **model_size(self.model),
            **corpus_report(self.run.corpus, self.encoder),
        }
        primary = ["accuracy", "accuracy/in_sample", "label_accuracy", "label_accuracy/top_half"]
        return Result(metrics=metrics, primary=[name for name in primary if name in metrics])

    @torch.no_grad()
    def _score_margins(self, model: nn.Module, pairs: Sequence[PairRows]) -> FloatArray:
        """r(chosen) − r(rejected) of each pair, (N,)."""
        rows = [row for pair in pairs for row in pair]  # chosen, rejected, chosen, rejected, …
        scores = torch.zeros(len(rows))

        def compute(batch: TokenBatch) -> Tensor:
            with self.run.autocast():
                return reward_scores(model, batch).float().cpu()

        for index, score_B in over_rows(rows, compute, SCORING_TOKENS, self.run.device):
            scores[index] = score_B
        return (scores[0::2] - scores[1::2]).double().numpy()

    def _audit_margins(self, crossfit_N: FloatArray, in_sample_N: FloatArray) -> dict[str, object]:
        """Return the rates at which margins agree with labels, and labels with gold (definitions: metrics.py)."""
        prompts = prompt_ids(self.pairs)
        right_N = label_right(self.pairs)
        audit: dict[str, object] = {}
        if right_N is not None:
            audit["label_accuracy"] = clustered_mean(right_N, prompts)
        for suffix, margin_N in (("", crossfit_N), ("/in_sample", in_sample_N)):
            top = top_fraction(np.abs(margin_N), 0.5, self.fold_N)  # whatever the sign of the margin
            wins_N = (margin_N > 0).astype(float)
            audit[f"accuracy{suffix}"] = clustered_rate(wins_N, prompts)
            audit[f"accuracy{suffix}/top_half"] = clustered_rate(wins_N[top], prompts[top])
            if right_N is not None:
                audit[f"label_accuracy{suffix}/top_half"] = clustered_mean(right_N[top], prompts[top])
        return audit


def build(settings: CrossFit, run: Run) -> CrossFitting:
    return CrossFitting(settings, run)
