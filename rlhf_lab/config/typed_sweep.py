"""A sweep that is typed on the command line instead of written as a study: which study it is, what its table shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_lab.config import schema
from rlhf_lab.config.overrides import literal
from rlhf_lab.config.sections import Study
from rlhf_lab.core.files import read_json, write_json

POLICY_METRICS = ("gold", "correct", "correct_greedy", "proxy", "win_rate", "kl", "tokens")
"""Of the last policy, in the order of a table. What no job has is left out."""
WITHOUT_A_CHOICE = 6
"""Metrics of results that neither evaluate a policy nor name those worth a line."""
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
        words = ", ".join(f"study.{key}={literal(value)}" for key, value in settings.items())
        problems.append(
            f"{words}: {recipe or 'the command'} is one run, not a study; sweep a setting, for example seed=0,1,2, or "
            "leave this out"
        )
        return None
    first = next((key for key in sweep if key != "seed"), "seed")
    compare = settings.get("compare", first)
    values = {
        "question": f"How does {compare} change the outcome of {recipe}?",
        "sweep": dict(sweep),
        "compare": compare,
        "baseline": sweep.get(compare, [None])[0],
        "metrics": list(POLICY_METRICS),  # until the jobs have results
    }
    return schema.build(Study, {**values, **settings}, "study", problems)


def choose_metrics(folder: Path) -> None:
    """Let the table of a typed sweep show what a single run prints: the metrics of policies, then the primary ones.

    Recipes report different things and a command does not say which: the results of the completed jobs do. Metrics
    that the command names stay, and so does the plan of a sweep without a result.
    """
    plan = read_json(folder / "study.json") or {}
    if plan.get("metrics_from") != FROM_RESULTS:
        return
    results = [_result(folder, int(job["index"])) for job in plan["jobs"]]
    metrics = list(dict.fromkeys(name for result in results for name in _shown(result)))
    # policies first, also where another job's result names more
    metrics.sort(key=lambda name: POLICY_METRICS.index(name) if name in POLICY_METRICS else len(POLICY_METRICS))
    if metrics:
        write_json(folder / "study.json", plan | {"metrics": metrics, "primary": metrics[0]})


def _result(folder: Path, index: int) -> dict[str, Any]:
    """What the run of a job found; empty where it has not completed."""
    job = read_json(folder / "jobs" / str(index) / "job.json") or {}
    done = job.get("status") == "completed" and job.get("run")
    return (read_json(folder / str(job["run"]) / "result.json") or {}) if done else {}


def _shown(result: Mapping[str, Any]) -> list[str]:
    metrics, policies = result.get("metrics") or {}, result.get("policies") or []
    last = policies[-1]["metrics"] if policies else {}
    shown = [name for name in POLICY_METRICS if _is_scored(last.get(name))]
    shown += [name for name in result.get("primary") or [] if _is_scored(metrics.get(name))]
    return shown or [name for name, value in metrics.items() if _is_scored(value)][:WITHOUT_A_CHOICE]


def _is_scored(value: Any) -> bool:
    """Whether a stored number or estimate is there."""
    return (value.get("mean") if isinstance(value, Mapping) else value) is not None
