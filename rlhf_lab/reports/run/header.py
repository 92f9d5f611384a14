"""Header of a run's page (answer, command, problems, notes), and its origin: data, stages, config and versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_lab.core.errors import NumericError
from rlhf_lab.reports.sections import PageSection
from rlhf_lab.results.answer import answer
from rlhf_lab.results.gains import scores
from rlhf_lab.results.rundir import TRUE_REWARD, StoredRun
from rlhf_lab.results.wording import duration, metric_title
from rlhf_lab.stages.provenance import Provenance, provenance_of, size_in_words
from rlhf_lab.statistics.estimates import check_mean


def header(run: StoredRun) -> PageSection:
    values = {
        "run": run,
        "size": run.settings.get("size"),
        "answer": answer(run),
        "problems": [*run.problems, *mismatches(run)],
        **header_metadata(run),
    }
    return PageSection(template=f"{__package__}:header.html.j2", values=values)


def header_metadata(run: StoredRun) -> dict[str, Any]:
    """Return the metadata at the top of the page: the command, (name, value) of seed, time and code, and the gold."""
    manifest = run.manifest
    provenance, _ = provenance_of([run.path])
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
        ("version", " or ".join(provenance.versions)),
        ("commit", " or ".join(provenance.commits)),
        ("code digest", provenance.code),
        ("with earlier stages", _cost_of_stages(provenance)),
        ("machine", " or ".join(provenance.machines)),
        ("parameters", " or ".join(map(size_in_words, provenance.parameters))),
        ("key", str(manifest.get("key") or "")[:12]),
    ]
    world = "no gold reward: the true value of responses is unknown here"
    if run.has_verified_answers:
        world = "answers are verified: it is known which are correct"
    if run.has_gold:
        is_simulated = run.gold_source == TRUE_REWARD
        world = "simulated world, true reward known" if is_simulated else f"gold is {run.gold_source}"
    shown = [(name, str(value)) for name, value in named if value not in (None, "")]
    return {"command": command, "facts": shown, "world": world}


def _cost_of_stages(provenance: Provenance) -> str:
    """Return the number of stages behind a run, itself included, and their time."""
    text = f"{provenance.stages} stage{'s' * (provenance.stages > 1)}, {duration(provenance.seconds)}"
    if provenance.cpu_seconds is None:
        return text
    return f"{text}, {duration(provenance.cpu_seconds)} of CPU time"


def mismatches(run: StoredRun) -> list[str]:
    """Return messages on stored means that disagree with the mean of their own samples."""
    if not len(run.evaluation):
        return []
    problems = []
    for policy in run.policies:
        rows = run.evaluation[run.evaluation["policy"] == policy.name]
        for metric in ("gold", "proxy", "tokens"):
            if metric not in rows or metric not in policy.metrics or not len(rows):
                continue
            try:
                # A tolerance of 2 decimals ignores rounding in the stored means.
                check_mean(policy.metrics[metric].mean, scores(rows, metric).to_numpy(), decimals=2)
            except NumericError as fault:
                problems.append(f"{policy.name}, {metric_title(metric)}: {fault}")
    return problems


MAX_CONFIG = 12_000
"""Maximum number of characters of config.yaml on a page."""


def origin(run: StoredRun) -> PageSection | None:
    """Return the section on the data, with dropped rows, and on earlier stages; None for a run that names neither."""
    data = run.manifest.get("data") or {}
    stages = run.manifest.get("needs") or {}
    needs = [(role, need) for role, need in stages.items() if isinstance(need, Mapping)]
    if not data and not needs:
        return None
    values = {"data": data, "drops": data_reports(data.get("report")), "needs": needs}
    return PageSection("Origin", template=f"{__package__}:origin.html.j2", values=values)


def data_reports(report: object) -> list[dict[str, Any]]:
    """Return the counts of kept and dropped rows, one entry per split."""
    if not isinstance(report, Mapping):
        return []
    # A report without splits has its counts at the top level.
    splits = {"all": report} if "rows" in report else report
    return [
        {
            "split": split,
            "rows": counts["rows"],
            "kept": counts.get("kept"),
            "dropped": counts.get("dropped") or {},
            "noted": counts.get("noted") or {},
        }
        for split, counts in splits.items()
        if isinstance(counts, Mapping) and "rows" in counts
    ]


def settings(run: StoredRun) -> PageSection:
    """Return the collapsed section with the resolved config and versions."""
    config = run.config[:MAX_CONFIG]
    if len(run.config) > MAX_CONFIG:
        config += "\n… (cut; see config.yaml)"
    values = {"config": config, "versions": dict(run.manifest.get("versions") or {})}
    return PageSection(template=f"{__package__}:settings.html.j2", values=values)
