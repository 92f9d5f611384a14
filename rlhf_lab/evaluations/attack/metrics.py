"""Metrics that rlhf_lab/evaluations/attack/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

ATTACK = (
    Metric(
        "attack_gain",
        "reward of the response that the search found minus that of the start response, in sd of the reward over start "
        "responses",
        title="attack gain",
        unit="sd",
        better="lower",
        relative_to=("reward", "reference"),
    ),
    Metric(
        "attack_gold",
        "gold of the response that the search found minus that of the start response, in sd of gold over start "
        "responses",
        title="gold under attack",
        unit="sd",
        better="higher",
        relative_to=("gold", "reference"),
    ),
    Metric("attack_words", "words of the response that the search found minus those of the start response"),
    Metric(
        "exploit_gain/<exploit>",
        "reward gained by a fixed exploit, or by the best of several samples, in sd of the reward over start responses",
        unit="sd",
        better="lower",
        relative_to=("reward", "reference"),
    ),
    Metric(
        "exploit_gold/<exploit>",
        "gold gained by a fixed exploit, or by the best of several samples, in sd of gold over start responses",
        unit="sd",
        better="higher",
        relative_to=("gold", "reference"),
    ),
    Metric(
        "trained_gain/<role>",
        "reward of a policy that was trained on the reward minus that of the start policy, in sd of the reward over "
        "start responses",
        unit="sd",
        relative_to=("reward", "reference"),
    ),
    Metric(
        "trained_gold/<role>",
        "gold of a policy that was trained on the reward minus that of the start policy, in sd of gold over start "
        "responses",
        unit="sd",
        better="higher",
        relative_to=("gold", "reference"),
    ),
    Metric(
        "edit_gain/<edit>",
        "part of `attack_gain` that one kind of edit contributed, such as insert_sentence",
        unit="sd",
        relative_to=("reward", "reference"),
    ),
    Metric("attack_unscored", "fraction of start responses without a score; they are not attacked", kind="rate"),
    Metric("attack_queries", "number of responses that the reward scored for the search"),
    Metric("reward_sd", "standard deviation of the reward over start responses, in units of the reward"),
)
"""attack.py"""
