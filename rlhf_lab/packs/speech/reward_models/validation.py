"""What features are worth: their rank correlation with the truth, and what a model loses without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.packs.speech.reward_models.clip_pairs import ClipPairs
from rlhf_lab.packs.speech.rewards.feature_model import FeatureModel
from rlhf_lab.packs.speech.sound.features import NAMES, fill_undefined
from rlhf_lab.statistics.association import overall
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_rate, least_sd_of_outcomes, paired_difference

Fit = Callable[[Sequence[str]], FeatureModel]
"""Names of features → the model that is trained on them."""


def spearman(values_N: FloatArray, clips: ClipPairs) -> Estimate:
    """Spearman's ρ of a value of each clip with the truth, with a bootstrap interval over prompts."""
    columns = {"value": values_N, "truth": clips.truth_N}
    return overall(columns, clips.clusters_N, ranks=True).correlation("value", "truth")


def feature_spearman(clips: ClipPairs) -> dict[str, Estimate]:
    """Spearman's ρ of every feature with the truth."""
    filled_N7 = fill_undefined(clips.features_N7)
    return {name: spearman(filled_N7[:, i], clips) for i, name in enumerate(NAMES)}


def validated(correlations: Mapping[str, Estimate], least: float) -> list[str]:
    """Features whose |ρ| is at least `least`; the strongest one where none is.

    The size counts and not the sign: a network learns that less of a feature is better, too.
    """
    sizes = {name: 0.0 if np.isnan(rho.mean) else abs(rho.mean) for name, rho in correlations.items()}
    kept = [name for name, size in sizes.items() if size >= least]
    return kept or [max(sizes, key=lambda name: sizes[name])]


def wins(values_N: FloatArray) -> FloatArray:
    """1 for each pair whose chosen clip has the higher value, else 0, (P,); values of `ClipPairs.replies`."""
    values_P2 = values_N.reshape(-1, 2)
    return (values_P2[:, 0] > values_P2[:, 1]).astype(np.float64)


def ranking(values_N: FloatArray, clips: ClipPairs, name: str = "") -> dict[str, Estimate]:
    """Pair accuracy of values (`accuracy/<name>`) and, where truth is known, their ρ with it (`spearman/<name>`)."""
    end = f"/{name}" if name else ""
    metrics = {f"accuracy{end}": clustered_rate(wins(values_N), clips.clusters_P)}
    if clips.truth_name:
        metrics[f"spearman{end}"] = spearman(values_N, clips)
    return metrics


def truth_accuracy(clips: ClipPairs) -> dict[str, Estimate]:
    """How often the truth itself ranks pairs as labelled: the bound of every model; ties count as wrong."""
    return {"accuracy/truth": clustered_rate(wins(clips.truth_N), clips.clusters_P)} if clips.truth_name else {}


def leave_one_out(fit: Fit, names: Sequence[str], clips: ClipPairs, silent: float) -> dict[str, Any]:
    """Held-out accuracy that features add: of the model on all `names` minus that of the model without one of them."""
    with_all_P = wins(fit(names)(clips.features_N7, silent))
    gains = {}
    for left_out in names:
        without = fit([name for name in names if name != left_out])
        without_P = wins(without(clips.features_N7, silent))
        least_sd_P = least_sd_of_outcomes(with_all_P, without_P)
        comparison = paired_difference(with_all_P, without_P, clips.clusters_P, least_sd_N=least_sd_P)
        gains[f"feature_gain/{left_out}"] = comparison.difference
    return gains
