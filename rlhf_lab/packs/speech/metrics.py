"""Measures of the speech worlds, in addition to those of all worlds."""

from __future__ import annotations

from rlhf_lab.core.measures import Measure
from rlhf_lab.core.metrics import Metric

PHONE_ERROR = Measure(
    "phone_error",
    "wrong, missing and surplus phones per phone of the text, according to the recogniser of the world (speech)",
    title="phone error",
    better="lower",
    column="phone error",
)
AUDIO_SECONDS = Measure(
    "audio_seconds", "length of a clip (speech)", title="length", unit="s", phrase="length of a clip"
)
CLIPS = (PHONE_ERROR, AUDIO_SECONDS)
"""Measures of clip_world.py."""


PREFERENCES = (
    Metric("made/items", "prompts whose clips were ranked"),
    Metric("made/rows", "pairs of clips that were written"),
    Metric("made/rejected/<problem>", "prompts that gave no pair, by problem"),
    Metric("made/label_agreement", "fraction of pairs that the true reward orders as the ranking does, ties half"),
    Metric("made/label_agreement/<category>", "the same for the pairs of one category of sentence, or of one style"),
    Metric("made/gold", "true reward of the chosen clip"),
    Metric("made/gold_rejected", "true reward of the rejected clip"),
    Metric("made/score_gap", "score of the chosen clip minus that of the rejected one, mean over pairs"),
)
"""Metrics of tts_preferences.py."""


ROUND = (
    Metric("refused", "fraction of the sampled clips that a gate of the reward refused", kind="rate", better="lower"),
    Metric("finished", "fraction of the sampled clips that the model ended itself", kind="rate", better="higher"),
)
"""Metrics of codec_dpo.py, in addition to those of iterative DPO."""


ACOUSTIC_REWARD = (
    Metric("pairs", "number of pairs of clips used for training"),
    Metric("silent", "fraction of training clips without sound"),
    Metric(
        "spearman",
        "Spearman's ρ of the model's score with the truth on held-out clips",
        title="ρ with the truth",
        better="higher",
    ),
    Metric(
        "accuracy/truth",
        "fraction of held-out pairs with a known truth that it ranks as labelled: the upper bound of every model",
        title="accuracy, truth",
    ),
    *(
        entry
        for name, what in (
            ("hand", "the hand-weighted sum of five features"),
            ("all", "a model of all seven features"),
            ("five", "a model of the five features with a hand weight"),
            ("validated", "a model of the features whose ρ with the truth is above min_spearman on training clips"),
        )
        for entry in (
            Metric(f"accuracy/{name}", f"held-out pair accuracy of {what}", better="higher"),
            Metric(f"spearman/{name}", f"Spearman's ρ with the truth of {what}", better="higher"),
        )
    ),
    Metric("feature_spearman/<feature>", "Spearman's ρ of a feature with the truth on held-out clips"),
    Metric(
        "feature_gain/<feature>",
        "held-out pair accuracy of a model of all features minus that of a model without this feature",
        better="higher",
    ),
    Metric("features_kept", "number of features that the model uses", title="features kept"),
    Metric("kept/<feature>", "1 if the model uses the feature, else 0"),
)
"""Metrics of acoustic_reward.py and wav2vec2_reward.py."""

RECOGNISER = (
    Metric("clips", "number of clips used to fit the recogniser"),
    Metric(
        "phone_error/chosen", "phone error rate of the recogniser in held-out chosen clips", title="phone error, chosen"
    ),
    Metric("phone_error/rejected", "phone error rate in held-out rejected clips"),
    Metric(
        "phone_error/other",
        "phone error rate of chosen clips compared with the text of another prompt: the value of an unrelated clip",
        title="phone error, other text",
    ),
    Metric(
        "phone_error/p90", "90th percentile of the phone error rate of held-out chosen clips: a candidate for a floor"
    ),
    Metric(
        "phone_error/truth_spearman",
        "Spearman's ρ with the phone error of the world's own recogniser, which reads the frames",
        better="higher",
    ),
)
"""Metrics of recogniser.py."""
