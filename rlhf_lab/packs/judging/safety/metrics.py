"""Metrics of rlhf_lab/packs/judging/safety/."""

from __future__ import annotations

from rlhf_lab.core.metrics import Metric

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
