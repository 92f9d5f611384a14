"""A sweep that is typed on the command line instead of written as a study: which study it is, what its table shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_lab.config import schema
from rlhf_lab.config.overrides import literal
from rlhf_lab.config.study_settings import Study
from rlhf_lab.core.files import read_json, write_json

POLICY_METRICS = ("gold", "correct", "correct_greedy", "proxy", "win_rate", "kl", "tokens")
"""Of the last policy, in the order of a table. What no job has is left out."""
MAX_UNNAMED_METRICS = 6
"""Metrics shown of a result that neither evaluates a policy nor names its primary metrics."""
FROM_RESULTS, WRITTEN = "results", "study"


def typed_study(
    recipe: str | None, sweep: Mapping[str, list[Any]], settings: Mapping[str, Any], problems: list[str]
) -> Study | None:
    """The study of a typed sweep: compares the first swept key that is not the seed with its first value.

    Args:
        sweep: swept key → values.
        settings: `study.…` of the command line; they take the place of what is worked out here.
        problems: gets what is wrong with them.
    """
    if not sweep:
        typed = ", ".join(f"study.{key}={literal(value)}" for key, value in settings.items())
        problems.append(
            f"{typed}: {recipe or 'the command'} is one run, not a study; sweep a setting, for example seed=0,1,2, or "
            "leave this out"
        )
        return None
    first_key = next((key for key in sweep if key != "seed"), "seed")
    compare = settings.get("compare", first_key)
    values = {
        "question": f"How does {compare} change the outcome of {recipe}?",
        "sweep": dict(sweep),
        "compare": compare,
        "baseline": sweep.get(compare, [None])[0],
        "metrics": list(POLICY_METRICS),  # until the jobs have results
    }
    return schema.build(Study, {**values, **settings}, "study", problems)


def choose_metrics(folder: Path) -> None:
    """Choose the columns of a typed sweep's table: what a single run prints, policies' metrics before primary ones.

    Which metrics a recipe reports is known only from the results of completed jobs. Metrics that the command names
    stay, and so does the plan of a sweep that has no result yet.
    """
    plan = read_json(folder / "study.json") or {}
    if plan.get("metrics_from") != FROM_RESULTS:
        return
    results = [_result_of_job(folder, int(job["index"])) for job in plan["jobs"]]
    metrics = list(dict.fromkeys(name for result in results for name in _metrics_shown(result)))
    # policies first, also where another job's result names more
    metrics.sort(key=lambda name: POLICY_METRICS.index(name) if name in POLICY_METRICS else len(POLICY_METRICS))
    if metrics:
        write_json(folder / "study.json", plan | {"metrics": metrics, "primary": metrics[0]})


def _result_of_job(folder: Path, index: int) -> dict[str, Any]:
    """The result.json of a job's run; empty where the job has not completed."""
    job = read_json(folder / "jobs" / str(index) / "job.json") or {}
    if job.get("status") != "completed" or not job.get("run"):
        return {}
    return read_json(folder / str(job["run"]) / "result.json") or {}


def _metrics_shown(result: Mapping[str, Any]) -> list[str]:
    metrics = result.get("metrics") or {}
    policies = result.get("policies") or []
    last_policy = policies[-1]["metrics"] if policies else {}
    shown = [name for name in POLICY_METRICS if _has_value(last_policy.get(name))]
    shown += [name for name in result.get("primary") or [] if _has_value(metrics.get(name))]
    return shown or [name for name, value in metrics.items() if _has_value(value)][:MAX_UNNAMED_METRICS]


def _has_value(value: Any) -> bool:
    """Whether a stored number, or the mean of a stored estimate, is there."""
    return (value.get("mean") if isinstance(value, Mapping) else value) is not None
