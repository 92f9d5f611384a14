"""Reads a run directory: what ran, with what settings, every logged metric, every scored sample, and the result.

A run may have failed, been interrupted, or still be going. Whatever is missing or unreadable becomes a line in
`Run.problems`; only a folder that is no run at all is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from rlhf_lab.config.files import parse_yaml
from rlhf_lab.core import measures, seal
from rlhf_lab.core.errors import DataError, NumericError
from rlhf_lab.core.files import parse_json
from rlhf_lab.statistics.inference import Estimate

TRUE_REWARD = "the true reward of a simulated world"
"""What gold is where the data know it."""


@dataclass(frozen=True)
class Policy:
    """One evaluated policy of a run: its name and its metrics, e.g. "gold", "proxy", "kl", "tokens"."""

    name: str
    metrics: Mapping[str, Estimate]


@dataclass(frozen=True)
class Run:
    """A run directory in memory.

    Attributes:
        manifest: recipe, key, created, seconds, git_sha, versions, seed, needs, data.
        config: the resolved configuration, as written (YAML).
        metrics: one row per logged step: step, time, stage and metric columns. Empty if nothing was logged.
        evaluation: one row per scored sample: policy, prompt_id, prompt, response, proxy, gold, kl, tokens, …
        status: completed, failed, interrupted, paused (by the monitor), or "unfinished" when no result was written.
        policies: evaluated policies in the order of training; the first is the starting policy, the last the run's own.
        results: flat run-level numbers, e.g. "gold/best".
        cost: `seconds` (of the last attempt) and `peak_gib` of the stage, upstream not included, and what its training
            took (training/metrics.py).
        changed: files of a completed run that a report reads and that are missing or have changed since.
        problems: what was missing or unreadable, in words.
        notes: remarks of the run itself, in order.
    """

    path: Path
    manifest: Mapping[str, Any]
    config: str
    metrics: pd.DataFrame
    evaluation: pd.DataFrame
    status: str
    error: str | None
    seconds: float | None
    policies: tuple[Policy, ...]
    results: Mapping[str, Estimate]
    cost: Mapping[str, Estimate]
    changed: tuple[str, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def recipe(self) -> str:
        return str(self.manifest.get("recipe") or self.path.name)

    @property
    def has_gold(self) -> bool:
        """Whether replies have a gold reward: that of a simulated world, or of the model in `needs.gold`."""
        if "gold" in self.evaluation and bool(self.evaluation["gold"].notna().any()):
            return True
        stored = (policy.metrics.get("gold") for policy in self.policies)
        return any(gold is not None and not math.isnan(gold.mean) for gold in stored)

    @property
    def has_verified_answers(self) -> bool:
        """Whether responses have a final answer, or attempts an outcome, that is checked and right or wrong."""
        return any({"correct", "success"} & policy.metrics.keys() for policy in self.policies)

    @property
    def gold_source(self) -> str:
        """What gold is here, as the end of the sentence "gold is …"; empty where there is none."""
        if not self.has_gold:
            return ""
        needs = self.settings.get("needs") or {}
        if model := needs.get("gold"):
            return f"the score of the reward model {model}"
        if rubric := needs.get("judge"):
            judge = self.settings.get("judge") or {}
            who = " ".join(str(judge[key]) for key in ("kind", "model") if judge.get(key))
            return f"the grade of the judge {who} on the rubric {rubric}"
        return TRUE_REWARD

    @property
    def world(self) -> str:
        """The data whose truth this run's gold, correct answers and successes are measured by, e.g. "mini_hh".

        Empty where the run does not say. Sizes and seeds of a world do not count: they change prompts, not the measure.
        """
        name = str((self.manifest.get("data") or {}).get("name") or "")
        settings = self.settings.get("data") or {}
        if environment := settings.get("environment"):
            return f"{name} {environment}"
        if sources := settings.get("sources"):
            kinds = {str(source.get("kind")) for source in sources.values() if isinstance(source, Mapping)}
            return f"{name} of {', '.join(sorted(kinds))}"
        return name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The resolved config as values; empty when it is missing or unreadable."""
        try:
            values = parse_yaml(self.config)
        except yaml.YAMLError:
            return {}
        return values if isinstance(values, dict) else {}

    def metric(self, name: str) -> Estimate | None:
        """A run-level number, or else that metric of the run's own policy."""
        if name in self.cost:
            return self.cost[name]
        if name in self.results:
            return self.results[name]
        return self.policies[-1].metrics.get(name) if self.policies else None


def is_run(folder: Path) -> bool:
    return (folder / "manifest.json").is_file() or (folder / "result.json").is_file()


def read_run(folder: Path | str) -> Run:
    """Read a run directory, whole or partial."""
    folder = Path(folder)
    if not is_run(folder):
        raise DataError(f"{folder} is not a run directory: it has neither manifest.json nor result.json")
    problems: list[str] = []
    manifest = read_json(folder / "manifest.json", problems)
    result = read_json(folder / "result.json", problems)
    measures.recall(folder)
    config_file = folder / "config.yaml"
    metrics = read_rows(folder / "metrics.jsonl", problems)
    evaluation = _typed_evaluation(read_rows(folder / "evaluation.jsonl", problems))
    policies = []
    for number, row in enumerate(result.get("policies") or []):
        if isinstance(row, Mapping):
            name = str(row.get("name", f"policy {number}"))
            policies.append(Policy(name, estimates(row.get("metrics"), problems)))
    if changed := seal.changed(folder):
        problems.append(f"{', '.join(changed)} changed since it was sealed ({seal.NAME})")
    seconds = result.get("seconds", manifest.get("seconds"))
    return Run(
        path=folder,
        manifest=manifest,
        config=config_file.read_text(encoding="utf-8", errors="replace") if config_file.is_file() else "",
        metrics=metrics,
        evaluation=evaluation,
        status=str(result.get("status") or "unfinished"),
        error=result.get("error"),
        seconds=None if seconds is None else float(seconds),
        policies=tuple(policies),
        results=estimates(result.get("metrics"), problems),
        cost=estimates(_cost_values(result), problems),
        changed=tuple(changed),
        problems=tuple(problems),
        notes=tuple(str(note) for note in result.get("notes") or []),
    )


def _cost_values(result: Mapping[str, Any]) -> dict[str, Any]:
    stage_cost = {key: result[key] for key in ("seconds", "peak_gib") if result.get(key) is not None}
    return stage_cost | (result.get("training") or {})


def read_json(file: Path, problems: list[str]) -> dict[str, Any]:
    """A JSON object; empty, with a line in `problems`, when the file is missing or damaged."""
    if not file.is_file():
        problems.append(f"{file.name} is missing")
        return {}
    try:
        content = parse_json(file.read_text(encoding="utf-8"))
    except ValueError as fault:
        problems.append(f"{file.name} is not readable JSON ({fault})")
        return {}
    if not isinstance(content, dict):
        problems.append(f"{file.name} holds a {type(content).__name__}, not an object")
        return {}
    return content


def read_rows(file: Path, problems: list[str]) -> pd.DataFrame:
    """A JSONL file as a frame. A line that is not JSON (the last one of a killed process) is left out and noted."""
    if not file.is_file():
        return pd.DataFrame()
    rows, broken = [], []
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            broken.append(number)
    if broken:
        lines = ", ".join(map(str, broken[:5])) + (", …" if len(broken) > 5 else "")
        problems.append(f"{file.name}: {len(broken)} of {len(rows) + len(broken)} lines are cut off (line {lines})")
    return pd.DataFrame(rows)


def as_estimate(value: object) -> Estimate | None:
    """A number or a stored estimate as an Estimate (a bare number has n = 0 and no bounds); None for anything else."""
    if isinstance(value, Mapping) and "mean" in value:
        return Estimate.from_dict(value)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Estimate(math.nan, -math.inf, math.inf, 0, 0)
    if isinstance(value, bool | int | float):
        return Estimate(float(value), -math.inf, math.inf, 0, 0)
    return None


def estimates(values: object, problems: list[str]) -> dict[str, Estimate]:
    """Every numeric entry of a metrics object. An impossible estimate is refused and noted."""
    if not isinstance(values, Mapping):
        return {}
    parsed: dict[str, Estimate] = {}
    for name, value in values.items():
        try:
            estimate = as_estimate(value)
        except (NumericError, TypeError, ValueError) as fault:
            problems.append(f"result.json: {name} is refused: {fault}")
            continue
        if estimate is not None:
            parsed[str(name)] = estimate
    return parsed


def _typed_evaluation(rows: pd.DataFrame) -> pd.DataFrame:
    """Numeric columns as floats (null = unscored = NaN), text columns as strings."""
    if rows.empty:
        return rows
    for column in ("proxy", "gold", "kl", "tokens", "verbose", "garble", "ended"):
        if column in rows:
            rows[column] = pd.to_numeric(rows[column], errors="coerce").astype(float)
    for column in ("policy", "prompt", "response"):
        rows[column] = rows[column].fillna("").astype(str) if column in rows else ""
    rows["prompt_id"] = rows["prompt_id" if "prompt_id" in rows else "prompt"].astype(str)
    return rows
