"""Policies of a study: warning lights, rewards, KL and length by level, and responses side by side.

The runs of the completed jobs are read again, one after another, so that only the displayed values stay in memory.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pandas as pd

from rlhf_lab.results.gains import lights, policy_names, policy_of
from rlhf_lab.results.rundir import StoredRun, read_run
from rlhf_lab.results.samples import pick_samples
from rlhf_lab.results.wording import compact, metric_note, metric_title
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.studies.frame import RUN_SEED, Study
from rlhf_lab.studies.pairing import seeds

SHOWN = ("gold", "correct", "proxy", "kl", "tokens", "verbose", "garble", "ended")
"""Metrics of the table of last policies."""
SAMPLE_BYTES = 16_000
"""Maximum size of the samples on a page."""
MARKS = {"bad": "✕", "watch": "!", "unknown": "?", "good": "✓"}
"""State of a warning light → its mark in the table, worst state first."""


def policy_view(study: Study) -> dict[str, Any]:
    """Return what the page shows of the policies; every entry is empty for a study that evaluated none."""
    states: dict[str, dict[str, list[str]]] = {}
    seed = _seed_of_examples(study)
    examples: dict[str, tuple[bool, StoredRun]] = {}  # level → (True if its run has the common seed, run)
    for job in study.completed.to_dict("records"):
        run, level = read_run(job["run"]), job["level"]
        for light in lights(run):
            states.setdefault(level, {}).setdefault(light.name, []).append(light.state)
        if len(run.evaluation):
            has_seed = job[RUN_SEED] == seed
            if level not in examples or (has_seed and not examples[level][0]):
                examples[level] = (has_seed, run)
    level_examples = {study.label(level): examples[level][1] for level in study.levels if level in examples}
    return {
        "lights": _light_table(states, study),
        "last": last_policies(study),
        "samples": _side_by_side(level_examples),
    }


def _seed_of_examples(study: Study) -> Any:
    """Return the seed of the jobs whose responses stand side by side: the first one that most levels have.

    Jobs of different seeds answer different prompts. None without a completed job.
    """
    levels = study.completed.groupby(RUN_SEED, sort=False, dropna=False)["level"].nunique()
    return levels.idxmax() if len(levels) else None


def last_of_runs(policies: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the last policy of each run."""
    return policies.loc[policies.groupby("index")["position"].idxmax()]


def last_policies(study: Study) -> dict[str, Any] | None:
    """Return rewards, KL and length of the last policy of each level, mean over seeds."""
    rows = study.policies
    names = [name for name in SHOWN if name in rows and rows[name].notna().any()]
    if not names:
        return None
    last = last_of_runs(rows)
    table = []
    for level in study.levels:
        policies = last[last["level"] == level]
        means = [clustered_mean(policies[name].to_numpy(dtype=float), seeds(policies)) for name in names]
        table.append((study.label(level), len(policies), [compact(mean) for mean in means]))
    return {"columns": [(metric_title(name), metric_note(name)) for name in names], "rows": table}


def _light_table(states: dict[str, dict[str, list[str]]], study: Study) -> dict[str, Any] | None:
    """Return, per level and warning light, the number of jobs in which the light is on, and its worst state."""
    names = list(dict.fromkeys(name for lights_of_level in states.values() for name in lights_of_level))
    if not names:
        return None
    rows = []
    for level in (level for level in study.levels if level in states):
        cells = []
        for name in names:
            job_states = states[level].get(name, [])
            worst = next((state for state in MARKS if state in job_states), "unknown")
            on = sum(state in ("bad", "watch") for state in job_states)
            text = "unknown" if worst == "unknown" else f"{MARKS[worst]} {on} of {len(job_states)}"
            cells.append((worst, text))
        rows.append((study.label(level), cells))
    return {"columns": names, "rows": rows}


def _side_by_side(examples: dict[str, StoredRun]) -> dict[str, Any]:
    """Return responses of one job's last policy per level, after those of the first job's starting policy."""
    if not examples:
        return {"policies": [], "prompts": [], "total": 0}
    first_run = next(iter(examples.values()))
    names = policy_names(first_run)
    shown = [(run.evaluation, policy_of(run), level) for level, run in examples.items()]
    if len(names) > 1:  # otherwise its single policy is both the first and the last
        shown.insert(0, (first_run.evaluation, names[0], f"start: {names[0]}"))
    responses = [rows[rows["policy"] == policy].assign(policy=label) for rows, policy, label in shown]
    # Combine them as if one run had evaluated a policy per level.
    combined = dataclasses.replace(first_run, evaluation=pd.concat(responses, ignore_index=True), policies=())
    return pick_samples(combined, budget=SAMPLE_BYTES)
