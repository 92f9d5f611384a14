"""The head of a run's page: its answer, the command, what is wrong with it, and its own notes."""

from __future__ import annotations

from typing import Any

from rlhf_lab.core.errors import NumericError
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.answer import answer
from rlhf_lab.results.gains import scores
from rlhf_lab.results.rundir import TRUE_REWARD, Run
from rlhf_lab.results.wording import duration, metric_title
from rlhf_lab.statistics.inference import check_mean


def header(run: Run) -> PageSection:
    values = {
        "run": run,
        "size": run.settings.get("size"),
        "answer": answer(run),
        "problems": [*run.problems, *mismatches(run)],
        **header_facts(run),
    }
    return PageSection(template=f"{__package__}:header.html.j2", values=values)


def header_facts(run: Run) -> dict[str, Any]:
    """Facts above the fold, each as text: the command, (name, value) of seed, time and code, and what gold is."""
    manifest = run.manifest
    seed = manifest.get("seed")
    command = manifest.get("command")
    if not command:
        command = f"python -m rlhf_lab +recipe={run.recipe}"
        if seed is not None:
            command += f" seed={seed}"
    named = [
        ("seed", seed),
        ("time", duration(run.seconds)),
        ("started", str(manifest.get("created") or "")[:19].replace("T", " ")),
        ("code", str(manifest.get("git_sha") or "")[:10]),
        ("key", str(manifest.get("key") or "")[:12]),
    ]
    world = "no gold reward: what responses are truly worth is not known here"
    if run.has_verified_answers:
        world = "answers are verified: which are right is known"
    if run.has_gold:
        is_simulated = run.gold_source == TRUE_REWARD
        world = "simulated world, true reward known" if is_simulated else f"gold is {run.gold_source}"
    shown = [(name, str(value)) for name, value in named if value not in (None, "")]
    return {"command": command, "facts": shown, "world": world}


def mismatches(run: Run) -> list[str]:
    """Stored means that their own samples contradict."""
    if not len(run.evaluation):
        return []
    problems = []
    for policy in run.policies:
        rows = run.evaluation[run.evaluation["policy"] == policy.name]
        for metric in ("gold", "proxy", "tokens"):
            if metric not in rows or metric not in policy.metrics or not len(rows):
                continue
            try:
                check_mean(policy.metrics[metric].mean, scores(rows, metric).to_numpy(), decimals=2)
            except NumericError as fault:
                problems.append(f"{policy.name}, {metric_title(metric)}: {fault}")
    return problems
