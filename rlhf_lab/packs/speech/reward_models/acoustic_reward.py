"""Acoustic reward model: a small network on the features of decoded clips, with an evaluation of each feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.packs.speech.reward_models.clip_pairs import (
    feature_spearman,
    leave_one_out,
    model_metrics,
    ranking,
    read_splits,
    validated,
)
from rlhf_lab.packs.speech.reward_models.pair_training import train_on_pairs
from rlhf_lab.packs.speech.reward_models.settings import AcousticReward
from rlhf_lab.packs.speech.rewards.acoustic_rm import FeatureModel, Standardiser, new_network, weighted_sum
from rlhf_lab.packs.speech.rewards.clips import renderer_of
from rlhf_lab.packs.speech.rewards.settings import FEATURES, HAND_WEIGHTS, SILENT
from rlhf_lab.training.run import Result, Run

PRIMARY = (
    "accuracy",
    "gold_agreement",
    "spearman",
    "accuracy/truth",
    "accuracy/hand",
    "spearman/hand",
    "features_kept",
)


class AcousticRewardModelling:
    """Stage that trains the requested model and the models it is compared with."""

    def __init__(self, settings: AcousticReward, run: Run):
        self.settings, self.run = settings, run
        self.train, self.heldout = read_splits(settings, run, renderer_of(run, "algorithm=acoustic_reward"))
        self.fit = cache(lambda names: self._train(names))  # the comparisons use some sets of features more than once

    def finish(self) -> Result:
        """Train the model, compare it on held-out clips, and write it."""
        known = self.train.truth_name
        # features are selected on training clips, so that held-out clips give an unbiased estimate of the selection
        chosen_by_truth = validated(feature_spearman(self.train), self.settings.min_spearman) if known else []
        # explicit names have priority over the selection by the truth
        names = list(self.settings.named_features or chosen_by_truth)
        if not names:
            # `contradictions` rejects this case earlier if the settings of the data reveal it
            self.run.note("no truth is known for the clips, so features=validated uses all features")
            names = list(FEATURES)
        model = self._hand_weighted_baseline() if self.settings.features == "hand" else self._train(names, self._log)
        metrics = model_metrics(model(self.heldout.features_N7, SILENT), self.train, self.heldout)
        metrics |= self._compare(chosen_by_truth)
        for name in FEATURES:
            metrics[f"kept/{name}"] = float(name in names)
        metrics["features_kept"] = len(names)
        metadata = {"validated_by": known, "trained_on_pairs": len(self.train.pairs)}
        model.save(self.run.directory, metadata)
        return Result(metrics=metrics, primary=[name for name in PRIMARY if name in metrics])

    def _compare(self, chosen_by_truth: Sequence[str]) -> dict[str, Any]:
        """Return metrics of models on other sets of features (see `ranking`), and the contribution of each feature."""
        heldout = self.heldout
        metrics: dict[str, Any] = ranking(self._hand_weighted_baseline()(heldout.features_N7, SILENT), heldout, "hand")
        # baselines that every run reports, whatever features its own model uses
        sets = {"all": FEATURES, "five": tuple(HAND_WEIGHTS), "validated": tuple(chosen_by_truth)}
        for name, features in sets.items():
            if features:
                metrics |= ranking(self.fit(features)(heldout.features_N7, SILENT), heldout, name)
        metrics |= leave_one_out(self.fit, heldout)
        if heldout.truth_name:
            correlations = feature_spearman(heldout)
            metrics |= {f"feature_spearman/{name}": rho for name, rho in correlations.items()}
        return metrics

    def _train(
        self, names: Sequence[str], log: Callable[[int, float, float], None] = lambda step, loss, accuracy: None
    ) -> FeatureModel:
        """Train a model on these features.

        All models use the same seed and the same order of pairs, so that they only differ in their features.
        """
        settings = self.settings
        standardiser = Standardiser.fit(self.train.features_N7, names)
        inputs_N = standardiser(self.train.features_N7)
        # chosen and rejected clips alternate: (2P, F) → (P, 2, F)
        inputs_P2F = torch.from_numpy(inputs_N.reshape(-1, 2, len(names)))
        network = new_network(len(names), settings.hidden, self.run.seed("acoustic_reward/init"))

        def scores(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
            chosen_B, rejected_B = network(inputs_P2F[list(indices)]).squeeze(-1).unbind(1)
            return chosen_B, rejected_B

        groups = [{"params": list(network.parameters()), "lr": settings.lr}]
        seed = self.run.seed("acoustic_reward/order")
        train_on_pairs(scores, groups, settings, len(inputs_P2F), seed=seed, log=log, title="acoustic_reward")
        return FeatureModel(standardiser, network).with_scale(self.train.features_N7)

    def _hand_weighted_baseline(self) -> FeatureModel:
        """Return the baseline that is not trained on pairs: the hand-weighted sum of standardised features."""
        standardiser = Standardiser.fit(self.train.features_N7, list(HAND_WEIGHTS))
        return weighted_sum(standardiser, HAND_WEIGHTS).with_scale(self.train.features_N7)

    def _log(self, step: int, loss: float, accuracy: float) -> None:
        self.run.log(step, loss=loss, accuracy=accuracy)


def build(settings: AcousticReward, run: Run) -> AcousticRewardModelling:
    return AcousticRewardModelling(settings, run)
