"""Metrics that rlhf_lab/packs/speech/reward_models/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

ACOUSTIC_REWARD = (
    Metric("pairs", "pairs of clips that were trained on"),
    Metric("silent", "share of training clips in which nothing sounds"),
    Metric(
        "spearman",
        "Spearman's ρ of the model's score with the truth on held-out clips",
        title="ρ with the truth",
        better="higher",
    ),
    Metric(
        "accuracy/truth",
        "share of held-out pairs that the truth itself ranks as labelled: the bound of every model",
        title="accuracy, truth",
    ),
    *(
        entry
        for name, what in (
            ("hand", "the hand-weighted sum of five features"),
            ("all", "a model of all seven features"),
            ("five", "a model of the five features with a hand weight"),
            (
                "validated",
                "a model of the features whose |ρ| with the truth is at least min_spearman on training clips",
            ),
        )
        for entry in (
            Metric(f"accuracy/{name}", f"held-out pair accuracy of {what}", better="higher"),
            Metric(f"spearman/{name}", f"Spearman's ρ with the truth of {what}", better="higher"),
        )
    ),
    Metric("feature_spearman/<feature>", "Spearman's ρ of a feature with the truth on held-out clips"),
    Metric(
        "feature_gain/<feature>",
        "held-out pair accuracy of a model of all features minus that of one without this feature",
        better="higher",
    ),
    Metric("features_kept", "features that the model reads", title="features kept"),
    Metric("kept/<feature>", "1 where the model reads the feature, else 0"),
)
"""acoustic_reward.py and wav2vec2_reward.py"""

RECOGNISER = (
    Metric("clips", "clips that the recogniser was fitted on"),
    Metric(
        "phone_error/chosen",
        "phone error rate that the recogniser hears in held-out chosen clips",
        title="phone error, chosen",
    ),
    Metric("phone_error/rejected", "the same in rejected clips"),
    Metric(
        "phone_error/other",
        "the same of chosen clips against the text of another prompt: what a clip is worth that says something else",
        title="phone error, other text",
    ),
    Metric(
        "phone_error/p90", "phone error rate below which nine of ten held-out chosen clips are: where a floor may lie"
    ),
    Metric(
        "phone_error/truth_spearman",
        "Spearman's ρ with the phone error that the world's own recogniser hears in its frames",
        better="higher",
    ),
)
"""recogniser.py"""
