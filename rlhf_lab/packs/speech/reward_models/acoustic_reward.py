"""Acoustic reward model: a small network on the features of decoded clips, and what each feature is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rlhf_lab.evaluations.reward_audit import audit_margins
from rlhf_lab.packs.speech.reward_models.clip_pairs import clip_pairs
from rlhf_lab.packs.speech.reward_models.pair_training import train_on_pairs
from rlhf_lab.packs.speech.reward_models.settings import AcousticReward
from rlhf_lab.packs.speech.reward_models.validation import (
    feature_spearman,
    leave_one_out,
    ranking,
    truth_accuracy,
    validated,
)
from rlhf_lab.packs.speech.rewards.clips import is_silent, renderer_of
from rlhf_lab.packs.speech.rewards.feature_model import FeatureModel, Standardiser, new_network, weighted_sum
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
    """Trains the model that was asked for, and those that it is compared with."""

    def __init__(self, settings: AcousticReward, run: Run):
        self.settings, self.run = settings, run
        corpus = run.data
        renderer = renderer_of(run, "algorithm=acoustic_reward")
        train = corpus.train[: settings.max_pairs or len(corpus.train)]
        self.train = clip_pairs(train, renderer, corpus.oracle, settings.mos, "training")
        held_out = corpus.test[: settings.heldout_pairs]
        self.held_out = clip_pairs(held_out, renderer, corpus.oracle, settings.mos, "held-out")
        self.fit = cache(self._fit)

    def finish(self) -> Result:
        """Train, compare on held-out clips, write the model."""
        known = self.train.truth_name
        # features are chosen on training clips, so that held-out ones judge the choice
        chosen_by_truth = validated(feature_spearman(self.train), self.settings.min_spearman) if known else []
        names = list(self.settings.named_features or chosen_by_truth)
        if not names:
            # `contradictions` refuses this where the settings of the data show it
            self.run.note("nobody says how natural the clips are: features=validated keeps all of them")
            names = list(FEATURES)
        model = self._hand() if self.settings.features == "hand" else self._train(names, self._log)
        metrics = self._measure(model)
        metrics |= self._compare(chosen_by_truth)
        for name in FEATURES:
            metrics[f"kept/{name}"] = float(name in names)
        metrics["features_kept"] = len(names)
        facts = {"validated_by": known, "trained_on_pairs": len(self.train.pairs)}
        model.save(self.run.folder, facts)
        return Result(metrics=metrics, primary=[name for name in PRIMARY if name in metrics])

    def _measure(self, model: FeatureModel) -> dict[str, Any]:
        """How the model ranks held-out pairs and clips."""
        scores_N = model(self.held_out.features_N7, SILENT)
        scores_P2 = scores_N.reshape(-1, 2)
        audit = audit_margins(scores_P2[:, 0] - scores_P2[:, 1], self.held_out.pairs)
        return {
            **ranking(scores_N, self.held_out),
            **truth_accuracy(self.held_out),
            **audit,
            "pairs": len(self.train.pairs),
            "silent": float(is_silent(self.train.features_N7).mean()),
        }

    def _compare(self, chosen_by_truth: Sequence[str]) -> dict[str, Any]:
        """The same of other sets of features, and what each feature is worth."""
        held_out = self.held_out
        metrics: dict[str, Any] = ranking(self._hand()(held_out.features_N7, SILENT), held_out, "hand")
        sets = {"all": FEATURES, "five": tuple(HAND_WEIGHTS), "validated": tuple(chosen_by_truth)}
        for name, features in sets.items():
            if features:
                metrics |= ranking(self.fit(features)(held_out.features_N7, SILENT), held_out, name)
        metrics |= leave_one_out(lambda names: self.fit(tuple(names)), FEATURES, held_out, SILENT)
        if held_out.truth_name:
            correlations = feature_spearman(held_out)
            metrics |= {f"feature_spearman/{name}": rho for name, rho in correlations.items()}
        return metrics

    def _fit(self, names: tuple[str, ...]) -> FeatureModel:
        return self._train(names)

    def _train(
        self, names: Sequence[str], log: Callable[[int, float, float], None] = lambda step, loss, accuracy: None
    ) -> FeatureModel:
        """A model of these features. All models start from one seed and see the pairs in one order."""
        settings = self.settings
        standardiser = Standardiser.fit(self.train.features_N7, names)
        inputs_N = standardiser(self.train.features_N7)
        inputs_P2F = torch.from_numpy(inputs_N.reshape(-1, 2, len(names)))
        network = new_network(len(names), settings.hidden, self.run.seed("acoustic_reward/init"))

        def scores(indices: Sequence[int]) -> tuple[Tensor, Tensor]:
            chosen_B, rejected_B = network(inputs_P2F[list(indices)]).squeeze(-1).unbind(1)
            return chosen_B, rejected_B

        train_on_pairs(
            scores,
            [{"params": list(network.parameters()), "lr": settings.lr}],
            pairs=len(inputs_P2F),
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            weight_decay=settings.weight_decay,
            seed=self.run.seed("acoustic_reward/order"),
            log=log,
            title="acoustic_reward",
        )
        return FeatureModel(standardiser, network).with_scale(self.train.features_N7)

    def _hand(self) -> FeatureModel:
        """The hand-weighted sum, which no pair has taught."""
        standardiser = Standardiser.fit(self.train.features_N7, list(HAND_WEIGHTS))
        return weighted_sum(standardiser, HAND_WEIGHTS).with_scale(self.train.features_N7)

    def _log(self, step: int, loss: float, accuracy: float) -> None:
        self.run.log(step, loss=loss, accuracy=accuracy)


def build(settings: AcousticReward, run: Run) -> AcousticRewardModelling:
    return AcousticRewardModelling(settings, run)
