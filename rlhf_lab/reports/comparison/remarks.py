"""What a reader of a comparison has to know before its numbers: what is missing, and what is not like with like."""

from __future__ import annotations

from rlhf_lab.reports.comparison.compare import LEAST_SHARED, Side, shared_prompts
from rlhf_lab.reports.comparison.scales import mismatches
from rlhf_lab.reports.comparison.settings import setting_changes
from rlhf_lab.reports.comparison.studies import compared_jobs, shared_levels
from rlhf_lab.studies.frame import COMPLETED, Study
from rlhf_lab.studies.table import changed_lines

SAMPLING = ("rollout.temperature", "rollout.max_new_tokens", "rollout.max_prompt_tokens")
"""Settings that change the distribution of replies; the others change how fast they are drawn."""


def run_remarks(a: Side, b: Side) -> list[str]:
    """Unfinished runs, prompts that are not shared, and metrics whose scales differ."""
    scales = [one.remark for one in mismatches(a.run, b.run)]
    return [*_unfinished(a), *_unfinished(b), *_prompts(a, b), *scales, *_sampling(a, b)]


def study_remarks(a: Study, b: Study) -> list[str]:
    """Jobs without a result, jobs that changed since, and levels and metrics that only one study has."""
    found = []
    for letter, study in (("A", a), ("B", b)):
        if len(study.incomplete):
            counts = study.incomplete["status"].value_counts()
            causes = ", ".join(f"{count} {status}" for status, count in counts.items())
            found.append(f"{letter}: {len(study.incomplete)} of {len(study.frame)} jobs have no result ({causes}).")
        found += [f"{letter}: {line}." for line in changed_lines(study)]
    for what, of_a, of_b in (("levels", a.levels, b.levels), ("metrics", a.metrics, b.metrics)):
        for letter, own, other in (("A", of_a, of_b), ("B", of_b, of_a)):
            if lonely := [name for name in own if name not in other]:
                found.append(f"Only {letter} has the {what} {', '.join(lonely)}; they are not compared.")
    return [*found, *_partners(a, b)]


def _partners(a: Study, b: Study) -> list[str]:
    """Levels in which jobs of one study have no partner in the other."""
    found = []
    for level in shared_levels(a, b):
        counts = [int((study.completed["level"] == level).sum()) for study in (a, b)]
        jobs = compared_jobs(a, b, level)
        if jobs.test == "none":
            found.append(
                f"{level}: not tested. Both studies need seed among their factors, and a job of one must have a single "
                "partner (same seed and shared factors) in the other; without that, repeats would count as runs."
            )
        elif jobs.test == "unpaired":
            found.append(f"{level}: no job of A has a partner in B (same seed and factors), so the test is unpaired.")
        elif counts != [len(jobs.a)] * 2:
            found.append(
                f"{level}: only the {len(jobs.a)} jobs with a partner are compared (A has {counts[0]}, B {counts[1]})."
            )
    return found


def _unfinished(side: Side) -> list[str]:
    run, missing = side.run, []
    if run.evaluation.empty and run.metric("gold") is None and run.metric("proxy") is None:
        missing.append("no replies to held-out prompts")
    if run.metrics.empty:
        missing.append("no training curve")
    found = [f"{side.letter}: {problem}." for problem in run.problems]
    if run.status != COMPLETED:
        found.insert(0, f"{side.letter} is {run.status}: " + (", ".join(missing) or "what it left is compared") + ".")
    return found


def _prompts(a: Side, b: Side) -> list[str]:
    """How the held-out prompts of both overlap; nothing when they are the same."""
    rows_a, rows_b = a.replies, b.replies
    for side, other in ((a, b), (b, a)):
        if side.replies.empty and not other.replies.empty:
            return [f"{side.letter} has no replies to held-out prompts, so metrics of replies are not compared."]
    if rows_a.empty:
        return []
    counts = [rows["prompt_id"].nunique() for rows in (rows_a, rows_b)]
    shared = len(shared_prompts(rows_a, rows_b))
    if shared < LEAST_SHARED:
        return [
            f"{'No prompt is' if not shared else 'One prompt is'} shared (A answered {counts[0]}, B {counts[1]}): "
            "the tests are unpaired, and differences between the prompts count as differences between the runs. "
            "Give both runs the same data and evaluation.prompts for a paired test."
        ]
    if min(counts) < shared or max(counts) > shared:
        return [f"Only the {shared} prompts that both answered are compared (A answered {counts[0]}, B {counts[1]})."]
    return []


def _sampling(a: Side, b: Side) -> list[str]:
    """What the replies of both were drawn with, where it differs."""
    if a.replies.empty or b.replies.empty:
        return []
    changes = [change for change in setting_changes(a.run, b.run) if change[0] in SAMPLING]
    words = ", ".join(f"{key} {of_a} and {of_b}" for key, of_a, of_b in changes)
    return [f"Replies were sampled differently: {words}."] if words else []
