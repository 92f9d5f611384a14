"""What the policies of a study are like: hacking lights, rewards, KL and length by level, replies side by side.

The runs of the completed jobs are read once more, one after the other, so that only what is shown stays in memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pandas as pd

from rlhf_lab.reports.study.job_pairs import job_pairs
from rlhf_lab.results.gains import lights, policy_names, prompt_means
from rlhf_lab.results.rundir import Run, read_run
from rlhf_lab.results.samples import pack, pick_samples
from rlhf_lab.results.wording import compact, metric_note, metric_title
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.studies.frame import Study
from rlhf_lab.studies.pairing import seeds

SHOWN = ("gold", "correct", "proxy", "kl", "tokens", "verbose", "garble", "ended")
SAMPLE_BYTES = 16_000
MARKS = {"bad": "✕", "watch": "!", "unknown": "?", "good": "✓"}
"""States of a light, worst first."""


def policy_view(study: Study) -> dict[str, Any]:
    """What the template shows of the policies; every part is empty for a study that evaluated none."""
    states: dict[str, dict[str, list[str]]] = {}
    examples: dict[str, Run] = {}
    means: dict[int, pd.DataFrame] = {}
    for job, run in _runs(study):
        level = job["level"]
        for light in lights(run):
            states.setdefault(level, {}).setdefault(light.name, []).append(light.state)
        if len(run.evaluation):
            examples.setdefault(level, run)
            last = run.evaluation[run.evaluation["policy"] == policy_names(run)[-1]]
            means[job["index"]] = prompt_means(last, study.metrics)
    samples = _side_by_side({study.label(level): examples[level] for level in study.levels if level in examples})
    return {
        "lights": _light_table(states, study),
        "last": last_policies(study),
        "samples": samples,
        "samples_json": pack(samples),
        "pairs": (pairs := job_pairs(study, means)),
        "pairs_json": pack(pairs),
    }


def _runs(study: Study) -> Iterator[tuple[dict[Any, Any], Run]]:
    for job in study.completed.to_dict("records"):
        yield job, read_run(job["run"])


def last_policies(study: Study) -> dict[str, Any] | None:
    """Rewards, KL and length of the last policy of each level, mean over seeds."""
    rows = study.policies
    names = [name for name in SHOWN if name in rows and rows[name].notna().any()]
    if not names:
        return None
    last = rows.loc[rows.groupby("index")["position"].idxmax()]
    table = []
    for level in study.levels:
        part = last[last["level"] == level]
        means = [clustered_mean(part[name].to_numpy(dtype=float), seeds(part)) for name in names]
        table.append((study.label(level), len(part), [compact(mean) for mean in means]))
    return {"columns": [(metric_title(name), metric_note(name)) for name in names], "rows": table}


def _light_table(states: dict[str, dict[str, list[str]]], study: Study) -> dict[str, Any] | None:
    """Per level and light: in how many jobs it is on, with the worst state among them."""
    names = list(dict.fromkeys(name for found in states.values() for name in found))
    if not names:
        return None
    rows = []
    for level in (level for level in study.levels if level in states):
        cells = []
        for name in names:
            found = states[level].get(name, [])
            worst = next((state for state in MARKS if state in found), "unknown")
            on = sum(state in ("bad", "watch") for state in found)
            cells.append((worst, "unknown" if worst == "unknown" else f"{MARKS[worst]} {on} of {len(found)}"))
        rows.append((study.label(level), cells))
    return {"columns": names, "rows": rows}


def _side_by_side(examples: dict[str, Run]) -> dict[str, Any]:
    """Replies of one job's last policy per level, after those of the policy that the first job starts from.

    Args:
        examples: what a level is called → one of its runs.
    """
    if not examples:
        return {"policies": [], "prompts": [], "total": 0}
    first = next(iter(examples.values()))
    start = first.evaluation[first.evaluation["policy"] == policy_names(first)[0]]
    parts = [start.assign(policy=f"start: {policy_names(first)[0]}")] if len(policy_names(first)) > 1 else []
    for level, run in examples.items():
        rows = run.evaluation
        parts.append(rows[rows["policy"] == policy_names(run)[-1]].assign(policy=level))
    together = dataclasses.replace(first, evaluation=pd.concat(parts, ignore_index=True), policies=())
    return pick_samples(together, budget=SAMPLE_BYTES)
