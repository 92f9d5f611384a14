"""Metrics of rlhf_lab/packs/speech/preferences/."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

PREFERENCES = (
    Metric("made/items", "prompts whose clips were ranked"),
    Metric("made/rows", "pairs of clips that were written"),
    Metric("made/rejected/<problem>", "prompts that gave no pair, by problem"),
    Metric(
        "made/label_agreement",
        "fraction of pairs that the true reward orders as the ranking does, ties half",
    ),
    Metric("made/label_agreement/<category>", "the same for the pairs of one category of sentence, or of one style"),
    Metric("made/gold", "true reward of the chosen clip"),
    Metric("made/gold_rejected", "true reward of the rejected clip"),
    Metric("made/score_gap", "score of the chosen clip minus that of the rejected one, mean over pairs"),
)
"""Metrics of tts_preferences.py."""
