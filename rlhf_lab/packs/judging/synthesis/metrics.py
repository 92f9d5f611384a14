"""Metrics that rlhf_lab/packs/judging/synthesis/ emits."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

SYNTHESIS = (
    Metric("made/items", "items that were worked on"),
    Metric("made/rows", "rows of the corpus that was made", title="made rows"),
    Metric("made/prompts", "distinct prompts of these rows"),
    Metric(
        "made/acceptance",
        "share of items that became a row",
        title="accepted",
        better="higher",
        phrase="share of items that are accepted",
    ),
    Metric("made/rejected/<problem>", "items that became no row, by what is wrong with them"),
    Metric("made/words", "length of a kept reply (of pairs, the chosen one; of prompts, the prompt), words"),
    Metric("made/longer_chosen", "share of made pairs whose chosen reply has more words, ties half"),
    Metric(
        "made/label_agreement",
        "share of made pairs that the true reward orders as labelled, ties half (worlds with a known truth)",
        title="made labels right",
        better="higher",
        phrase="share of right labels among the made pairs",
    ),
    Metric(
        "made/gold",
        "true reward of a kept reply (of pairs, the chosen one), gold points",
        title="gold of made replies",
        better="higher",
    ),
    Metric("made/gold_draft", "true reward of the drafts of kept demonstrations, gold points", title="gold of drafts"),
    Metric(
        "made/gold_gain",
        "true reward of a kept demonstration − of its draft, gold points",
        title="gold gained by revising",
        better="higher",
    ),
    Metric("made/violations", "principles that a critique names, mean over drafts"),
    Metric("made/fault_free", "share of drafts in which the critique finds no principle violated"),
    Metric(
        "made/principle/<name>",
        "of pairs, share of votes that name the principle as deciding; of drafts, share in which it is violated",
    ),
)
"""cai_preferences.py, synthetic_sft.py, self_instruct.py"""

TRAJECTORIES = (
    Metric("made/attempts", "attempts at a task, mean over tasks", title="attempts"),
    Metric(
        "made/success",
        "share of attempts that reached the right answer",
        title="successful attempts",
        better="higher",
        phrase="share of attempts that succeed",
    ),
    Metric("made/turns", "turns of the assistant in a kept trajectory", title="turns of a trajectory"),
    Metric("made/accepted/<category>", "share of the tasks of a category that became a row"),
)
"""trajectories.py, attempt_pairs.py"""
