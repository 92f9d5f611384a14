"""Sweep typed on the command line instead of written as a study: the equivalent study, and the columns of its table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_lab.config import schema
from rlhf_lab.config.overrides import literal
from rlhf_lab.config.study_settings import StudySettings
from rlhf_lab.core.files import read_object, write_json

POLICY_METRICS = ("gold", "correct", "correct_greedy", "proxy", "win_rate", "kl", "tokens")
"""Metrics of the last policy, in the order of a table. Metrics that no job has are omitted."""
MAX_UNNAMED_METRICS = 6
"""Maximum number of metrics shown for a result that neither evaluates a policy nor names its primary metrics."""
FROM_RESULTS, WRITTEN = "results", "study"
"""Values of `metrics_from` in study.json: metrics chosen from the results, or named by the user."""


def typed_study(
    recipe: str | None, sweep: Mapping[str, list[Any]], settings: Mapping[str, Any], problems: list[str]
) -> StudySettings | None:
    """Return the study of a typed sweep. It compares the first swept key other than the seed with its first value.

    Args:
        sweep: swept key → values.
        settings: `study.…` of the command line; they override the derived settings.
        problems: list that receives problems of the settings.
    """
    if not sweep:
        typed = ", ".join(f"study.{key}={literal(value)}" for key, value in settings.items())
        problems.append(
            f"{typed}: {recipe or 'the command'} is one run, not a study; sweep a setting, for example seed=0,1,2, or "
            "remove it"
        )
        return None
    # Seeds replicate the comparison, so a seed is compared only if nothing else is swept.
    first_key = next((key for key in sweep if key != "seed"), "seed")
    compare = settings.get("compare", first_key)
    values = {
        "question": f"How does {compare} change the outcome{f' of {recipe}' if recipe else ''}?",
        "sweep": dict(sweep),
        "compare": compare,
        "baseline": sweep.get(compare, [None])[0],
        "metrics": list(POLICY_METRICS),  # until the jobs have results, see `choose_metrics`
    }
    return schema.build(StudySettings, {**values, **settings}, "study", problems)


def choose_metrics(directory: Path) -> None:
    """Choose the columns of a typed sweep's table: metrics that a single run prints, metrics of policies first.

    A recipe's metrics are known only from the results of completed jobs. Metrics that the command names are kept, and
    the plan of a sweep without any result is not changed.
    """
    plan = read_object(directory / "study.json")
    if plan.get("metrics_from") != FROM_RESULTS:
        return
    results = [_result_of_job(directory, int(job["index"])) for job in plan["jobs"]]
    metrics = list(dict.fromkeys(name for result in results for name in _metrics_shown(result)))
    # metrics of policies come first, even if the result of another job has additional ones
    order = {name: index for index, name in enumerate(POLICY_METRICS)}
    metrics.sort(key=lambda name: order.get(name, len(order)))
    if metrics:
        write_json(directory / "study.json", plan | {"metrics": metrics, "primary": metrics[0]})


def _result_of_job(directory: Path, index: int) -> dict[str, Any]:
    """Return the result.json of a job's run; empty if the job is not complete."""
    job = read_object(directory / "jobs" / str(index) / "job.json")
    if job.get("status") != "completed" or not job.get("run"):
        return {}
    return read_object(directory / str(job["run"]) / "result.json")


def _metrics_shown(result: Mapping[str, Any]) -> list[str]:
    """Return the metrics that a single run with this result prints."""
    metrics = result.get("metrics") or {}
    policies = result.get("policies") or []
    last_policy = policies[-1]["metrics"] if policies else {}
    shown = [name for name in POLICY_METRICS if _has_value(last_policy.get(name))]
    shown += [name for name in result.get("primary") or [] if _has_value(metrics.get(name))]
    if shown:
        return shown
    measured = [name for name, value in metrics.items() if _has_value(value)]
    return measured[:MAX_UNNAMED_METRICS]


def _has_value(value: Any) -> bool:
    """Return True if a stored number, or the mean of a stored estimate, has a value."""
    number = value.get("mean") if isinstance(value, Mapping) else value
    return number is not None
