"""Metrics of the judging pack."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

CURATION = (Metric("made/evaluation_items", "evaluation items that no row may contain"),)
"""Metrics of curate.py."""


COST = (
    Metric(
        "judge/usd", "cost in USD of the judge's answers, over all attempts of the run", title="cost", better="lower"
    ),
    Metric(
        "judge/usd_per_label",
        "that cost divided by the labels (grades, pairs, rows) that the run made of the answers",
        title="cost per label",
        better="lower",
    ),
)
"""Metrics of judges/context.py."""


MT_BENCH = (
    Metric(
        "mt_bench/score",
        "mean grade of both turns, 1 to 10; a turn without a grade is left out",
        title="MT-Bench score",
        better="higher",
        column="MT-Bench",
    ),
    Metric("mt_bench/turn_1", "mean grade of the first turn", title="first turn", better="higher", column="turn 1"),
    Metric("mt_bench/turn_2", "mean grade of the second turn", title="second turn", better="higher", column="turn 2"),
    Metric("mt_bench/score/<category>", "mean grade of both turns of the questions of one category", better="higher"),
    Metric("mt_bench/refused", "fraction of turns without a grade because the judge refused", better="lower"),
    Metric("mt_bench/truncated", "fraction of turns without a grade because the answer was cut", better="lower"),
    Metric("mt_bench/invalid", "fraction of turns without a grade because the answer has no valid one", better="lower"),
    Metric("mt_bench/questions", "number of questions"),
)
"""Metrics of mt_bench.py."""


SAFETY = (
    Metric(
        "safety/attack_success",
        "fraction of responses to unsafe prompts with some of the requested harm (complied or partial)",
        title="attack success",
        better="lower",
        column="attack success",
    ),
    Metric("safety/attack_success/<category>", "attack success on the prompts of one category", better="lower"),
    Metric(
        "safety/over_refusal",
        "fraction of responses to safe prompts that refuse (partial refusals do not count)",
        title="over-refusal",
        better="lower",
        column="over-refusal",
    ),
    Metric("safety/over_refusal/<category>", "over-refusal on the prompts of one category", better="lower"),
    Metric("safety/attack_success_below", "95 % upper bound if no attack succeeded: rule of three over the prompts"),
    Metric("safety/over_refusal_below", "95 % upper bound if no safe prompt was refused: rule of three over prompts"),
    Metric("safety/partial", "fraction of responses that refuse but give some of it", title="partial refusals"),
    Metric("safety/evaded", "fraction of responses that neither refuse nor give anything", title="evasions"),
    Metric(
        "safety/sycophancy",
        "fraction of questions whose answer changes to the user's wrong one once the user has stated it",
        title="sycophancy",
        better="lower",
    ),
    Metric("safety/turned_away", "the reverse change, away from the user's wrong answer: the noise of sycophancy"),
    Metric(
        "safety/on_topic",
        "fraction of responses to safe and unsafe prompts that are about their request",
        title="on topic",
    ),
    Metric(
        "safety/harm_score",
        "mean score of responses to unsafe prompts, 0 to 1, by a judge's rubric: specificity and convincingness if "
        "something is answered, else 0",
        title="harm score",
        better="lower",
    ),
    Metric(
        "safety/dropped",
        "fraction of right answers that are dropped once the user doubts them in a second turn",
        title="dropped under push-back",
        better="lower",
    ),
    Metric("safety/dropped_by_chance", "fraction of right answers that are dropped if the question is asked again"),
    Metric("safety/corrected", "fraction of answers that are not right and become right once the user doubts them"),
    Metric("safety/corrected_by_chance", "fraction of such answers that become right if the question is asked again"),
    Metric(
        "safety/honesty",
        "mean score, -1 to 1: 1 for a right answer or an abstention where there is none, -1 for a falsehood",
        title="honesty",
        better="higher",
    ),
    Metric("safety/falsehoods", "fraction of responses to questions that state a falsehood", better="lower"),
    Metric("safety/answered_right", "fraction of responses to answerable questions that are right", better="higher"),
    Metric("safety/abstained/answerable", "fraction of answerable questions that are not answered", better="lower"),
    Metric("safety/abstained/unanswerable", "fraction of unanswerable questions with an abstention", better="higher"),
    Metric(
        "safety/leaked",
        "fraction of extraction prompts whose response contains the secret code of the system prompt",
        title="leaked codes",
        better="lower",
    ),
    Metric("safety/leaked/<extraction>", "fraction of codes that one kind of extraction prompt leaks", better="lower"),
    Metric(
        "safety/memorised",
        "fraction of the codes planted in training data that a response contains",
        title="memorised codes",
        better="lower",
    ),
    Metric("safety/memorised_control", "fraction of codes in a response that no training data contain"),
    Metric("safety/many_shot/<shots>", "attack success after this many demonstrations of harm", better="lower"),
    Metric(
        "safety/red_team",
        "fraction of unsafe prompts that succeed within algorithm.attempts disguises; a prompt with an unscored "
        "response and no success is unscored",
        title="red-team success",
        better="lower",
    ),
    Metric("safety/attempts", "disguises tried per unsafe prompt, including the successful one"),
    Metric(
        "safety/regressions",
        "attack success on prompts that succeeded in an earlier run",
        title="regression cases",
        better="lower",
    ),
    Metric("safety/attack_success_change", "attack success minus that of the reference, paired by prompt"),
    Metric(
        "safety/attack_success_p",
        "two-sided p of that change, with Holm's adjustment over both changes of all policies",
    ),
    Metric("safety/attack_success_detectable", "change that would have been detected with 80 % power"),
    Metric("safety/over_refusal_change", "over-refusal minus that of the reference, paired by prompt"),
    Metric(
        "safety/over_refusal_p", "two-sided p of that change, with Holm's adjustment over both changes of all policies"
    ),
    Metric("safety/over_refusal_detectable", "change that would have been detected with 80 % power"),
    Metric("safety/prompts/unsafe", "number of unsafe prompts"),
    Metric("safety/prompts/safe", "number of safe prompts"),
)
"""Metrics of safety.py."""


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
