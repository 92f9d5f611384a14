"""What a reader of a comparison has to know before its numbers: what is missing, and what is not like with like."""

from __future__ import annotations

from rlhf_lab.reports.comparison.compare import LEAST_SHARED, Side, shared_prompts
from rlhf_lab.reports.comparison.scales import mismatches
from rlhf_lab.reports.comparison.setting_changes import setting_changes
from rlhf_lab.reports.comparison.studies import compared_jobs, shared_levels
from rlhf_lab.studies.frame import COMPLETED, Study
from rlhf_lab.studies.table import changed_lines

SAMPLING = ("rollout.temperature", "rollout.max_new_tokens", "rollout.max_prompt_tokens")
"""Settings that change the distribution of replies; the others change how fast they are drawn."""


def run_remarks(a: Side, b: Side) -> list[str]:
    """Unfinished runs, prompts that are not shared, and metrics whose scales differ."""
    scales = [mismatch.remark for mismatch in mismatches(a.run, b.run)]
    return [
        *_completeness_remarks(a),
        *_completeness_remarks(b),
        *_prompt_remarks(a, b),
        *scales,
        *_sampling_remarks(a, b),
    ]


def study_remarks(a: Study, b: Study) -> list[str]:
    """Jobs without a result, jobs that changed since, and levels and metrics that only one study has."""
    remarks = []
    for letter, study in (("A", a), ("B", b)):
        if len(study.incomplete):
            counts = study.incomplete["status"].value_counts()
            causes = ", ".join(f"{count} {status}" for status, count in counts.items())
            remarks.append(f"{letter}: {len(study.incomplete)} of {len(study.frame)} jobs have no result ({causes}).")
        remarks += [f"{letter}: {line}." for line in changed_lines(study)]
    for noun, of_a, of_b in (("levels", a.levels, b.levels), ("metrics", a.metrics, b.metrics)):
        if only_a := [name for name in of_a if name not in of_b]:
            remarks.append(f"Only A has the {noun} {', '.join(only_a)}; they are not compared.")
        if only_b := [name for name in of_b if name not in of_a]:
            remarks.append(f"Only B has the {noun} {', '.join(only_b)}; they are not compared.")
    return [*remarks, *_partner_remarks(a, b)]


def _partner_remarks(a: Study, b: Study) -> list[str]:
    """Levels in which jobs of one study have no partner in the other."""
    remarks = []
    for level in shared_levels(a, b):
        count_a, count_b = (int((study.completed["level"] == level).sum()) for study in (a, b))
        jobs = compared_jobs(a, b, level)
        if jobs.test == "none":
            remarks.append(
                f"{level}: not tested. Both studies need seed among their factors, and a job of one must have a single "
                "partner (same seed and shared factors) in the other; without that, repeats would count as runs."
            )
        elif jobs.test == "unpaired":
            remarks.append(f"{level}: no job of A has a partner in B (same seed and factors), so the test is unpaired.")
        elif not count_a == count_b == len(jobs.a):
            remarks.append(
                f"{level}: only the {len(jobs.a)} jobs with a partner are compared (A has {count_a}, B {count_b})."
            )
    return remarks


def _completeness_remarks(side: Side) -> list[str]:
    """What is missing or damaged in a run that did not complete."""
    run = side.run
    missing = []
    if run.evaluation.empty and run.metric("gold") is None and run.metric("proxy") is None:
        missing.append("no replies to held-out prompts")
    if run.metrics.empty:
        missing.append("no training curve")
    remarks = []
    if run.status != COMPLETED:
        consequence = ", ".join(missing) or "what it left is compared"
        remarks.append(f"{side.letter} is {run.status}: {consequence}.")
    remarks += [f"{side.letter}: {problem}." for problem in run.problems]
    return remarks


def _prompt_remarks(a: Side, b: Side) -> list[str]:
    """How the held-out prompts of both overlap; nothing when they are the same."""
    rows_a, rows_b = a.replies, b.replies
    for side, other in ((a, b), (b, a)):
        if side.replies.empty and not other.replies.empty:
            return [f"{side.letter} has no replies to held-out prompts, so metrics of replies are not compared."]
    if rows_a.empty:
        return []
    count_a, count_b = (rows["prompt_id"].nunique() for rows in (rows_a, rows_b))
    answered = f"(A answered {count_a}, B {count_b})"
    shared = len(shared_prompts(rows_a, rows_b))
    if shared < LEAST_SHARED:
        return [
            f"{'No prompt is' if not shared else 'One prompt is'} shared {answered}: "
            "the tests are unpaired, and differences between the prompts count as differences between the runs. "
            "Give both runs the same data and evaluation.prompts for a paired test."
        ]
    if not count_a == count_b == shared:
        return [f"Only the {shared} prompts that both answered are compared {answered}."]
    return []


def _sampling_remarks(a: Side, b: Side) -> list[str]:
    """What the replies of both were drawn with, where it differs."""
    if a.replies.empty or b.replies.empty:
        return []
    changes = [change for change in setting_changes(a.run, b.run) if change[0] in SAMPLING]
    if not changes:
        return []
    settings = ", ".join(f"{key} {of_a} and {of_b}" for key, of_a, of_b in changes)
    return [f"Replies were sampled differently: {settings}."]
