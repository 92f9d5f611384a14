"""Metrics that rlhf_lab/algorithms/pair_selection/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

SELECTION = (
    Metric("selection/pairs", "corpus pairs that are trained on"),
    Metric(
        "selection/label_accuracy",
        "fraction of selected pairs that gold ranks as labelled, ties count ½ (worlds with gold only)",
        title="kept labels right",
        better="higher",
        phrase="share of right labels among the kept pairs",
    ),
    Metric(
        "selection/longer_chosen",
        "fraction of selected pairs whose chosen response has more words, ties count ½",
        title="kept pairs, longer chosen",
    ),
    Metric(
        "selection/words",
        "mean length of the chosen minus the rejected response, words",
        title="kept pairs, words longer",
    ),
)
"""selection.py"""

CROSS_FIT = (
    Metric("loss", "sum of the fold models' mean losses per pair"),
    Metric(
        "accuracy",
        "fraction of pairs with a cross-fitted margin above 0; its interval treats the fold models as fixed and their "
        "errors as independent",
    ),
    Metric("accuracy/in_sample", "fraction of pairs with an in-sample margin above 0", better="higher"),
    Metric("accuracy/top_half", "accuracy among the half with the largest cross-fitted |m|", better="higher"),
    Metric(
        "accuracy/in_sample/top_half",
        "in-sample accuracy among the half with the largest in-sample |m|",
        better="higher",
    ),
    Metric(
        "label_accuracy",
        "fraction of pairs that gold ranks as labelled, ties count ½ (worlds with gold only)",
        better="higher",
    ),
    Metric(
        "label_accuracy/top_half", "label accuracy among the half with the largest cross-fitted |m|", better="higher"
    ),
    Metric(
        "label_accuracy/in_sample/top_half",
        "label accuracy among the half with the largest in-sample |m|",
        better="higher",
    ),
    Metric("cycle", "number of cycles of margins"),
    Metric("trained_pairs", "training pairs of all fold models; each one trains on those outside its fold"),
)
"""crossfit.py"""
