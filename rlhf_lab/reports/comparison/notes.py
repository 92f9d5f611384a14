"""Notes that a reader of a comparison needs before its numbers: what is missing, and what is not comparable."""

from __future__ import annotations

from rlhf_lab.reports.comparison.compare import LEAST_SHARED, Side, shared_prompts
from rlhf_lab.reports.comparison.scales import mismatches, setting_changes
from rlhf_lab.studies.frame import COMPLETED

SAMPLING = ("rollout.temperature", "rollout.max_new_tokens", "rollout.max_prompt_tokens")
"""Settings that change the distribution of responses; the other rollout settings only change the sampling speed."""


def run_notes(a: Side, b: Side) -> list[str]:
    """Return notes on unfinished runs, prompts that are not shared, and metrics whose scales differ."""
    scales = [mismatch.remark for mismatch in mismatches(a.run, b.run)]
    return [*_completeness_notes(a), *_completeness_notes(b), *_prompt_notes(a, b), *scales, *_sampling_notes(a, b)]


def _completeness_notes(side: Side) -> list[str]:
    run = side.run
    missing = []
    if run.evaluation.empty and run.metric("gold") is None and run.metric("proxy") is None:
        missing.append("no responses to held-out prompts")
    if run.metrics.empty:
        missing.append("no training curve")
    notes = []
    if run.status != COMPLETED:
        consequence = ", ".join(missing) or "its partial results are compared"
        notes.append(f"{side.letter} is {run.status}: {consequence}.")
    notes += [f"{side.letter}: {problem}." for problem in run.problems]
    return notes


def _prompt_notes(a: Side, b: Side) -> list[str]:
    """Return notes on the overlap of the held-out prompts; none if they are the same."""
    rows_a, rows_b = a.responses, b.responses
    for side, other in ((a, b), (b, a)):
        if side.responses.empty and not other.responses.empty:
            return [f"{side.letter} has no responses to held-out prompts, so metrics of responses are not compared."]
    if rows_a.empty:
        return []
    count_a, count_b = (rows["prompt_id"].nunique() for rows in (rows_a, rows_b))
    answered = f"(A answered {count_a}, B {count_b})"
    shared = len(shared_prompts(rows_a, rows_b))
    if shared < LEAST_SHARED:
        return [
            f"{'No prompt is' if not shared else 'One prompt is'} shared {answered}: "
            "the tests are unpaired, and differences between the prompts count as differences between the runs. "
            "Use the same data and evaluation.prompts for both runs to get a paired test."
        ]
    if not count_a == count_b == shared:
        return [f"Only the {shared} prompts that both answered are compared {answered}."]
    return []


def _sampling_notes(a: Side, b: Side) -> list[str]:
    if a.responses.empty or b.responses.empty:
        return []
    changes = [change for change in setting_changes(a.run, b.run) if change[0] in SAMPLING]
    if not changes:
        return []
    settings = ", ".join(f"{key} {of_a} and {of_b}" for key, of_a, of_b in changes)
    return [f"Responses were sampled differently: {settings}."]
