"""Metrics of rlhf_lab/packs/judging/synthesis/."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

SYNTHESIS = (
    Metric("made/items", "items that were processed"),
    Metric("made/rows", "rows of the synthetic corpus"),
    Metric("made/prompts", "distinct prompts of these rows"),
    Metric(
        "made/acceptance",
        "fraction of items that became a row",
        title="accepted",
        better="higher",
        phrase="fraction of items that are accepted",
    ),
    Metric("made/rejected/<problem>", "items that became no row, by problem"),
    Metric("made/words", "length of an accepted response (for pairs, the chosen one; for prompts, the prompt), words"),
    Metric("made/longer_chosen", "fraction of synthetic pairs whose chosen response has more words, ties half"),
    Metric(
        "made/label_agreement",
        "fraction of synthetic pairs that the true reward orders as labelled, ties half (worlds with a known truth)",
    ),
    Metric(
        "made/gold",
        "true reward of an accepted response (for pairs, the chosen one), gold points",
        title="gold of synthetic responses",
        better="higher",
    ),
    Metric(
        "made/gold_draft", "true reward of the drafts of accepted demonstrations, gold points", title="gold of drafts"
    ),
    Metric(
        "made/gold_gain",
        "true reward of an accepted demonstration minus that of its draft, gold points",
        title="gold gained by revising",
        better="higher",
    ),
    Metric("made/violations", "number of principles that a critique names, mean over drafts"),
    Metric("made/fault_free", "fraction of drafts without a violation according to the critique"),
    Metric(
        "made/principle/<name>",
        "for pairs, fraction of votes that name the principle as deciding; for drafts, fraction that violate it",
    ),
)
"""Metrics of cai_preferences.py, synthetic_sft.py and self_instruct.py."""

TRAJECTORIES = (
    Metric("made/attempts", "number of attempts at a task, mean over tasks", title="attempts"),
    Metric(
        "made/success",
        "fraction of attempts that reached the right answer",
        title="successful attempts",
        better="higher",
        phrase="fraction of attempts that succeed",
    ),
    Metric(
        "made/chosen_success",
        "fraction of tasks at which the attempt with the highest reward succeeds",
        title="success of the chosen attempt",
        better="higher",
    ),
    Metric("made/turns", "number of assistant turns in an accepted trajectory", title="turns of a trajectory"),
    Metric("made/accepted/<category>", "fraction of the tasks of a category that became a row"),
)
"""Metrics of trajectories.py and attempt_pairs.py."""
