"""Metrics that rlhf_lab/algorithms/pair_selection/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

SELECTION = (
    Metric("selection/pairs", "corpus pairs that are trained on"),
    Metric(
        "selection/label_accuracy",
        "share of them labelled as the true reward orders them, ties half (worlds with a known truth only)",
        title="kept labels right",
        better="higher",
        phrase="share of right labels among the kept pairs",
    ),
    Metric(
        "selection/longer_chosen",
        "share of them whose chosen reply has more words, ties half",
        title="kept pairs, longer chosen",
    ),
    Metric(
        "selection/words", "mean length of the chosen reply − of the rejected, words", title="kept pairs, words longer"
    ),
)
"""selection.py"""

CROSS_FIT = (
    Metric("loss", "sum over the fold models of their mean loss per pair"),
    Metric(
        "accuracy",
        "share of pairs with a cross-fitted margin above 0; its interval takes the fold models as given and their "
        "errors as unrelated",
    ),
    Metric(
        "accuracy/in_sample", "the same for in-sample margins: what a filter by its own model believes", better="higher"
    ),
    Metric("accuracy/top_half", "accuracy among the half with the largest cross-fitted |m|", better="higher"),
    Metric(
        "accuracy/in_sample/top_half",
        "in-sample accuracy among the half with the largest in-sample |m|",
        better="higher",
    ),
    Metric(
        "label_accuracy",
        "share of pairs labelled as the true reward orders them, ties half (worlds with a known truth)",
        better="higher",
    ),
    Metric("label_accuracy/top_half", "the same among the half with the largest cross-fitted |m|", better="higher"),
    Metric(
        "label_accuracy/in_sample/top_half", "the same among the half with the largest in-sample |m|", better="higher"
    ),
    Metric("cycle", "how many cycles of margins there are"),
    Metric("trained_pairs", "pairs that the fold models together train on; each of them on those outside its fold"),
)
"""crossfit.py"""
