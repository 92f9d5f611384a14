"""Pairs of clips with their features and, if known, their naturalness, and the metrics of a reward on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.media import Renderer
from rlhf_lab.core.types import Oracle, Pair
from rlhf_lab.core.user_code import load_from_file
from rlhf_lab.evaluations.reward_audit import audit_margins, prompt_ids, with_gold
from rlhf_lab.packs.speech.reward_models.settings import PairwiseReward
from rlhf_lab.packs.speech.rewards import dnsmos
from rlhf_lab.packs.speech.rewards.acoustic_rm import FeatureModel
from rlhf_lab.packs.speech.rewards.clips import features_of, is_silent, scored_once
from rlhf_lab.packs.speech.rewards.settings import DNSMOS, SILENT
from rlhf_lab.packs.speech.sound.features import NAMES, fill_undefined
from rlhf_lab.rewards.checked import scores
from rlhf_lab.statistics.association import pooled_products
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_rate, min_sd_of_outcomes, paired_difference
from rlhf_lab.training.run import Run

TRUTH_COLUMNS = ("gold", "mos")
"""Prefixes of the pair columns that contain naturalness: `gold_chosen` and `gold_rejected`, `mos_chosen`, …"""


def opinion_scores(mos: str, renderer: Renderer, responses: Sequence[str]) -> FloatArray:
    """Return the predicted opinion score of each response, (N,).

    Args:
        mos: `dnsmos`, or FILE.py:FUNCTION of a function from a list of `Audio` to a number for each.
    """
    if mos == DNSMOS:
        return scored_once(lambda distinct: dnsmos.predict(renderer.render(distinct)), responses)
    where = f"algorithm.mos={mos}"
    predict = load_from_file(where, mos)
    if not callable(predict):
        raise ConfigError(f"{where} is of type {type(predict).__name__}; expected a function of a list of Audio")
    return scores(predict(renderer.render(responses)), responses, where)


@dataclass(frozen=True)
class ClipPairs:
    """P pairs of clips of one split.

    Attributes:
        responses: responses of all pairs, chosen and rejected in turn, (2P).
        features_N7: features of the responses, (2P, 7).
        truth_N: naturalness of the responses, (2P,); NaN if unknown.
        truth_name: source of the naturalness: gold, mos, or the value of `algorithm.mos`; empty if unknown.
    """

    pairs: Sequence[Pair]
    responses: list[str]
    features_N7: FloatArray
    truth_N: FloatArray
    truth_name: str

    @property
    def clusters_P(self) -> np.ndarray:
        """Index of the prompt of each pair, (P,)."""
        return prompt_ids(self.pairs)


def read_splits(settings: PairwiseReward, run: Run, renderer: Renderer) -> tuple[ClipPairs, ClipPairs]:
    """Decode and measure the clips of the training and the held-out pairs of a stage."""
    train = clip_pairs(
        run.data.train[: settings.max_pairs or None], renderer, run.data.oracle, settings.mos, "training"
    )
    heldout_pairs = run.data.test[: settings.heldout_pairs]
    return train, clip_pairs(heldout_pairs, renderer, run.data.oracle, settings.mos, "held-out")


def clip_pairs(pairs: Sequence[Pair], renderer: Renderer, oracle: Oracle | None, mos: str, split: str) -> ClipPairs:
    """Decode and measure both clips of each pair. `PairwiseReward.mos` describes the sources of naturalness.

    Raises DataError if the predictor of opinion scores scores no clip.
    """
    responses = [response for pair in pairs for response in (pair.chosen, pair.rejected)]
    features_N7 = features_of(renderer, responses, f"measuring {split} clips")
    # adds gold columns if the data have a true reward
    pairs = with_gold(pairs, oracle)
    truth_N = np.full(len(responses), np.nan)
    # a column is used only if all pairs have it
    known = (column for column in TRUTH_COLUMNS if all(f"{column}_chosen" in pair.meta for pair in pairs))
    name = mos or next(known, "")
    if mos:
        truth_N = opinion_scores(mos, renderer, responses)
        if np.isnan(truth_N).all():
            raise DataError(
                f"algorithm.mos={mos} scored none of the {len(responses)} {split} clips; return a number for each clip"
            )
    elif name:
        sides = ("chosen", "rejected")
        truth_N = np.array([float(pair.meta[f"{name}_{side}"]) for pair in pairs for side in sides])
    return ClipPairs(pairs, responses, features_N7, truth_N, name)


def spearman(values_N: FloatArray, clips: ClipPairs) -> Estimate:
    """Return Spearman's ρ between values and true naturalness of clips, with a bootstrap interval over prompts."""
    columns = {"value": values_N, "truth": clips.truth_N}
    return pooled_products(columns, np.repeat(clips.clusters_P, 2), ranks=True).correlation("value", "truth")


def feature_spearman(clips: ClipPairs) -> dict[str, Estimate]:
    """Return Spearman's ρ between each feature and the true naturalness of the clips."""
    # ranks need a number for each clip
    filled_N7 = fill_undefined(clips.features_N7)
    return {name: spearman(filled_N7[:, i], clips) for i, name in enumerate(NAMES)}


def validated(correlations: Mapping[str, Estimate], minimum: float) -> list[str]:
    """Return the features whose ρ is above `minimum`, or the feature with the largest ρ if none is.

    The sign counts, because features are chosen as something to have more of, such as pitch movement.
    """
    # a constant feature has no correlation (NaN) and counts as 0
    by_name = {name: 0.0 if np.isnan(rho.mean) else rho.mean for name, rho in correlations.items()}
    kept = [name for name, rho in by_name.items() if rho > minimum]
    return kept or [max(by_name, key=lambda name: by_name[name])]


def wins(values_N: FloatArray) -> FloatArray:
    """Return 1 for each pair whose chosen clip has the higher value, else 0, (P,); NaN if a value is NaN.

    Args:
        values_N: values of `ClipPairs.responses`.
    """
    # chosen and rejected clips alternate
    values_P2 = values_N.reshape(-1, 2)
    # a comparison with NaN is False, so a clip without a value would count as a loss
    is_known_P = ~np.isnan(values_P2).any(axis=1)
    return np.where(is_known_P, values_P2[:, 0] > values_P2[:, 1], np.nan)


def ranking(values_N: FloatArray, clips: ClipPairs, name: str = "") -> dict[str, Estimate]:
    """Return the pair accuracy of values, `accuracy/<name>`.

    Also return ρ between values and naturalness, `spearman/<name>`, if naturalness is known.
    """
    end = f"/{name}" if name else ""
    metrics = {f"accuracy{end}": clustered_rate(wins(values_N), clips.clusters_P)}
    if clips.truth_name:
        metrics[f"spearman{end}"] = spearman(values_N, clips)
    return metrics


def model_metrics(values_N: FloatArray, train: ClipPairs, heldout: ClipPairs) -> dict[str, Any]:
    """Return the metrics of a trained model from its scores of the held-out clips, and of its training clips."""
    values_P2 = values_N.reshape(-1, 2)  # chosen and rejected clips alternate
    metrics: dict[str, Any] = ranking(values_N, heldout)
    if heldout.truth_name:
        # the upper bound of every model: ties count as wrong, and pairs with unknown naturalness do not count
        metrics["accuracy/truth"] = clustered_rate(wins(heldout.truth_N), heldout.clusters_P)
    metrics |= audit_margins(values_P2[:, 0] - values_P2[:, 1], heldout.pairs)
    return metrics | {"pairs": len(train.pairs), "silent": float(is_silent(train.features_N7).mean())}


def leave_one_out(fit: Callable[[tuple[str, ...]], FeatureModel], clips: ClipPairs) -> dict[str, Any]:
    """Return the held-out accuracy lost without each feature: the model on all features minus a model without it.

    Args:
        fit: function from names of features to the model trained on them.
    """
    with_all_P = wins(fit(NAMES)(clips.features_N7, SILENT))
    gains = {}
    for left_out in NAMES:
        without = fit(tuple(name for name in NAMES if name != left_out))
        without_P = wins(without(clips.features_N7, SILENT))
        # the models are compared on the same pairs, so the difference is paired
        min_sd_P = min_sd_of_outcomes(with_all_P, without_P)
        comparison = paired_difference(with_all_P, without_P, clips.clusters_P, min_sd_N=min_sd_P)
        gains[f"feature_gain/{left_out}"] = comparison.difference
    return gains
