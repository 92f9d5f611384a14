"""Reward of named criteria: weights set by hand, validated and calibrated, or fitted on pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from rlhf_lab.algorithms.reward_models.settings import CriteriaRewardSettings
from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Pair
from rlhf_lab.evaluations.reward_audit import audit_margins, prompt_ids, with_gold
from rlhf_lab.rewards.criteria.model import CriteriaModel, bradley_terry_weights, hand_weighted, kept_criteria
from rlhf_lab.rewards.criteria.sets import CriteriaSet, criteria_of
from rlhf_lab.sampling.policy_responses import PolicyResponses
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Result, Run

PRIMARY = ("accuracy", "gold_agreement", "log_loss", "criteria_kept", "slope")


class CriteriaRewardMaking:
    """Construction of a reward from criteria that are measured on labelled pairs."""

    def __init__(self, settings: CriteriaRewardSettings, run: Run):
        self.settings, self.run = settings, run
        self.criteria = criteria_of(run.data)
        self.train_P2C = measure_pairs(self.criteria, self._training_pairs())
        self.heldout = with_gold(run.data.test[: settings.heldout_pairs], run.data.oracle)

    def _training_pairs(self) -> list[Pair]:
        settings, run = self.settings, self.run
        if settings.pairs_from == "policy":
            pairs = PolicyResponses(run).labelled_pairs("train", settings.max_pairs)
        else:
            pairs = list(run.data.train[: settings.max_pairs or len(run.data.train)])
        if settings.labels == "gold":
            pairs = in_gold_order(with_gold(pairs, run.data.oracle))
        if not pairs:
            raise ConfigError(
                f"no training pair is left of algorithm.max_pairs={settings.max_pairs}: all responses of a pair are "
                "equal or tied; sample more pairs, or use algorithm.pairs_from=corpus"
            )
        return pairs

    def finish(self) -> Result:
        """Construct the reward, measure it on held-out pairs and write it."""
        validation_P2C = self.train_P2C[: self.settings.validation_pairs]
        agreement_C = agreement(validation_P2C)
        model = self._make(validation_P2C, agreement_C)
        metrics = self._measure(model)
        for name, weight, rho in zip(model.names, model.weights, agreement_C.tolist(), strict=True):
            metrics[f"weight/{name}"] = weight
            metrics[f"agreement/{name}"] = rho
        model.save(self.run.directory, {"design": self.settings.design, "pairs": len(self.train_P2C)})
        return Result(metrics=metrics, primary=[name for name in PRIMARY if name in metrics])

    def _make(self, validation_P2C: FloatArray, agreement_C: FloatArray) -> CriteriaModel:
        settings = self.settings
        responses_NC = self.train_P2C.reshape(-1, len(self.criteria.names))
        hand = hand_weighted(self.criteria.domain, self.criteria.hand_weights, responses_NC)
        if settings.design == "hand":
            return hand
        weights_C = np.array(hand.weights)
        # Criteria that fail validation with the sign of their weight get weight 0; the rest is rescaled to log-odds.
        if settings.design == "calibrated":
            weighed_C = weights_C != 0
            rho_C = np.where(weighed_C, agreement_C, 0.0)  # criteria without a hand weight cannot be kept
            kept_C = kept_criteria(rho_C, weights_C, settings.min_agreement)
            validated = hand.with_weights(weights_C * kept_C)
            return validated.calibrated(validation_P2C[:, 0], validation_P2C[:, 1])
        # Fitted weights may have either sign, so the hand weights (zeros here) set no expected sign.
        kept_C = kept_criteria(agreement_C, np.zeros_like(weights_C), settings.min_agreement)
        standardised_P2C = hand.standardised(self.train_P2C)
        difference_PC = standardised_P2C[:, 0] - standardised_P2C[:, 1]
        difference_PC = difference_PC[:, kept_C]
        fitted_C = np.zeros_like(weights_C)
        fitted_C[kept_C] = bradley_terry_weights(difference_PC, precision=settings.precision)
        return hand.with_weights(fitted_C)

    def _measure(self, model: CriteriaModel) -> dict[str, Any]:
        heldout_P2C = measure_pairs(self.criteria, self.heldout)
        margin_P = model(heldout_P2C[:, 0]) - model(heldout_P2C[:, 1])
        log_loss_P = np.logaddexp(0.0, -margin_P)
        return {
            **audit_margins(margin_P, self.heldout),
            "log_loss": clustered_mean(log_loss_P, prompt_ids(self.heldout)),
            "slope": model.slope,
            "criteria_kept": int(np.count_nonzero(model.weights)),
            "pairs": len(self.train_P2C),
        }


def in_gold_order(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs with the response of higher gold as the chosen one, without ties and pairs without gold (NaN).

    Args:
        pairs: pairs with `gold_chosen` and `gold_rejected` in their meta.
    """
    gaps = [(pair, pair.meta["gold_chosen"] - pair.meta["gold_rejected"]) for pair in pairs]
    return [pair if gap > 0 else Pair(pair.prompt, pair.rejected, pair.chosen) for pair, gap in gaps if abs(gap) > 0]


def measure_pairs(criteria: CriteriaSet, pairs: Sequence[Pair]) -> FloatArray:
    """Return the criteria of the chosen and of the rejected response of each pair, (P, 2, C)."""
    prompts = [pair.prompt for pair in pairs for _ in range(2)]
    responses = [response for pair in pairs for response in (pair.chosen, pair.rejected)]
    return criteria.measure(prompts, responses).reshape(len(pairs), 2, len(criteria.names))


def agreement(values_P2C: FloatArray) -> FloatArray:
    """Return Spearman's ρ between each criterion's difference in a pair and the winner, (C,); 0 if it is constant.

    Each pair counts in both orders, chosen against rejected and the reverse, so that the stored order has no influence.
    """
    difference_PC = values_P2C[:, 0] - values_P2C[:, 1]
    both_orders_NC = np.concatenate([difference_PC, -difference_PC])
    won_N = np.repeat([1.0, 0.0], len(difference_PC))
    varies_C = np.ptp(both_orders_NC, axis=0) > 0
    rho_C = np.zeros(both_orders_NC.shape[1])
    for column in np.flatnonzero(varies_C):
        rho_C[column] = spearmanr(both_orders_NC[:, column], won_N).statistic
    return rho_C


def build(settings: CriteriaRewardSettings, run: Run) -> CriteriaRewardMaking:
    return CriteriaRewardMaking(settings, run)
